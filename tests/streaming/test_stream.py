"""A classifier that rows keep coming to: when tasks are learned, what it answers, what it says of its decisions."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest

from ibpwf import ContinualClassifier
from ibpwf.errors import InputError

MEANS = np.random.default_rng(3).normal(0, 4, (8, 6))
QUICK = {"hidden": (24,), "epochs": 4, "settings": {"inference.features.width": 64}, "device": "cpu"}
SMALL = {"buffer": 300, "least": 100, "window": 100}


def rows(classes: tuple[int, ...], count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.default_rng(seed)
    y = chance.choice(classes, count)
    return MEANS[y] + chance.normal(size=(count, 6)), y


def streamed(**changed: object) -> ContinualClassifier:
    return ContinualClassifier(**{**QUICK, "stream": {**SMALL, **changed}})


def fed(classifier: ContinualClassifier, x: np.ndarray, y: np.ndarray, size: int) -> ContinualClassifier:
    for start in range(0, len(y), size):
        classifier.partial_fit(x[start : start + size], y[start : start + size])
    return classifier


@pytest.fixture(scope="module")
def two_tasks() -> ContinualClassifier:
    """After 600 rows of classes 0 and 1, and 600 of classes 2 and 3."""
    classifier = streamed()
    for seed, classes in enumerate([(0, 1), (2, 3)]):
        fed(classifier, *rows(classes, 600, seed), 50)
    return classifier


def test_answers_come_from_the_first_two_classes_on() -> None:
    x, y = rows((0, 1), 40)
    classifier = fed(streamed(), x, y, 1)
    assert not hasattr(classifier, "tasks_")
    assert np.mean(classifier.predict(x) == y) > 0.95
    assert classifier.predict_proba(x).sum(1) == pytest.approx(1.0)
    assert set(classifier.prediction(x[:3]).task) == {"none yet"}


def test_many_batches_of_one_kind_are_one_task() -> None:
    classifier = fed(streamed(), *rows((0, 1), 1500), 30)
    assert classifier.tasks_ == ["task-1"]
    assert len(classifier._stream.buffer) <= SMALL["window"]


def test_a_border_nobody_tells_of_is_found_and_both_tasks_are_answered(two_tasks: ContinualClassifier) -> None:
    log = two_tasks.stream_log_
    about_rows = [line["decision"] for line in log if line["decision"] != "vanished"]
    assert about_rows == ["new task", "border", "new task"]
    assert 600 < log[1]["row"] <= 700
    for classes in ((0, 1), (2, 3)):
        x, y = rows(classes, 200, seed=9)
        assert two_tasks.score(x, y) > 0.95
    assert all(line["reason"] for line in log)


def test_how_rows_are_cut_into_batches_makes_no_other_tasks() -> None:
    x = np.concatenate([rows((0, 1), 500, 0)[0], rows((2, 3), 500, 1)[0]])
    y = np.concatenate([rows((0, 1), 500, 0)[1], rows((2, 3), 500, 1)[1]])
    for size in (7, 1000):
        assert len(fed(streamed(), x, y, size).tasks_) == 2


def test_rows_of_an_old_task_are_counted_and_make_no_new_one(two_tasks: ContinualClassifier) -> None:
    classifier = fed(copy.copy(two_tasks), *rows((0, 1), 600, seed=5), 50)
    assert classifier.tasks_ == ["task-1", "task-2"]
    assert classifier._stream.dropped["task-1"] > 300


def test_a_stationary_stream_raises_no_alarm() -> None:
    """Labels that are wrong for a fifth of the rows: hard to predict, and always alike."""
    x, y = rows((0, 1), 4000, seed=2)
    wrong = np.random.default_rng(0).random(len(y)) < 0.2
    classifier = fed(streamed(), x, np.where(wrong, 1 - y, y), 40)
    assert [line["decision"] for line in classifier.stream_log_] == ["new task"]


def test_undo_forgets_the_last_task_learned(two_tasks: ContinualClassifier) -> None:
    classifier = copy.copy(two_tasks).undo()
    assert classifier.tasks_ == ["task-1"]
    assert classifier.stream_log_[-1]["undone"] == 3
    classifier.undo()
    assert not hasattr(classifier, "tasks_")
    with pytest.raises(InputError, match="no decision to undo"):
        classifier.undo()
    x, y = rows((2, 3), 50)
    assert classifier.partial_fit(x, y).score(x, y) > 0.9


def test_a_forgotten_task_leaves_no_rows_in_the_buffer(two_tasks: ContinualClassifier) -> None:
    classifier = copy.copy(two_tasks)
    assert len(classifier._stream.buffer)
    classifier.forget("task-2")
    assert not len(classifier._stream.buffer)
    assert classifier.classes_.tolist() == [0, 1]
    assert set(classifier.predict(rows((2, 3), 50)[0])) <= {0, 1}
    assert fed(classifier, *rows((2, 3), 400, 8), 50).score(*rows((2, 3), 50)) > 0.9


def test_a_stored_stream_goes_on_like_one_that_never_stopped(two_tasks: ContinualClassifier, tmp_path: Path) -> None:
    two_tasks.save(tmp_path / "model")
    loaded, kept = ContinualClassifier.load(tmp_path / "model", device="cpu"), copy.copy(two_tasks)
    x, y = rows((4, 5), 400, seed=4)
    for classifier in (loaded, kept):
        fed(classifier, x, y, 25)
    assert loaded.stream_log_ == kept.stream_log_
    assert np.array_equal(loaded.predict_proba(x), kept.predict_proba(x))


def test_finish_learns_what_the_buffer_holds() -> None:
    classifier = fed(streamed(), *rows((0, 1), 60), 10).finish()
    assert classifier.tasks_ == ["task-1"]


def test_one_class_alone_waits_for_another() -> None:
    classifier = fed(streamed(), *rows((0,), 400), 50)
    assert not hasattr(classifier, "tasks_")
    assert len(classifier._stream.buffer) <= SMALL["buffer"]
    assert classifier.stream_log_[-1]["decision"] == "wait"


def test_a_class_that_vanishes_is_said_and_stays_known() -> None:
    classifier = fed(streamed(), *rows((0, 1, 2), 400), 50)
    fed(classifier, *rows((0, 1), 600, seed=1), 50)
    assert [line["label"] for line in classifier.stream_log_ if line["decision"] == "vanished"] == [2]
    x, y = rows((2,), 50)
    assert classifier.score(x, y) > 0.9


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (np.zeros((0, 6)), [], "the batch is empty"),
        (np.zeros((3, 5)), [0, 1, 0], "5 features"),
        (np.zeros((3, 6)), None, "y is missing"),
        (np.zeros((3, 6)), ["a", "b", "a"], "y holds text"),
    ],
)
def test_a_bad_batch_is_one_error_and_changes_nothing(x: np.ndarray, y: object, words: str) -> None:
    classifier = fed(streamed(), *rows((0, 1), 40), 10)
    before = dict(vars(classifier))
    with pytest.raises(ValueError, match=words):
        classifier.partial_fit(x, y)
    assert {**vars(classifier), "_writer": None} == {**before, "_writer": None}


def test_what_needs_a_task_says_so_before_there_is_one(tmp_path: Path) -> None:
    classifier = fed(streamed(), *rows((0, 1), 40), 10)
    for ask in (lambda: classifier.save(tmp_path / "m"), lambda: classifier.forget("task-1"), classifier.fast):
        with pytest.raises(InputError, match="no task has been learned yet"):
            ask()


def test_without_stream_every_call_is_a_task() -> None:
    classifier = ContinualClassifier(**QUICK)
    for seed, classes in enumerate([(0, 1), (2, 3)]):
        classifier.partial_fit(*rows(classes, 80, seed))
    assert classifier.tasks_ == ["task-1", "task-2"]
    with pytest.raises(InputError, match="no stream"):
        _ = classifier.stream_log_


def test_a_learned_classifier_can_go_on_as_a_stream() -> None:
    classifier = ContinualClassifier(**QUICK).learn(*rows((0, 1), 200), task="first")
    classifier.set_params(stream=SMALL)
    fed(classifier, *rows((0, 1), 300, 1), 50)
    fed(classifier, *rows((2, 3), 400, 2), 50)
    assert classifier.tasks_ == ["first", "task-2"]


@pytest.mark.parametrize("bad", [{"buffer": 5}, {"detector": "page-hinkly"}, {"size": 3}, "yes"])
def test_bad_options_are_named(bad: object) -> None:
    with pytest.raises(InputError):
        ContinualClassifier(stream=bad).partial_fit(*rows((0, 1), 20))
