"""Two threads change one model at once: each change either holds afterwards or was rejected; none is lost."""

from __future__ import annotations

import contextlib
import copy
import itertools
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ibpwf import ContinualClassifier, Learner, Settings, load
from ibpwf.errors import BusyError, InputError
from ibpwf.estimator import classifier as estimator
from ibpwf.learner import learner as learner_module
from tallies import Tally
from threads import at_once

TASKS = 6
Change = tuple[Callable[[Any], Any], Callable[[Any], bool]]
"""A change, and whether it holds."""

TRIES = [6, pytest.param(250, marks=pytest.mark.faults)]


@pytest.fixture(autouse=True)
def _threads_switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def rows(task: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(task)
    y = torch.arange(12) % 2
    return torch.randn(12, 4, generator=generator) + 3 * y.unsqueeze(1) + 5 * task, 2 * task + y


def table(task: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = rows(task)
    return x.numpy().astype(float), np.array([f"label-{label}" for label in y.tolist()])


@pytest.fixture(scope="module")
def learner() -> Learner:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    found = Learner(net, Settings(epochs=1, finetune_epochs=1, batch_size=6, alpha=3), device="cpu")
    for task in range(TASKS):
        found.learn(*rows(task), task=f"t{task}")
    return found


SMALL = {"hidden": (6,), "epochs": 1, "settings": {"inference.features.width": 8}, "device": "cpu"}


@pytest.fixture(scope="module")
def classifier() -> ContinualClassifier:
    found = ContinualClassifier(**SMALL)
    for task in range(TASKS):
        found.learn(*table(task), task=f"t{task}")
    return found


def names(model: Any) -> list[str]:
    return model.tasks_ if isinstance(model, ContinualClassifier) else [task.name for task in model.tasks]


def inner(model: Any) -> Learner:
    return model.learner_ if isinstance(model, ContinualClassifier) else model


def forgets(task: str) -> Change:
    return lambda model: model.forget(task), lambda model: task not in names(model)


def notes(task: str, accuracy: float) -> Change:
    return (
        lambda model: inner(model).note_accuracy(task, accuracy),
        lambda model: task not in names(model) or inner(model).info(task).accuracy == accuracy,
    )


def learns(task: str) -> Change:
    def learn(model: Any) -> None:
        given = table(TASKS) if isinstance(model, ContinualClassifier) else rows(TASKS)
        model.learn(*given, task)

    return learn, lambda model: task in names(model)


def updates(task: str) -> Change:
    def update(model: Any) -> None:
        given = table(int(task[1:])) if isinstance(model, ContinualClassifier) else rows(int(task[1:]))
        model.update(*given, task=task, keep="always")

    return update, lambda model: task not in names(model) or inner(model).info(task).version == 2


def sets_epochs(model: Any) -> None:
    if isinstance(model, ContinualClassifier):
        model.set_params(epochs=3)
    else:
        model.settings = model.settings.replace(epochs=3)


def has_epochs(model: Any) -> bool:
    return (model.epochs if isinstance(model, ContinualClassifier) else model.settings.epochs) == 3


CHANGES: dict[str, Change] = {
    "forget t2": forgets("t2"),
    "forget t5": forgets("t5"),
    "note t0": notes("t0", 40.0),
    "note t1": notes("t1", 60.0),
    "learn": learns("new"),
    "update t3": updates("t3"),
    "settings": (sets_epochs, has_epochs),
}


def both(model: Any, changes: tuple[Change, Change]) -> tuple[int, int, list[BaseException]]:
    """Make two changes at once; how many were made, how many of those are lost, and what else was raised."""
    made = [False, False]

    def make(number: int) -> None:
        with contextlib.suppress(BusyError):
            changes[number][0](model)
            made[number] = True

    strange = at_once(make, 2)
    lost = sum(done and not holds(model) for done, (_, holds) in zip(made, changes, strict=True))
    return sum(made), lost, strange


@pytest.mark.parametrize("tries", TRIES)
@pytest.mark.parametrize("kind", ["learner", "classifier"])
def test_of_two_changes_at_once_none_is_lost(
    kind: str, tries: int, tally: Tally, request: pytest.FixtureRequest
) -> None:
    taught = request.getfixturevalue(kind)
    pairs = list(itertools.combinations(CHANGES.values(), 2))
    made = lost = 0
    strange: list[BaseException] = []
    for number in range(tries * 4):
        model = copy.deepcopy(taught)
        done, gone, raised = both(model, pairs[number % len(pairs)])
        made, lost, strange = made + done, lost + gone, strange + raised
        model.predict(table(0)[0] if kind == "classifier" else rows(0)[0])
    assert made >= 4 * tries  # of each pair one is made
    tally(f"two changes of a {kind} at once", 4 * tries, lost=lost, tracebacks=len(strange))


@pytest.mark.parametrize("tries", TRIES)
def test_two_tasks_forgotten_at_once_are_both_gone_or_one_call_says_so(
    classifier: ContinualClassifier, tries: int, tally: Tally
) -> None:
    lost = 0
    for _ in range(4 * tries):
        model = copy.deepcopy(classifier)
        lost += both(model, (CHANGES["forget t2"], CHANGES["forget t5"]))[1]
    tally("two tasks forgotten at once", 4 * tries, lost=lost)


def test_a_stream_takes_one_batch_at_a_time_and_its_parameters_are_not_lost(tally: Tally) -> None:
    tried = lost = wrong = 0
    x, y = table(0)
    take: Change = (lambda stream: stream.partial_fit(x, y), lambda stream: True)
    finish: Change = (lambda stream: stream.finish(), lambda stream: names(stream) != [])
    for _ in range(20):
        model = ContinualClassifier(**SMALL, stream=True).partial_fit(x, y)
        for change in (CHANGES["settings"], take, finish):
            before = model.stream_rows_
            made, gone, raised = both(model, (take, change))
            batches = made if change is take else made - 1
            tried, wrong = tried + made, wrong + len(raised)
            lost += gone + (model.stream_rows_ - before not in (batches * len(y), made * len(y)))
    tally("a stream changed by two threads", tried, lost=lost, tracebacks=wrong)


def test_noting_an_accuracy_while_a_classifier_learns_is_rejected(classifier: ContinualClassifier) -> None:
    model = copy.deepcopy(classifier)
    steps = model._learn_steps(*table(TASKS), "new", anew=False)
    model._writes().claim(steps, "learned")
    with pytest.raises(BusyError):
        model.learner_.note_accuracy("t0", 50.0)
    for _ in steps:
        pass
    model.learner_.note_accuracy("new", 50.0)
    assert model.learner_.info("new").accuracy == 50.0


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_note_through_a_learner_that_was_replaced_is_rejected_instead_of_lost(
    classifier: ContinualClassifier, copied: Callable[[Any], Any]
) -> None:
    model = copied(classifier)
    changes: list[Callable[[], object]] = [
        lambda: model.learn(*table(TASKS), task="new"),
        lambda: model.update(*table(1), task="t1", keep="always"),
        lambda: model.forget("t5"),
    ]
    for number, change in enumerate(changes):
        handle = model.learner_
        handle.note_accuracy("t0", float(number))
        change()
        with pytest.raises(InputError, match="learner_"):
            handle.note_accuracy("t0", 50.0)
        assert model.learner_.info("t0").accuracy == float(number)
        fork = handle.fork()
        fork.note_accuracy("t0", 50.0)
        model.learner_.note_accuracy("t0", 60.0)
        assert (fork.info("t0").accuracy, model.learner_.info("t0").accuracy) == (50.0, 60.0)


def test_a_shallow_copy_of_a_classifier_goes_its_own_way(classifier: ContinualClassifier) -> None:
    original = copy.deepcopy(classifier)
    other = copy.copy(original)
    other.forget("t5")
    for model, accuracy in ((original, 30.0), (other, 70.0)):
        model.learner_.note_accuracy("t0", accuracy)
    assert [model.learner_.info("t0").accuracy for model in (original, other)] == [30.0, 70.0]


def test_a_change_that_was_interrupted_stands_in_nobodys_way_though_its_traceback_is_kept(
    learner: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = learner.fork()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(model), "_forget", interrupted)
    with pytest.raises(KeyboardInterrupt) as kept:
        model.forget("t0")
    monkeypatch.undo()
    assert kept.value.__traceback__ is not None
    model.forget("t0")
    assert "t0" not in names(model)


def test_forks_saved_to_two_folders_at_once_are_both_whole(learner: Learner, tmp_path: Path, tally: Tally) -> None:
    """They share what they know of the last save; a file of one folder must not be taken for one of the other."""
    wrong = 0
    expected = learner.predict(rows(0)[0]).probabilities
    for number in range(10):
        places = [tmp_path / f"{number}-{side}" for side in "ab"]
        models = [learner.fork(), learner.fork()]
        for model, place in zip(models, places, strict=True):
            model.save(place)

        def saves(side: int, places: list[Path] = places, models: list[Learner] = models) -> Change:
            return lambda _: models[side].save(places[side]), lambda _: True

        for _ in range(3):
            assert not both(None, (saves(0), saves(1)))[2]
        for place in places:
            wrong += not torch.equal(load(place, device="cpu").predict(rows(0)[0]).probabilities, expected)
    tally("forks saved to two folders at once", 60, wrong=wrong)


def test_a_first_task_is_not_dropped_by_one_that_was_asked_for_before_it_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other thread's task is learned between the call and the claim of its change."""
    x, y = table(1)
    calls: dict[str, Callable[[Any], Any]] = {
        "learn": lambda model: model.learn(x, y, task="second"),
        "partial_fit": lambda model: model.partial_fit(x, y),
    }
    writes = ContinualClassifier._writes
    for call in calls.values():
        model, others = ContinualClassifier(**SMALL), ["first"]

        def after_another(self: Any, others: list[str] = others) -> Any:
            if others:
                self.learn(*table(0), task=others.pop())
            return writes(self)

        monkeypatch.setattr(ContinualClassifier, "_writes", after_another)
        call(model)
        monkeypatch.undo()
        assert len(model.tasks_) == 2
        assert model.tasks_[0] == "first"


@pytest.mark.parametrize("change", ["forget", "learn"])
def test_learning_tells_of_its_own_task_though_another_thread_has_changed_the_learner_since(
    change: str, learner: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    model = Learner(net, learner.settings, device="cpu")
    finish = learner_module.finish

    def and_then_another(steps: Any) -> Any:
        found = finish(steps)
        monkeypatch.undo()
        model.forget("own") if change == "forget" else model.learn(*rows(1), task="other")
        return found

    monkeypatch.setattr(learner_module, "finish", and_then_another)
    task = model.learn(*rows(0), task="own")
    assert task.name == "own"
    assert names(model) == ([] if change == "forget" else ["own", "other"])


@pytest.mark.parametrize("change", [forgets("t2"), learns("new"), updates("t3")])
def test_attributes_set_while_a_change_is_committed_stay(
    change: Change, classifier: ContinualClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, marks = copy.deepcopy(classifier), list[str]()

    class Meanwhile(tuple[str, ...]):
        """Another thread sets an attribute whenever a name is looked up."""

        def __contains__(self, name: object) -> bool:
            if not marks or hasattr(model, marks[-1]):
                marks.append(f"mark_{len(marks)}")
                setattr(model, marks[-1], len(marks))
            return super().__contains__(name)

    monkeypatch.setattr(estimator, "LEARNED", Meanwhile(estimator.LEARNED))
    change[0](model)
    monkeypatch.undo()
    assert len(marks) > 10
    assert all(hasattr(model, mark) for mark in marks)


@pytest.mark.parametrize("kind", ["forget", "undo"])
def test_what_the_user_keeps_beside_a_classifier_is_not_overwritten_by_a_change(
    kind: str, classifier: ContinualClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "undo":
        model = ContinualClassifier(**SMALL, stream=True)
        for task in range(2):
            model.partial_fit(*table(task)).finish()
    else:
        model = copy.deepcopy(classifier)
    fork = ContinualClassifier._fork

    def meanwhile(self: Any) -> Any:
        if self is model:
            found = fork(self)
            model.extra_ = {"mine": 1}
            return found
        return fork(self)

    monkeypatch.setattr(ContinualClassifier, "_fork", meanwhile)
    model.undo() if kind == "undo" else model.forget("t2")
    monkeypatch.undo()
    assert model.extra_ == {"mine": 1}


@pytest.mark.parametrize("change", ["learn", "forget"])
@pytest.mark.parametrize("made", ["fast", "first tasks"])
def test_a_classifier_made_of_another_that_changes_meanwhile_is_of_one_state(
    made: str, change: str, classifier: ContinualClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, fork, changed = copy.deepcopy(classifier), ContinualClassifier._fork, list[str]()

    def meanwhile(self: Any) -> Any:
        found = fork(self)
        if not changed:
            changed.append(change)
            model.learn(*table(TASKS), task="new") if change == "learn" else model.forget("t1")
        return found

    monkeypatch.setattr(ContinualClassifier, "_fork", meanwhile)
    other = model.fast() if made == "fast" else model.first_tasks(3)
    monkeypatch.undo()
    expected = classifier.fast() if made == "fast" else classifier.first_tasks(3)
    x, _ = table(1)
    assert other.tasks_ == [task.name for task in other.learner_.tasks] == expected.tasks_
    assert np.array_equal(other.predict_proba(x), expected.predict_proba(x))
    assert np.array_equal(other.novelty(x), expected.novelty(x))


@pytest.mark.parametrize("kind", ["learner", "classifier"])
def test_a_save_that_waited_for_another_does_not_bring_a_deleted_task_back(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, path = copy.deepcopy(request.getfixturevalue(kind)), tmp_path / "m"
    model.save(path)
    waiting, real = [True], learner_module.lock_folder

    def lock(folder: Path) -> Any:
        if waiting.pop() if waiting else False:  # meanwhile another thread deletes a task and saves
            model.forget("t2")
            model.save(path)
        return real(folder)

    for module in (learner_module, estimator):
        monkeypatch.setattr(module, "lock_folder", lock)
    model.save(path)
    assert "t2" not in names(load(path))
    assert "t2" not in names(model)
