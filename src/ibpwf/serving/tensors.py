"""Tensors of the Open Inference Protocol: out of JSON or bytes into arrays, and back."""

from __future__ import annotations

import base64
import binascii
import math
import reprlib
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ibpwf.data.opening import quoted
from ibpwf.serving.faults import bad, too_large
from ibpwf.serving.limits import Limits

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
    "BF16": np.float32,  # NumPy has no bfloat16; every value of it is a float32
}
"""By the protocol's names."""

_NAMES = {np.dtype(kind): name for name, kind in reversed(KINDS.items())}
_TYPES = {"BOOL": {bool}} | {name: {int, float} if "F" in name else {int} for name in KINDS if name != "BOOL"}
_NARROW = ("FP16", "FP32", "BF16")
"""Floats to which NumPy rounds a number that is too large as infinity, instead of raising."""

MOST_DIMENSIONS = 8

Array = NDArray[Any]


def spelled_value(value: object) -> str:
    """A value out of a request as errors quote it: however large or deep it is, a few characters."""
    return quoted(value if isinstance(value, str) else reprlib.repr(value))


def check_shape(name: str, kind: str, shape: object, limits: Limits) -> tuple[int, ...]:
    """A tensor's shape, if it is one and not too large."""
    sides = shape if isinstance(shape, list) and len(shape) <= MOST_DIMENSIONS else []
    if not sides or set(map(type, sides)) != {int} or min(sides) < 0:
        raise bad(f"input {quoted(name)} has shape {spelled_value(shape)}; give whole numbers, such as [1].")
    size = math.prod(sides)
    if size > limits.numbers:
        raise too_large(f"input {quoted(name)} has {size:,} numbers; at most {limits.numbers:,} are taken at once.")
    if kind == "BYTES" and size > limits.rows:  # a BYTES input has one value per row
        raise too_large(f"input {quoted(name)} has {size:,} values; at most {limits.rows:,} rows are taken at once.")
    return tuple(sides)


def from_json(name: str, kind: str, shape: tuple[int, ...], data: object) -> Array:
    """The values of a tensor that came as JSON, flat or nested."""
    if not isinstance(data, list):
        raise bad(f"input {quoted(name)} has no list as data; give its values in row-major order.")
    types = set(map(type, data))
    flat: list[Any] = data
    if list in types or not data:
        flat = []
        _flatten(name, data, flat, len(shape))
        types = set(map(type, flat))
    if len(flat) != math.prod(shape):
        raise bad(f"input {quoted(name)} has {len(flat):,} values for shape {list(shape)}, not {math.prod(shape):,}.")
    if kind == "BYTES":
        if types - {str}:
            wrong = next(value for value in flat if not isinstance(value, str))
            raise bad(f"input {quoted(name)} is BYTES and holds {spelled_value(wrong)}; give strings.")
        out = np.empty(len(flat), dtype=object)
        out[:] = [value.encode("utf-8", "surrogatepass") for value in flat]
        return out.reshape(shape)
    if type(None) in types and "F" in kind:  # as clients write NaN, which JSON does not have
        flat, types = [math.nan if value is None else value for value in flat], types - {type(None)}
    if types - _TYPES[kind]:
        wrong = next(value for value in flat if type(value) not in _TYPES[kind])
        raise bad(f"input {quoted(name)} is {kind} and holds {spelled_value(wrong)}; give values of that kind.")
    try:
        if kind not in _NARROW:
            return np.array(flat, dtype=KINDS[kind]).reshape(shape)
        with np.errstate(over="raise"):
            found = np.array(flat, dtype=KINDS[kind]).reshape(shape)
    except (OverflowError, ValueError, FloatingPointError):
        raise bad(f"input {quoted(name)} holds a number that {kind} does not; give a wider kind.") from None
    return _rounded_to_bfloat16(found) if kind == "BF16" else found


def _rounded_to_bfloat16(values: Array) -> Array:
    """The nearest bfloat16, the even one of two that are equally near. NaN stays NaN."""
    bits = np.atleast_1d(values).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(values), rounded.view(np.float32).reshape(values.shape), values)


def decode_content(name: str, kind: str, parameters: Mapping[str, Any], values: Array) -> Array:
    """The values of a tensor whose content is encoded. Of the content types that clients name only base64 changes
    what the bytes mean."""
    if kind != "BYTES" or parameters.get("content_type") != "base64":
        return values
    out = np.empty(values.size, dtype=object)
    for place, value in enumerate(values.ravel()):
        decoded = from_base64(value)
        if decoded is None:
            raise bad(f"element {place} of input {quoted(name)} is not base64, as its content_type says.")
        out[place] = decoded
    return out.reshape(values.shape)


def from_base64(text: bytes) -> bytes | None:
    """The bytes that a text in base64 stands for; None if it is no such text."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _flatten(name: str, data: list[Any], into: list[Any], depth: int) -> None:
    if data and list not in set(map(type, data)):
        into.extend(data)
        return
    for value in data:
        if not isinstance(value, list) or depth <= 1:
            raise bad(f"the data of input {quoted(name)} is nested otherwise than its shape says.")
        _flatten(name, value, into, depth - 1)


def from_bytes(name: str, kind: str, shape: tuple[int, ...], data: memoryview) -> Array:
    """The values of a tensor that came as bytes, little-endian; BYTES as lengths and contents."""
    count = math.prod(shape)
    if kind == "BYTES":
        out = np.empty(count, dtype=object)
        at = 0
        for place in range(count):
            length = struct.unpack_from("<I", data, at)[0] if at + 4 <= len(data) else len(data)
            if at + 4 + length > len(data):
                raise bad(f"the bytes of input {quoted(name)} end within element {place}; send all of them.")
            out[place] = bytes(data[at + 4 : at + 4 + length])
            at += 4 + length
        if at != len(data):
            raise bad(f"input {quoted(name)} has {len(data) - at:,} bytes more than its shape says.")
        return out.reshape(shape)
    kind_of = np.dtype("<u2" if kind == "BF16" else KINDS[kind]).newbyteorder("<")
    if len(data) != count * kind_of.itemsize:
        raise bad(
            f"input {quoted(name)} has {len(data):,} bytes; {kind} of shape {list(shape)} takes "
            f"{count * kind_of.itemsize:,}."
        )
    if kind == "BOOL" and (np.frombuffer(data, dtype=np.uint8) > 1).any():
        raise bad(f"input {quoted(name)} is BOOL and holds a byte that is neither 0 nor 1.")
    values: Array = np.frombuffer(data, dtype=kind_of).reshape(shape)
    return (values.astype(np.uint32) << 16).view(np.float32) if kind == "BF16" else values


def to_bytes(values: Array) -> bytes:
    if values.dtype == object:
        coded = [_coded(value) for value in values.ravel()]
        return b"".join(struct.pack("<I", len(one)) + one for one in coded)
    return np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<")).tobytes()


def to_json(values: Array) -> list[Any]:
    """Flat, as the protocol has it; a number that JSON has none for as null."""
    if values.dtype == object:
        return [_coded(value).decode("utf-8", "replace") for value in values.ravel()]
    flat: list[Any] = values.ravel().tolist()
    if values.dtype.kind == "f" and not all(map(math.isfinite, flat)):
        return [value if math.isfinite(value) else None for value in flat]
    return flat


def kind_of(values: Array) -> str:
    """The protocol's name for the type of an array's values."""
    return _NAMES.get(values.dtype) or _NAMES[values.dtype.newbyteorder("=")]


def texts(name: str, values: Array) -> list[str]:
    """A BYTES tensor as text."""
    try:
        return [bytes(value).decode("utf-8") for value in values.ravel()]
    except UnicodeDecodeError:
        raise bad(f"input {quoted(name)} holds bytes that are not UTF-8; send text as UTF-8.") from None


def _coded(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
