"""What comes in as what a model takes: columns of a table, arrays, images and texts, checked as files are."""

from __future__ import annotations

import contextlib
import threading
import time
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
from ibpwf.serving.registry import LoadedVersion
from ibpwf.serving.tensors import Array, from_base64, texts

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
    layout = version.layout
    columns = () if layout is None else layout.columns
    numbers = {"name": NUMBERS, "datatype": "FP32", "shape": [-1, version.classifier.n_features_in_]}
    found: list[dict[str, Any]] = [numbers]
    if layout is not None and layout.kind == "table":
        found = [{"name": one.name, "datatype": KIND_OF[one.kind], "shape": [-1]} for one in columns]
        if all(one.kind in PLAIN for one in columns) and not _is_column(NUMBERS, columns):
            found.append({**numbers, "parameters": {"optional": True, "instead_of": "columns"}})
    elif layout is not None and layout.kind == "images":
        found = [
            {"name": IMAGE, "datatype": "BYTES", "shape": [-1], "parameters": {"content_type": "base64"}},
            {**numbers, "shape": [-1, *layout.shape], "parameters": {"optional": True, "instead_of": IMAGE}},
        ]
    if not _is_column(TASK, columns):
        found.append({"name": TASK, "datatype": "BYTES", "shape": [-1], "parameters": {"optional": True}})
    return found


def parameter(name: str, value: object = None) -> str:
    """An option as errors call it in a request."""
    return f"parameters.{name}" if value is None else f"parameters.{name}={value!r}"


def examples_of(
    inputs: Mapping[str, Array], version: LoadedVersion, limits: Limits, reading: Mapping[str, Any] | None = None
) -> Floats:
    """The rows of a request as the model's classifier takes them. `reading`: what to do about cells that are missing
    or unknown, where the request says so."""
    layout = version.layout
    columns = () if layout is None else layout.columns
    given = {name: values for name, values in inputs.items() if name != TASK or _is_column(TASK, columns)}
    rows = _rows(given, limits)
    if rows > most_rows(version, limits):
        raise too_large(
            f"the request has {rows:,} rows; of this model {most_rows(version, limits):,} are taken at once."
        )
    if layout is not None and layout.kind == "table" and NUMBERS in given and not _is_column(NUMBERS, columns):
        if any(column.kind not in PLAIN for column in columns):
            raise bad("this model has columns of categories or texts; give a tensor for each column.")
        return _numbers(given, (len(columns),), rows)
    if layout is not None and layout.kind == "table":
        return _table_rows(given, layout, rows, reading or {})
    if layout is not None and layout.kind == "images" and IMAGE in given:
        _only(given, IMAGE)
        return _images(given[IMAGE], layout, limits)
    if layout is not None and layout.kind == "images":
        return _numbers(given, layout.shape, rows, layout)
    return _numbers(given, (version.classifier.n_features_in_,), rows)


def most_rows(version: LoadedVersion, limits: Limits) -> int:
    """Rows of one request: those of a model with large inputs, such as images, take memory."""
    return min(limits.rows, max(1, limits.numbers // version.classifier.n_features_in_))


def tasks_of(task: str | list[str] | None, inputs: Mapping[str, Array], version: LoadedVersion, rows: int) -> Any:
    """The task of each row: a parameter of the request, or a tensor of names, blank where it is to be inferred."""
    columns = () if version.layout is None else version.layout.columns
    if TASK in inputs and not _is_column(TASK, columns):
        if task is not None:
            raise bad("the task is given as a parameter and as an input; choose one.")
        if inputs[TASK].dtype != object:
            raise bad("input 'task' holds numbers; give names of tasks as BYTES.")
        task = texts(TASK, inputs[TASK])
    if isinstance(task, list):
        if len(task) != rows:
            raise bad(f"{len(task)} tasks are given for {rows} rows; give one, or one for each row.")
        return [one or None for one in task]
    return [task] * rows


def _is_column(name: str, columns: Sequence[Column]) -> bool:
    return any(column.name == name for column in columns)


def _rows(inputs: Mapping[str, Array], limits: Limits) -> int:
    """How many rows there are, the same in every tensor."""
    counts = {name: values.shape[0] for name, values in inputs.items()}
    if not counts:
        raise bad("the request has no inputs beside 'task'; give the rows to answer.")
    most, least = max(counts, key=counts.__getitem__), min(counts, key=counts.__getitem__)
    if counts[most] != counts[least]:
        raise bad(
            f"input {quoted(most)} has {counts[most]} rows and {quoted(least)} has {counts[least]}; give as many."
        )
    rows = int(counts[most])
    if not rows:
        raise bad("the request has no rows; give at least one.")
    if rows > limits.rows:
        raise too_large(f"the request has {rows:,} rows; at most {limits.rows:,} are answered at once.")
    return rows


def _only(inputs: Mapping[str, Array], name: str) -> None:
    others = [other for other in inputs if other != name]
    if others:
        raise bad(f"input {quoted(others[0])} is not known; this model takes {quoted(name)} alone.")


def _numbers(inputs: Mapping[str, Array], shape: tuple[int, ...], rows: int, layout: Layout | None = None) -> Floats:
    """One tensor with all numbers of every row."""
    if NUMBERS not in inputs:
        raise bad(f"input {quoted(next(iter(inputs)))} is not known; this model takes {quoted(NUMBERS)}.")
    _only(inputs, NUMBERS)
    values = inputs[NUMBERS]
    if values.dtype == object:
        raise bad(f"input {quoted(NUMBERS)} is BYTES; give numbers.")
    size = int(np.prod(shape))
    if values.size != rows * size or (values.shape[1:] != shape and values.ndim != 2):
        raise bad(f"input {quoted(NUMBERS)} has shape {spelled(values.shape)}; give N×{spelled(shape)} for N rows.")
    check_numbers(f"input {quoted(NUMBERS)}", values)
    bytes_ = layout is not None and values.dtype == np.uint8
    with np.errstate(over="ignore"):
        found: Floats = values.reshape(rows, *shape).astype(np.float32)
    if bytes_:
        found /= np.float32(255)
    if layout is not None:
        layout.expect_pixels("bytes" if bytes_ else "floats", float(found.min()), float(found.max()), "the request")
    _check_finite(found, NUMBERS)
    return found


def _check_finite(values: Floats, name: str) -> None:
    flat = values.reshape(len(values), -1)
    if not np.isfinite(flat).all():
        row = int(np.flatnonzero(~np.isfinite(flat).all(1))[0])
        raise bad(f"row {row} of input {quoted(name)} holds a number that is not finite; fill it in.")


def _check_finite_columns(values: Floats, names: Sequence[str]) -> None:
    finite = np.isfinite(values)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        raise bad(f"row {row} of input {quoted(names[column])} holds a number that is not finite; fill it in.")


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
    if plain and strict and all(values.dtype.kind in "iufb" for values in inputs.values()):
        for name, values in inputs.items():
            check_numbers(f"input {quoted(name)}", values)
        kinds = {values.dtype for values in inputs.values()}
        with np.errstate(over="ignore"):
            if len(kinds) == 1:  # all columns at once, which for few rows takes a fraction of the time
                joined = np.concatenate([inputs[name] for name in names], axis=None).reshape(len(names), rows)
                found = np.ascontiguousarray(joined.T, dtype=np.float32)
            else:
                found = np.stack([inputs[name].reshape(rows).astype(np.float32) for name in names], axis=1)
        _check_finite_columns(found, names)
        return found
    table = RequestTable(inputs, names, rows)
    return read_table(table, ReadOptions(like=layout, with_labels=False, naming=parameter, **reading)).inputs


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


def _images(values: Array, layout: Layout, limits: Limits) -> Floats:
    """Image files, brought to the model's size."""
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
    if check_pixels(image, name, limits) <= MANY_PIXELS:
        yield
        return
    with _ONE_LARGE_IMAGE:
        yield


def check_pixels(image: bytes | Path, name: str, limits: Limits) -> int:
    """The pixels of an image. One that says it is larger than allowed is rejected before a pixel is decoded."""
    import io
    import warnings

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
