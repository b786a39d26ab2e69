"""Examples in memory, with where each one came from."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ibpwf.data.layout import Layout
from ibpwf.data.opening import quoted, shown
from ibpwf.errors import DataError

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Origin:
    """Where one example came from. As text: `iris.csv, line 7`."""

    file: str
    unit: str = ""
    number: int | None = None

    def __str__(self) -> str:
        return shown(self.file) if self.number is None else f"{shown(self.file)}, {self.unit} {self.number}"


@dataclass(frozen=True)
class Origins:
    """The origin of every example, without an object for each: one file and numbers, or many files.

    Where a number takes long to find, `find` does so when it is asked for.
    """

    files: Sequence[str]
    unit: str = ""
    numbers: Sequence[int] | None = None
    find: Callable[[int], int] = int

    def __len__(self) -> int:
        return len(self.files) if self.numbers is None else len(self.numbers)

    def rows(self, chosen: Sequence[int]) -> Origins:
        if self.numbers is None:
            return replace(self, files=[self.files[number] for number in chosen])
        return replace(self, numbers=[self.numbers[number] for number in chosen])

    def __getitem__(self, index: int) -> Origin:
        if self.numbers is None:
            return Origin(self.files[index])
        return Origin(self.files[0], self.unit, self.find(self.numbers[index]))


@dataclass(frozen=True, eq=False)
class Examples:
    """What a file holds: `x` float32, one example per row, and `y`, a label per example or None.

    `layout` reads the next file the same way (`read_examples(..., like=layout)`); `where(i)` is the file and
    the line, row or number of example i.
    """

    path: str
    x: Floats
    y: list[str] | None
    layout: Layout
    origins: Origins

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.layout.shape))
        labels = "no labels" if self.y is None else f"{len(self.classes)} classes"
        return f"Examples({shown(self.path)}: {len(self):,} of {shape}, {labels})"

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """The name of every feature of a table; None for images and arrays."""
        return self.layout.feature_names

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels there are: numbers by size first, then words by alphabet."""
        return tuple(in_order(set(self.y or ())))

    def where(self, index: int) -> Origin:
        """The file and the line, row or number of an example."""
        return self.origins[index]

    def batches(self, rows: int) -> Iterator[Examples]:
        """The examples in their order, `rows` of them at a time."""
        for start in range(0, len(self), rows):
            yield self.rows(np.arange(start, min(start + rows, len(self))))

    def rows(self, chosen: npt.NDArray[np.intp]) -> Examples:
        """The examples with these numbers."""
        numbers = chosen.tolist()
        y = None if self.y is None else [self.y[number] for number in numbers]
        return replace(self, x=self.x[chosen], y=y, origins=self.origins.rows(numbers))

    def by_class(self) -> Iterator[tuple[str, npt.NDArray[np.intp]]]:
        """Every label, sorted, with the numbers of its rows."""
        y = np.array(self.y)
        for label in np.unique(y):
            yield label, np.flatnonzero(y == label)

    @property
    def inputs(self) -> Floats:
        """What a classifier is given: a row of numbers per example, or images, N×channels×height×width."""
        return self.x if self.layout.kind == "images" else self.x.reshape(len(self.x), -1)

    def digest(self) -> str:
        """Tells these rows, with their labels and in their order, from any others."""
        found = hashlib.sha256(json.dumps([self.x.shape, self.y]).encode())
        found.update(np.ascontiguousarray(self.x).data)
        return found.hexdigest()

    def check_learnable(self) -> None:
        """Refuses examples from which nothing can be learnt: labels that are no classes, or a class with too few."""
        if self.y is None:
            raise DataError(f"{shown(self.path)} has no labels; learning needs a label for every example.")
        y = self.y
        check_counts(Counter(y), self.path, self.layout.label, lambda rare: str(self.where(y.index(rare))))


def check_counts(counts: Mapping[str, int], path: str, column: str | None, where: Callable[[str], str]) -> None:
    """Refuse labels, in the order in which they come, from which nothing can be learnt; `where` is a label's first
    row."""
    rows = sum(counts.values())
    if len(counts) > 20 and len(counts) > rows / 2:
        named = "its labels" if column is None else f"column {quoted(column)}"
        raise DataError(
            f"{shown(path)}: {named} has {len(counts):,} different values in {rows:,} examples; it looks like a "
            "measurement or an identifier. Choose the column that holds the class."
        )
    rare = next((label for label in counts if counts[label] < 2), None)
    if rare is not None:
        have = f"{counts[rare]} example" + "s" * (counts[rare] != 1)
        raise DataError(
            f"{where(rare)}: class {quoted(rare)} has {have}; learning needs at least 2 of each class. Add "
            "more, or remove that class."
        )


def in_order(labels: Iterable[str]) -> list[str]:
    """Labels as people list them: numbers by size first, then words by alphabet."""

    def place(label: str) -> tuple[bool, float, str]:
        try:
            return False, float(label), label
        except ValueError:
            return True, 0.0, label

    return sorted(labels, key=place)
