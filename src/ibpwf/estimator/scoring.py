"""How well a file's labels are found: with the task given and inferred, class by class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import confusion_matrix

from ibpwf.data import Examples
from ibpwf.data.examples import in_order
from ibpwf.data.opening import few
from ibpwf.data.options import Naming, argument
from ibpwf.errors import InputError
from ibpwf.estimator.classifier import ContinualClassifier
from ibpwf.estimator.files import classes_of

Counts = NDArray[np.int64]


@dataclass
class Scores:
    """Counts over a file: two confusion matrices, a row for each label that was learnt and a column for each answer.

    `given` has the rows whose label tells the task, answered with it. Rows whose label was never learnt cannot be
    right; they are counted apart.
    """

    tasks: Mapping[str, list[str]]  # of each label
    inferred: Counts
    given: Counts
    tasks_right: int = 0
    entropy: float = 0.0
    novel: int = 0
    never_learned: Counter[str] = field(default_factory=Counter)
    never_learned_novel: int = 0

    @property
    def labels(self) -> list[str]:
        return list(self.tasks)

    @property
    def rows(self) -> int:
        return int(self.inferred.sum())

    @property
    def rows_with_task(self) -> int:
        return int(self.given.sum())

    def to_json(self) -> dict[str, Any]:
        """Percentages and counts, as `ibpwf evaluate --json` writes them; null where there is nothing to count."""
        answered = self.inferred.sum(0)
        classes, confusion = [], {}
        for at, label in enumerate(self.labels):
            inferred, given = self.inferred[at], self.given[at]
            if not inferred.sum():
                continue
            classes.append(
                {
                    "label": label,
                    "tasks": self.tasks[label],
                    "rows": int(inferred.sum()),
                    "task_given": percent(given[at], given.sum()),
                    "task_inferred": percent(inferred[at], inferred.sum()),
                    "precision": percent(inferred[at], answered[at]),
                }
            )
            taken_for = Counter({self.labels[answer]: int(inferred[answer]) for answer in np.flatnonzero(inferred)})
            confusion[label] = dict(taken_for.most_common())
        return {
            "rows": self.rows,
            "accuracy": {
                "task_given": percent(self.given.trace(), self.rows_with_task),
                "task_inferred": percent(self.inferred.trace(), self.rows),
            },
            "rows_with_task": self.rows_with_task,
            "task_inference": percent(self.tasks_right, self.rows_with_task),
            "mean_entropy": self.entropy / self.rows if self.rows else None,
            "novel": percent(self.novel, self.rows),
            "classes": classes,
            "confusion": confusion,
            "never_learned": {
                "rows": self.never_learned.total(),
                "labels": dict(self.never_learned.most_common()),
                "novel": percent(self.never_learned_novel, self.never_learned.total()),
            },
        }


def percent(count: int, of: int) -> float | None:
    return 100.0 * int(count) / int(of) if of else None


def score_rows(
    classifier: ContinualClassifier,
    batches: Iterable[Examples],
    task: str | None = None,
    naming: Naming = argument,
) -> Scores:
    """Answer labelled examples and count. A label tells the task if one task alone has it; `task` says it for all."""
    tasks: dict[str, list[str]] = {}
    for name in classifier.tasks_ if task is None else [task]:
        for label in classes_of(classifier, name):
            tasks.setdefault(label, []).append(name)
    # An answer may be of another task than the one that is given.
    labels = in_order({*tasks, *map(str, classifier.classes_)})
    none = np.zeros((len(labels), len(labels)), dtype=np.int64)
    scores = Scores({label: tasks.get(label, []) for label in labels}, none.copy(), none.copy())
    for batch in batches:
        if task is not None:
            _check_labels(batch, task, list(tasks), naming)
        _add(scores, classifier, batch)
    return scores


def _check_labels(batch: Examples, task: str, known: list[str], naming: Naming) -> None:
    assert batch.y is not None
    strange = next((row for row, label in enumerate(batch.y) if label not in known), None)
    if strange is not None:
        raise InputError(
            f"{batch.where(strange)}: task '{task}' has no class {batch.y[strange]!r}, only {few(known)}; remove "
            f"the row, or leave {naming('task')} out."
        )


def _add(scores: Scores, classifier: ContinualClassifier, batch: Examples) -> None:
    y = np.array(batch.y)
    found = classifier.prediction(batch.inputs)
    learned = np.isin(y, [label for label, tasks in scores.tasks.items() if tasks])
    scores.never_learned.update(y[~learned].tolist())
    scores.never_learned_novel += int(found.is_novel[~learned].sum())
    scores.novel += int(found.is_novel[learned].sum())
    scores.entropy += float(found.entropy[learned].sum())
    if learned.any():
        scores.inferred += confusion_matrix(y[learned], found.labels[learned].astype(str), labels=scores.labels)
    told = learned & np.array([len(scores.tasks.get(label, ())) == 1 for label in y])
    if told.any():
        tasks = [scores.tasks[label][0] for label in y[told]]
        infos = map(classifier.learner_.info, tasks)
        owners = [info.version_of or info.name for info in infos]  # an older version's task is the task
        scores.tasks_right += int((found.task[told] == np.array(owners)).sum())
        given = classifier.prediction(batch.inputs[told], tasks).labels.astype(str)
        scores.given += confusion_matrix(y[told], given, labels=scores.labels)
