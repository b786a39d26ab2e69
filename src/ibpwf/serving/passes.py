"""What a version says of rows, whoever asks beside: the same bits for a row alone and among others.

Products of few rows, and of very many, are rounded otherwise, and so are the last rows where their number is odd for
the processor. So every pass has 16, 32, … or 128 rows, and on a GPU, which chooses how to multiply by their number,
always 128. Fewer are filled up with copies of one of them, more are answered in several passes. Rows of one task that
is given go through that task's network together, so each task's are filled up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ibpwf.errors import InputError
from ibpwf.estimator import ContinualClassifier

STEP, MOST = 16, 128
"""Rows of a pass: a multiple of the one, up to the other."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Rows:
    """What is asked: inputs as a classifier takes them, and the task of each row, None where it is to be inferred."""

    x: NDArray[Any]
    tasks: Sequence[str | None]
    novelty: bool = True

    def __len__(self) -> int:
        return len(self.x)

    def at(self, places: NDArray[np.intp]) -> Rows:
        return Rows(self.x[places], [self.tasks[place] for place in places], self.novelty)

    def by_task(self) -> NDArray[np.intp]:
        """An order in which the rows of each task stand together, so that they can share passes."""
        return np.array(sorted(range(len(self)), key=lambda place: self.tasks[place] or ""), dtype=np.intp)


@dataclass(frozen=True)
class Answer:
    """What is said of rows: a label, its probability and task, how probable each task is, entropy in nats, and
    novelty, above 1 where a row looks like nothing learnt."""

    labels: NDArray[Any]
    probability: Floats
    tasks: NDArray[Any]
    task_probabilities: Floats
    entropy: Floats
    novelty: Floats | None

    def rows(self, here: slice) -> Answer:
        novelty = None if self.novelty is None else self.novelty[here]
        return Answer(
            self.labels[here],
            self.probability[here],
            self.tasks[here],
            self.task_probabilities[here],
            self.entropy[here],
            novelty,
        )

    @classmethod
    def joined(cls, parts: Sequence[Answer], order: NDArray[np.intp]) -> Answer:
        """One answer out of several, which are about rows in this order."""
        back = np.argsort(order)

        def whole(name: str) -> Any:
            each = [getattr(part, name) for part in parts]
            return None if each[0] is None else np.concatenate(each)[back]

        return cls(*(whole(field.name) for field in fields(cls)))


def check_tasks(classifier: ContinualClassifier, tasks: Sequence[str | None]) -> None:
    """Refuse a task that there is not, naming the nearest."""
    for task in {task for task in tasks if task is not None}:
        classifier.learner_.task_number(task)


def answer(classifier: ContinualClassifier, questions: Sequence[Rows]) -> list[Answer]:
    """The answers to several questions, in as few passes as there can be."""
    x = np.concatenate([question.x for question in questions])
    tasks = [task for question in questions for task in question.tasks]
    wanted = np.concatenate([np.full(len(question), question.novelty) for question in questions])
    together = _answer(classifier, x, tasks)
    novelty = np.full(len(x), np.nan)
    asked = np.flatnonzero(wanted)
    for start in range(0, len(asked), MOST):
        some = asked[start : start + MOST]
        novelty[some] = classifier.novelty(x[_filled(some, _step(classifier))])[: len(some)]
    found, start = [], 0
    for question in questions:
        here = slice(start, start + len(question))
        part = together.rows(here)
        new = novelty[here] if question.novelty else None
        found.append(Answer(part.labels, part.probability, part.tasks, part.task_probabilities, part.entropy, new))
        start += len(question)
    return found


def _answer(classifier: ContinualClassifier, x: NDArray[Any], tasks: Sequence[str | None]) -> Answer:
    count = len(classifier.tasks_)
    out = Answer(
        np.empty(len(x), dtype=object),
        np.zeros(len(x)),
        np.empty(len(x), dtype=object),
        np.zeros((len(x), count)),
        np.zeros(len(x)),
        None,
    )
    for rows, given in _passes(tasks, _step(classifier)):
        found = classifier.answers(x[rows], given, novelty=False)
        assert found.task_probabilities is not None
        out.labels[rows], out.probability[rows] = found.labels, found.probability
        out.tasks[rows], out.entropy[rows] = found.tasks, found.entropy
        out.task_probabilities[rows] = found.task_probabilities
    return out


def _step(classifier: ContinualClassifier) -> int:
    return STEP if classifier.learner_.device.type == "cpu" else MOST


def _passes(tasks: Sequence[str | None], step: int = STEP) -> list[tuple[NDArray[np.intp], list[str] | None]]:
    """Which rows go together, filled up, and their tasks, None for those whose task is to be inferred."""
    by_task: dict[str | None, list[int]] = {}
    for row, task in enumerate(tasks):
        by_task.setdefault(task, []).append(row)
    inferred = by_task.pop(None, [])
    passes: list[tuple[NDArray[np.intp], list[str] | None]] = [
        (_filled(np.array(inferred[start : start + MOST]), step), None) for start in range(0, len(inferred), MOST)
    ]
    rows, given = list[NDArray[np.intp]](), list[str]()
    for task, places in by_task.items():
        assert task is not None
        for start in range(0, len(places), MOST):
            some = _filled(np.array(places[start : start + MOST]), step)
            if rows and len(given) + len(some) > MOST:
                passes.append((np.concatenate(rows), given))
                rows, given = [], []
            rows.append(some)
            given = [*given, *[task] * len(some)]
    if rows:
        passes.append((np.concatenate(rows), given))
    return passes


def _filled(rows: NDArray[np.intp], step: int) -> NDArray[np.intp]:
    """As many rows as a pass may have; the last one again and again."""
    short = -len(rows) % step
    return np.concatenate([rows, np.full(short, rows[-1])]) if short > 0 else rows


def warm(classifier: ContinualClassifier) -> None:
    """Prepare what is made at the first question, and see that rows can be asked at all."""
    shape = classifier.learner_.input_shape
    if shape is None:
        raise InputError("nothing has been learnt yet, so nothing can be answered.")
    width = classifier.n_features_in_
    answer(classifier, [Rows(np.zeros((1, width), dtype=np.float32), [None])])
