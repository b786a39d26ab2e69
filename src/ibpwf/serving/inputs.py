"""What comes in as what a model takes: columns of a table, arrays, images and texts, checked as files are."""

from __future__ import annotations

import contextlib
import io
import math
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ibpwf.data import Layout, ReadOptions
from ibpwf.data.examples import Origins
from ibpwf.data.image_file import read_image
from ibpwf.data.layout import Column
from ibpwf.data.opening import listed, quoted, spelled
from ibpwf.data.table import read_table
from ibpwf.plain_arrays import check_numbers
from ibpwf.serving.faults import bad, too_large
from ibpwf.serving.limits import Limits
from ibpwf.serving.protocol import Array, from_base64, texts
from ibpwf.serving.registry import LoadedVersion

TASK, NUMBERS, IMAGE = "task", "x", "image"
"""Inputs beside the columns of a table: each row's task, all numbers of a row, and image files."""

PLAIN = ("number", "boolean")
"""Kinds of columns that can be given together, as numbers."""
KIND_OF = {"number": "FP64", "boolean": "BOOL", "category": "BYTES", "date": "BYTES", "text": "BYTES"}

MANY_PIXELS = 1 << 20
"""Of an image, beyond which it takes so much memory that it is decoded alone."""
_ONE_LARGE_IMAGE = threading.Lock()

Floats = NDArray[np.float32]


def input_tensors(version: LoadedVersion) -> list[dict[str, Any]]:
    """What a model takes, for its metadata."""
    layout, columns = version.layout, _columns(version)
    numbers = {"name": NUMBERS, "datatype": "FP32", "shape": [-1, version.classifier.n_features_in_]}
    found: list[dict[str, Any]] = [numbers]
    if layout is not None and layout.kind == "table":
        found = [{"name": name, "datatype": KIND_OF[one.kind], "shape": [-1]} for name, one in columns.items()]
        if all(one.kind in PLAIN for one in columns.values()) and NUMBERS not in columns:
            found.append({**numbers, "parameters": {"optional": True, "instead_of": "columns"}})
    elif layout is not None and layout.kind == "images":
        found = [
            {"name": IMAGE, "datatype": "BYTES", "shape": [-1], "parameters": {"content_type": "base64"}},
            {**numbers, "shape": [-1, *layout.shape], "parameters": {"optional": True, "instead_of": IMAGE}},
        ]
    if TASK not in columns:
        found.append({"name": TASK, "datatype": "BYTES", "shape": [-1], "parameters": {"optional": True}})
    return found


def _columns(version: LoadedVersion) -> dict[str, Column]:
    """The columns that a table has, by name; of other models none."""
    return {} if version.layout is None else {one.name: one for one in version.layout.columns}


def parameter(name: str, value: object = None) -> str:
    """An option as errors call it in a request."""
    return f"parameters.{name}" if value is None else f"parameters.{name}={value!r}"


def inputs_of(
    inputs: Mapping[str, Array], version: LoadedVersion, limits: Limits, reading: Mapping[str, Any] | None = None
) -> Floats:
    """The rows of a request as the model's classifier takes them. `reading`: what to do about cells that are missing
    or unknown, where the request says so."""
    layout, columns = version.layout, _columns(version)
    given = {name: values for name, values in inputs.items() if name != TASK or name in columns}
    rows = _count_rows(given, most_rows(version, limits))
    kind = None if layout is None else layout.kind
    if layout is not None and kind == "table" and (NUMBERS not in given or NUMBERS in columns):
        return _table_rows(given, layout, rows, reading or {})
    if any(column.kind not in PLAIN for column in columns.values()):
        raise bad("this model has columns of categories or texts; give a tensor for each column.")
    if layout is not None and kind == "images":
        found = _images(given, layout, limits) if IMAGE in given else _numbers(given, layout.shape, rows, layout)
        return found.reshape(rows, -1)
    return _numbers(given, (version.classifier.n_features_in_,), rows)


def most_rows(version: LoadedVersion, limits: Limits) -> int:
    """Rows of one request: those of a model with large inputs, such as images, take memory."""
    return min(limits.rows, max(1, limits.numbers // version.classifier.n_features_in_))


def tasks_of(task: str | list[str] | None, inputs: Mapping[str, Array], version: LoadedVersion, rows: int) -> Any:
    """The task of each row: a parameter of the request, or a tensor of names, blank where it is to be inferred. An
    unknown one is rejected, naming the nearest."""
    if TASK in inputs and TASK not in _columns(version):
        if task is not None:
            raise bad("the task is given as a parameter and as an input; choose one.")
        if inputs[TASK].dtype != object:
            raise bad("input 'task' holds numbers; give names of tasks as BYTES.")
        task = texts(TASK, inputs[TASK])
    if isinstance(task, list) and len(task) != rows:
        raise bad(f"{len(task)} tasks are given for {rows} rows; give one, or one for each row.")
    found = [one or None for one in task] if isinstance(task, list) else [task] * rows
    for name in {one for one in found if one is not None}:
        version.classifier.learner_.task_number(name)
    return found


def _count_rows(inputs: Mapping[str, Array], limit: int) -> int:
    """How many rows there are, the same in every tensor."""
    counts = {name: values.shape[0] for name, values in inputs.items()}
    if not counts:
        raise bad("the request has no inputs beside 'task'; give the rows to predict.")
    most, least = max(counts, key=counts.__getitem__), min(counts, key=counts.__getitem__)
    if counts[most] != counts[least]:
        told = f"input {quoted(most)} has {counts[most]} rows and {quoted(least)} has {counts[least]}"
        raise bad(f"{told}; give as many.")
    if not counts[most]:
        raise bad("the request has no rows; give at least one.")
    if counts[most] > limit:
        raise too_large(f"the request has {counts[most]:,} rows; at most {limit:,} are taken of this model.")
    return int(counts[most])


def _only(inputs: Mapping[str, Array], name: str) -> Array:
    """The one input that there may be."""
    other = next((other for other in inputs if other != name), None)
    if other is not None:
        raise bad(f"input {quoted(other)} is not known; this model takes {quoted(name)} alone.")
    return inputs[name]


def _numbers(inputs: Mapping[str, Array], shape: tuple[int, ...], rows: int, layout: Layout | None = None) -> Floats:
    """One tensor with all numbers of every row."""
    values, size, name = _only(inputs, NUMBERS), math.prod(shape), quoted(NUMBERS)
    if values.dtype == object:
        raise bad(f"input {name} is BYTES; give numbers.")
    if values.size != rows * size or (values.shape[1:] != shape and values.ndim != 2):
        raise bad(f"input {name} has shape {spelled(values.shape)}; give N×{spelled(shape)} for N rows.")
    check_numbers(f"input {name}", values)
    with np.errstate(over="ignore"):
        found: Floats = values.reshape(rows, size).astype(np.float32)
    if layout is not None:
        is_bytes = values.dtype == np.uint8
        found /= np.float32(255 if is_bytes else 1)
        layout.expect_pixels("bytes" if is_bytes else "floats", float(found.min()), float(found.max()), "the request")
    return _finite(found, [NUMBERS] * size)


def _finite(values: Floats, names: Sequence[str]) -> Floats:
    finite = np.isfinite(values)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        raise bad(f"row {row} of input {quoted(names[column])} holds a number that is not finite; fill it in.")
    return values


def _table_rows(inputs: Mapping[str, Array], layout: Layout, rows: int, reading: Mapping[str, Any]) -> Floats:
    names = [column.name for column in layout.columns]
    missing, extra = [n for n in names if n not in inputs], [n for n in inputs if n not in names]
    if missing or extra:
        what = f"lacks {listed(missing)}" if missing else f"has {listed(extra)}, which the model does not know"
        raise bad(f"the request {what}; give a tensor for each column of the model.")
    for name, values in inputs.items():
        if values.size != rows:
            raise bad(f"input {quoted(name)} has shape {spelled(values.shape)}; give one value a row, as [{rows}].")
    plain = all(column.kind == "number" for column in layout.columns)
    strict = (reading.get("missing") or layout.missing) == "error"
    if not (plain and strict and all(values.dtype.kind in "iufb" for values in inputs.values())):
        table = RequestTable(inputs, names, rows)
        return read_table(table, ReadOptions(like=layout, with_labels=False, naming=parameter, **reading)).inputs
    for name, values in inputs.items():
        check_numbers(f"input {quoted(name)}", values)
    with np.errstate(over="ignore"):
        if len({values.dtype for values in inputs.values()}) == 1:  # all at once: a fraction of the time
            joined = np.concatenate([inputs[name] for name in names], axis=None).reshape(len(names), rows)
            return _finite(np.ascontiguousarray(joined.T, dtype=np.float32), names)
        return _finite(np.stack([inputs[name].reshape(rows).astype(np.float32) for name in names], axis=1), names)


class RequestTable:
    """Tensors as the table that a file with these columns would be."""

    path = Path("the request")
    headless = False

    def __init__(self, inputs: Mapping[str, Array], names: Sequence[str], rows: int) -> None:
        import pyarrow

        self.names = list(names)
        columns = []
        for name in names:
            values = inputs[name].reshape(rows)
            text = values.dtype == object
            columns.append(pyarrow.array(texts(name, values) if text else values.copy(), from_pandas=True))
        self._table = pyarrow.table(columns, names=self.names)

    def parts(self, wanted: Sequence[int], rows: int | None = None) -> Iterator[Any]:
        yield self._table.select(list(wanted))

    def origins(self, rows: range) -> Origins:
        return Origins([str(self.path)], "row", rows)


def _images(inputs: Mapping[str, Array], layout: Layout, limits: Limits) -> Floats:
    """Image files, brought to the model's size."""
    values = _only(inputs, IMAGE)
    if values.dtype != object:
        raise bad(f"input {quoted(IMAGE)} holds numbers; give the bytes of PNG or JPEG files as BYTES.")
    x, end = np.empty((values.size, *layout.shape), dtype=np.float32), time.monotonic() + limits.seconds
    for row, given in enumerate(values.ravel()):
        data = from_base64(given) or given  # as JSON has it; no image file is a text in base64
        with decoding(data, f"image {row}", limits):
            pixels = pixels_like(data, f"image {row}", layout)
        np.divide(pixels, np.float32(255), out=x[row], dtype=np.float32)
        if time.monotonic() > end:
            raise too_large(f"the images take longer than {limits.seconds:g} s to be read; send fewer at once.")
    layout.expect_pixels("bytes", 0, 1, "the request")
    return x


def pixels_like(data: bytes, name: str, layout: Layout) -> NDArray[np.uint8]:
    """An image file as bytes of pixels, of the size and colours that the model's first images had."""
    size = (layout.shape[1], layout.shape[2]) if layout.resize else None
    pixels = read_image(data, name, size, layout.shape[0] if layout.convert else None)
    if pixels.shape != layout.shape:
        here, had = spelled(pixels.shape), spelled(layout.shape)
        raise bad(f"{name} is {here} (channels×height×width), and what was learnt was {had}; make it that size.")
    return pixels


@contextlib.contextmanager
def decoding(image: bytes | Path, name: str, limits: Limits) -> Iterator[None]:
    """While an image is decoded: large ones, which may be small files, one at a time."""
    with _ONE_LARGE_IMAGE if check_pixels(image, name, limits) > MANY_PIXELS else contextlib.nullcontext():
        yield


def check_pixels(image: bytes | Path, name: str, limits: Limits) -> int:
    """The pixels of an image. One that says it is larger than allowed is rejected before a pixel is decoded."""
    try:
        import PIL.Image

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            file = image if isinstance(image, Path) else io.BytesIO(image)
            with PIL.Image.open(file, formats=("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")) as opened:
                width, height = opened.size
    except Exception:  # whatever Pillow says of it, `read_image` says it in a sentence
        return 0
    if width * height > limits.pixels:
        raise too_large(f"{name} has {width:,}×{height:,} pixels; at most {limits.pixels:,} are taken.")
    return int(width * height)
