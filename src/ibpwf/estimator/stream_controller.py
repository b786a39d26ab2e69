"""What a stream of rows leads to: tasks that a classifier learns, updates or leaves as they are, and deletes again.

A `Stream` finds where tasks begin and end; this carries it out, on a fork of the classifier that nobody else reads.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from ibpwf.inference.prediction import Prediction
from ibpwf.streaming.recent import TaskAnswers
from ibpwf.streaming.stream import ROWS_AT_ONCE, Segment, Stream

if TYPE_CHECKING:
    from ibpwf.estimator.classifier import ContinualClassifier

SAMPLE = 1000
"""Rows of a segment of a stream that old tasks are tried on."""


class StreamController:
    """Carries out the decisions of `stream` on `model`, a fork of the classifier."""

    def __init__(self, model: ContinualClassifier, stream: Stream) -> None:
        self.model, self.stream = model, stream
        model._stream = stream

    def take(self, x: NDArray[Any], y: NDArray[np.int64]) -> None:
        """Take checked rows and the numbers of their labels."""
        for start in range(0, len(y), ROWS_AT_ONCE):
            self._take_rows(x[start : start + ROWS_AT_ONCE], y[start : start + ROWS_AT_ONCE])

    def _take_rows(self, x: NDArray[Any], y: NDArray[np.int64]) -> None:
        told = self._told(x)
        current = None if told is None else self._likeliest(told)
        segment = self.stream.take(x, y, told, current)
        for number in self.stream.vanished():
            label = self.model._labels.names[number]
            self.stream.note("vanished", f"class {label!r} has not come for long; it stays known", label=label)
        if segment is not None:
            self.settle(segment)

    def settle(self, segment: Segment) -> None:
        """Decide whether gathered rows are an old task's or a new one's, and do what that means."""
        model, stream, rows = self.model, self.stream, len(segment.y)
        accuracies = self._accuracies(segment)
        same = stream.same_task(segment, accuracies)
        shown = ", ".join(f"{name} {100 * share:.1f} %" for name, share in accuracies.items())
        beside = f"right about them: online part {100 * segment.online:.1f} %" + (f", {shown}" if shown else "")
        labels = np.asarray(model._labels.classes[model._labels.columns()[segment.y]])
        if same is not None:
            took = stream.options.update
            if took:  # without a warning: the stream's log says how rows of the task are answered
                model._update(segment.x, labels, same)
            stream.dropped[same] = stream.dropped.get(same, 0) + (0 if took else rows)
            stream.note("update" if took else "old task", f"{segment.why}; {beside}", task=same, rows=rows)
        else:
            with warnings.catch_warnings():  # a hard task is no news in a stream; its accuracy is in the log
                warnings.simplefilter("ignore", UserWarning)
                model._learn(segment.x, labels, None, known=model._labels)
            only = len(model.tasks_) == 1
            why = "" if shown else "there was no task yet; " if only else "no task has all their labels; "
            accuracy = model.learner_.tasks[-1].training_accuracy
            reason = f"{segment.why}; {why}{beside}"
            stream.note("new task", reason, task=model.tasks_[-1], rows=rows, training_accuracy=accuracy)
        model._stream = stream
        stream.settled(self._told(segment.x[-stream.options.window :]))

    def undo(self, last: dict[str, Any]) -> None:
        """Take back a decision about rows."""
        model, stream, name = self.model, self.stream, last["task"]
        labels, classes = model._labels, model.classes_
        if last["decision"] == "new task" and model._has_tasks() and name in model.tasks_:
            if len(model.tasks_) > 1:
                model.forget(name)
            else:
                model._forget_all()
            model._labels, model.classes_ = labels, classes  # the stream still knows what it has seen
            stream.lost_a_task(model._has_tasks())
        elif last["decision"] == "old task" and name in stream.dropped:
            stream.dropped[name] = max(0, stream.dropped[name] - last["rows"])
        stream.note("undo", f"asked to undo decision {last['number']}", task=name, undone=last["number"])
        model._stream = stream

    def _told(self, x: NDArray[Any]) -> TaskAnswers | None:
        """What the tasks predict for rows; None before there is one."""
        found = self.model._by_tasks(x)
        return None if found is None else task_answers(self.model, found)

    def _likeliest(self, told: TaskAnswers) -> str:
        """The task that most rows of a batch are taken for."""
        serial = np.bincount(told.task[told.probabilities.argmax(1)]).argmax()
        place = int((_serials(self.model) == serial).argmax())
        return str(self.model.tasks_[place])

    def _accuracies(self, segment: Segment) -> dict[str, float]:
        """The accuracy on a segment of each task that has all its labels, with the task given."""
        model = self.model
        if not model._has_tasks():
            return {}
        wanted = set(np.unique(segment.y).tolist())
        at = np.linspace(0, len(segment.y) - 1, min(SAMPLE, len(segment.y))).astype(int)
        found = {}
        for number, name in enumerate(model.tasks_):
            if wanted <= set(model.learner_.tasks[number].classes):
                said = model._by_learner(torch.from_numpy(model._standardizer(segment.x[at])), number)
                columns = np.array([label for _, label in said.classes])
                answers = columns[said.probabilities.cpu().numpy().argmax(1)]
                found[name] = float(np.mean(answers == segment.y[at]))
        return found


def task_answers(model: ContinualClassifier, found: Prediction) -> TaskAnswers:
    """A prediction as a stream remembers it: tasks by what never changes of them."""
    task, label = np.array(found.classes, dtype=np.int64).T
    return TaskAnswers(found.probabilities.cpu().numpy(), _serials(model)[task], label)


def _serials(model: ContinualClassifier) -> NDArray[np.int64]:
    return np.array([model.learner_.method.serial(number) for number in range(len(model.tasks_))])
