"""The rows that a classifier is to learn a task from, in memory or in a scratch file, as one kind of thing.

Both are learned in the same order to the same bits. Of rows in a file, what takes all of them at once is made of a
sample where there are many: quantiles of 100,000 rows (`data.rows`), and what is usual of `MOST_CALIBRATED`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data
from torch import Tensor

from ibpwf.data.examples import CodedLabels, Examples
from ibpwf.data.layout import Layout
from ibpwf.data.naming import names_files
from ibpwf.data.rows import ROWS_PER_PASS, gives_batches, read_batches
from ibpwf.data.stored import Gathering, read_stored
from ibpwf.errors import InputError
from ibpwf.estimator.building import ClassWeight, class_weights
from ibpwf.estimator.preparing import Preparation, as_rows, checked_rows
from ibpwf.estimator.recipes import FIRST_ROWS, FirstTask
from ibpwf.labels import LabelBook, label_array
from ibpwf.learner import Learner
from ibpwf.plain_arrays import numbers
from ibpwf.storage.scratch import ScratchFile
from ibpwf.table_encoding import MOST_COLUMNS

NUMBERS = [np.float64, np.float32]
MOST_CALIBRATED = 200_000
"""Rows of a file by which it is known how far a task's rows usually lie from its Gaussians."""


def first_task(X: Any) -> FirstTask:
    """What a first task's examples, an array or those of a file, are like."""
    if not isinstance(X, Examples):
        return FirstTask.of(*as_rows(X))
    if not isinstance(X.x, ScratchFile):
        return FirstTask.of(*as_rows(X.inputs))
    flat = X.x.flat()
    narrow = X.image is None and flat.shape[1] <= MOST_COLUMNS
    return replace(FirstTask.of(flat[slice(0, FIRST_ROWS if narrow else 2)], X.image), rows=len(X))


class TaskRows:
    """Arrays X and y as scikit-learn takes them; without y, examples of files, paths, a Dataset or batches (x, y).

    `seen` is told what columns there are if `anew`, and must have the same otherwise. `x` are rows of numbers,
    `names` the labels and `codes` the place of each row's label among them; `present` are those that have a row,
    sorted.
    """

    def __init__(self, seen: Any, X: Any, y: Any, *, anew: bool) -> None:
        self.codes: NDArray[np.integer[Any]]
        given = examples_of(X) if y is None else None
        if given is not None and isinstance(given.x, ScratchFile):
            assert isinstance(given.y, CodedLabels)
            self.x, self.first = given.x.flat(), first_task(given)
            validate_data(seen, self.x[slice(0, 2)], dtype=NUMBERS, reset=anew)
            self.names, self.codes = label_array(list(given.y.names)), given.y.codes
            check_classification_targets(np.repeat(self.names, 3))  # of which it takes single ones for measurements
        else:
            X, y = (X, y) if given is None else (given.inputs, np.array(given.y))
            self.x, y, image = checked_rows(seen, X, y, reset=anew)
            self.first = FirstTask.of(self.x, image)
            check_classification_targets(label_array(y))
            self.names, self.codes = np.unique(label_array(y), return_inverse=True)
        self.counts = np.bincount(self.codes, minlength=len(self.names))
        self.present: NDArray[Any] = np.unique(self.names[self.counts > 0])

    def numbered(self, preparation: Preparation, labels: LabelBook) -> tuple[Tensor | ScratchFile, Tensor]:
        """What the learner is given: prepared inputs with the numbers of their labels."""
        there = self.counts > 0
        numbers = np.full(len(self.names), -1)
        numbers[there] = labels.numbers(self.names[there])
        self._local = np.searchsorted(np.sort(numbers[there]), numbers)  # the task's classes, counted from 0
        self._inputs = self._prepared(preparation)
        return self._inputs, torch.from_numpy(numbers.astype(np.int32)[self.codes])

    def _prepared(self, preparation: Preparation) -> Tensor | ScratchFile:
        if not isinstance(self.x, ScratchFile):
            return torch.from_numpy(preparation(self.x))
        file = None
        for part in preparation.in_parts(self.x):
            file = file or ScratchFile(part.shape[1:])
            file.append(part)
        assert file is not None
        return file

    def weights(self, class_weight: ClassWeight, sample_weight: Any) -> Any:
        """How often each row comes: by its class, times what is given for it; None where all count the same."""
        each = class_weights(class_weight, self.names.tolist(), self.counts)
        weights = None if each is None else each[self.codes]
        if sample_weight is None:
            return weights
        if isinstance(self.x, ScratchFile):
            raise InputError(
                "sample_weight was given beside files or batches, whose rows all count the same; leave it out, or "
                "give class_weight."
            )
        given = numbers("sample_weight", sample_weight)
        if given.shape != self.codes.shape:
            raise InputError(
                f"sample_weight has shape {given.shape} for {len(self.codes):,} rows; give one number for each row."
            )
        return given.astype(np.float64) * (1.0 if weights is None else weights)

    def features(self, learner: Learner) -> Iterator[tuple[Tensor, Tensor]]:
        """φ and the class, counted from 0 in the task, of the rows that say what is usual; after `numbered`."""
        inputs, codes = self._inputs, self.codes
        if isinstance(inputs, ScratchFile) and len(codes) > MOST_CALIBRATED:
            rows = np.random.default_rng(learner.seed).choice(len(codes), MOST_CALIBRATED, replace=False)
            inputs, codes = inputs.rows(np.sort(rows)), codes[np.sort(rows)]
        for start in range(0, len(codes), ROWS_PER_PASS):
            some = slice(start, start + ROWS_PER_PASS)
            x = torch.as_tensor(inputs[some]).to(learner.device)
            yield learner.method.features(x), torch.from_numpy(self._local[codes[some]]).to(learner.device)


def examples_of(X: Any) -> Examples | None:
    """Examples as they are; paths, a Dataset, a DataLoader or other batches, read once into a scratch file; None for
    anything else."""
    if isinstance(X, Examples):
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
    if shape is None:
        raise InputError(f"the {name} is empty; a task needs examples.")
    return rows.finish(name, Layout("images" if len(shape) == 3 else "arrays", shape))


def _numbers(x: Any, what: str) -> NDArray[np.float32]:
    """A batch as rows of numbers, or as images with their channels first."""
    rows, image = as_rows(x, what)
    if image is not None:
        return np.asarray(rows, dtype=np.float32).reshape(-1, *image)
    return np.asarray(numbers(what, rows), dtype=np.float32)


def _check_batch(x: NDArray[np.float32], y: Any, shape: tuple[int, ...], what: str) -> None:
    """Reject a batch that is not like the first, or holds what is no number."""
    if x.ndim not in (2, 4):
        raise InputError(f"{what} has inputs of shape {x.shape}; give a row of numbers, or an image, per example.")
    if x.shape[1:] != shape:
        raise InputError(f"{what} has examples of shape {x.shape[1:]}, the first has {shape}; give one shape.")
    if np.ndim(y) != 1 or len(y) != len(x):
        raise InputError(f"{what} has {len(x)} examples and labels of shape {np.shape(y)}; give one label for each.")
    if not np.isfinite(x).all():
        raise InputError(f"{what} holds NaN or infinite numbers; remove or replace them.")
