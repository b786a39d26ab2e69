"""The user's files and a classifier in a model folder: what `ibpwf learn` and `predict` do.

Files are read by `ibpwf.data`; learning and predicting is `ContinualClassifier`'s. Whatever goes wrong, the folder
stays as it was.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from ibpwf.data import Examples, Layout, ReadOptions, read_batches, read_examples
from ibpwf.data.examples import CodedLabels, in_order
from ibpwf.data.opening import few, shown
from ibpwf.data.options import Naming, argument
from ibpwf.data.rows import split_rows
from ibpwf.data.stored import is_large, read_stored
from ibpwf.distributed import Group, join
from ibpwf.errors import DataError, IBPWFError, InputError, StoreError
from ibpwf.estimator.classifier import ROWS, ContinualClassifier
from ibpwf.estimator.recipes import Recipe
from ibpwf.learner.update import TOO_FEW, VALIDATION_FRACTION, Keep, Update, known_task
from ibpwf.linear import HeldOut
from ibpwf.storage.checkpoint_folder import ANEW, IN_PROGRESS, discard, discard_finished, task_in_progress
from ibpwf.storage.folder import LOCK, MANIFEST, is_ours, lock_folder
from ibpwf.training.callbacks import Callback, StepEnd
from ibpwf.training.checkpoint import Checkpoint

Row = dict[str, Any]

ROWS_PER_ANSWER = 2048


def load_classifier(path: Path, device: str = "auto") -> ContinualClassifier:
    """Read a model folder that was made from files."""
    classifier = ContinualClassifier.load(path, device=device)
    if "layout" not in classifier.extra_:
        raise StoreError(
            f"{path} was not learnt from files, so the columns it expects are not known; use it in Python: "
            f"ContinualClassifier.load({str(path)!r})."
        )
    return classifier


def layout_of(classifier: ContinualClassifier) -> Layout:
    """How the files that a classifier learnt from are laid out; it is saved with it."""
    return Layout.from_json(classifier.extra_["layout"])


def classes_of(classifier: ContinualClassifier, task: str) -> list[str]:
    """The labels of a task."""
    return in_order(map(str, classifier.labels_of(task)))


# Learning a file


@dataclass(frozen=True)
class LearnOptions:
    """How a file is learnt: how it is read, what is kept meanwhile and what is done with it, and who is told."""

    read: ReadOptions = field(default_factory=ReadOptions)
    validate: float | None = None  # share of the rows to hold out and measure accuracy on
    checkpoint_minutes: float = 10.0  # between two checkpoints
    resume: bool = False  # go on with a task that was broken off
    anew: bool = False  # drop it
    device: str = "auto"
    callbacks: Sequence[Callback] = ()  # who is told
    stop: Callable[[], bool] | None = None
    started: Callable[[Recipe], None] | None = None  # told by what a new model learns, before it does
    on_disk: bool | None = None  # rows in a scratch file instead of in memory; None: where they are many

    @property
    def naming(self) -> Naming:
        return self.read.naming

    def agreed_in(self, group: Group) -> LearnOptions:
        """The same for one process of several, which stop together."""
        if group.alone:
            return self
        group.stop = self.stop or group.stop
        return replace(self, stop=lambda: group.stopping)

    def rows_of(self, data: Path, read: ReadOptions) -> Examples:
        """The rows to learn from, in memory unless they are many, or as was asked for."""
        on_disk = is_large(data, read) if self.on_disk is None else self.on_disk
        return read_stored(data, read) if on_disk else read_examples(data, read)

    def check(self) -> None:
        say = self.naming
        if self.resume and self.anew:
            raise InputError(f"{say('resume')} and {say('anew')} were both given; choose one.")
        if self.validate is not None and not 0 < self.validate < 1:
            raise InputError(
                f"{say('validate')} is {self.validate}; give the share of the rows to hold out, such as 0.1."
            )
        minutes = self.checkpoint_minutes
        if not minutes >= 0:
            raise InputError(
                f"{say('checkpoint_minutes')} is {minutes}; give the minutes between two checkpoints, such as 10."
            )


@dataclass(frozen=True)
class LearnedTask:
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
    recipe: str = "plain"
    already: bool = False
    beside: HeldOut | None = None  # rows that the recipe itself kept apart, beside two simple ways to answer them


MOST_MEASURED = 50_000
"""Rows of a file that is not in memory by which accuracy is measured where none are held out."""


def learn_file(
    model: Path,
    data: Path,
    task: str,
    parameters: Mapping[str, Any] | None = None,
    options: LearnOptions | None = None,
) -> LearnedTask:
    """Learn a file as task `task` of the model folder, which is made if there is none yet.

    `parameters` are those of `ContinualClassifier` that were asked for: a new model is made with them, an old one
    must have them. While it learns, nobody else can write to the folder. Processes that `torchrun` has started learn
    it together; one of them writes.
    """
    options, parameters = options or LearnOptions(), parameters or {}
    options.check()
    group = join("auto", options.device)
    with group.folder(model) as place:
        return _learn_file(place, data, task, parameters, options.agreed_in(group))


def _learn_file(
    model: Path, data: Path, task: str, parameters: Mapping[str, Any], options: LearnOptions
) -> LearnedTask:
    check_model_place(model)
    if os.path.lexists(model / MANIFEST):
        with lock_folder(model):
            classifier = load_classifier(model, options.device)
            check_parameters(model, classifier, parameters, options.naming)
            layout = layout_of(classifier)
            read = replace(options.read, like=layout)
            serial = classifier.learner_.method.next_serial(len(classifier.tasks_))
            discard_finished(model, serial)  # a process killed right after its last save has left it
            if task in classifier.learner_.names():
                return _already(classifier, task, data, replace(options, read=read))
            check_unfinished(model, task, serial, options)
            if read.takes_unknown:  # in this file, so in those to come
                classifier.extra_ = {**classifier.extra_, "layout": replace(layout, unknown="zeros").to_json()}
            return _learn(model, classifier, options.rows_of(data, read), task, options)
    examples = options.rows_of(data, options.read)
    classifier = ContinualClassifier(**{**parameters, "device": options.device})
    plan = classifier.plan_for(examples)
    classifier.make_settings(plan)  # a wrong setting is named before the folder is made
    classifier.extra_ = {"layout": examples.layout.to_json()}  # what later files must be like is saved with it
    examples.check_learnable()
    with made_folder(model):
        if os.path.lexists(model / MANIFEST):
            raise StoreError(f"{str(model)!r} was made by another process meanwhile; run the command again.")
        check_unfinished(model, task, 0, options)
        if options.started is not None:
            options.started(plan.recipe)
        return _learn(model, classifier, examples, task, options)


def _learn(
    model: Path, classifier: ContinualClassifier, examples: Examples, task: str, options: LearnOptions
) -> LearnedTask:
    examples.check_learnable()
    if options.validate is None:
        train, test = examples, examples.sample(MOST_MEASURED) if examples.on_disk else examples
    else:
        train, test = held_out(examples, options.validate, options.naming)
    with resuming(options):
        classifier.learn(
            train,
            task=task,
            callbacks=[
                *options.callbacks,
                Checkpoint(model, every=options.checkpoint_minutes, resume=options.resume, stop=options.stop),
            ],
        )
    given, inferred = (batch_accuracy(classifier, test, which) for which in (task, None))
    classifier.learner_.note_accuracy(task, given)
    noted = {**classifier.extra_.get(ROWS, {}), task: examples.digest()}
    classifier.extra_ = {**classifier.extra_, ROWS: noted}
    classifier.save(model)
    rest = 0 if options.validate is None else len(test)
    classes, tasks = classes_of(classifier, task), list(classifier.tasks_)
    beside = classifier.learner_.info(task).held_out
    return LearnedTask(task, len(train), classes, tasks, given, inferred, rest, classifier.recipe_, beside=beside)


@contextlib.contextmanager
def resuming(options: LearnOptions) -> Iterator[None]:
    """A checkpoint that cannot be resumed is refused with what to do here."""
    try:
        yield
    except IBPWFError as error:
        if error.remedy != ANEW:
            raise
        say = options.naming
        remedy = f"To drop it and start, give {say('anew')} instead of {say('resume')}."
        raise type(error)(error.problem, remedy=remedy) from error


def batch_accuracy(classifier: ContinualClassifier, examples: Examples, task: str | None) -> float:
    """Per cent of examples that are answered rightly."""
    right = sum(
        int(np.sum(classifier.predict(part.inputs, task) == np.array(part.y)))
        for part in examples.batches(ROWS_PER_ANSWER)
    )
    return 100.0 * (right / len(examples))


def held_out(examples: Examples, fraction: float, naming: Naming) -> tuple[Examples, Examples]:
    """The examples to learn from and those to measure on: the same share of every class, at least one, the same every
    time. Both keep the order of the file."""
    assert examples.y is not None
    labels = CodedLabels.of(examples.y)
    out = split_rows(torch.from_numpy(labels.codes), fraction, torch.Generator().manual_seed(0), least=1).numpy()
    left = CodedLabels(labels.codes[~out], labels.names).counts()
    rare = next((label for label in left if left[label] < 2), None)
    if rare is not None:
        raise DataError(
            f"{shown(examples.path)}: class {str(rare)!r} has {labels.counts()[rare]} examples, too few to hold "
            f"{fraction:.0%} of them out and learn from the rest; add more, or leave {naming('validate')} out."
        )
    return examples.rows(np.flatnonzero(~out)), examples.rows(np.flatnonzero(out))


def _already(classifier: ContinualClassifier, task: str, data: Path, options: LearnOptions) -> LearnedTask:
    """A task of that name is there: what was asked for is done if it is resumed and the rows are the same."""
    another = f"choose another name with {options.naming('task')}"
    if not options.resume:
        raise InputError(f"a task named '{task}' has been learnt already; {another}.")
    info = classifier.learner_.info(task)
    classes = classes_of(classifier, task)
    examples = options.rows_of(data, options.read)
    noted = classifier.extra_.get(ROWS, {}).get(task)
    if noted is None:  # of a task that was updated since: as far as can be told
        same = set(examples.classes) == set(classes) and len(examples) >= info.examples
    else:
        same = examples.digest() == noted
    if not same:
        raise InputError(
            f"a task named '{task}' has been learnt already, from other rows ({info.examples:,}) than {shown(data)} "
            f"holds ({len(examples):,}); {another} to learn these."
        )
    tasks, recipe = list(classifier.tasks_), classifier.recipe_
    return LearnedTask(task, info.examples, classes, tasks, info.accuracy, None, 0, recipe, True, info.held_out)


def check_model_place(model: Path) -> None:
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
def made_folder(model: Path) -> Iterator[None]:
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


def check_unfinished(model: Path, task: str, serial: int, options: LearnOptions) -> None:
    """A task that was broken off is neither dropped nor taken up without being asked to."""
    found = task_in_progress(model)
    if found is None or found.serial < serial:
        return
    if options.anew:
        discard(model)
    elif not options.resume:
        other = "" if found.task == task else f" (task '{found.task}')"
        say = options.naming
        raise InputError(
            f"{model} holds a task that was broken off{other}; give {say('resume')} to go on with it, or "
            f"{say('anew')} to drop it."
        )


def check_parameters(model: Path, classifier: ContinualClassifier, asked: Mapping[str, Any], naming: Naming) -> None:
    """Refuse settings other than those that the model was begun with."""
    has = classifier.get_params(deep=False)
    pairs = [(naming(name), value, has[name]) for name, value in asked.items() if name != "settings"]
    settings = dict(has["settings"] or {})
    pairs += [
        (name, value, settings.get(name, "its default")) for name, value in (asked.get("settings") or {}).items()
    ]
    for name, value, there in pairs:
        value, there = _plain(value), _plain(there)
        if value != there:
            raise InputError(
                f"{name} is {value}, but {model} was begun with {there}; settings are chosen with the first task, so "
                "leave it out, or learn into a new folder."
            )


def _plain(value: Any) -> Any:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value


# Updating a task


class StopAsked(Callback):
    """Ends the training of what is only tried once somebody asks for it."""

    def __init__(self, stop: Callable[[], bool] | None) -> None:
        self.stop = stop

    def step_end(self, step: StepEnd) -> None:
        if self.stop is not None and self.stop():
            raise KeyboardInterrupt


def update_file(
    model: Path,
    data: Path,
    task: str,
    parameters: Mapping[str, Any] | None = None,
    options: LearnOptions | None = None,
    keep: Keep = "better",
) -> Update | None:
    """Learn a file as more rows of task `task` of the model folder; None if that had been done already, and was to be
    resumed. With keep="never" nothing is written, and with "better" nothing either if held-out rows get worse."""
    options = options or LearnOptions()
    options.check()
    if not os.path.lexists(model / MANIFEST):
        raise InputError(
            f"{shown(model)} holds no model yet, so there is no task '{task}' to learn more of; learn it first, "
            f"without {options.naming('update')}."
        )
    with contextlib.nullcontext() if keep == "never" else lock_folder(model):
        classifier = load_classifier(model, options.device)
        check_parameters(model, classifier, parameters or {}, options.naming)
        info = known_task(classifier.learner_.state, task)
        layout = layout_of(classifier)
        examples = read_examples(data, replace(options.read, like=layout))
        _check_labels(examples, classes_of(classifier, info.name), info.name, options)
        if options.read.takes_unknown:  # in this file, so in those to come
            classifier.extra_ = {**classifier.extra_, "layout": replace(layout, unknown="zeros").to_json()}
        if keep == "never":
            return _try(classifier, examples, info.name, keep, options, [StopAsked(options.stop)])
        serial = classifier.learner_.method.next_serial(len(classifier.tasks_))
        discard_finished(model, serial)
        noted = classifier.extra_.get(ROWS, {})
        if options.resume and noted.get(f"{info.name}@{info.version}") == examples.digest():
            return None
        check_unfinished(model, f"{info.name}@{info.version + 1}", serial, options)
        result = _keep(model, classifier, examples, info.name, keep, options)
        if result.kept:
            versions = {f"{info.name}@{info.version}": noted.get(info.name), **noted}
            versions |= {f"{info.name}@{result.version}": examples.digest(), info.name: None}
            classifier.extra_ = {**classifier.extra_, ROWS: {name: one for name, one in versions.items() if one}}
            if result.accuracy is not None:
                classifier.learner_.note_accuracy(info.name, result.accuracy)
            classifier.save(model)
        elif task_in_progress(model) is not None:
            discard(model)
        return result


def _keep(
    model: Path, classifier: ContinualClassifier, examples: Examples, task: str, keep: Keep, options: LearnOptions
) -> Update:
    checkpoint = Checkpoint(model, every=options.checkpoint_minutes, resume=options.resume, stop=options.stop)
    with resuming(options):
        return _try(classifier, examples, task, keep, options, [checkpoint])


def _try(
    classifier: ContinualClassifier,
    examples: Examples,
    task: str,
    keep: Keep,
    options: LearnOptions,
    callbacks: Sequence[Callback],
) -> Update:
    share = VALIDATION_FRACTION if options.validate is None else options.validate
    watching = [*options.callbacks, *callbacks]
    try:
        return classifier.update(
            examples.inputs, np.array(examples.y), task, keep=keep, validation_fraction=share, callbacks=watching
        )
    except InputError as error:
        if error.remedy != TOO_FEW:
            raise
        say = options.naming
        remedy = f"Give more rows at once, a larger {say('validate')}, or {say('force')} to keep them in any case."
        raise InputError(error.problem, remedy=remedy) from None


def _check_labels(examples: Examples, classes: Sequence[str], task: str, options: LearnOptions) -> None:
    assert examples.y is not None
    new = next((row for row, label in enumerate(examples.y) if label not in classes), None)
    if new is not None:
        raise InputError(
            f"{examples.where(new)}: task '{task}' has no class {examples.y[new]!r}, only {few(list(classes))}; "
            f"learn new classes as a task of their own, without {options.naming('update')}."
        )


# Predicting


def read_like_before(classifier: ContinualClassifier, data: Path, options: ReadOptions) -> Iterator[Examples]:
    """The examples of a file that is like those learnt, some at a time."""
    return read_batches(data, ROWS_PER_ANSWER, replace(options, like=layout_of(classifier)))


def answer_rows(
    classifier: ContinualClassifier,
    batches: Iterable[Examples],
    task: str | None = None,
    posterior_samples: int = 0,
    naming: Naming = argument,
) -> Iterator[list[Row]]:
    """The answers in the order of the file, a batch at a time, averaged over so many `posterior_samples`. An
    image is named by its file, anything else by its number, counted from 1."""
    if task is not None:
        classifier.learner_.task_number(task)  # an unknown name is refused with the nearest one
    if posterior_samples < 0:
        raise InputError(
            f"{naming('posterior_samples')} is {posterior_samples}; give how many to average over, such as 100."
        )
    number = 0
    for batch in batches:
        found = classifier.prediction(batch.inputs, task, posterior_samples)
        rows: list[Row] = []
        probability, novelty, novel = found.probability, cast(Any, found.novelty), found.is_novel
        for at in range(len(batch)):
            number += 1
            row: Row = {"file": batch.where(at).file} if batch.origins.numbers is None else {"row": number}
            row["label"] = str(found.labels[at])
            row["probability"] = float(probability[at])
            row["task"] = str(found.task[at])
            row["entropy"] = float(found.entropy[at])
            row["novelty"] = float(novelty[at])
            row["novel"] = bool(novel[at])
            if found.mutual_information is not None:
                row["mutual_information"] = float(found.mutual_information[at])
            rows.append(row)
        yield rows
