"""What `learn` was given, as a task's rows: arrays, named inputs, a Dataset, batches, or rows in a scratch file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ibpwf.errors import InputError
from ibpwf.factors.packing import Packing
from ibpwf.inputs import check_inputs, check_labels, check_word_pieces
from ibpwf.training.rows import (
    ROWS_AT_ONCE,
    FindPacking,
    Rows,
    StreamedRows,
    TensorRows,
)
from ibpwf.training.scratch_rows import ScratchExamples, ScratchRows
from ibpwf.training.sources import gives_batches, with_labels


class GivenRows(NamedTuple):
    """A task's rows, its classes in order, how many rows each has, and how inputs are packed."""

    rows: Rows
    classes: tuple[int, ...]
    counts: Tensor
    packing: Packing | None


def rows_given(
    x: Any,
    y: Any,
    device: torch.device,
    shape: tuple[int, ...] | None,
    packing: Packing | None,
    find_packing: FindPacking | None,
    vocabulary: int | None = None,
) -> GivenRows:
    """`shape` and `packing` are earlier tasks'; in a first task `find_packing` tells how inputs are packed.
    `vocabulary` is how many word pieces a network knows that reads rows of them."""
    if isinstance(x, ScratchExamples):
        if shape is not None and x.file.example != shape:
            raise InputError(f"examples have shape {x.file.example}, earlier tasks had {shape}; reshape them to fit.")
        given = x.labels.numpy()  # whose functions take less memory for so many
        known = np.unique(given)
        codes = torch.from_numpy(np.searchsorted(known, given).astype(np.int32))
        stored = ScratchRows(x.file, codes, device)
        if vocabulary is not None:
            for part, (some, _) in enumerate(stored.in_order(ROWS_AT_ONCE)):
                check_word_pieces(some, vocabulary, part * ROWS_AT_ONCE)
        return GivenRows(stored, _whole(torch.from_numpy(known)), torch.bincount(codes), packing)
    if isinstance(x, torch.utils.data.Dataset) or gives_batches(x, y):
        if y is not None:
            raise InputError(f"y was given beside a {type(x).__name__}, which brings its own labels; leave y out.")
        stream = StreamedRows(x, device, shape, packing, find_packing, vocabulary)
        return GivenRows(stream, stream.classes, torch.unique(stream.labels, return_counts=True)[1], stream.packing)
    if y is None and isinstance(x, Mapping):
        x, y = with_labels(x)
    if y is None:
        raise InputError(
            "y is missing; give one integer label per example, or a DataLoader or Dataset of torch that brings them."
        )
    packing = packing if find_packing is None else find_packing(x, None)
    inputs = check_inputs(x, shape, packing=packing, vocabulary=vocabulary)
    inputs = inputs.clone() if inputs.is_inference() else inputs  # of torch's inference mode: no gradients
    labels = check_labels(y, len(inputs))
    classes, local, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    return GivenRows(TensorRows(inputs.to(device), local.to(device)), _whole(classes), counts, packing)


def _whole(classes: Tensor) -> tuple[int, ...]:
    return tuple(int(label) for label in classes)
