"""One file learnt as the next task of a model folder, new or old; whatever goes wrong, the folder stays as it was."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ibpwf.errors import IBPWFError, InputError, StoreError
from ibpwf.estimator import ContinualClassifier
from ibpwf.files import Examples, Layout
from ibpwf.own_data.holding_out import held_out
from ibpwf.own_data.model import FileModel, rows_of
from ibpwf.storage.checkpoint_folder import ANEW, IN_PROGRESS, discard, discard_finished, task_in_progress
from ibpwf.storage.folder import LOCK, MANIFEST, is_ours, lock_folder
from ibpwf.training.callbacks import Callback
from ibpwf.training.checkpoint import Checkpoint

Read = Callable[[Layout | None], Examples]
"""Reads the file like an earlier one, or as the first."""


@dataclass(frozen=True)
class How:
    """How a task is learnt: checkpoints, what to do with one that is there, and who is told."""

    validate: float | None = None  # share of the rows to hold out and measure accuracy on
    every: float = 10.0  # minutes between checkpoints
    resume: bool = False
    anew: bool = False
    device: str = "auto"
    callbacks: Sequence[Callback] = ()
    begin: Callable[[ContinualClassifier, int], None] = field(default=lambda classifier, rows: None)
    stop: Callable[[], bool] | None = None


@dataclass(frozen=True)
class Learnt:
    """A task that was learnt, or had been `already`.

    Accuracies are in per cent, with the task given and inferred: on the rows held out or, where none were, on those
    it was learnt from.
    """

    task: str
    rows: int
    classes: list[str]
    tasks: list[str]
    accuracy: float | None
    accuracy_inferred: float | None
    held_out: int
    already: bool = False


def learn_file(model: Path, read: Read, task: str, parameters: Mapping[str, Any], how: How) -> Learnt:
    """Learn a file as task `task` of the model folder, which is made if there is none yet.

    `parameters` are those of `ContinualClassifier` that were asked for: a new model is made with them, an old one
    must have them. While it learns, nobody else can write to the folder.
    """
    _check_place(model)
    if how.resume and how.anew:
        raise InputError("--resume and --anew were both given; choose one.")
    if os.path.lexists(model / MANIFEST):
        with lock_folder(model):
            there = FileModel.load(model, how.device)
            _check_parameters(model, there.classifier, parameters)
            serial = there.classifier.learner_.method.serial(len(there.tasks))
            discard_finished(model, serial)  # a process killed right after its last save has left it
            if task in there.tasks:
                return _already(there, task, read, how)
            _check_unfinished(model, task, serial, how)
            return _learn(model, there, read(there.layout), task, how)
    examples = read(None)
    classifier = ContinualClassifier(**{**parameters, "device": how.device})
    classifier.make_settings()  # a wrong setting is named before the folder is made
    examples.check_learnable()
    with _made(model):
        if os.path.lexists(model / MANIFEST):
            raise StoreError(f"{str(model)!r} was made by another process meanwhile; run the command again.")
        _check_unfinished(model, task, 0, how)
        return _learn(model, FileModel(classifier, examples.layout), examples, task, how)


def _learn(model: Path, there: FileModel, examples: Examples, task: str, how: How) -> Learnt:
    examples.check_learnable()
    train, test = held_out(examples, how.validate) if how.validate is not None else (examples, examples)
    assert train.y is not None
    assert test.y is not None
    classifier = there.classifier
    how.begin(classifier, len(train))
    try:
        classifier.learn(
            rows_of(train),
            np.array(train.y),
            task=task,
            callbacks=[
                *how.callbacks,
                Checkpoint(model, every=how.every, resume=how.resume, stop=how.stop),
            ],
        )
    except IBPWFError as error:
        raise type(error)(
            str(error).replace(ANEW, "To drop it and start, give --anew instead of --resume.")
        ) from error
    truth = np.array(test.y)
    given, inferred = (
        100.0 * float(np.mean(np.concatenate([part.labels for part in there.answers(test, which)]) == truth))
        for which in (task, None)
    )
    classifier.learner_.note_accuracy(task, given)
    there.save(model)
    rest = 0 if how.validate is None else len(test)
    return Learnt(task, len(train), there.classes_of(task), there.tasks, given, inferred, rest)


def _already(there: FileModel, task: str, read: Read, how: How) -> Learnt:
    """A task of that name is there: what was asked for is done if it is resumed and the classes are the same."""
    info = there.classifier.learner_.tasks[there.tasks.index(task)]
    if how.resume:
        found = set(read(there.layout).y or ())
        if found == set(there.classes_of(task)):
            classes = there.classes_of(task)
            return Learnt(task, info.examples, classes, there.tasks, info.accuracy, None, 0, already=True)
    raise InputError(f"a task named '{task}' has been learnt already; choose another name with the option task.")


def _check_place(model: Path) -> None:
    """A path that can be a model folder: one, an empty folder, or nothing yet."""
    if not os.path.lexists(model):
        return
    if not model.is_dir():
        raise InputError(f"{model} is a file; the model folder comes first and the data second.")
    others = sorted(name for name in os.listdir(model) if name != IN_PROGRESS and not is_ours(name))
    if others and not os.path.lexists(model / MANIFEST):
        raise InputError(
            f"{model} is a folder of other things ({others[0]!r}) and no model; give a new or empty folder, and the "
            "data after it."
        )


@contextlib.contextmanager
def _made(model: Path) -> Iterator[None]:
    """Hold a folder that is to become a model; if it does not, and there is nothing to resume, it goes again."""
    was_there = model.is_dir()
    with lock_folder(model):
        try:
            yield
        finally:
            if set(os.listdir(model)) <= {LOCK}:
                with contextlib.suppress(OSError):
                    os.unlink(model / LOCK)
                    if not was_there:
                        os.rmdir(model)


def _check_unfinished(model: Path, task: str, serial: int, how: How) -> None:
    """A task that was broken off is neither dropped nor taken up without being asked to."""
    found = task_in_progress(model)
    if found is None or found.serial < serial:
        return
    if how.anew:
        discard(model)
    elif not how.resume:
        other = "" if found.task == task else f" (task '{found.task}')"
        raise InputError(
            f"{model} holds a task that was broken off{other}; give --resume to go on with it, or --anew to drop it."
        )


def _check_parameters(model: Path, classifier: ContinualClassifier, asked: Mapping[str, Any]) -> None:
    """Refuse settings other than those that the model was begun with."""
    has = classifier.get_params(deep=False)
    pairs = [(name, value, has[name]) for name, value in asked.items() if name != "settings"]
    settings = dict(has["settings"] or {})
    pairs += [
        (name, value, settings.get(name, "its default")) for name, value in (asked.get("settings") or {}).items()
    ]
    for name, value, there in pairs:
        same = list(value) == list(there) if name == "hidden" else value == there
        if not same:
            name, value, there = ("seed" if name == "random_state" else name), _plain(value), _plain(there)
            raise InputError(
                f"{name} is {value}, but {model} was begun with {there}; settings are chosen with the first task, so "
                "leave it out, or learn into a new folder."
            )


def _plain(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
