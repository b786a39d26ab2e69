"""A learner is one state at a time: what changes it does so as a whole, or is refused."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ibpwf
from ibpwf import ContinualClassifier, Learner, Settings
from ibpwf.errors import InputError

SMALL = {"hidden": (6,), "epochs": 2, "device": "cpu"}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))


def examples(task: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.randn(30, 5, generator=torch.Generator().manual_seed(task))
    return x + task, torch.arange(30) % 3 + 3 * task


def fresh(**settings: object) -> Learner:
    return Learner(network(), Settings(epochs=2, finetune_epochs=1, **settings), device="cpu")  # type: ignore[arg-type]


def table(task: int = 0) -> tuple[np.ndarray, np.ndarray]:
    x, y = examples(task)
    return x.numpy(), np.array([f"class {label}" for label in y.tolist()])


# A model that was looked at stays what it was


def test_a_model_and_a_method_never_change_the_next_task_makes_others() -> None:
    learner = fresh()
    learner.learn(*examples(0))
    model, method = learner.model, learner.method
    before = model(examples(0)[0], task=0)
    learner.learn(*examples(1))
    assert (len(model.tasks), len(method.classes), len(learner.model.tasks)) == (1, 1, 2)
    assert torch.equal(model(examples(0)[0], task=0), before)
    assert torch.equal(learner.model(examples(0)[0], task=0), before)


def test_a_fork_and_its_origin_go_their_own_ways_to_the_same_bits() -> None:
    learner = fresh()
    learner.learn(*examples(0))
    one, other = learner.fork(), learner.fork()
    one.learn(*examples(1))
    other.learn(*examples(2))
    assert [len(each.tasks) for each in (learner, one, other)] == [1, 2, 2]
    learner.learn(*examples(1))
    assert torch.equal(learner.logits(examples(1)[0], 1), one.logits(examples(1)[0], 1))


def test_a_factorized_model_may_be_handed_to_several_learners() -> None:
    model = ibpwf.factorize(network(), alpha=4)
    one, other = (Learner(model, Settings(epochs=1), device="cpu") for _ in range(2))
    one.learn(*examples(0))
    other.learn(*examples(0))
    assert not model.tasks
    assert torch.equal(one.logits(examples(0)[0], 0), other.logits(examples(0)[0], 0))


@pytest.mark.parametrize("way", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_of_a_learner_in_the_middle_of_a_task_can_learn(way: object) -> None:
    learner = fresh()
    learner.learn(*examples(0))
    steps = learner.learn_steps(*examples(1))
    next(steps)
    twin = way(learner)  # type: ignore[operator]
    twin.learn(*examples(1))
    for _ in steps:
        pass
    assert torch.equal(twin.logits(examples(1)[0], 1), learner.logits(examples(1)[0], 1))


# Settings between tasks


def test_settings_of_the_next_task_take_effect_and_those_of_the_model_are_refused(tmp_path: Path) -> None:
    learner = fresh()
    learner.learn(*examples(0))
    learner.settings = learner.settings.replace(epochs=7, kappa=0.4)
    with pytest.raises(InputError, match=r"ridge is 0\.5, but this was built with 0\.0001"):
        learner.settings = learner.settings.replace(**{"inference.ridge": 0.5})
    with pytest.raises(InputError, match="heads is 'per-task', but this was built with 'shared'"):
        learner.settings = learner.settings.replace(heads="per-task")
    epochs: list[int] = []

    class Watch(ibpwf.training.callbacks.Callback):
        def task_start(self, task: ibpwf.training.callbacks.TaskStart) -> None:
            epochs.append(task.epochs)

    learner.learn(*examples(1), callbacks=[Watch()])
    assert epochs == [8]
    learner.save(tmp_path / "model")
    assert Learner.load(tmp_path / "model", device="cpu").settings.epochs == 7


def test_parameters_of_a_classifier_set_between_tasks_take_effect_or_are_refused(tmp_path: Path) -> None:
    classifier = ContinualClassifier(**SMALL).learn(*table(0))
    for name, value in (
        ("hidden", (9,)),
        ("alpha", 3.0),
        ("random_state", 5),
        ("settings", {"inference.ridge": 0.7}),
        ("settings", {"heads": "shared"}),
    ):
        was = getattr(classifier, name)
        classifier.set_params(**{name: value})
        field = name if name != "settings" else next(iter(value))  # type: ignore[call-overload]
        with pytest.raises(InputError, match=f"{field} is .*, but the first task was learnt with"):
            classifier.learn(*table(1))
        classifier.save(tmp_path / "model")
        assert ContinualClassifier.load(tmp_path / "model").get_params()[name] == was
        classifier.set_params(**{name: was})
    classifier.set_params(epochs=3, learning_rate=0.01, settings={"weight_decay": 0.01})
    classifier.learn(*table(1))
    used = classifier.learner_.settings
    assert (used.epochs, used.learning_rate, used.weight_decay) == (3, 0.01, 0.01)


def test_a_false_alarm_rate_holds_from_the_next_task_on() -> None:
    one = ContinualClassifier(**SMALL, false_alarm_rate=0.01).learn(*table(0)).set_params(false_alarm_rate=0.5)
    other = ContinualClassifier(**SMALL, false_alarm_rate=0.01).learn(*table(0))
    limits = [classifier.learn(*table(1))._novelty.limits for classifier in (one, other)]
    assert limits[0][0] == limits[1][0]
    assert limits[0][1] < limits[1][1]


def test_the_largest_seed_draws() -> None:
    learner = Learner(network(), Settings(epochs=1), seed=2**62, device="cpu")
    learner.learn(*examples(0))
    assert len(learner.predict(examples(0)[0], posterior_samples=2, seed=2**62)) == 30


# Two faces


def test_a_learner_inside_a_classifier_cannot_be_changed_behind_its_back(tmp_path: Path) -> None:
    classifier = ContinualClassifier(**SMALL).learn(*table(0)).learn(*table(1))
    classifier.save(tmp_path / "model")
    loaded = ibpwf.load(tmp_path / "model", device="cpu")
    assert isinstance(loaded, ContinualClassifier)
    for one in (classifier, loaded):
        for change in (
            lambda one=one: one.learner_.learn(*examples(2)),
            lambda one=one: one.learner_.forget(0),
            lambda one=one: one.learner_.save(tmp_path / "other"),
        ):
            with pytest.raises(InputError, match=r"inside a ContinualClassifier, .* learner\.fork\(\)"):
                change()
    fork = classifier.learner_.fork()
    fork.forget(0)
    assert classifier.tasks_ == ["task-1", "task-2"]
    assert (classifier.predict(table(0)[0], task=0) == loaded.predict(table(0)[0], task=0)).all()


def test_fit_that_fails_leaves_a_fitted_classifier_as_it_was() -> None:
    classifier = ContinualClassifier(**SMALL).learn(*table(0))
    before = classifier.predict_proba(table(0)[0])
    x, y = np.random.default_rng(0).normal(size=(20, 9)), np.array(["one", "other"] * 10)
    classifier.false_alarm_rate = 2
    with pytest.raises(InputError, match="rate is 2"):
        classifier.fit(x, y)
    assert classifier.n_features_in_ == 5
    assert (classifier.predict_proba(table(0)[0]) == before).all()


# Torch's own switches


def test_learning_works_inside_no_grad_and_inference_mode() -> None:
    expected = fresh()
    expected.learn(*examples(0))
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            learner = fresh()
            x, y = examples(0)
            learner.learn(x, y)
            answer = learner.logits(x, 0)
        assert torch.equal(answer, expected.logits(examples(0)[0], 0))
        learner.learn(*examples(1))
