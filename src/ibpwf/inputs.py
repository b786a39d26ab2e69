"""What users hand in: checked once, named in errors, turned into tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ibpwf.errors import InputError
from ibpwf.limits import EXACT
from ibpwf.plain_arrays import numbers, plain

if TYPE_CHECKING:
    from ibpwf.packing import Packing


def _tensor(field: str, value: object) -> Tensor:
    if isinstance(value, Tensor):
        found: Tensor = plain(field, value)
        if found.dtype in (torch.int64, torch.uint64) and field == "x" and _has_long_integers(found):
            numbers(field, found)  # which says where
        return found
    if hasattr(value, "tocsr"):
        raise InputError(f"{field} is a sparse matrix; give {field}.toarray().")
    remedy = "encode the labels as whole numbers" if field == "y" else "give numbers (a tensor or a numpy array)"
    remedy = "give numbers, or leave that field out" if field.startswith("x[") else remedy
    array = numbers(field, value, remedy, labels=field == "y")
    # torch has neither the other byte order nor longer floats, nor strides that run backwards.
    native = np.float64 if array.dtype == np.longdouble else array.dtype.newbyteorder("=")
    return torch.from_numpy(np.ascontiguousarray(array, native)).reshape(array.shape)


def _has_long_integers(x: Tensor) -> bool:
    if x.dtype == torch.uint64 or not x.numel():  # torch has no extremes of these
        return True
    low, high = x.aminmax()
    return bool((low <= -EXACT) | (high >= EXACT))


def named_tensors(x: Mapping[Any, object]) -> dict[str, Tensor]:
    """Inputs by their names."""
    return {str(name): _tensor(f"x['{name}']", value) for name, value in x.items()}


def check_word_pieces(x: Tensor, vocabulary: int, start: int = 0) -> None:
    """Refuse finite rows of word pieces that an encoder which knows so many has no embedding of; the first row is
    number `start`."""
    if not x.numel():
        return
    low, high = x.aminmax()
    if bool((low >= 0) & (high < vocabulary)):
        return
    row, place = ((x < 0) | (x >= vocabulary)).flatten(1).nonzero()[0].tolist()
    value = x.flatten(1)[row, place].item()
    raise InputError(
        f"x holds {value:.9g} in row {start + row}, place {place}, and the encoder knows {vocabulary} word pieces, "
        f"from 0 to {vocabulary - 1}; make rows with its own input: encoder.input(texts, length=...)."
    )


def check_inputs(
    x: object,
    shape: tuple[int, ...] | None,
    *,
    empty_ok: bool = False,
    packing: Packing | None = None,
    vocabulary: int | None = None,
) -> Tensor:
    """Examples as float32, one per row, finite, of the shape earlier tasks had. A network with named inputs has a
    `packing` by which they become one tensor; where it has one input, that may come without its name. `vocabulary` is
    how many word pieces a network knows that reads rows of them."""
    if packing is not None:
        main = packing.fields[0].name
        given = packing.pack(named_tensors(x if isinstance(x, Mapping) else {main: x}))
    elif isinstance(x, Mapping):
        raise InputError(
            "x is a dict, but the network takes one tensor without a name; give that tensor, one example per row."
        )
    else:
        given = _tensor("x", x)
    if given.ndim < 2:
        raise InputError(f"x has shape {tuple(given.shape)}; give one example per row, such as (N, features).")
    if not len(given) and not empty_ok:
        raise InputError("x is empty; a task needs examples.")
    if given.is_complex():
        raise InputError(f"x holds {given.dtype}; give real numbers.")
    if shape is not None and tuple(given.shape[1:]) != shape:
        raise InputError(
            f"x has examples of shape {tuple(given.shape[1:])}, earlier tasks had {shape}; reshape x to fit."
        )
    inputs = given.float()
    # A sum is finite only if all its terms are, and found in a fraction of the time it takes to look at each.
    if not bool(torch.isfinite(inputs.sum())):
        finite = torch.isfinite(inputs)
        if not bool(finite.all()):
            row = int((~finite).flatten(1).any(1).nonzero()[0, 0])
            value = given[row][~finite[row]][0].item()  # as it was given: beyond float32 it would be infinite
            raise InputError(f"x holds {value} in row {row}; remove or replace NaN and infinite values.")
    if vocabulary is not None:
        check_word_pieces(inputs, vocabulary)
    return inputs


def check_labels(y: object, examples: int) -> Tensor:
    """Integer labels, one per example."""
    given = _tensor("y", y)
    if given.ndim != 1:
        raise InputError(f"y has shape {tuple(given.shape)}; give one integer label per example, shape (N,).")
    if len(given) != examples:
        raise InputError(f"x has {examples} examples but y has {len(given)} labels; they must be as many.")
    if given.dtype == torch.bool or given.is_complex():
        raise InputError(f"y holds {given.dtype}; encode the labels as whole numbers.")
    labels = given.long()
    # What does not come back from int64 as it was: fractions, NaN, infinities, numbers too large.
    wrong = (labels.to(given.dtype) != given) | ((labels < 0) != (given.double() < 0))
    if bool(wrong.any()):
        bad = given[wrong.nonzero()[0, 0]].item()
        raise InputError(f"y holds {bad}, which is not a 64-bit integer; encode the labels as whole numbers.")
    return labels
