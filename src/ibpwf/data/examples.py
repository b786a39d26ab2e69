"""The examples of a file, in memory or in a scratch file, with where each one came from."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ibpwf.data.layout import Layout
from ibpwf.data.opening import quoted, shown
from ibpwf.errors import DataError
from ibpwf.storage.scratch import ScratchFile

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
    numbers: range | npt.NDArray[np.int64] | None = None
    find: Callable[[int], int] = int

    def __len__(self) -> int:
        return len(self.files) if self.numbers is None else len(self.numbers)

    def rows(self, chosen: range | npt.NDArray[np.intp]) -> Origins:
        if self.numbers is None:
            return replace(self, files=[self.files[number] for number in chosen])
        if isinstance(chosen, range):
            return replace(self, numbers=self.numbers[chosen.start : chosen.stop])
        known = self.numbers
        return replace(
            self, numbers=(np.arange(known.start, known.stop) if isinstance(known, range) else known)[chosen]
        )

    def __getitem__(self, index: int) -> Origin:
        if self.numbers is None:
            return Origin(self.files[index])
        return Origin(self.files[0], self.unit, self.find(int(self.numbers[index])))


@dataclass(frozen=True, eq=False)
class CodedLabels(Sequence[Any]):
    """The labels of many rows in little memory: `codes` has the place of each in `names`."""

    codes: npt.NDArray[np.integer[Any]]
    names: Sequence[Any]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: Any) -> Any:
        if isinstance(rows, int):
            return self.names[self.codes[rows]]
        return CodedLabels(self.codes[rows], self.names)

    @classmethod
    def of(cls, labels: Sequence[Any]) -> CodedLabels:
        """With the names sorted, whatever the order in which labels come."""
        if isinstance(labels, CodedLabels):
            names, places = np.unique(np.array(labels.names), return_inverse=True)
            return cls(places[labels.codes], names.tolist())
        names, codes = np.unique(np.array(labels), return_inverse=True)
        return cls(codes, names.tolist())

    def counts(self) -> dict[Any, int]:
        return dict(zip(self.names, np.bincount(self.codes, minlength=len(self.names)).tolist(), strict=True))


@dataclass(frozen=True, eq=False)
class Examples:
    """What a file holds: `x` float32, one example per row, and `y`, a label per example or None.

    Both may be in memory, or `x` in a scratch file with coded labels. `layout` reads the next file the same way
    (`read_examples(..., like=layout)`); `where(i)` is the file and the line, row or number of example i.
    """

    path: str
    x: Floats | ScratchFile
    y: Sequence[Any] | None
    layout: Layout
    origins: Origins

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.layout.shape))
        labels = "no labels" if self.y is None else f"{len(self.classes)} classes"
        return f"Examples({shown(self.path)}: {len(self):,} of {shape}, {labels})"

    @property
    def on_disk(self) -> bool:
        return isinstance(self.x, ScratchFile)

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """The name of every feature of a table; None for images and arrays."""
        return self.layout.feature_names

    @property
    def image(self) -> tuple[int, int, int] | None:
        """Channels, height and width, where they are images."""
        shape = self.x.shape[1:]
        return (shape[0], shape[1], shape[2]) if len(shape) == 3 else None

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels there are: numbers by size first, then words by alphabet."""
        names = self.y.names if isinstance(self.y, CodedLabels) else set(self.y or ())
        return tuple(in_order(map(str, names)))

    def where(self, index: int) -> Origin:
        """The file and the line, row or number of an example."""
        return self.origins[index]

    def batches(self, rows: int) -> Iterator[Examples]:
        """The examples in their order, `rows` of them at a time, in memory."""
        for start in range(0, len(self), rows):
            here = range(start, min(start + rows, len(self)))
            y = None if self.y is None else list(self.y[start : here.stop])
            yield replace(self, x=self.x[start : here.stop], y=y, origins=self.origins.rows(here))

    def in_memory(self) -> Examples:
        return next(self.batches(max(len(self), 1)))

    def rows(self, chosen: npt.NDArray[np.intp]) -> Examples:
        """The examples with these numbers."""
        y = self.y
        if y is not None:
            y = y[chosen] if isinstance(y, CodedLabels) else [y[number] for number in chosen.tolist()]
        x = self.x.rows(chosen) if isinstance(self.x, ScratchFile) else self.x[chosen]
        return replace(self, x=x, y=y, origins=self.origins.rows(chosen))

    def sample(self, most: int, seed: int = 0) -> Examples:
        """No more than so many of them, drawn at random, in their order."""
        if len(self) <= most:
            return self
        return self.rows(np.sort(np.random.default_rng(seed).choice(len(self), most, replace=False)))

    @property
    def inputs(self) -> Floats:
        """What a classifier is given: a row of numbers per example, or images, N×channels×height×width."""
        assert not isinstance(self.x, ScratchFile)
        return self.x if self.layout.kind == "images" else self.x.reshape(len(self.x), -1)

    def digest(self) -> str:
        """Tells these rows, with their labels and in their order, from any others."""
        found = hashlib.sha256(f"[{json.dumps(self.x.shape)}, {'null]' if self.y is None else '['}".encode())
        starts = range(0, len(self), self.x.rows_at_once if isinstance(self.x, ScratchFile) else max(len(self), 1))
        if self.y is not None:
            for start in starts:
                words = ", ".join(map(json.dumps, self.y[start : start + starts.step]))
                found.update((", " * (start > 0) + words).encode())
            found.update(b"]]")
        for start in starts:
            found.update(np.ascontiguousarray(self.x[start : start + starts.step]).data)
        return found.hexdigest()

    def check_learnable(self) -> None:
        """Reject examples from which nothing can be learned: labels that are no classes, or a class with too few."""
        y = self.y
        if y is None:
            raise DataError(f"{shown(self.path)} has no labels; learning needs a label for every example.")
        counts = y.counts() if isinstance(y, CodedLabels) else Counter(y)
        check_counts(counts, self.path, self.layout.label, lambda rare: str(self.where(y.index(rare))))


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
