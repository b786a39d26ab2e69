"""A classifier and the layout of the files it was taught with, from and to one model folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ibpwf.errors import StoreError
from ibpwf.estimator import Answers, ContinualClassifier
from ibpwf.files import Examples, Layout

ROWS_AT_ONCE = 2048


@dataclass
class FileModel:
    """A classifier, and how the files it reads are laid out."""

    classifier: ContinualClassifier
    layout: Layout

    @classmethod
    def load(cls, path: Path, device: str = "auto") -> FileModel:
        """Read a model folder that was made from files."""
        classifier = ContinualClassifier.load(path, device=device)
        layout = classifier.extra_.get("layout")
        if layout is None:
            raise StoreError(
                f"{path} was not learnt from files, so the columns it expects are not known; use it in Python: "
                f"ContinualClassifier.load({str(path)!r})."
            )
        return cls(classifier, Layout.from_json(layout))

    def save(self, path: Path) -> None:
        """Write the model folder; what it holds of earlier tasks is left as it is."""
        self.classifier.save(path, extra={**getattr(self.classifier, "extra_", {}), "layout": self.layout.to_json()})

    @property
    def tasks(self) -> list[str]:
        return list(getattr(self.classifier, "tasks_", []))

    def classes_of(self, task: str) -> list[str]:
        """The labels of a task, in the order of its outputs."""
        learner = self.classifier.learner_
        known = self.classifier.labels_
        return [str(known[number]) for number in learner.tasks[learner.task_number(task)].classes]

    def tasks_of(self) -> dict[str, list[str]]:
        """For each label, the tasks that have it."""
        found: dict[str, list[str]] = {}
        for task in self.tasks:
            for label in self.classes_of(task):
                found.setdefault(label, []).append(task)
        return found

    def answers(self, examples: Examples, task: Any = None, draws: int = 0) -> Iterator[Answers]:
        """What there is to say of each example, some rows at a time."""
        x = rows_of(examples)
        for start in range(0, len(x), ROWS_AT_ONCE):
            here = slice(start, start + ROWS_AT_ONCE)
            given = task if task is None or isinstance(task, str) else task[here]
            yield self.classifier.answers(x[here], given, draws)


def rows_of(examples: Examples) -> NDArray[np.float32]:
    """One row of numbers per example; an image is a row of its pixels."""
    return examples.x.reshape(len(examples.x), -1)
