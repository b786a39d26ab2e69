"""Updates of a task: a new version, trained on a fork, judged on a validation split, and kept or not."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ibpwf import __version__
from ibpwf.data.rows import IndexedRows, split_rows
from ibpwf.dispatch import accelerated
from ibpwf.errors import InputError
from ibpwf.learner.state import LearnerState, TaskInfo, poor_fit
from ibpwf.linear import CLEARLY, FEWEST_ROWS, HeldOut, clearly_below, linear_accuracy
from ibpwf.storage.checkpoint_folder import Identity
from ibpwf.training.callbacks import Callback, TaskEnd
from ibpwf.training.environment import prepared_to_train
from ibpwf.training.loop import Training
from ibpwf.training.method import TaskData

Keep = Literal["better", "always", "never"]
Answers = tuple[NDArray[Any], NDArray[Any]]
"""Predicted labels of rows, with the task known and inferred."""

VALIDATION_FRACTION = 0.2
"""Fraction of the rows of every class by which a new version is judged."""

MOST_VALIDATION_ROWS = 2000

TOO_FEW = "Give more rows at once, a larger validation_fraction, or keep='always'."


@dataclass(frozen=True)
class Update:
    """The result of updating a task.

    Accuracies are in per cent of the validation rows, of the version before and of the new one, with the task known
    and inferred; None without validation rows.

    Attributes
    ----------
    task, version
        The task's name, and the new version's number, whether or not it was kept.
    kept
        Whether the new version is now in use.
    rows, validation_rows
        How many rows were trained on, and how many were used to judge the version.
    changed, changed_inferred
        For how many per cent of all new rows the predicted label changes.
    """

    task: str
    version: int
    kept: bool
    rows: int
    validation_rows: int
    accuracy_before: float | None
    accuracy: float | None
    accuracy_inferred_before: float | None
    accuracy_inferred: float | None
    changed: float
    changed_inferred: float


@dataclass(frozen=True)
class Trial:
    """The state with a new version of task number `task`, not committed yet. Of all `rows`, those of `validation`
    have not been learned from."""

    state: LearnerState
    task: int
    rows: IndexedRows
    validation: Tensor
    keep: Keep

    @property
    def labels(self) -> NDArray[Any]:
        classes = torch.tensor(self.state.tasks[self.task].classes)
        return classes[self.rows.y.cpu()].numpy()

    def answers(self, state: LearnerState) -> Answers:
        """The labels that a state predicts for the rows."""
        x = self.rows.tensors()[0]
        known = torch.full((len(x),), self.task, device=x.device)
        given, inferred = (
            state.method.predict(x, task, marginal=False, posterior_samples=0, seed=0).labels
            for task in (known, None)
        )
        return given.cpu().numpy(), inferred.cpu().numpy()

    def judged(self, truth: NDArray[Any], before: Answers, after: Answers) -> Update:
        """The result, from the labels predicted for the rows before and after."""
        out, keep = self.validation.numpy(), self.keep

        def accuracy(labels: NDArray[Any]) -> float | None:
            return 100.0 * float(np.mean(labels[out] == truth[out])) if out.any() else None

        was, now = [accuracy(labels) for labels in before], [accuracy(labels) for labels in after]
        better = all(new is None or old is None or new >= old for old, new in zip(was, now, strict=True))
        info = self.state.tasks[self.task]
        changed = [100.0 * float(np.mean(new != old)) for old, new in zip(before, after, strict=True)]
        return Update(
            info.name,
            info.version,
            keep == "always" or (keep == "better" and better),
            int((~self.validation).sum()),
            int(out.sum()),
            was[0],
            now[0],
            was[1],
            now[1],
            *changed,
        )

    def problem(self, truth: NDArray[Any], before: Answers, after: Answers) -> str | None:
        """What to warn of where a version that is kept is clearly worse than the one before, or than a simpler model.

        The version before is compared on all rows: the new one has learned from most of them, and should be right
        about more of them, not fewer.
        """
        info, rows = self.state.tasks[self.task], len(truth)
        was, now = (100.0 * float(np.mean(answers[0] == truth)) for answers in (before, after))
        if clearly_below(now, was, rows):
            return (
                f"task '{info.name}' is answered worse by its new version: {now:.1f} % of {rows:,} rows of the "
                f"update are right, where the version before has {was:.1f} %. It still answers as "
                f"'{info.name}@{info.version - 1}'. Use keep='better' to keep a version only if it is no worse."
            )
        learned = (~self.validation).to(self.rows.y.device)
        counts = torch.bincount(self.rows.y[learned], minlength=len(info.classes))
        majority = 100.0 * int(counts.max()) / int(counts.sum())
        validated = replace(info, held_out=self._compared(truth, after[0], counts))
        return poor_fit(validated, majority, frozen=self.state.method.has_frozen_base)

    def _compared(self, truth: NDArray[Any], answers: NDArray[Any], counts: Tensor) -> HeldOut | None:
        """Accuracy on the validation rows, beside a linear model of the other rows; None if they are too few."""
        out = self.validation.numpy()
        rows = int(out.sum())
        if rows < FEWEST_ROWS:
            return None
        accuracy = 100.0 * float(np.mean(answers[out] == truth[out]))
        there = self.validation.to(self.rows.y.device)
        asked, known = self.rows.part(there).tensors()
        linear = None
        if accuracy < 100 - CLEARLY and bool(counts.all()):  # of fewer classes, a linear model has an easier task
            linear = linear_accuracy(self.rows.part(~there), asked, known, len(counts))
        return HeldOut(rows, accuracy, 100.0 * float((known == counts.argmax()).double().mean()), linear)

    def finished(self) -> LearnerState:
        """The state with the validation rows in task inference too, as if all had come at once."""
        if not bool(self.validation.any()):
            return self.state
        method = self.state.method.fork()
        out = self.validation.to(self.rows.y.device)
        with prepared_to_train(method.template, method.device), accelerated(method.accelerate):
            method.add_rows(self.task, self.rows.part(out))
        return replace(self.state, method=method)


def known_task(state: LearnerState, task: int | str) -> TaskInfo:
    """The task to update; an older version cannot be."""
    if not state.method.has_versions:
        raise state.method.no_versions()
    if not state.tasks:
        raise InputError("nothing has been learnt yet, so there is no task to update; learn one first.")
    info = state.info(task)
    state.method.likelihood.require_classes("update", "learn the rows as a task of their own")
    if info.version_of is not None:
        raise InputError(
            f"task is '{info.name}', an older version, which stays as it is; give '{info.version_of}' to go on from "
            "the newest."
        )
    return info


def class_numbers(found: Sequence[int], task: TaskInfo) -> list[int]:
    """The place of every label that was found among the task's classes; one that is not there is rejected."""
    new = [label for label in found if label not in task.classes]
    if new:
        raise unknown_label(new[0], task.name, task.classes)
    return [task.classes.index(label) for label in found]


def unknown_label(label: object, task: str, classes: Sequence[object]) -> InputError:
    shown = ", ".join(map(str, classes[:8])) + (", …" if len(classes) > 8 else "")
    return InputError(
        f"y has the label {label!r}, which task '{task}' does not have (it has {shown}); learn new classes as a task "
        "of their own."
    )


def try_version(
    state: LearnerState,
    info: TaskInfo,
    rows: IndexedRows,
    keep: Keep,
    validation_fraction: float,
    seed: int,
    identity: Callable[[TaskData], Identity],
    callbacks: Sequence[Callback],
) -> Generator[None, None, Trial]:
    """Train a new version of a task on a fork of the method, pausing after every step."""
    if keep not in get_args(Keep):
        raise InputError(f"keep is {keep!r}; give 'better', 'always' or 'never'.")
    if not 0 < validation_fraction < 1:
        raise InputError(
            f"validation_fraction is {validation_fraction}; give the fraction of the rows to judge by, such as "
            f"{VALIDATION_FRACTION}."
        )
    old_name = f"{info.name}@{info.version}"
    if any(one.name == old_name for one in state.tasks):
        raise InputError(
            f"the version of task '{info.name}' that is there would be called '{old_name}' from now on, and another "
            "task has that name; learn these rows as a task of their own."
        )
    started = time.perf_counter()
    method = state.method.fork()
    serial = method.next_serial(len(state.tasks))
    name = f"{info.name}@{info.version + 1}"
    data = TaskData(name, info.number, info.classes, seed=seed, serial=serial, rows=rows, is_update=True)
    out = split_rows(rows.y, validation_fraction, data.generator("judged by"), most=MOST_VALIDATION_ROWS)
    if keep != "always" and not bool(out.any()):
        raise InputError(
            f"of {len(rows):,} rows none can be held out to see whether answers get worse.", remedy=TOO_FEW
        )
    data.rows = rows.part((~out).to(rows.y.device))
    training = Training(method, data, callbacks)
    training.identity = lambda: identity(data)
    yield from training.run()
    with training.telling_failure():
        new = replace(
            info,
            examples=info.examples + len(data.rows),
            accuracy=None,
            training_accuracy=training.accuracy,
            further_factors=dict(method.further_factors) or None,
            version=info.version + 1,
        )
        old = replace(info, name=old_name, version_of=info.name)
        event = {"event": "updated", "serial": serial, "version": __version__}
        tasks = [new if one is info else one for one in state.tasks]
        # Older versions are numbered in the order in which they were learned.
        older = sorted([*state.older, old], key=lambda one: state.method.serial(one.number))
        now = replace(state, method=method, history=(*state.history, event)).numbered([*tasks, *older])
        use, seconds = method.use(info.number), time.perf_counter() - started
    training.callbacks.task_end(TaskEnd(name, info.number, len(data.rows), training.accuracy, seconds, use))
    return Trial(now, info.number, rows, out, keep)
