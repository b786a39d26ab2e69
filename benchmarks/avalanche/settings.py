"""What both libraries are run with, and how a setting of ours is said in Avalanche's terms.

Only the standard library is needed: both interpreters read this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

# As Avalanche's documentation shows it (its SplitMNIST, torch's default Adam, its default metrics and progress), or
# with everything left out that it can do without (tensors in memory, no metrics) and torch's fused Adam.
WAYS = ("documented", "leanest")


@dataclass(frozen=True)
class Training:
    """What all methods share: a perceptron with a head of two outputs per task, trained with Adam."""

    hidden: tuple[int, ...] = (400, 400)
    epochs: int = 1
    batch_size: int = 128
    learning_rate: float = 1e-3
    tasks: int = 5

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "hidden": list(self.hidden)}


@dataclass(frozen=True)
class Entry:
    """One line of the comparison: our method and settings, their plugin, and what remains different."""

    ours: str
    theirs: str
    settings: Mapping[str, float] = field(default_factory=dict)
    mapping: str = "nothing to convert"
    difference: str = "none"
    variant_of: str | None = None  # another entry, whose runs of ours this one is compared with


ENTRIES: dict[str, Entry] = {
    "adam": Entry("adam", "Naive"),
    "ewc": Entry(
        "ewc",
        "EWCPlugin",
        {"coefficient": 100.0},
        mapping="ewc_lambda = coefficient × batch_size; neither has a factor ½",
        difference=(
            "Theirs squares gradients averaged over a mini-batch, with the data's labels, on all examples; that is "
            "about 1/batch_size of the Fisher information, hence the factor. Ours squares each example's own "
            "gradient, for every label weighted by its probability, on 1,024 examples."
        ),
    ),
    "ewc-one-by-one": Entry(
        "ewc",
        "EWCPlugin, gradients of 1,024 examples one by one",
        {"coefficient": 100.0},
        mapping="ewc_lambda = coefficient",
        difference="Theirs takes the data's labels, ours every label weighted by its probability.",
        variant_of="ewc",
    ),
    "si": Entry(
        "si",
        "SynapticIntelligencePlugin, with its copies made",
        {"coefficient": 300.0, "damping": 1.0},
        mapping="si_lambda = 2 × coefficient (theirs has a factor ½), eps = damping",
        difference=(
            "Theirs cuts importances off at 0.001, lets them be negative, and counts the penalty's own gradient "
            "in the path; ours does none of these, as in the paper. With damping 1 hardly any reaches the cut."
        ),
    ),
    "si-as-shipped": Entry(
        "si",
        "SynapticIntelligencePlugin, as shipped",
        {"coefficient": 300.0, "damping": 1.0},
        mapping="as above",
        difference=(
            "On a CPU the shipped plugin keeps views of the parameters where it means to keep copies: the path and "
            "the penalty are always 0, and it is fine-tuning. On a GPU its `.cpu()` makes the copies."
        ),
        variant_of="si",
    ),
    "lwf": Entry(
        "lwf",
        "LwFPlugin",
        {"coefficient": 1.0, "temperature": 2.0},
        mapping="alpha = coefficient × temperature² (ours has the factor T² of Hinton et al.), same temperature",
    ),
    "rehearsal": Entry(
        "rehearsal",
        "ReplayPlugin",
        {"memory_size": 400},
        mapping="mem_size = memory_size, batch_size_mem = batch_size",
        difference=(
            "Theirs takes the mean over new and stored examples together, ours adds the two means: twice as large, "
            "which Adam does not see. Ours keeps as many examples of each class, theirs a random choice."
        ),
    ),
    "gem": Entry(
        "gem",
        "GEMPlugin",
        {"memory_size": 400, "margin": 0.5},
        mapping="memory_strength = margin, patterns_per_experience = 2 × memory_size / tasks",
        difference=(
            "Ours shares 400 examples among the tasks so far; theirs keeps 160 of each, so that both go through as "
            "many stored examples in all. Theirs adds 0.001 to the diagonal of the quadratic programme."
        ),
    ),
}


def avalanche_arguments(name: str, training: Training) -> dict[str, float]:
    """The settings of an entry as arguments of Avalanche's plugin."""
    settings = ENTRIES[name].settings
    if name == "ewc-one-by-one":
        return {"ewc_lambda": settings["coefficient"]}
    match ENTRIES[name].ours:
        case "ewc":
            return {"ewc_lambda": settings["coefficient"] * training.batch_size}
        case "si":
            return {"si_lambda": 2 * settings["coefficient"], "eps": settings["damping"]}
        case "lwf":
            return {
                "alpha": settings["coefficient"] * settings["temperature"] ** 2,
                "temperature": settings["temperature"],
            }
        case "rehearsal":
            return {"mem_size": int(settings["memory_size"])}
        case "gem":
            patterns = 2 * int(settings["memory_size"]) // training.tasks
            return {"patterns_per_experience": patterns, "memory_strength": settings["margin"]}
        case _:
            return {}
