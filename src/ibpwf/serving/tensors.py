"""Tensors of the Open Inference Protocol: out of JSON or bytes into arrays, and back."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ibpwf.files.opening import quoted
from ibpwf.serving.faults import bad, too_large

KINDS: dict[str, Any] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
}
"""By the protocol's names; BF16 is not among NumPy's."""

MOST_DIMENSIONS = 8

Array = NDArray[Any]


def check_shape(name: str, shape: object, most: int) -> tuple[int, ...]:
    """A tensor's shape, if it is one and not too large."""
    sides = shape if isinstance(shape, list) else []
    if not sides or len(sides) > MOST_DIMENSIONS or not all(type(side) is int and side >= 0 for side in sides):
        raise bad(f"input {quoted(name)} has shape {quoted(str(shape))}; give a list of whole numbers, such as [1].")
    if math.prod(sides) > most:
        raise too_large(f"input {quoted(name)} has {math.prod(sides):,} numbers; at most {most:,} are taken at once.")
    return tuple(sides)


def from_json(name: str, kind: str, shape: tuple[int, ...], data: object) -> Array:
    """The values of a tensor that came as JSON, flat or nested."""
    flat: list[Any] = []
    if not isinstance(data, list):
        raise bad(f"input {quoted(name)} has no list as data; give its values in row-major order.")
    _flatten(name, data, flat, len(shape))
    if len(flat) != math.prod(shape):
        raise bad(f"input {quoted(name)} has {len(flat):,} values for shape {list(shape)}, not {math.prod(shape):,}.")
    if kind == "BYTES":
        wrong = next((value for value in flat if not isinstance(value, str)), None)
        if wrong is not None:
            raise bad(f"input {quoted(name)} is BYTES and holds {quoted(str(wrong))}; give strings.")
        out = np.empty(len(flat), dtype=object)
        out[:] = [value.encode("utf-8", "surrogatepass") for value in flat]
        return out.reshape(shape)
    allowed = (bool,) if kind == "BOOL" else (int,) if "INT" in kind else (int, float)
    for value in flat:
        if type(value) not in allowed:
            raise bad(f"input {quoted(name)} is {kind} and holds {quoted(str(value))}; give values of that kind.")
    try:
        with np.errstate(over="raise"):
            return np.array(flat, dtype=KINDS[kind]).reshape(shape)
    except (OverflowError, ValueError, FloatingPointError):
        raise bad(f"input {quoted(name)} holds a number that {kind} does not; give a wider kind.") from None


def _flatten(name: str, data: list[Any], into: list[Any], depth: int) -> None:
    if data and not any(isinstance(value, list) for value in data):
        into.extend(data)
        return
    for value in data:
        if not isinstance(value, list) or depth <= 1:
            raise bad(f"the data of input {quoted(name)} is nested otherwise than its shape says.")
        _flatten(name, value, into, depth - 1)


def from_bytes(name: str, kind: str, shape: tuple[int, ...], data: bytes) -> Array:
    """The values of a tensor that came as bytes, little-endian; BYTES as lengths and contents."""
    count = math.prod(shape)
    if kind == "BYTES":
        out = np.empty(count, dtype=object)
        at = 0
        for place in range(count):
            length = struct.unpack_from("<I", data, at)[0] if at + 4 <= len(data) else len(data)
            if at + 4 + length > len(data):
                raise bad(f"the bytes of input {quoted(name)} end within element {place}; send all of them.")
            out[place] = data[at + 4 : at + 4 + length]
            at += 4 + length
        if at != len(data):
            raise bad(f"input {quoted(name)} has {len(data) - at:,} bytes more than its shape says.")
        return out.reshape(shape)
    kind_of = np.dtype(KINDS[kind]).newbyteorder("<")
    if len(data) != count * kind_of.itemsize:
        raise bad(
            f"input {quoted(name)} has {len(data):,} bytes; {kind} of shape {list(shape)} takes "
            f"{count * kind_of.itemsize:,}."
        )
    if kind == "BOOL" and any(byte > 1 for byte in data):
        raise bad(f"input {quoted(name)} is BOOL and holds a byte that is neither 0 nor 1.")
    return np.frombuffer(data, dtype=kind_of).reshape(shape)


def to_bytes(values: Array) -> bytes:
    if values.dtype == object:
        coded = [_coded(value) for value in values.ravel()]
        return b"".join(struct.pack("<I", len(one)) + one for one in coded)
    return np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<")).tobytes()


def to_json(values: Array) -> list[Any]:
    """Flat, as the protocol has it; a number that JSON has none for as null."""
    if values.dtype == object:
        return [_coded(value).decode("utf-8", "replace") for value in values.ravel()]
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        return [value if math.isfinite(value) else None for value in values.ravel().tolist()]
    flat: list[Any] = values.ravel().tolist()
    return flat


def kind_of(values: Array) -> str:
    return next(name for name, kind in KINDS.items() if values.dtype == np.dtype(kind))


def texts(name: str, values: Array) -> list[str]:
    """A BYTES tensor as text."""
    try:
        return [bytes(value).decode("utf-8") for value in values.ravel()]
    except UnicodeDecodeError:
        raise bad(f"input {quoted(name)} holds bytes that are not UTF-8; send text as UTF-8.") from None


def _coded(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
