"""What a classifier is built of: settings and a learner, from its parameters and a recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import nn

from ibpwf.errors import InputError
from ibpwf.estimator.recipes import HELD_OUT
from ibpwf.inference.gaussian import GroupedInference
from ibpwf.learner import Learner
from ibpwf.preprocessing import PIXEL_MEAN, PIXEL_STD
from ibpwf.settings import Settings

DEFAULTS: dict[str, Any] = {
    "heads": "per-task",  # nobody knows how many classes a later task will have
    "init": "pretrained",  # from torch's own initial weights: at full rank, few rows are learnt in few steps
    "inference": {"kind": "shared-gaussian", "features": "random"},
}
"""What the estimator sets other than `Settings`, whose defaults follow the paper."""

RIDGE = 0.2
"""What Gaussians have in an estimator where nothing else is said."""


def make_settings(given: Mapping[str, Any] | None, recipe: Mapping[str, Any], **own: Any) -> Settings:
    """The settings that tasks are learned with: those `given`, the parameters that the classifier has itself, and
    what its recipe has for those that are left to it."""
    chosen = given or {}
    if chosen.get("base") == "frozen":
        raise InputError(
            "base is 'frozen', but a classifier's network is new and knows nothing worth keeping; leave it out, "
            "or use Learner with a trained network."
        )
    left = {name: value for name, value in own.items() if value == "auto"}
    asked = {name: own[name] for name in own if name not in left}
    lower = Settings.merged(DEFAULTS, left, recipe)
    kind = {name: value for name, value in chosen.items() if name in ("inference", "inference.kind")}
    tree = Settings.merged(lower, asked, kind)
    if "features" not in Settings(inference=tree["inference"]).inference.model_fields_set:
        tree = Settings.merged(tree, {"inference.features": lower["inference"]["features"]})  # of any kind
    tree = Settings.merged(tree, {name: value for name, value in chosen.items() if name not in kind})
    said = Settings(inference=tree["inference"]).inference
    usual: dict[str, Any] = {}
    if isinstance(said, GroupedInference) and "ridge" not in said.model_fields_set:
        usual["inference.ridge"] = RIDGE
    if said.has_class_scores:
        usual["validation_fraction"] = tree.get("validation_fraction", HELD_OUT)
    found = Settings(**Settings.merged(tree, usual))
    if found.inference.features.reads_pixels and found.input.scale is None:
        found = found.replace(**{"input.mean": (PIXEL_MEAN,), "input.std": (PIXEL_STD,)})
    return found


def make_learner(settings: Settings, network: Callable[[], nn.Module], seed: Any, device: str) -> Learner:
    """A learner of a new network; `seed` as scikit-learn takes it."""
    if not isinstance(seed, (int, np.integer)):
        seed = int(check_random_state(seed).randint(np.iinfo(np.int32).max))
    with torch.random.fork_rng(devices=[]):  # torch's own random numbers go on as if nothing had been drawn
        torch.manual_seed(int(seed))
        net = network()
    return Learner(net, settings, seed=int(seed), device=device, distributed="auto")


def settings_of_next_task(built: Settings, begun: Settings, wanted: Settings) -> Settings:
    """Those `wanted`, with what the first task was `built` with; that may not be asked for otherwise than when it was
    `begun`."""
    found = begun.fixed_difference(wanted)
    if found is not None:
        check_as_before(*found)
    return wanted.with_fixed_of(built)


def check_as_before(name: str, old: Any, new: Any) -> None:
    """Refuse another value for what all tasks have in common."""
    if old != new:
        raise InputError(
            f"{name} is {new!r}, but the first task was learnt with {old!r}, which every task reads; set it back, or "
            "call fit to start anew."
        )


ClassWeight = str | Mapping[Any, float] | Sequence[tuple[Any, float]] | None
"""Weights of classes: "balanced", or labels with their weights."""


def plain_weights(class_weight: ClassWeight) -> Any:
    """As JSON, in which a mapping's keys would be texts."""
    if class_weight is None or isinstance(class_weight, str):
        return class_weight
    pairs = dict(class_weight).items()
    return [[label.item() if hasattr(label, "item") else label, float(weight)] for label, weight in pairs]


def class_weights(class_weight: ClassWeight, labels: Sequence[Any], counts: Any) -> Any:
    """How often a row of each label comes, where there are so many of each; None where all count the same."""
    if class_weight is None:
        return None
    try:
        if class_weight == "balanced":
            return counts.sum() / (np.count_nonzero(counts) * np.maximum(counts, 1).astype(np.float64))
        if not isinstance(class_weight, str):
            weights = dict(class_weight)
            return np.array([float(weights.get(label, 1.0)) for label in labels])
    except (TypeError, ValueError):
        pass
    raise InputError(f"class_weight is {class_weight!r}; give 'balanced', or a mapping from labels to numbers.")


def has_class_scores(learner: Learner) -> bool:
    """Whether every class of every task is looked at to infer a task, by a router, or by Gaussians of tasks and
    classes; anything else cannot tell what is new."""
    inference = learner.method.inference
    if inference.has_class_scores:
        if not learner.settings.validation_fraction:
            raise InputError(
                "validation_fraction is 0, but a classifier with a router detects novel inputs by rows it did not "
                f"learn from; give a share, such as {HELD_OUT}."
            )
        return True
    if not isinstance(inference, GroupedInference):
        raise InputError(
            f"inference is {learner.settings.inference.kind_name()}, which has no novelty score; a classifier "
            "needs router, gaussian or shared-gaussian. Use Learner for any other."
        )
    return False


def gaussians(learner: Learner) -> GroupedInference:
    inference = learner.method.inference
    assert isinstance(inference, GroupedInference)
    return inference
