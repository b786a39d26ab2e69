"""The rows that a classifier is to learn a task from, in memory or in a scratch file, as one kind of thing.

Both are learned in the same order to the same bits. Of rows in a file, what takes all of them at once is made of a
sample where there are many: quantiles of 100,000 rows (`data.rows`), and what is usual of `MOST_CALIBRATED`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data
from torch import Tensor

from ibpwf.data.naming import names_files
from ibpwf.data.rows import ROWS_PER_PASS, gives_batches, read_batches
from ibpwf.data.stored import Gathering, StoredRows, read_stored
from ibpwf.errors import InputError
from ibpwf.estimator.answering import features_of
from ibpwf.estimator.building import ClassWeight, class_weights, row_weights
from ibpwf.estimator.preparing import Preparation, as_rows, checked_rows
from ibpwf.estimator.recipes import FIRST_ROWS, FirstTask
from ibpwf.factors.encoding import MOST_COLUMNS
from ibpwf.labels import LabelBook, label_array
from ibpwf.learner import Learner
from ibpwf.plain_arrays import numbers
from ibpwf.storage.scratch import ScratchFile

NUMBERS = [np.float64, np.float32]
MOST_CALIBRATED = 200_000
"""Rows of a file by which it is known how far a task's rows usually lie from its Gaussians."""


def first_task(X: Any) -> FirstTask:
    """What a first task's examples, an array or rows in a file, are like."""
    if isinstance(X, StoredRows):
        narrow = X.image is None and X.shape[1] <= MOST_COLUMNS
        head = X[slice(0, FIRST_ROWS if narrow else 2)]
        return replace(FirstTask.of(head, X.image), rows=len(X))
    return FirstTask.of(*as_rows(X))


class TaskRows(Protocol):
    """What learning a task asks of its rows."""

    first: FirstTask
    x: Any  # rows of numbers, to be sliced
    present: NDArray[Any]  # the labels there are, sorted

    def numbered(self, preparation: Preparation, labels: LabelBook) -> tuple[Any, Tensor]:
        """What the learner is given: prepared inputs with the numbers of their labels."""

    def weights(self, class_weight: ClassWeight, sample_weight: Any) -> Any:
        """How often each row comes; None where all count the same."""

    def features(self, learner: Learner) -> Iterator[tuple[Tensor, Tensor]]:
        """φ and the class, counted from 0 in the task, of the rows that say what is usual; after `numbered`."""


class RowsInMemory:
    """`X` and `y` as scikit-learn takes them; `seen` is told what columns there are."""

    def __init__(self, seen: Any, X: Any, y: Any, *, anew: bool) -> None:
        self.x, y, image = checked_rows(seen, X, y, reset=anew)
        self.first = FirstTask.of(self.x, image)
        self.y = label_array(y)
        check_classification_targets(self.y)
        self.present = np.unique(self.y)

    def numbered(self, preparation: Preparation, labels: LabelBook) -> tuple[Any, Tensor]:
        self._inputs = torch.from_numpy(preparation(self.x))
        self._numbers = torch.from_numpy(labels.numbers(self.y))
        return self._inputs, self._numbers

    def weights(self, class_weight: ClassWeight, sample_weight: Any) -> Any:
        return row_weights(class_weight, sample_weight, self.y)

    def features(self, learner: Learner) -> Iterator[tuple[Tensor, Tensor]]:
        local = torch.unique(self._numbers, return_inverse=True)[1].to(learner.device)
        return zip(features_of(learner, self._inputs), torch.split(local, ROWS_PER_PASS), strict=True)


class RowsInFile:
    """Rows that are not held in memory."""

    def __init__(self, seen: Any, rows: StoredRows, *, anew: bool) -> None:
        self.x, self.first = rows, first_task(rows)
        validate_data(seen, rows[slice(0, 2)], dtype=NUMBERS, reset=anew)
        self.names = label_array(list(rows.names))
        check_classification_targets(np.repeat(self.names, 3))  # of which it takes single ones for measurements
        counts = np.bincount(rows.codes, minlength=len(rows.names))
        self.present = np.unique(self.names[counts > 0])

    def numbered(self, preparation: Preparation, labels: LabelBook) -> tuple[Any, Tensor]:
        file = None
        for part in preparation.in_parts(self.x):
            file = file or ScratchFile(part.shape[1:])
            file.append(part)
        assert file is not None
        self._file = file
        there = np.bincount(self.x.codes, minlength=len(self.names)) > 0
        numbers = np.full(len(self.names), -1, dtype=np.int64)
        numbers[there] = labels.numbers(self.names[there])
        return file, torch.from_numpy(numbers.astype(np.int32)[self.x.codes])

    def weights(self, class_weight: ClassWeight, sample_weight: Any) -> Any:
        if sample_weight is not None:
            raise InputError(
                "sample_weight was given beside files or batches, whose rows all count the same; leave it out, or "
                "give class_weight."
            )
        counts = np.bincount(self.x.codes, minlength=len(self.names))
        each = class_weights(class_weight, self.names.tolist(), counts)
        return None if each is None else each[self.x.codes]

    def features(self, learner: Learner) -> Iterator[tuple[Tensor, Tensor]]:
        rows = np.arange(len(self.x))
        if len(rows) > MOST_CALIBRATED:
            rows = np.sort(np.random.default_rng(learner.seed).choice(len(rows), MOST_CALIBRATED, replace=False))
        order = np.searchsorted(self.present, self.names)
        for start in range(0, len(rows), ROWS_PER_PASS):
            some = rows[start : start + ROWS_PER_PASS]
            x = torch.from_numpy(self._file[some]).to(learner.device)
            yield learner.method.features(x), torch.from_numpy(order[self.x.codes[some]]).to(learner.device)


def task_rows(seen: Any, X: Any, y: Any, *, anew: bool) -> TaskRows:
    """What was given: arrays X and y, or, without y, paths, a Dataset or batches (x, y)."""
    stored = stored_rows(X) if y is None else None
    return RowsInMemory(seen, X, y, anew=anew) if stored is None else RowsInFile(seen, stored, anew=anew)


def stored_rows(X: Any) -> StoredRows | None:
    """Paths, a Dataset, a DataLoader or other batches, read once into a scratch file; None for anything else."""
    if isinstance(X, StoredRows):
        return X
    if names_files(X):
        return read_stored(X)
    if not (isinstance(X, torch.utils.data.Dataset) or gives_batches(X, None)):
        return None
    rows, name = Gathering(), type(X).__name__
    shape: tuple[int, ...] | None = None
    for number, (x, y) in enumerate(read_batches(X, ROWS_PER_PASS)):
        what = f"batch {number} of the {name}"
        inputs = _numbers(x, what)
        shape = inputs.shape[1:] if shape is None else shape
        _check_batch(inputs, y, shape, what)
        rows.add(inputs, label_array(y).tolist())
    if rows.x is None:
        raise InputError(f"the {name} is empty; a task needs examples.")
    return rows.finish(name, None)


def _numbers(x: Any, what: str) -> NDArray[np.float32]:
    """A batch as rows of numbers, or as images with their channels first."""
    rows, image = as_rows(x, what)
    if image is not None:
        return np.asarray(rows, dtype=np.float32).reshape(-1, *image)
    return np.asarray(numbers(what, rows), dtype=np.float32)


def _check_batch(x: NDArray[np.float32], y: Any, shape: tuple[int, ...], what: str) -> None:
    """Refuse a batch that is not like the first, or holds what is no number."""
    if x.ndim not in (2, 4):
        raise InputError(f"{what} has inputs of shape {x.shape}; give a row of numbers, or an image, per example.")
    if x.shape[1:] != shape:
        raise InputError(f"{what} has examples of shape {x.shape[1:]}, the first has {shape}; give one shape.")
    if np.ndim(y) != 1 or len(y) != len(x):
        raise InputError(f"{what} has {len(x)} examples and labels of shape {np.shape(y)}; give one label for each.")
    if not np.isfinite(x).all():
        raise InputError(f"{what} holds NaN or infinite numbers; remove or replace them.")
