"""What every method owes: it answers, goes on after loading, leaves nothing of an abandoned task behind."""

from __future__ import annotations

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
PAIRS = [(name, setting) for name in own_methods() for setting in method_named(name).answers]


@dataclass(frozen=True)
class Kind:
    """A method, trained for a setting."""

    name: str
    setting: str
    stream: Scenario

    def config(self) -> RunConfig:
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


def test_answers_are_labels_it_has_learned_and_probabilities_sum_to_one(kind: Kind, taught: Learner) -> None:
    task = kind.stream[1]
    given = taught.predict(task.test.x, **({"task": 1} if kind.setting == "task" else {}))
    assert given.probabilities.sum(1).sub(1).abs().max() < 1e-4
    assert set(given.labels.tolist()) <= {0, 1, 2, 3}


def test_stored_and_loaded_it_answers_and_goes_on_with_the_same_bits(
    kind: Kind, taught: Learner, tmp_path: Path
) -> None:
    taught.save(tmp_path / "model")
    loaded = load(tmp_path / "model", device="cpu")
    assert isinstance(loaded, Learner)
    never_stopped, task = kind.taught(3), kind.stream[2]
    loaded.learn(task.train.x, task.train.y, task=task.name)
    assert same_state(loaded.method, never_stopped.method)


def test_a_task_that_is_broken_off_leaves_nothing_behind(kind: Kind, taught: Learner) -> None:
    learner, task = kind.taught(2), kind.stream[2]
    steps = learner.learn_steps(task.train.x, task.train.y, task=task.name)
    for _ in range(3):
        next(steps, None)
        if len(learner.tasks) == 3:  # learned in closed form, without a step
            return
    steps.close()
    assert len(learner.tasks) == 2
    assert same_state(learner.method, taught.method)


def test_memory_and_numbers_are_counted_and_another_seed_is_another_method(kind: Kind, taught: Learner) -> None:
    method = taught.method
    assert method.parameter_count() > 0
    assert all(type(size) is int and size >= 0 for size in method.memory().values())
    assert not same_state(kind.taught(1, seed=4).method, kind.taught(1).method)


def test_settings_out_of_range_are_rejected_by_name(kind: Kind) -> None:
    known = settings_type(kind.name).model_fields
    for name in (
        "epochs",
        "batch_size",
        "learning_rate",
        "coefficient",
        "memory_size",
        "ridge",
        "temperature",
        "nu",
        "latent",
        "margin",
    ):
        if name in known:
            with pytest.raises(InputError, match=name):
                settings_type(kind.name)().replace(**{name: -1})
