"""What a user may hand to `learn` in the place of tensors: a Dataset, or anything that gives batches.

`Batches` are an object that can be iterated again and again and gives pairs (x, y), such as a DataLoader, or dicts of
named inputs with their labels among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from ibpwf.errors import InputError
from ibpwf.factors.packing import LABELS
from ibpwf.plain_arrays import plain

T = TypeVar("T")


@runtime_checkable
class Batches(Protocol):
    """Mini-batches (x, y) of one task, anew with every iteration. `len`, where there is one, counts them."""

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


def batches_of(source: Any, batch_size: int, order: Tensor | None = None) -> Iterator[Any]:
    """Of a Dataset in the given order, or as its items come; of ready-made batches as they are."""
    if not gives_examples(source):
        yield from source
        return
    if not by_number(source):
        items = iter(source)
    else:
        places = range(len(source)) if order is None else order.tolist()
        items = (source[place] for place in places)
    started = False
    while rows := list(islice(items, batch_size)):
        # In training a rest smaller than a batch is left out, unless it is all there is.
        if order is None or not started or len(rows) == batch_size:
            yield _collated(rows)
        started = True


def read_batches(source: Any, batch_size: int) -> Iterator[tuple[Any, Any]]:
    """Inputs and labels of a Dataset or of ready-made batches, as they come, in one pass."""
    batches, name = batches_of(source, batch_size), type(source).__name__
    pairs = (parted_batch(batch, f"batch {number} of the {name}") for number, batch in enumerate(batches))
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


class Examples(list[Mapping[str, Any]]):
    """Single examples with named inputs, each as a batch of one."""


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


def by_number(source: Any) -> bool:
    """Whether single examples can be had in any order."""
    return not (isinstance(source, torch.utils.data.Dataset) and hasattr(source, "__iter__"))


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


def parted_batch(given: Any, what: str) -> tuple[Any, Any]:
    """Inputs and labels of a batch, which is more than a single example."""
    x, y = _parted(given, what)
    if not np.ndim(y):
        raise InputError(
            f"{what} is a single example with one label; give batches, as a DataLoader makes them of a dataset, or a "
            "dataset whose length is known."
        )
    return x, y


def with_labels(x: Mapping[str, Any]) -> tuple[Any, Any]:
    """Named inputs and the labels that came among them."""
    return _parted(x, "x")


def _row(value: Any) -> Any:
    """One example's field as a batch of one."""
    return value[None] if isinstance(value, (Tensor, np.ndarray)) else [value]


def _collated(rows: Sequence[Any]) -> Any:
    if all(isinstance(row, Mapping) for row in rows):
        pairs = [_parted(row, f"item {number} of the Dataset") for number, row in enumerate(rows)]
        inputs = Examples({name: _row(value) for name, value in x.items()} for x, _ in pairs)
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
