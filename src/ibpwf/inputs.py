"""What users hand in: checked once, named in errors, turned into tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ibpwf.errors import InputError


def _tensor(field: str, value: object) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InputError(f"{field} cannot be made an array ({error}); give rows of equal length.") from None
    if array.dtype.kind not in "biuf":
        raise InputError(f"{field} holds {array.dtype}; give numbers (a tensor or a numpy array).")
    return torch.from_numpy(np.ascontiguousarray(array))


def check_inputs(x: object, shape: tuple[int, ...] | None, *, empty_ok: bool = False) -> Tensor:
    """Examples as float32, one per row, finite, of the shape earlier tasks had."""
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
    finite = torch.isfinite(inputs)
    if not bool(finite.all()):
        row = int((~finite).flatten(1).any(1).nonzero()[0])
        raise InputError(
            f"x has a NaN or infinite value in row {row}; remove or replace such values before learning."
        )
    return inputs


def check_labels(y: object, examples: int) -> Tensor:
    """Integer labels, one per example."""
    given = _tensor("y", y)
    if given.ndim != 1:
        raise InputError(f"y has shape {tuple(given.shape)}; give one integer label per example, shape (N,).")
    if len(given) != examples:
        raise InputError(f"x has {examples} examples but y has {len(given)} labels; they must be as many.")
    if given.is_floating_point():
        if not bool((given == given.round()).all()):
            bad = float(given[(given != given.round()).nonzero()[0, 0]])
            raise InputError(f"y holds {bad}, which is not an integer; encode the labels as whole numbers.")
        given = given.long()
    if given.dtype == torch.bool or given.is_complex():
        raise InputError(f"y holds {given.dtype}; encode the labels as whole numbers.")
    return given.long()


def from_dataset(dataset: torch.utils.data.Dataset[Any]) -> tuple[Tensor, Tensor]:
    """All pairs of a map-style or iterable Dataset as two tensors."""
    items = dataset if hasattr(dataset, "__iter__") else (dataset[i] for i in range(len(dataset)))  # type: ignore[arg-type]
    xs, ys = [], []
    for number, item in enumerate(items):
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise InputError(f"item {number} of the Dataset is not an (example, label) pair.")
        xs.append(torch.as_tensor(item[0]))
        ys.append(int(item[1]))
    if not xs:
        raise InputError("the Dataset is empty; a task needs examples.")
    return torch.stack(xs), torch.tensor(ys)
