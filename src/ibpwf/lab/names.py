"""What the laboratory's commands know by name, told without loading torch: a mistyped name is refused at once."""

from __future__ import annotations

from ibpwf import registry
from ibpwf.errors import unknown

METHODS = (
    *("sgd", "adam", "adagrad", "l2", "ewc", "online-ewc", "si", "mas", "lwf", "vcl", "ibnn"),
    *("rehearsal", "vcl-coreset", "gem", "dgr", "rtf"),
    *("pnn", "side-tuning", "separate", "separate-turns", "joint", "slda", "ridge", "gen-classifier", "router"),
    *("const-wf", "ibpwf"),
)
"""Our methods, in the order of the paper's tables."""

PRESETS = ("paper", "default", "quick", "best")
NO_PRESET = "none"

EXPERIMENTS = (
    *("table1", "table2", "table3", "table4", "figure-uncertainty-class", "figure-uncertainty-task"),
    *("figure-factors", "figure-filters", "figure-const-wf", "figure-alpha", "figure-kappa", "figure-tsne"),
)
"""What `ibpwf reproduce` can reproduce."""


def scenarios() -> list[str]:
    """Our scenarios: two for each data set."""
    from ibpwf.lab.data.catalog import DATA_SETS

    return [f"{kind}-{name}" for name in DATA_SETS for kind in ("split", "permuted")]


def check_scenario(name: str) -> None:
    _check(registry.SCENARIOS, name, scenarios())


def check_method(name: str) -> None:
    while name != (inner := registry.unwrapped(registry.METHODS, name)[0]):
        name = inner
    _check(registry.METHODS, name, METHODS)


def check_preset(name: str) -> None:
    if name not in (*PRESETS, NO_PRESET):
        raise unknown("preset", name, PRESETS)


def _check(group: str, name: str, ours: list[str] | tuple[str, ...]) -> None:
    """Ours, an installed package's, or `module:Name`, which is looked for when it is needed."""
    known = registry.names(group, dict.fromkeys(ours))
    if name not in known and ":" not in name:
        raise unknown(registry.KINDS[group], name, known)
