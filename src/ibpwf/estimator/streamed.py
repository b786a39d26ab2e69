"""A classifier that rows keep coming to: batches taken, decisions carried out, answers of tasks and online part."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from ibpwf.concurrency import SingleWriter
from ibpwf.errors import InputError
from ibpwf.estimator.answering import ROWS_AT_ONCE as ASKED_AT_ONCE
from ibpwf.estimator.answering import Answering, Answers, asks, entropy
from ibpwf.estimator.preparing import checked_rows
from ibpwf.inference.prediction import Prediction
from ibpwf.labels import LabelBook, label_array
from ibpwf.plain_arrays import plain
from ibpwf.streaming.options import StreamOptions
from ibpwf.streaming.recent import TaskAnswers
from ibpwf.streaming.stream import ROWS_AT_ONCE, Segment, Stream
from ibpwf.torch_state import pinned

NO_TASK = "none yet"
"""What answers call the task while there is none."""
SAMPLE = 1000
"""Rows of a segment that old tasks are tried on."""


class NoStream(InputError, AttributeError):
    """An attribute that only a stream has: for `hasattr` it is not there."""


class Streamed(Answering, ABC):
    """What `stream=True` adds to a classifier. `_stream` is there once the first batch was taken."""

    stream: Any
    random_state: Any
    _stream: Stream

    @property
    def stream_log_(self) -> list[dict[str, Any]]:
        """Every decision about the stream with its reason, the last 1,000 of them."""
        return [dict(line) for line in self._streamed().log]

    @property
    def stream_rows_(self) -> int:
        """How many rows the stream has brought; 0 before the first."""
        return self._stream.rows if "_stream" in vars(self) else 0

    def _streamed(self) -> Stream:
        if "_stream" not in vars(self):
            raise NoStream("no stream has been seen yet; make the classifier with stream=True, then partial_fit.")
        return self._stream

    def _has_tasks(self) -> bool:
        return hasattr(self, "learner_")

    def _check_tasks(self, doing: str) -> None:
        check_is_fitted(self)
        if not self._has_tasks():
            raise InputError(
                f"the stream has brought {self._stream.rows:,} rows and no task has been learned yet, so nothing can "
                f"be {doing}; go on with partial_fit, or call finish() to learn what is in the buffer."
            )

    # Taking batches

    @pinned()
    def _take(self, X: Any, y: Any, classes: Any) -> None:
        """A batch of any size, all of it or, if anything goes wrong, nothing."""
        options = StreamOptions.of(self.stream)
        assert options is not None
        other = self._fork()
        X, y = other._stream_rows(X, y)
        book = getattr(self, "_labels", None) or LabelBook()
        if classes is not None:
            book = book.with_labels(label_array(classes, "classes"))
        other._labels = book = book.with_labels(y)
        other.classes_ = book.classes
        if "_stream" not in vars(other):
            seed = self.random_state if isinstance(self.random_state, (int, np.integer)) else 0
            other._stream = Stream(options, X.shape[1], int(seed), watching=self._has_tasks())
        other._stream = other._stream.fork()
        other._stream.options = options
        numbers = book.numbers(y)
        for start in range(0, len(numbers), ROWS_AT_ONCE):
            other._take_rows(X[start : start + ROWS_AT_ONCE], numbers[start : start + ROWS_AT_ONCE])
        self._commit(other)

    @abstractmethod
    def _writes(self) -> SingleWriter:
        """Claimed by every change."""

    @abstractmethod
    def _fork(self) -> Self:
        """A copy to change."""

    @abstractmethod
    def _commit(self, other: Self, **own: Any) -> None:
        """Take the place of the original."""

    def _stream_rows(self, X: Any, y: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """Checked rows and labels; columns must be those of the first batch."""
        if y is None:
            raise InputError("y is missing; partial_fit learns from labels. Keep rows until theirs have come.")
        X = plain("X", X)
        if getattr(X, "shape", (len(X),))[0] == 0:
            raise InputError("the batch is empty; give at least one row, or leave the call out.")
        first = "_stream" not in vars(self) and not self._has_tasks()
        X, y, image = checked_rows(self, X, y, reset=first)
        if image is not None:
            raise InputError("X holds images, and a stream takes rows of numbers; give N×features.")
        y = label_array(y)
        check_classification_targets(y)
        return (X.toarray() if hasattr(X, "toarray") else X), y

    def _take_rows(self, x: NDArray[Any], y: NDArray[np.int64]) -> None:
        stream = self._stream
        told = self._told(x)
        current = None if told is None else self._likeliest(told)
        segment = stream.take(x, y, told, current)
        for number in stream.vanished():
            label = self._labels.names[number]
            stream.note("vanished", f"class {label!r} has not come for long; it stays known", label=label)
        if segment is not None:
            self._settle(segment)

    def _told(self, x: NDArray[Any]) -> TaskAnswers | None:
        """What the tasks say of rows; None before there is one."""
        if not self._has_tasks():
            return None
        parts = [self._asked(x[at : at + ASKED_AT_ONCE], None) for at in range(0, len(x), ASKED_AT_ONCE)]
        task, label = np.array(parts[0].classes, dtype=np.int64).T
        serials = np.array([self.learner_.method.serial(number) for number in range(len(self.tasks_))])
        return TaskAnswers(np.concatenate([p.probabilities.cpu().numpy() for p in parts]), serials[task], label)

    def _asked(self, x: NDArray[Any], task: int | None) -> Prediction:
        """`_prediction` of rows that have been checked."""
        return self.learner_.predict(torch.from_numpy(self._standardizer(x)), task, marginal=True)

    def _likeliest(self, told: TaskAnswers) -> str:
        """The task that most rows of a batch are taken for."""
        serial = np.bincount(told.task[told.probabilities.argmax(1)]).argmax()
        serials = [self.learner_.method.serial(number) for number in range(len(self.tasks_))]
        return self.tasks_[serials.index(int(serial))]

    # Decisions

    def _settle(self, segment: Segment) -> None:
        """Decide what gathered rows are: an old task's, or a new one; and do what that means."""
        stream, rows = self._stream, len(segment.y)
        accuracies = self._accuracies(segment)
        same = stream.same_task(segment, accuracies)
        shown = ", ".join(f"{name} {100 * share:.1f} %" for name, share in accuracies.items())
        beside = f"right about them: online part {100 * segment.online:.1f} %" + (f", {shown}" if shown else "")
        if same is not None:
            took = stream.options.more and more_rows(self, segment.x, self._names(segment.y), same)
            stream.dropped[same] = stream.dropped.get(same, 0) + (0 if took else rows)
            decision = "more of a task" if took else "old task"
            stream.note(decision, f"{segment.why}; {beside}", task=same, rows=rows)
            self._stream = stream
            stream.settled(self._told(segment.x[-stream.options.window :]))
            return
        with warnings.catch_warnings():  # a hard task is no news in a stream; its accuracy is in the log
            warnings.simplefilter("ignore", UserWarning)
            self._learn(segment.x, self._names(segment.y), None, known=self._labels)
        self._stream = stream
        why = "" if shown else "no task has all their labels; " if len(self.tasks_) > 1 else "there was no task yet; "
        reason = f"{segment.why}; {why}{beside}"
        accuracy = self.learner_.tasks[-1].training_accuracy
        stream.note("new task", reason, task=self.tasks_[-1], rows=rows, training_accuracy=accuracy)
        stream.settled(self._told(segment.x[-stream.options.window :]))

    @abstractmethod
    def _learn(self, X: Any, y: Any, task: str | None, **how: Any) -> Self:
        """Learn a task."""

    def _names(self, numbers: NDArray[np.int64]) -> NDArray[Any]:
        names = self._labels.classes[self._labels.columns()[numbers]]
        return np.asarray(names)

    def _accuracies(self, segment: Segment) -> dict[str, float]:
        """How often each task that has all labels of a segment is right about it, asked for that task."""
        if not self._has_tasks():
            return {}
        wanted = set(np.unique(segment.y).tolist())
        at = np.linspace(0, len(segment.y) - 1, min(SAMPLE, len(segment.y))).astype(int)
        found = {}
        for number, name in enumerate(self.tasks_):
            if wanted <= set(self.learner_.tasks[number].classes):
                said = self._asked(segment.x[at], number)
                columns = np.array([label for _, label in said.classes])
                answers = columns[said.probabilities.cpu().numpy().argmax(1)]
                found[name] = float(np.mean(answers == segment.y[at]))
        return found

    def finish(self) -> Self:
        """Settle what the buffer holds now instead of when it is full: at the end of a stream, say."""
        self._writes().run("learned", self._finish)
        return self

    @pinned()
    def _finish(self) -> None:
        other = self._fork()
        other._stream = self._streamed().fork()
        segment = other._stream.rest("the stream was said to be finished")
        if segment is not None:
            other._settle(segment)
            self._commit(other)

    def last_decision(self) -> dict[str, Any]:
        """The one that `undo` would take back."""
        log = self._streamed().log
        undone = {line["undone"] for line in log if line["decision"] == "undo"}
        kinds = ("new task", "old task")
        last = next((e for e in reversed(log) if e["decision"] in kinds and e["number"] not in undone), None)
        if last is None:
            raise InputError("the stream's log has no decision to undo.")
        return dict(last)

    def undo(self) -> Self:
        """Take back the last decision about rows. A task that was learned is forgotten, its rows are gone; rows
        counted to an old task are counted no more. Of a task that was forgotten before nothing is left to take back:
        that is noted, and the next `undo` goes on before it. What more rows have changed is not undone here."""
        self._writes().run("undone", self._undo)
        return self

    @pinned()
    def _undo(self) -> None:
        other, last = self._fork(), self.last_decision()
        kept = vars(other).get("extra_")
        other._stream = stream = self._streamed().fork()
        name = last["task"]
        if last["decision"] == "new task" and self._has_tasks() and name in self.tasks_:
            if len(self.tasks_) > 1:
                other.forget(name)
            else:
                other._forget_all()
            other._labels, other.classes_ = self._labels, self.classes_  # the stream still knows what it has seen
            stream.lost_a_task(other._has_tasks())
        elif last["decision"] == "old task" and name in stream.dropped:
            stream.dropped[name] = max(0, stream.dropped[name] - last["rows"])
        stream.note("undo", f"asked to undo decision {last['number']}", task=name, undone=last["number"])
        other._stream = stream
        self._commit(other, **({} if vars(other).get("extra_") is kept else {"extra_": vars(other)["extra_"]}))

    @abstractmethod
    def forget(self, task: str | int) -> Any:
        """Take a task out."""

    def _forget_all(self) -> None:
        """As before the first task; labels and the online part stay."""
        for name in ("learner_", "tasks_", "_standardizer", "_novelty", "_parameters"):
            del self.__dict__[name]

    # Answering

    def _asked_of_stream(self, task: Any) -> bool:
        check_is_fitted(self)
        if "_stream" not in vars(self):
            return False
        if task is not None:
            self._check_tasks("asked of a task")
        return task is None

    def _mixed(self, X: Any) -> tuple[NDArray[np.float64], TaskAnswers | None]:
        """P(c|x) of all labels of `classes_`, and what the tasks alone say."""
        X, _, _ = checked_rows(self, X)
        x = X.toarray() if hasattr(X, "toarray") else X
        told, stream = self._told(x), self._stream
        mixed = stream.recent.mixed(stream.online.probabilities(x), told, len(self._labels.names))
        out = np.zeros((len(x), len(self.classes_)))
        columns = self._labels.columns()
        out[:, columns[columns >= 0]] = mixed[:, columns >= 0]
        return out / np.maximum(out.sum(1, keepdims=True), 1e-300), told

    @asks
    def predict_proba(self, X: Any, task: Any = None) -> NDArray[np.float64]:
        """P(c|x) for every label of `classes_`; 0 for those that a given task does not have. In a stream, of tasks
        and the online part (docs/streams.md)."""
        return self._mixed(X)[0] if self._asked_of_stream(task) else super().predict_proba(X, task)

    @asks
    def predict(self, X: Any, task: Any = None) -> NDArray[Any]:
        """The likeliest label of each row, as `predict_proba` would have it."""
        if not self._asked_of_stream(task):
            return super().predict(X, task)
        found: NDArray[Any] = self.classes_[self._mixed(X)[0].argmax(1)]
        return found

    @asks
    def answers(self, X: Any, task: Any = None, draws: int = 0, *, novelty: bool = True) -> Answers:
        """All there is to say of each row at once; in a stream `tasks` are those likeliest to have the label."""
        if not self._asked_of_stream(task):
            return super().answers(X, task, draws, novelty=novelty)
        p, told = self._mixed(X)
        best = p.argmax(1)
        names, new, tasks = np.full(len(p), NO_TASK, dtype=object), np.zeros(len(p)), None
        if told is not None:
            prediction = self._prediction(X, None)
            names = np.array(self.tasks_)[self._task_of_label(prediction, best)]
            new = self.novelty(X) if novelty else np.full(len(p), np.nan)
            tasks = prediction.task_probabilities.cpu().numpy()
        sure = p[np.arange(len(p)), best]
        return Answers(self.classes_[best], sure, names, entropy(p), new, task_probabilities=tasks)

    @asks
    def uncertainty(self, X: Any, task: Any = None, draws: int = 0) -> NDArray[np.float64]:
        """How unsure each answer is, in nats: the entropy of `predict_proba`; with `draws`, the mutual information of
        the tasks' answers."""
        if draws or not self._asked_of_stream(task):
            return super().uncertainty(X, task, draws)
        return entropy(self._mixed(X)[0])


def more_rows(classifier: Any, x: NDArray[Any], y: NDArray[Any], task: str) -> bool:
    """Give rows to a task that has been learned, where the classifier can; whether they were taken. It gives no
    warning: the stream's log says how rows of the task are answered."""
    update = getattr(classifier, "_update", None)
    if update is None:
        return False
    update(x, y, task)
    return True
