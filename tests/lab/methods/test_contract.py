"""What every method owes: it learns, answers, goes on after loading, leaves nothing of an abandoned task behind."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from digit_tasks import same_state

from ibpwf.errors import InputError
from ibpwf.lab.data.tasks import Scenario
from ibpwf.lab.experiments.presets import settings_type, supports
from ibpwf.lab.experiments.run_config import RunConfig
from ibpwf.lab.experiments.seed_training import new_learner
from ibpwf.lab.methods import method_named, own_methods
from ibpwf.learner import Learner, load

SMALL: dict[str, Any] = {
    "hidden": (16,),
    "epochs": 3,
    "finetune_epochs": 1,
    "iterations": None,
    "likelihood_epochs": 1,
    "coreset_epochs": 1,
    "coreset_size": 8,
    "memory_size": 24,
    "alpha": 10.0,
    "nu": 10,
    "omega": 4,
    "latent": 4,
    "samples": 4,
}
QUICK: dict[str, dict[str, Any]] = {
    "vcl": {"epochs": 30, "learning_rate": 3e-3},
    "vcl-coreset": {"epochs": 30, "learning_rate": 3e-3},
    "ibnn": {"hidden": (64,), "epochs": 30, "learning_rate": 3e-3, "alpha": 40.0, "likelihood_epochs": 5},
    "rtf": {"iterations": 200},
    "separate-turns": {"width": 4, "epochs": 3, "learning_rate": 0.01},
}
"""What a method needs, beyond its quick preset, to learn two tasks of digits well and soon."""

_RANGES: list[tuple[str, list[Any]]] = [
    ("epochs batch_size memory_size coreset_epochs iterations patch_filters", [0, -1, 2.5]),
    ("latent samples adapter fisher_samples output_samples nu width patch_grid random_features", [0]),
    ("learning_rate temperature generator_weight sigma alpha patch_epsilon", [0.0, -1.0, math.nan]),
    ("prior_std damping strength_std ridge router_ridge", [0.0, -1.0]),
    ("coefficient margin coreset_kl_weight", [-0.1, math.nan]),
    ("likelihood_epochs omega", [-1]),
    ("gamma", [-0.5, 1.5]),
    ("shrinkage", [0.0, 1.5, -0.1]),
    ("turns", [2]),
    ("hidden side_hidden patch_sizes", [(50, 0), 50]),
    ("network optimizer augment precision heads infer_task selection inference features router_precision", ["best"]),
    ("mirror", [1]),
]
WRONG = {field: values for fields, values in _RANGES for field in fields.split()}
PAIRS = [(name, setting) for name in own_methods() for setting in method_named(name).answers]


@dataclass(frozen=True)
class Kind:
    """A method, trained for a setting."""

    name: str
    setting: str
    stream: Scenario

    def config(self) -> RunConfig:
        """As small as it gets."""
        known = settings_type(self.name).model_fields
        small = {name: value for name, value in SMALL.items() if name in known and _fits(known[name], value)}
        return RunConfig(self.stream.name, method=self.name, preset="quick", changes=small, device="cpu")

    def learner(self, seed: int = 3) -> Learner:
        config = self.config()
        answers = next(each for each in config.trainings() if self.setting in each)
        return new_learner(config, seed, self.stream, answers)

    def taught(self, tasks: int, seed: int = 3) -> Learner:
        learner = self.learner(seed)
        for task in self.stream[:tasks]:
            learner.learn(task.train.x, task.train.y, task=task.name)
        return learner


def _fits(field: Any, value: Any) -> bool:
    return value is not None or type(None) in getattr(field.annotation, "__args__", ())


@pytest.fixture(scope="module", params=PAIRS, ids=lambda pair: "-".join(pair))
def kind(request: pytest.FixtureRequest) -> Kind:
    name, setting = request.param
    scenario = "split-digits" if supports(name, "split-digits") else "split-cifar10"
    stream = RunConfig(scenario, method=name, preset="quick", tasks=3, examples=40).stream(3)
    return Kind(name, setting, stream)


@pytest.fixture(scope="module")
def taught(kind: Kind) -> Learner:
    return kind.taught(2)


@pytest.fixture(scope="module")
def never_stopped(kind: Kind) -> Learner:
    return kind.taught(3)


@pytest.mark.parametrize("name", own_methods())
def test_it_learns_one_task_after_another_with_the_task_given(name: str) -> None:
    config = RunConfig(
        "split-digits", method=name, preset="quick", changes=QUICK.get(name, {}), tasks=2, device="cpu"
    )
    stream = config.stream(3)
    learner = new_learner(config, 3, stream, config.trainings()[0])
    for number, task in enumerate(stream):
        learner.learn(task.train.x, task.train.y, task=task.name)
        right = learner.predict(task.test.x, task=number).labels == task.test.y
        assert float(right.double().mean()) > 0.9


def test_answers_are_labels_it_has_learned_and_probabilities_sum_to_one(kind: Kind, taught: Learner) -> None:
    task = kind.stream[1]
    given = taught.predict(task.test.x, **({"task": 1} if kind.setting == "task" else {}))
    assert given.probabilities.sum(1).sub(1).abs().max() < 1e-4
    assert set(given.labels.tolist()) <= {0, 1, 2, 3}


def test_stored_and_loaded_it_answers_and_goes_on_with_the_same_bits(
    kind: Kind, taught: Learner, never_stopped: Learner, tmp_path: Path
) -> None:
    taught.save(tmp_path / "model")
    loaded = load(tmp_path / "model", device="cpu")
    assert isinstance(loaded, Learner)
    task = kind.stream[2]
    loaded.learn(task.train.x, task.train.y, task=task.name)
    assert same_state(loaded.method, never_stopped.method)


@pytest.mark.parametrize("before", [0, 2])
def test_a_task_that_is_broken_off_leaves_nothing_behind(
    kind: Kind, taught: Learner, never_stopped: Learner, before: int
) -> None:
    learner, task = kind.taught(before), kind.stream[before]
    steps = learner.learn_steps(task.train.x, task.train.y, task=task.name)
    for _ in range(5):
        next(steps, None)
        if len(learner.tasks) > before:  # learned in closed form, without a step
            return
    steps.close()
    assert len(learner.tasks) == before
    assert same_state(learner.method, (taught if before else kind.learner()).method)
    rest = kind.stream[before:] if before else kind.stream[:2]
    for task in rest:
        learner.learn(task.train.x, task.train.y, task=task.name)
    assert same_state(learner.method, (never_stopped if before else taught).method)


def test_memory_and_numbers_are_counted_and_another_seed_is_another_method(kind: Kind, taught: Learner) -> None:
    method = taught.method
    assert method.parameter_count() > 0
    assert all(type(size) is int and size >= 0 for size in method.memory().values())
    assert not same_state(kind.taught(1, seed=4).method, kind.taught(1).method)


@pytest.mark.parametrize("name", own_methods())
def test_settings_out_of_range_are_rejected_by_name(name: str) -> None:
    for field in WRONG.keys() & settings_type(name).model_fields.keys():
        for wrong in WRONG[field]:
            with pytest.raises(InputError, match=field):
                settings_type(name)().replace(**{field: wrong})


def test_every_setting_of_a_baseline_is_tried() -> None:
    fields = {field for name in own_methods() if name != "ibpwf" for field in settings_type(name).model_fields}
    assert fields - WRONG.keys() == set()
