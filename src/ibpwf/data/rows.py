"""A task's examples as training reads them: in memory, in a scratch file, or read anew for every epoch.

All three come in the same order for the same generator, so that what is learned of them has the same bits.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Generator, Tensor

from ibpwf.data.naming import names_files
from ibpwf.errors import InputError
from ibpwf.inputs import check_inputs, check_word_pieces
from ibpwf.packing import LABELS, Packing
from ibpwf.plain_arrays import as_array, numbers, plain
from ibpwf.storage.checkpoint_folder import digest_of
from ibpwf.storage.scratch import ScratchFile

if TYPE_CHECKING:
    from ibpwf.likelihoods import Likelihood

T = TypeVar("T")
Batch = tuple[Tensor, Tensor]

ROWS_PER_PASS = 4096
"""Rows that are looked at together where no gradient is taken."""


@dataclass(frozen=True)
class Again:
    """What `begin` gives, from the start with every iteration."""

    begin: Callable[[], Iterator[Batch]]

    def __iter__(self) -> Iterator[Batch]:
        return self.begin()


class Rows(Protocol):
    """A task's examples. Labels count the task's classes from 0."""

    weights: Tensor | None

    def __len__(self) -> int: ...

    @property
    def labels(self) -> Tensor:
        """The label of every row, in order; of a stream that has no order, that of the first pass."""

    def class_weights(self) -> Tensor:
        """How many rows each class has, or what they weigh together."""

    def steps(self, batch_size: int) -> int:
        """Mini-batches in an epoch."""

    def epoch(self, batch_size: int, generator: Generator) -> Iterator[Batch]:
        """One pass for training; all that is random in it comes from `generator`."""

    def in_order(self, batch_size: int = ROWS_PER_PASS) -> Iterator[Batch]:
        """Every row once, for statistics."""

    def tensors(self) -> Batch:
        """All rows at once, for methods that need them so."""

    def sample(self, most: int, generator: Generator) -> Iterator[Batch]:
        """`most` rows drawn at random, in their order, since a table may well be sorted; all where there are no more:
        for quantiles and the like."""

    def split(self, fraction: float, most: int, generator: Generator) -> tuple[Rows, Rows] | None:
        """Two parts: the second has that fraction of every class, drawn at random, and no more than `most` rows. None
        where the rows have no numbers, or no class has enough of them."""

    def with_weights(self, weights: Any) -> Rows:
        """The same rows, each to come as often as its weight says."""

    def digest(self) -> str:
        """Tells these rows from others, so that a checkpoint is not resumed with them."""


def split_rows(
    labels: Tensor, fraction: float, generator: Generator, *, least: int = 0, most: int | None = None
) -> Tensor:
    """Mark the rows of a validation or test split: of every class that fraction, rounded down, but `least` of them,
    and no more than `most` rows in all."""
    labels = labels.cpu()
    if labels.ndim > 1 or labels.is_floating_point():  # numbers, which form no classes
        labels = torch.zeros(len(labels), dtype=torch.long)
    if most is not None:
        fraction = min(fraction, most / max(len(labels), 1))
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    for label in torch.unique(labels):
        rows = (labels == label).nonzero().flatten()
        order = torch.randperm(len(rows), generator=generator)
        chosen[rows[order[: max(least, int(len(rows) * fraction))]]] = True
    return chosen


class IndexedRows:
    """Examples with numbers: tensors on the training device, or rows in a scratch file with their labels on the CPU.
    An epoch is a shuffled order.

    With `weights`, on the CPU, rows come as often as these say, one drawn independently of the other: what is learned
    is on average what it would be if the loss of each row counted so much, and no step has a rare row of a thousand
    times the loss of others.
    """

    def __init__(
        self, x: Tensor | ScratchFile, y: Tensor, weights: Tensor | None = None, device: torch.device | None = None
    ) -> None:
        self.x, self.y, self.weights, self.device = x, y, weights, device or y.device

    def __len__(self) -> int:
        return len(self.y)

    @property
    def labels(self) -> Tensor:
        return self.y

    def class_weights(self) -> Tensor:
        return torch.bincount(self.y.cpu(), None if self.weights is None else self.weights.double())

    def steps(self, batch_size: int) -> int:
        """A rest smaller than a batch is left out, and finds its place in another epoch's order: every step has one
        shape."""
        return len(self) // min(batch_size, len(self))

    def order(self, batch_size: int, generator: Generator) -> Tensor:
        """The rows of every step of an epoch, a row each."""
        size, count = min(batch_size, len(self)), self.steps(batch_size)
        if self.weights is None:
            return torch.randperm(len(self), generator=generator)[: count * size].view(count, size)
        reached = self.weights.double().cumsum(0)
        drawn = torch.rand(count * size, generator=generator, dtype=torch.float64) * reached[-1]
        return torch.searchsorted(reached, drawn, right=True).clamp(max=len(self) - 1).view(count, size)

    def epoch(self, batch_size: int, generator: Generator) -> Iterator[Batch]:
        return map(self._batch, self.order(batch_size, generator).to(self.y.device))

    def in_order(self, batch_size: int = ROWS_PER_PASS) -> Iterator[Batch]:
        return (self._batch(slice(start, start + batch_size)) for start in range(0, len(self), batch_size))

    def tensors(self) -> Batch:
        return self._batch(slice(None))

    def sample(self, most: int, generator: Generator) -> Iterator[Batch]:
        if len(self) <= most:
            return self.in_order()
        rows = torch.randperm(len(self), generator=generator)[:most].sort().values
        return map(self._batch, torch.split(rows.to(self.y.device), ROWS_PER_PASS))

    def split(self, fraction: float, most: int, generator: Generator) -> tuple[IndexedRows, IndexedRows] | None:
        chosen = split_rows(self.y, fraction, generator, most=most).to(self.y.device)
        return (self.part(~chosen), self.part(chosen)) if chosen.any() else None

    def part(self, chosen: Tensor) -> IndexedRows:
        """The rows that are marked."""
        weights = None if self.weights is None else self.weights[chosen.cpu()]
        x = self.x[chosen] if isinstance(self.x, Tensor) else self.x.rows(chosen.nonzero().flatten().numpy())
        return IndexedRows(x, self.y[chosen], weights, self.device)

    def with_weights(self, weights: Any) -> IndexedRows:
        found = torch.as_tensor(numbers("weights", weights, "give a number for each example").astype(np.float64))
        if found.shape != (len(self),):
            raise InputError(
                f"weights has shape {tuple(found.shape)} for {len(self):,} examples; give a number for each."
            )
        if not bool(torch.isfinite(found).all()) or float(found.min()) < 0 or not float(found.sum()) > 0:
            raise InputError("weights holds negative numbers, NaN, infinity, or zeros alone; give numbers from 0.")
        return IndexedRows(self.x, self.y, found, self.device)

    def digest(self) -> str:
        tensors = {"y": self.y} | ({} if self.weights is None else {"weights": self.weights})
        if isinstance(self.x, Tensor):
            return digest_of([], {"rows": {**tensors, "x": self.x}})
        return digest_of([self.x.digest().hex()], {"rows": tensors})

    def _batch(self, rows: slice | Tensor) -> Batch:
        if not isinstance(self.x, Tensor):
            x = torch.from_numpy(self.x[rows if isinstance(rows, slice) else rows.numpy()])
            return x.to(self.device), self.y[rows].long().to(self.device)
        if isinstance(rows, slice):
            return self.x[rows], self.y[rows]
        return self.x.index_select(0, rows), self.y.index_select(0, rows)


FindPacking = Callable[[object, Packing | None], Packing | None]
"""How inputs x are packed, given what earlier ones of the same task said."""


class StreamedRows:
    """Examples that are read anew for every epoch, from a Dataset or from ready-made batches, so that random
    transforms are drawn afresh.

    `packing` is that of earlier tasks; in a first task `find_packing` tells it, from all there is. `vocabulary` is
    how many word pieces a network knows that reads rows of them.
    """

    weights: Tensor | None = None

    def __init__(
        self,
        source: Any,
        likelihood: Likelihood,
        device: torch.device,
        shape: tuple[int, ...] | None,
        packing: Packing | None = None,
        find_packing: FindPacking | None = None,
        vocabulary: int | None = None,
    ) -> None:
        self.source, self.device, self.shape, self.vocabulary = source, device, shape, vocabulary
        self.likelihood = likelihood
        self.packing, self._find_packing = packing, find_packing
        self._single = gives_examples(source)
        self.classes: tuple[int, ...] | None = None
        self.given = torch.zeros(0, dtype=torch.long)  # the targets of the first pass as they came
        labels = [y for _, y in self.in_order()]
        self._find_packing = None
        if not labels:
            raise InputError(f"the {type(source).__name__} is empty; a task needs examples.")
        self.given, self._count = torch.cat(labels), len(labels)
        self.classes = likelihood.classes(self.given)

    def __len__(self) -> int:
        return len(self.given)

    @property
    def labels(self) -> Tensor:
        return self.likelihood.local(self.given, self.classes or ()).to(self.device)

    def class_weights(self) -> Tensor:
        return torch.bincount(self.labels.cpu())

    def steps(self, batch_size: int) -> int:
        return max(len(self) // batch_size, 1) if self._single else self._count

    def epoch(self, batch_size: int, generator: Generator) -> Iterator[Batch]:
        """In the order that tensors would have, where there is a choice."""
        order = torch.randperm(len(self), generator=generator)
        whole = len(self) < batch_size or not self._single
        expected = len(self) if whole else self.steps(batch_size) * batch_size
        seed = int((order[:8] * torch.tensor([8191**place % 1000003 for place in range(len(order[:8]))])).sum())
        return with_own_random_numbers(self._read(_batches_of(self.source, batch_size, order), expected), seed)

    def in_order(self, batch_size: int = ROWS_PER_PASS) -> Iterator[Batch]:
        return with_own_random_numbers(self._read(_batches_of(self.source, batch_size), len(self)), 0)

    def tensors(self) -> Batch:
        x, y = zip(*self.in_order(), strict=True)
        return torch.cat(x), torch.cat(y)

    def sample(self, most: int, generator: Generator) -> Iterator[Batch]:
        if len(self) <= most:
            yield from self.in_order()
            return
        chosen = torch.zeros(len(self), dtype=torch.bool)
        chosen[torch.randperm(len(self), generator=generator)[:most]] = True
        start = 0
        for x, y in self.in_order():
            here = chosen[start : start + len(y)].to(y.device)
            start += len(y)
            if here.any():
                yield x[here], y[here]

    def split(self, fraction: float, most: int, generator: Generator) -> tuple[StreamedRows, StreamedRows] | None:
        """Of a Dataset whose items have numbers; of others nobody can say which rows come when."""
        if not self._single or not _by_number(self.source):
            return None
        chosen = split_rows(self.given, fraction, generator, most=most)
        return (self._part(~chosen), self._part(chosen)) if chosen.any() else None

    def _part(self, chosen: Tensor) -> StreamedRows:
        part = copy.copy(self)
        part.source = torch.utils.data.Subset(self.source, chosen.nonzero().flatten().tolist())
        part.given = self.given[chosen]
        return part

    def with_weights(self, weights: Any) -> StreamedRows:
        raise InputError(
            "weights were given beside a Dataset or batches, which decide themselves which rows come how often; give "
            "x and y as arrays, or leave weights out."
        )

    def digest(self) -> str:
        """Of the labels alone: what random transforms make of an example is never the same."""
        return digest_of([], {"rows": {"labels": self.given.sort().values}})

    def _read(self, batches: Iterator[Any], expected: int) -> Iterator[Batch]:
        """Batches checked, on the device, with labels as numbers of classes once these are known, and so many rows
        `expected`; in the first pass, 0."""
        rows, name = 0, type(self.source).__name__
        for number, batch in enumerate(batches):
            inputs, labels = _parted_batch(batch, f"batch {number} of the {name}")
            self._check_shape(inputs, number, name)
            x = self._inputs(inputs)
            self.shape = tuple(x.shape[1:])
            y = self.likelihood.checked(labels, len(x))
            rows += len(y)
            if self.classes is not None:
                y = self.likelihood.local(y, self.classes, f"batch {number}")
            yield x.to(self.device), y.to(self.device)
        if expected and rows != expected:
            raise InputError(
                f"the {name} gave {rows:,} examples in a pass where the first one had {expected:,}; a task is read "
                "several times, so every pass must have as many. Give a DataLoader, a list, or an object whose "
                "__iter__ begins anew."
            )

    def _check_shape(self, inputs: Any, number: int, name: str) -> None:
        """Reject a batch that is not like the ones before it."""
        given = plain(f"batch {number} of the {name}", inputs) if isinstance(inputs, Tensor) else inputs
        shape = tuple(getattr(given, "shape", ()))[1:]
        if number and shape and self.packing is None and self.shape is not None and shape != self.shape:
            raise InputError(
                f"batch {number} of the {name} has examples of shape {shape}, those before it have {self.shape}; "
                "give examples of one shape."
            )

    def _inputs(self, given: Any) -> Tensor:
        """A batch of inputs as one tensor; named ones of single examples are put together here, at one length."""
        parts = given if isinstance(given, _Named) else [given]
        if self._find_packing is not None:
            for part in parts:
                self.packing = self._find_packing(part, self.packing)
        shape = None if self.packing is not None else self.shape
        # Where batches come on a GPU, later passes do not wait for it.
        known = None if self.classes is not None and getattr(parts[0], "is_cuda", False) else self.vocabulary
        return torch.cat([check_inputs(part, shape, packing=self.packing, vocabulary=known) for part in parts])


class TaskRows(NamedTuple):
    """What `learn` was given: the rows, their classes in order, and how inputs are packed."""

    rows: Rows
    classes: tuple[int, ...]
    packing: Packing | None


def rows_of(
    x: Any,
    y: Any,
    likelihood: Likelihood,
    device: torch.device,
    shape: tuple[int, ...] | None,
    packing: Packing | None,
    find_packing: FindPacking | None,
    vocabulary: int | None = None,
) -> TaskRows:
    """Arrays, named inputs, a Dataset, batches, a scratch file with its labels, or the paths of files as rows.

    `shape` and `packing` are earlier tasks'; in a first task `find_packing` tells how inputs are packed. `vocabulary`
    is how many word pieces a network knows that reads rows of them.
    """
    if y is None and names_files(x):
        from ibpwf.data.stored import numbered, read_stored

        stored = read_stored(x)
        x, y = stored.x, numbered(stored)
    if isinstance(x, ScratchFile):
        if shape is not None and x.example != shape:
            raise InputError(f"examples have shape {x.example}, earlier tasks had {shape}; reshape them to fit.")
        labels = as_array("y", y)
        known = np.unique(labels)
        rows = IndexedRows(x, torch.from_numpy(np.searchsorted(known, labels).astype(np.int32)), device=device)
        if vocabulary is not None:
            for part, (some, _) in enumerate(rows.in_order()):
                check_word_pieces(some, vocabulary, part * ROWS_PER_PASS)
        return TaskRows(rows, tuple(known.tolist()), packing)
    if isinstance(x, torch.utils.data.Dataset) or gives_batches(x, y):
        if y is not None:
            raise InputError(f"y was given beside a {type(x).__name__}, which brings its own labels; leave y out.")
        stream = StreamedRows(x, likelihood, device, shape, packing, find_packing, vocabulary)
        return TaskRows(stream, stream.classes or (), stream.packing)
    if y is None and isinstance(x, Mapping):
        x, y = _parted(x, "x")
    if y is None:
        raise InputError(
            "y is missing; give one integer label per example, or a DataLoader or Dataset of torch that brings them."
        )
    packing = packing if find_packing is None else find_packing(x, None)
    inputs = check_inputs(x, shape, packing=packing, vocabulary=vocabulary)
    inputs = inputs.clone() if inputs.is_inference() else inputs  # of torch's inference mode: no gradients
    targets = likelihood.checked(y, len(inputs))
    classes = likelihood.classes(targets)
    local = likelihood.local(targets, classes)
    return TaskRows(IndexedRows(inputs.to(device), local.to(device)), classes, packing)


# What gives examples


@runtime_checkable
class Batches(Protocol):
    """Mini-batches (x, y) of one task, anew with every iteration, such as a DataLoader; or dicts of named inputs with
    their labels among them. `len`, where there is one, counts them."""

    def __iter__(self) -> Iterator[tuple[Any, Any]]: ...


def gives_batches(x: Any, y: object) -> bool:
    """Whether `x` is no array but something to iterate over; a list is, where no y is given and it holds pairs or
    dicts."""
    if isinstance(x, Sequence):
        if y is not None or not len(x):
            return False
        return isinstance(x[0], Mapping) or (isinstance(x[0], (tuple, list)) and len(x[0]) == 2)
    is_array = hasattr(x, "__array__") or hasattr(x, "tocsr")  # tables and sparse matrices among them
    return isinstance(x, Batches) and not is_array and not isinstance(x, Mapping)


def gives_examples(source: Any) -> bool:
    """Whether a source gives single examples and no batches: a Dataset of torch, or one like Hugging Face's, whose
    items are dicts with one label each."""
    if isinstance(source, torch.utils.data.Dataset):
        return True
    if not hasattr(source, "__getitem__") or not hasattr(source, "__len__") or not len(source):
        return False
    with torch.random.fork_rng(devices=[]):  # which a transform may draw from
        first = source[0]
    return isinstance(first, Mapping) and any(not np.ndim(first[name]) for name in LABELS if name in first)


def read_batches(source: Any, batch_size: int) -> Iterator[tuple[Any, Any]]:
    """Inputs and labels of a Dataset or of ready-made batches, as they come, in one pass."""
    batches, name = _batches_of(source, batch_size), type(source).__name__
    pairs = (_parted_batch(batch, f"batch {number} of the {name}") for number, batch in enumerate(batches))
    return with_own_random_numbers(pairs, 0)


def with_own_random_numbers(reader: Iterator[T], seed: int) -> Iterator[T]:
    """Transforms that draw from torch's random numbers draw the same ones for the same seed, and leave the caller's
    alone."""
    outside = torch.get_rng_state()
    torch.manual_seed(seed)
    while True:
        try:
            found = next(reader, None)
            mine = torch.get_rng_state()
        finally:
            torch.set_rng_state(outside)
        if found is None:
            return
        yield found
        outside = torch.get_rng_state()
        torch.set_rng_state(mine)


def _by_number(source: Any) -> bool:
    """Whether single examples can be had in any order."""
    return not (isinstance(source, torch.utils.data.Dataset) and hasattr(source, "__iter__"))


def _batches_of(source: Any, batch_size: int, order: Tensor | None = None) -> Iterator[Any]:
    """Of a Dataset in the given order, or as its items come; of ready-made batches as they are."""
    if not gives_examples(source):
        yield from source
        return
    if _by_number(source):
        items = (source[place] for place in (range(len(source)) if order is None else order.tolist()))
    else:
        items = iter(source)
    started = False
    while rows := list(islice(items, batch_size)):
        # In training a rest smaller than a batch is left out, unless it is all there is.
        if order is None or not started or len(rows) == batch_size:
            yield _collated(rows)
        started = True


def _parted(given: Any, what: str) -> tuple[Any, Any]:
    """Inputs and labels: of a pair, or of a dict that has its labels among the inputs."""
    if isinstance(given, Mapping):
        found = [name for name in LABELS if name in given]
        if len(found) != 1:
            has = ", ".join(f"'{name}'" for name in given)
            raise InputError(f"{what} needs 'labels' (or 'label') among its fields, and has {has}; add them.")
        return {name: value for name, value in given.items() if name != found[0]}, given[found[0]]
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise InputError(f"{what} is not an (x, y) pair; give such pairs, or dicts with 'labels'.")
    return given[0], given[1]


def _parted_batch(given: Any, what: str) -> tuple[Any, Any]:
    """Inputs and labels of a batch, which is more than a single example."""
    x, y = _parted(given, what)
    if not np.ndim(y):
        raise InputError(
            f"{what} is a single example with one label; give batches, as a DataLoader makes them of a dataset, or a "
            "dataset whose length is known."
        )
    return x, y


class _Named(list[Mapping[str, Any]]):
    """Single examples with named inputs, each as a batch of one."""


def _collated(rows: Sequence[Any]) -> Any:
    if all(isinstance(row, Mapping) for row in rows):
        pairs = [_parted(row, f"item {number} of the Dataset") for number, row in enumerate(rows)]
        inputs = _Named({name: _row(value) for name, value in x.items()} for x, _ in pairs)
        return inputs, [y.item() if isinstance(y, Tensor) else y for _, y in pairs]
    for number, row in enumerate(rows):
        if not isinstance(row, (tuple, list)) or len(row) != 2:
            raise InputError(
                f"item {number} of the Dataset is not an (example, label) pair; give such pairs, or dicts."
            )
        for part, value in zip(("x", "y"), row, strict=True):
            if not isinstance(value, Tensor):  # of which the batch is checked; of arrays it would lose the mask
                plain(f"{part} of item {number}", value)
    try:
        return torch.utils.data.default_collate([tuple(row) for row in rows])
    except (RuntimeError, TypeError, ValueError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(
            f"items of the Dataset do not fit together ({reason}); give examples of one shape."
        ) from error


def _row(value: Any) -> Any:
    """One example's field as a batch of one."""
    return value[None] if isinstance(value, (Tensor, np.ndarray)) else [value]
