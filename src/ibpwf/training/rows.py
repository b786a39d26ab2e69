"""Where a task's mini-batches come from: tensors on the device, a Dataset, or anything that gives batches.

A Dataset or batches (`training.sources`) may be read once for every epoch, so random transforms are drawn afresh.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Generator, Tensor

from ibpwf.errors import InputError
from ibpwf.factors.packing import Packing
from ibpwf.inputs import check_inputs, check_labels
from ibpwf.plain_arrays import numbers, plain
from ibpwf.training.sources import (
    Examples,
    batches_of,
    by_number,
    gives_examples,
    parted_batch,
    with_own_random_numbers,
)

ROWS_AT_ONCE = 4096
"""Rows that are looked at together where no gradient is taken."""


@dataclass(frozen=True)
class Again:
    """What `begin` gives, from the start with every iteration."""

    begin: Callable[[], Iterator[tuple[Tensor, Tensor]]]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.begin()


class Rows(Protocol):
    """A task's examples as training sees them: labels count the task's classes from 0."""

    def __len__(self) -> int: ...

    def steps(self, batch_size: int) -> int:
        """Mini-batches in an epoch."""

    def epoch(self, batch_size: int, shuffle: Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """One pass for training; all that is random in it comes from `shuffle`."""

    def in_order(self, batch_size: int = ROWS_AT_ONCE) -> Iterator[tuple[Tensor, Tensor]]:
        """Every row once, for statistics."""

    def identity(self) -> dict[str, Tensor]:
        """What tells these rows from others, for a checkpoint to be refused where they differ."""

    def tensors(self) -> tuple[Tensor, Tensor]:
        """All rows at once, for methods that need them so."""

    def sample(self, most: int, draw: Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """`most` rows drawn at random, in their order, since a table may well be sorted; all where there are no more:
        for quantiles and the like."""

    def labels_in_order(self) -> Tensor:
        """The label of every row."""

    def apart(self, share: float, most: int, shuffle: Generator) -> tuple[Rows, Rows] | None:
        """Two parts, the second with that share of every class, drawn at random, and no more than `most` rows; None
        where that cannot be, or has none."""


class IndexedRows(ABC):
    """Examples that can be had by their numbers. An epoch is a shuffled order.

    With `weights`, on the CPU, rows come as often as these say, one drawn independently of the other: what is learned
    is on average what it would be if the loss of each row counted so much, and no step has a rare row of a thousand
    times the loss of others.
    """

    y: Tensor
    weights: Tensor | None

    def __len__(self) -> int:
        return len(self.y)

    def steps(self, batch_size: int) -> int:
        """A rest smaller than a batch is left out, and finds its place in another epoch's order: every step has one
        shape."""
        return len(self) // min(batch_size, len(self))

    def class_weights(self) -> Tensor:
        """How many rows each class has, or what they weigh together."""
        weights = None if self.weights is None else self.weights.double()
        return torch.bincount(self.y.cpu(), weights)

    def order(self, batch_size: int, shuffle: Generator) -> Tensor:
        """The rows of every step of an epoch, a row each."""
        size, count = min(batch_size, len(self)), self.steps(batch_size)
        if self.weights is None:
            return torch.randperm(len(self), generator=shuffle)[: count * size].view(count, size)
        reached = self.weights.double().cumsum(0)
        drawn = torch.rand(count * size, generator=shuffle, dtype=torch.float64) * reached[-1]
        return torch.searchsorted(reached, drawn, right=True).clamp(max=len(self) - 1).view(count, size)

    def labels_in_order(self) -> Tensor:
        return self.y

    @abstractmethod
    def with_weights(self, weights: Tensor) -> Rows:
        """The same rows, each to come as often as its weight says."""

    @abstractmethod
    def part(self, rows: Tensor) -> Rows:
        """Those of the rows that are marked."""

    def apart(self, share: float, most: int, shuffle: Generator) -> tuple[Rows, Rows] | None:
        chosen = drawn_rows(self.y, share, most, shuffle).to(self.y.device)
        if not chosen.any():
            return None
        return self.part(~chosen), self.part(chosen)


class TensorRows(IndexedRows):
    """Examples that lie on the training device. A batch is a gather by index."""

    def __init__(self, x: Tensor, y: Tensor, weights: Tensor | None = None) -> None:
        self.x, self.y, self.weights = x, y, weights

    def epoch(self, batch_size: int, shuffle: Generator) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in self.order(batch_size, shuffle).to(self.x.device):
            yield self.x.index_select(0, rows), self.y.index_select(0, rows)

    def in_order(self, batch_size: int = ROWS_AT_ONCE) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(torch.split(self.x, batch_size), torch.split(self.y, batch_size), strict=True)

    def sample(self, most: int, draw: Generator) -> Iterator[tuple[Tensor, Tensor]]:
        if len(self) <= most:
            return self.in_order()
        rows = torch.randperm(len(self), generator=draw)[:most].sort().values.to(self.x.device)
        return zip(torch.split(self.x[rows], ROWS_AT_ONCE), torch.split(self.y[rows], ROWS_AT_ONCE), strict=True)

    def identity(self) -> dict[str, Tensor]:
        return {"x": self.x, "y": self.y} | ({} if self.weights is None else {"weights": self.weights})

    def tensors(self) -> tuple[Tensor, Tensor]:
        return self.x, self.y

    def with_weights(self, weights: Tensor) -> Rows:
        return TensorRows(self.x, self.y, weights)

    def part(self, rows: Tensor) -> Rows:
        weights = None if self.weights is None else self.weights[rows.cpu()]
        return TensorRows(self.x[rows], self.y[rows], weights)


def weighted(rows: Rows, weights: Any) -> Rows:
    """The same rows, each to come as often as its weight says."""
    if not isinstance(rows, IndexedRows):
        raise InputError(
            "weights were given beside a Dataset or batches, which decide themselves which rows come how often; give "
            "x and y as arrays, or leave weights out."
        )
    found = torch.as_tensor(numbers("weights", weights, "give a number for each example").astype(np.float64))
    if found.shape != (len(rows),):
        raise InputError(
            f"weights has shape {tuple(found.shape)} for {len(rows):,} examples; give a number for each."
        )
    if not bool(torch.isfinite(found).all()) or float(found.min()) < 0 or not float(found.sum()) > 0:
        raise InputError("weights holds negative numbers, NaN, infinity, or zeros alone; give numbers from 0.")
    return rows.with_weights(found)


def drawn_rows(labels: Tensor, share: float, most: int, shuffle: Generator) -> Tensor:
    """Which rows are drawn: of every class that share, rounded down, and no more than `most` in all."""
    labels, share = labels.cpu(), min(share, most / max(len(labels), 1))
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    for label in torch.unique(labels):
        rows = (labels == label).nonzero().flatten()
        order = torch.randperm(len(rows), generator=shuffle)
        chosen[rows[order[: int(len(rows) * share)]]] = True
    return chosen


FindPacking = Callable[[object, Packing | None], Packing | None]
"""How inputs x are packed, given what earlier ones of the same task said."""


class StreamedRows:
    """Examples that are read anew for every epoch, from a Dataset or from ready-made batches.

    `packing` is that of earlier tasks; in a first task `find_packing` tells it, from all there is. `vocabulary` is
    how many word pieces a network knows that reads rows of them.
    """

    def __init__(
        self,
        source: Any,
        device: torch.device,
        shape: tuple[int, ...] | None,
        packing: Packing | None = None,
        find_packing: FindPacking | None = None,
        vocabulary: int | None = None,
    ) -> None:
        self.source, self.device, self.shape, self.vocabulary = source, device, shape, vocabulary
        self.packing, self._find_packing = packing, find_packing
        self._single = gives_examples(source)
        self.numbers: Mapping[int, int] = {}
        self.labels = torch.zeros(0, dtype=torch.long)
        labels = [y for _, y in self.in_order()]
        self._find_packing = None
        if not labels:
            raise InputError(f"the {type(source).__name__} is empty; a task needs examples.")
        self.labels, self._count = torch.cat(labels), len(labels)
        self.classes = tuple(int(label) for label in torch.unique(self.labels))
        self.numbers = {label: number for number, label in enumerate(self.classes)}

    def __len__(self) -> int:
        return len(self.labels)

    def steps(self, batch_size: int) -> int:
        if self._single:
            return max(len(self) // batch_size, 1)
        return self._count

    def epoch(self, batch_size: int, shuffle: Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """In the order that tensors would have, where there is a choice."""
        order = torch.randperm(len(self), generator=shuffle)
        whole = len(self) < batch_size or not self._single
        expected = len(self) if whole else self.steps(batch_size) * batch_size
        seed = int((order[:8] * torch.tensor([8191**place % 1000003 for place in range(len(order[:8]))])).sum())
        return with_own_random_numbers(self._read(batches_of(self.source, batch_size, order), expected), seed)

    def in_order(self, batch_size: int = ROWS_AT_ONCE) -> Iterator[tuple[Tensor, Tensor]]:
        return with_own_random_numbers(self._read(batches_of(self.source, batch_size), len(self)), 0)

    def identity(self) -> dict[str, Tensor]:
        """Labels alone: what random transforms make of an example is never the same."""
        return {"labels": self.labels.sort().values}

    def tensors(self) -> tuple[Tensor, Tensor]:
        parts = list(self.in_order())
        return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])

    def sample(self, most: int, draw: Generator) -> Iterator[tuple[Tensor, Tensor]]:
        if len(self) <= most:
            yield from self.in_order()
            return
        chosen = torch.zeros(len(self), dtype=torch.bool)
        chosen[torch.randperm(len(self), generator=draw)[:most]] = True
        start = 0
        for x, y in self.in_order():
            here = chosen[start : start + len(y)].to(y.device)
            start += len(y)
            if here.any():
                yield x[here], y[here]

    def labels_in_order(self) -> Tensor:
        """Of the first pass; later ones may have another order."""
        return torch.tensor([self.numbers[label] for label in self.labels.tolist()], device=self.device)

    def apart(self, share: float, most: int, shuffle: Generator) -> tuple[Rows, Rows] | None:
        """Of a Dataset whose items can be had by number; of others nobody can say which rows come when."""
        source = self.source
        if not self._single or not by_number(source):
            return None
        chosen = drawn_rows(self.labels, share, most, shuffle)
        if not chosen.any():
            return None
        first, second = copy.copy(self), copy.copy(self)
        for part, rows in ((first, ~chosen), (second, chosen)):
            part.source = torch.utils.data.Subset(source, rows.nonzero().flatten().tolist())
            part.labels = self.labels[rows]
        return first, second

    def _read(self, batches: Iterator[Any], expected: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches checked, on the device, with labels as numbers of classes once these are known, and so many rows
        `expected`; in the first pass, 0."""
        rows, name = 0, type(self.source).__name__
        for number, batch in enumerate(batches):
            inputs, labels = parted_batch(batch, f"batch {number} of the {name}")
            self._check_shape(inputs, number, name)
            x = self._inputs(inputs)
            self.shape = tuple(x.shape[1:])
            y = check_labels(labels, len(x))
            rows += len(y)
            if self.numbers:
                new = [label for label in y.tolist() if label not in self.numbers]
                if new:
                    raise InputError(
                        f"batch {number} has the label {new[0]}, which was not there when the task began; every pass "
                        "must have the same classes."
                    )
                y = torch.tensor([self.numbers[label] for label in y.tolist()])
            yield x.to(self.device), y.to(self.device)
        if expected and rows != expected:
            raise InputError(
                f"the {name} gave {rows:,} examples in a pass where the first one had {expected:,}; a task is read "
                "several times, so every pass must have as many. Give a DataLoader, a list, or an object whose "
                "__iter__ begins anew."
            )

    def _check_shape(self, inputs: Any, number: int, name: str) -> None:
        """Refuse a batch that is not like the ones before it."""
        given = plain(f"batch {number} of the {name}", inputs) if isinstance(inputs, Tensor) else inputs
        shape = tuple(getattr(given, "shape", ()))[1:]
        if number and shape and self.packing is None and self.shape is not None and shape != self.shape:
            raise InputError(
                f"batch {number} of the {name} has examples of shape {shape}, those before it have {self.shape}; "
                "give examples of one shape."
            )

    def _inputs(self, given: Any) -> Tensor:
        """A batch of inputs as one tensor; named ones of single examples are put together here, at one length."""
        parts = given if isinstance(given, Examples) else [given]
        if self._find_packing is not None:
            for part in parts:
                self.packing = self._find_packing(part, self.packing)
        shape = None if self.packing is not None else self.shape
        # Where batches come on a GPU, later passes do not wait for it.
        known = None if self.numbers and getattr(parts[0], "is_cuda", False) else self.vocabulary
        return torch.cat([check_inputs(part, shape, packing=self.packing, vocabulary=known) for part in parts])
