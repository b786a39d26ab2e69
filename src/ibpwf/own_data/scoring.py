"""How well a file's labels are found: with the task given and inferred, class by class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ibpwf.errors import InputError
from ibpwf.files import Examples
from ibpwf.own_data.model import FileModel


@dataclass
class ClassScore:
    """One class of a file: rows, and how many of them were right, with the task given where it is known."""

    label: str
    tasks: list[str]
    rows: int = 0
    given_rows: int = 0
    given: int = 0
    inferred: int = 0
    answered: int = 0  # how often this label was the answer, rightly or not
    taken_for: Counter[str] = field(default_factory=Counter)


@dataclass
class Scores:
    """Counts over a file. Rows whose label was never learnt cannot be right; they are counted apart."""

    classes: dict[str, ClassScore] = field(default_factory=dict)
    task_rows: int = 0
    task_right: int = 0
    entropy: float = 0.0
    novel: int = 0
    unknown: Counter[str] = field(default_factory=Counter)
    unknown_novel: int = 0

    @property
    def rows(self) -> int:
        return sum(score.rows for score in self.classes.values())

    @property
    def given_rows(self) -> int:
        return sum(score.given_rows for score in self.classes.values())

    @property
    def given(self) -> float | None:
        return percent(sum(score.given for score in self.classes.values()), self.given_rows)

    @property
    def inferred(self) -> float | None:
        return percent(sum(score.inferred for score in self.classes.values()), self.rows)

    @property
    def task_inference(self) -> float | None:
        return percent(self.task_right, self.task_rows)

    @property
    def mean_entropy(self) -> float | None:
        return self.entropy / self.rows if self.rows else None

    def to_json(self) -> dict[str, Any]:
        """Percentages and counts, as `ibpwf evaluate --json` writes them; null where there is nothing to count."""
        shown = [score for score in self.classes.values() if score.rows]
        return {
            "rows": self.rows,
            "accuracy": {"task_given": self.given, "task_inferred": self.inferred},
            "rows_with_task": self.given_rows,
            "task_inference": self.task_inference,
            "mean_entropy": self.mean_entropy,
            "novel": percent(self.novel, self.rows),
            "classes": [
                {
                    "label": score.label,
                    "tasks": score.tasks,
                    "rows": score.rows,
                    "task_given": percent(score.given, score.given_rows),
                    "task_inferred": percent(score.inferred, score.rows),
                    "precision": percent(score.inferred, score.answered),
                }
                for score in shown
            ],
            "confusion": {score.label: dict(score.taken_for.most_common()) for score in shown},
            "never_learnt": {
                "rows": self.unknown.total(),
                "labels": dict(self.unknown.most_common()),
                "novel": percent(self.unknown_novel, self.unknown.total()),
            },
        }


def percent(count: int, of: int) -> float | None:
    return 100.0 * count / of if of else None


def score_rows(model: FileModel, batches: Iterable[Examples], task: str | None = None) -> Scores:
    """Answer labelled examples and count. A label tells the task if one task alone has it; `task` says it for all."""
    tasks_of = model.tasks_of() if task is None else {label: [task] for label in model.classes_of(task)}
    scores = Scores({label: ClassScore(label, tasks) for label, tasks in tasks_of.items()})
    for batch in batches:
        _add(scores, model, batch, tasks_of, task)
    return scores


def _add(
    scores: Scores, model: FileModel, batch: Examples, tasks_of: Mapping[str, list[str]], task: str | None
) -> None:
    assert batch.y is not None
    if task is not None:
        strange = next((row for row, label in enumerate(batch.y) if label not in tasks_of), None)
        if strange is not None:
            known = ", ".join(tasks_of)
            raise InputError(
                f"{batch.where(strange)}: task '{task}' has no class {batch.y[strange]!r}, only {known}; remove the "
                "row, or leave the option task out."
            )
    found = list(model.answers(batch))
    labels, tasks, entropy, novel = (
        np.concatenate([getattr(part, name) for part in found]) for name in ("labels", "tasks", "entropy", "is_novel")
    )
    determined: list[int] = []
    for row, label in enumerate(batch.y):
        answer = str(labels[row])
        if answer in scores.classes:
            scores.classes[answer].answered += label in scores.classes
        score = scores.classes.get(label)
        if score is None:
            scores.unknown[label] += 1
            scores.unknown_novel += bool(novel[row])
            continue
        score.rows += 1
        score.inferred += answer == label
        score.taken_for[answer] += 1
        scores.entropy += float(entropy[row])
        scores.novel += bool(novel[row])
        if len(score.tasks) == 1:
            determined.append(row)
            scores.task_rows += 1
            scores.task_right += str(tasks[row]) == score.tasks[0]
    if not determined:
        return
    some = batch.rows(np.array(determined))
    given = [scores.classes[batch.y[row]].tasks[0] for row in determined]
    answers = np.concatenate([part.labels for part in model.answers(some, given)])
    for row, answer in zip(determined, answers.tolist(), strict=True):
        scores.classes[batch.y[row]].given_rows += 1
        scores.classes[batch.y[row]].given += answer == batch.y[row]
