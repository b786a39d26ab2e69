"""One file learnt as more rows of a task of a model folder; whatever goes wrong, the folder stays as it was."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ibpwf.data import Examples, read_examples
from ibpwf.data.opening import few, shown
from ibpwf.errors import InputError
from ibpwf.estimator import ROWS, ContinualClassifier
from ibpwf.own_data.answering import classes_of, layout_of, load_classifier
from ibpwf.own_data.learning import LearnOptions, check_parameters, check_unfinished, resuming
from ibpwf.storage.checkpoint_folder import discard, discard_finished, task_in_progress
from ibpwf.storage.folder import MANIFEST, lock_folder
from ibpwf.training.callbacks import Callback, StepEnd
from ibpwf.training.checkpoint import Checkpoint
from ibpwf.update import TOO_FEW, VALIDATION_FRACTION, Keep, Update, known_task


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
        info = known_task(classifier.learner_.known, task)
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
