"""Arrays of numbers as examples, whichever file they were in: NPZ or IDX."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ibpwf.data.examples import Examples, Floats, Origins
from ibpwf.data.labels import clean_labels
from ibpwf.data.layout import Kind, Layout, Pixels
from ibpwf.data.number_texts import fault_of
from ibpwf.data.opening import check_room, quoted, shown
from ibpwf.data.options import ReadOptions
from ibpwf.errors import DataError, InputError
from ibpwf.limits import EXACT

Array = npt.NDArray[np.generic]

_CHANNELS = (1, 3)


def array_examples(
    path: Path, x: Array, y: Array | None, options: ReadOptions, inputs: str = "x", labels: str | None = "y"
) -> Examples:
    """Examples of `(N, features)`, or of images `(N, height, width)` or `(N, channels, height, width)`.

    Bytes of images become 0 to 1, as those of image files do; other numbers are taken as they are. Colours
    may stand last. `inputs` and `labels` are the arrays' names, for errors.
    """
    file = shown(path)
    where = f"{file}: array {quoted(inputs)}"
    if x.dtype.kind not in "biuf":
        raise DataError(f"{where} holds {x.dtype}, not numbers; give whole numbers or floats.")
    if x.ndim not in (2, 3, 4):
        raise DataError(
            f"{where} has shape {x.shape}; give (N, features), or images as (N, height, width) or "
            "(N, channels, height, width)."
        )
    if not x.size:
        raise DataError(f"{where} is empty (shape {x.shape}); give at least one example.")
    kind: Kind = "arrays" if x.ndim == 2 else "images"
    options.expect(kind, path)
    origins = Origins([str(path)], "example", range(len(x)))
    if y is not None and (y.ndim != 1 or len(y) != len(x)):
        many = f"{len(y)} labels" if y.ndim == 1 else f"labels of shape {y.shape}"
        raise DataError(f"{file} has {len(x)} examples but {many}; give one label for each.")
    if y is None and options.needs_labels:
        raise InputError(f"{file} has no labels; give one for each example.")
    check_room(path, x.shape)
    numbers = array_numbers(x)
    check_values(x, numbers, origins)
    layout = options.like or Layout(kind, numbers.shape[1:])
    layout.expect_shape(numbers.shape[1:], file)
    if kind == "images":
        pixels: Pixels = "bytes" if x.dtype == np.uint8 else "floats"
        low, high = float(numbers.min()), float(numbers.max())
        layout.expect_pixels(pixels, low, high, file)
        if options.like is None:
            layout = replace(layout, pixels=pixels, range=None if pixels == "bytes" else (low, high))
    cleaned = None if y is None else clean_labels(_texts(y, file, labels), origins)
    return Examples(str(path), numbers, cleaned, layout, origins)


def check_values(x: Array, numbers: Floats, origins: Origins) -> None:
    """Refuses values that a table may not hold either; the first is named. `numbers` are those of `x` as float32."""
    wrong: Any
    if x.dtype.kind in "iu" and x.dtype.itemsize == 8:
        whole: Any = x
        wrong = (whole >= EXACT) | (whole <= -EXACT)
    elif x.dtype.kind == "f" and not np.isfinite(numbers).all():
        with np.errstate(over="ignore"):
            wrong = ~np.isfinite(x.astype(np.float32))
    else:
        return
    if wrong.any():
        at = tuple(np.argwhere(wrong)[0].tolist())
        column = f", column {at[1]}" if x.ndim == 2 else ""
        fault = fault_of(
            str(x[at]),
            float(x[at]),
            is_whole=x.dtype.kind != "f",
            fill_in="replace it or remove that example",
            leave_out="leave the column out, or scale it",
        )
        raise DataError(f"{origins[at[0]]}{column}: {fault}.")


def array_numbers(x: Array) -> Floats:
    """The numbers a model gets of an array: colours first, bytes of images as 0 to 1."""
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[1] not in _CHANNELS and x.shape[3] in _CHANNELS:
        x = x.transpose(0, 3, 1, 2)
    with np.errstate(over="ignore"):
        numbers = np.ascontiguousarray(x, dtype=np.float32)
    if x.ndim == 4 and x.dtype == np.uint8:
        numbers /= np.float32(255)
    return numbers


def _texts(y: Array, file: str, name: str | None) -> list[str]:
    if y.dtype.kind not in "biufUS":
        raise DataError(f"{file}: array {quoted(name or 'y')} holds {y.dtype}; give whole numbers or text.")
    if y.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            odd = np.flatnonzero(~(np.mod(y, 1) == 0))  # fractions, and what is not finite
        if len(odd):
            row = int(odd[0])
            raise DataError(f"{file}, example {row}: the label is {y[row]}; give classes, as whole numbers or text.")
    if y.dtype.kind == "S":
        try:
            y = np.char.decode(y.astype(np.bytes_), "utf-8")
        except UnicodeDecodeError:
            raise DataError(f"{file}: array {quoted(name or 'y')} holds bytes that are not UTF-8.") from None
    return [str(label) for label in y.tolist()]
