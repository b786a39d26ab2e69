"""The runs behind the paper's tables and figures. `full` is for a GPU: tables at the paper's size, and of the figures
what they need, some of it shortened. `quick` is a stand-in for 15 minutes on two cores. Both say so wherever their
numbers appear."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ibpwf.lab.experiments.paper import targets
from ibpwf.lab.experiments.presets import preset
from ibpwf.lab.experiments.reproduction.experiment import RunSpec

MNIST = ("split-mnist", "permuted-mnist")

# Split CIFAR-10 with our settings: the paper's 160 epochs a task, for every method and seed, would take a GPU a day.
_FULL_PRESETS = {"split-cifar10": "default"}
_STAND_INS = {"split-mnist": "split-digits", "permuted-mnist": "permuted-digits", "split-cifar10": "split-digits"}
_QUICK_TASKS = {"permuted-digits": 3}
_QUICK: dict[str, dict[str, Any]] = {
    "rtf": {"iterations": 60},
    "gem": {"epochs": 5},
    "vcl": {"epochs": 4, "likelihood_epochs": 2},
    "vcl-coreset": {"epochs": 4, "likelihood_epochs": 2, "coreset_epochs": 10},
}

# Long enough that IBP-WF has learnt its stand-in: after 15 + 5 epochs it answers 82 % of permuted digits, after
# 40 + 20 more than 95 %. Const-WF has the same network and batches, and trains as long as both of IBP-WF's phases.
_QUICK_LENGTHS: dict[tuple[str, str], dict[str, Any]] = {
    ("permuted-digits", "ibpwf"): {"epochs": 40, "finetune_epochs": 15},
    ("permuted-digits", "const-wf"): {"epochs": 55, "batch_size": 64},
    ("split-digits", "const-wf"): {"epochs": 30, "hidden": [100]},
}


def real_changes(benchmark: str, method: str, named: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes that are any: the middle of a sweep, which has the preset's value, is then the run of the preset."""
    usual = preset(benchmark, named, method).make_settings(method).to_json()
    return {name: value for name, value in changes.items() if name not in usual or usual[name] != value}


def full_run(
    benchmark: str, method: str = "ibpwf", *, tasks: int | None = None, models: bool | None = None, **changes: Any
) -> RunSpec:
    """The paper's run; models of IBP-WF are kept for the figures that ask them something."""
    named = _FULL_PRESETS.get(benchmark, "paper")
    kept = method == "ibpwf" and not changes if models is None else models
    return RunSpec(benchmark, method, named, real_changes(benchmark, method, named, changes), tasks, kept)


def quick_run(benchmark: str, method: str = "ibpwf", **changes: Any) -> RunSpec:
    """Its stand-in on scikit-learn's digits, which need no download."""
    scenario = _STAND_INS[benchmark]
    changes = real_changes(scenario, method, "quick", changes)
    shrunk = {**_QUICK.get(method, {}), **_QUICK_LENGTHS.get((scenario, method), {})}
    return RunSpec(
        scenario,
        method,
        "quick",
        {**shrunk, **changes},
        _QUICK_TASKS.get(scenario),
        models=method == "ibpwf" and not changes,
        stands_for=benchmark,
    )


def in_table(table: str) -> list[tuple[str, str]]:
    """Benchmark and method of every row of a table but the VAE's, which is no continual learner."""
    pairs = [(t.benchmark, t.method) for t in targets() if t.table == table and t.method != "vae"]
    return list(dict.fromkeys(pairs))


# Uncertainty is asked of MNIST itself: clothes and digits must have the same size.
QUICK_MNIST = RunSpec(
    "split-mnist",
    preset="quick",
    changes={"epochs": 3, "finetune_epochs": 1, "batch_size": 64, "inference": "gaussian"},
    models=True,
)
# Some two minutes of two cores, for responses that can be looked at; it has learnt little.
QUICK_CIFAR = RunSpec(
    "split-cifar10",
    preset="quick",
    changes={
        "alpha": 20.0,
        "max_factors": None,
        "epochs": 4,
        "finetune_epochs": 0,
        "batch_size": 64,
        "augment": "none",
    },
    tasks=2,
    examples=200,
    models=True,
)
# Figures of many runs are shortened, so that all of them take about ten minutes of one large GPU.
_SHORT: Mapping[str, Mapping[str, Any]] = {
    "split-mnist": {"epochs": 5, "finetune_epochs": 2},
    "permuted-mnist": {"tasks": 5, "epochs": 3, "finetune_epochs": 1},
}
TEN_PERMUTATIONS = full_run("permuted-mnist")
CIFAR = full_run("split-cifar10")
# Grids that hold a whole decade from a moderate α up, and less than that.
_ALPHAS: Mapping[str, tuple[float, ...]] = {
    "split-mnist": (10.0, 30.0, 100.0, 200.0, 400.0, 1000.0),
    "permuted-mnist": (10.0, 100.0, 300.0, 700.0, 1000.0),
}
_QUICK_ALPHAS = (5.0, 50.0, 150.0, 500.0)
_KAPPAS: Mapping[str, tuple[float, ...]] = {
    "split-mnist": (0.1, 0.3, 0.5, 0.7, 0.9, 0.99),
    "permuted-mnist": (0.1, 0.6, 0.9, 0.99),
}
_QUICK_KAPPAS: Mapping[str, tuple[float, ...]] = {"split-mnist": (0.2, 0.5, 0.99), "permuted-mnist": (0.2, 0.6, 0.99)}
# (ν, ω): about what IBP-WF ends with, then with ν = α, fewer and more per task.
_CONSTANT: Mapping[str, tuple[tuple[int, int], ...]] = {
    "split-mnist": ((100, 20), (200, 40), (200, 100)),
    "permuted-mnist": ((350, 50), (700, 100)),
}
_CONSTANT_LENGTH: Mapping[str, Mapping[str, Any]] = {
    "split-mnist": {},
    "permuted-mnist": {"tasks": 5, "epochs": 6, "finetune_epochs": 3, "batch_size": 64},
}
_QUICK_CONSTANT = ((25, 5), (50, 25))


def alpha_runs() -> dict[str, tuple[RunSpec, ...]]:
    # A dictionary that may grow: the paper's K would cut off what a large α asks for.
    full = [full_run(b, max_factors=None, alpha=value, **_SHORT[b]) for b in MNIST for value in _ALPHAS[b]]
    quick = [quick_run(b, alpha=value) for b in MNIST for value in _QUICK_ALPHAS]
    return {"full": tuple(full), "quick": tuple(quick)}


def kappa_runs() -> dict[str, tuple[RunSpec, ...]]:
    # With the dictionary of the sweep of α, so that both have their middle in common.
    full = [full_run(b, max_factors=None, kappa=value, **_SHORT[b]) for b in MNIST for value in _KAPPAS[b]]
    quick = [quick_run(b, kappa=value) for b in MNIST for value in _QUICK_KAPPAS[b]]
    return {"full": tuple(full), "quick": tuple(quick)}


def constant_runs() -> dict[str, tuple[RunSpec, ...]]:
    """Const-WF trains as long as IBP-WF, both of its phases together, in batches of the same size."""
    full, quick = [], []
    for b in MNIST:
        length = dict(_CONSTANT_LENGTH[b])
        full.append(full_run(b, **length))
        if length:
            length["epochs"] += length.pop("finetune_epochs")
        full += [full_run(b, "const-wf", nu=nu, omega=omega, **length) for nu, omega in _CONSTANT[b]]
        quick += [quick_run(b), *(quick_run(b, "const-wf", nu=nu, omega=omega) for nu, omega in _QUICK_CONSTANT)]
    return {"full": tuple(full), "quick": tuple(quick)}
