"""The Open Inference Protocol v2: an inference request read and checked, its tensors, and its response written.

A body is JSON, or JSON followed by the bytes of tensors (the binary extension), in which case a header says where the
JSON ends.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import reprlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ibpwf.data.opening import quoted
from ibpwf.serving.faults import Refused, bad, too_large
from ibpwf.serving.limits import Limits

if TYPE_CHECKING:  # bodies are also read by a process that does without torch
    from ibpwf.inference.prediction import Prediction

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


HEADER = "inference-header-content-length"

Bytes = bytes | bytearray | memoryview

AT_ONCE = 5_000
"""Numbers that are written as JSON at a time, in a few milliseconds."""

OUTPUTS = {
    "label": ("BYTES", "the most probable label"),
    "probability": ("FP64", "its probability"),
    "task": ("BYTES", "the task that it was predicted for"),
    "task_probabilities": ("FP64", "P(task) of every task, in the order in which they were learned"),
    "entropy": ("FP64", "predictive entropy in nats"),
    "novelty": ("FP64", "novelty score; a row above 1 is novel"),
}


@dataclass(frozen=True)
class Output:
    """An output that was asked for."""

    name: str
    binary: bool = False


@dataclass(frozen=True)
class InferRequest:
    """What a client asks. `tasks` is the task of all rows, or one of each; None where it is to be inferred."""

    inputs: dict[str, Array]
    outputs: tuple[Output, ...]
    task: str | list[str] | None
    id: str | None
    reading: dict[str, str] = field(default_factory=dict)  # what to do about cells that are missing or unknown

    @property
    def wants_novelty(self) -> bool:
        return any(output.name == "novelty" for output in self.outputs)


def json_length(header: str | None, size: int) -> int:
    """How many bytes of a body of `size` bytes are JSON, by the header that says so."""
    if header is None:
        return size
    if not header.isascii() or not header.isdigit() or len(header) > 12 or int(header) > size:
        raise bad(f"the header {HEADER} is {quoted(header)}; give the length of the JSON, at most {size}.")
    return int(header)


def read_request(body: Bytes, header: str | None, limits: Limits) -> InferRequest:
    """A request out of its body, checked as far as that goes without the model."""
    size = json_length(header, len(body))
    whole = memoryview(body)
    try:
        return request_of(read_json(whole[:size]), whole[size:], limits)
    except RecursionError:
        raise _too_deep() from None


def request_of(content: dict[str, Any], rest: memoryview, limits: Limits) -> InferRequest:
    """A request out of its JSON, and the bytes after it."""
    at = 0
    parameters = _object(content, "parameters")
    for strange in sorted(set(parameters) - set(PARAMETERS) - set(IGNORED)):
        raise bad(f"there is no parameter {quoted(strange)}; there are {', '.join(PARAMETERS)}.")
    given = content.get("inputs")
    if not isinstance(given, list) or not given:
        raise bad("the request has no inputs; give a list of tensors with name, shape, datatype and data.")
    if len(given) > limits.tensors:
        raise too_large(f"the request has {len(given):,} inputs; at most {limits.tensors:,} are taken.")
    inputs: dict[str, Array] = {}
    for entry in given:
        name, kind, shape = _tensor(entry, limits)
        if name in inputs:
            raise bad(f"input {quoted(name)} is given twice; give each once.")
        about = _object(entry, "parameters")
        if "shared_memory_region" in about:
            raise bad(f"input {quoted(name)} is in shared memory, which this server does not read; send its data.")
        length = about.get("binary_data_size")
        if length is None:
            values = from_json(name, kind, shape, entry.pop("data", None))
            inputs[name] = decode_content(name, kind, about, values) if about else values
            continue
        if type(length) is not int or not 0 <= length <= len(rest) - at:
            raise bad(
                f"input {quoted(name)} announces {spelled_value(length)} bytes, and {len(rest) - at:,} are left "
                f"after the JSON; send them, with the header {HEADER}."
            )
        inputs[name] = decode_content(name, kind, about, from_bytes(name, kind, shape, rest[at : at + length]))
        at += length
    if at != len(rest):
        raise bad(f"{len(rest) - at:,} bytes follow the request that no input announces; leave them out.")
    binary = parameters.get("binary_data_output", False)
    if not isinstance(binary, bool):
        raise bad(f"binary_data_output is {spelled_value(binary)}; give true or false.")
    return InferRequest(inputs, _outputs(content, binary), _task(parameters), _id(content), _reading(parameters))


PARSED = 128 << 20
"""Bytes that the values of a JSON text may take in memory."""
_PRICES = {b",": 32, b'"': 32, b"[": 64, b"{": 240}
"""What the value costs, at most, that each character of JSON is a part of: two quotes make a string."""


def check_json(text: Bytes) -> None:
    """Reject a JSON text whose values would take too much memory, before any is made: empty objects take 20 times as
    much as their text. Characters within strings are counted as well."""
    price = 0
    for start in range(0, len(text), 1 << 20):
        part = bytes(text[start : start + (1 << 20)])
        price += sum(part.count(character) * each for character, each in _PRICES.items())
        if price > PARSED:
            raise too_large("the JSON has too many values to be read; send fewer rows, or tensors as binary data.")


def read_json(data: Bytes) -> dict[str, Any]:
    """A JSON object; anything else, NaN among it, is refused. A bytearray is emptied, so that a large text is not in
    memory twice beside its values."""
    check_json(data)
    try:
        text = str(data, "utf-8", "surrogatepass").removeprefix("\ufeff")
        if isinstance(data, bytearray):
            data.clear()
        content = _DECODER.decode(text)
    except RecursionError:
        raise _too_deep() from None
    except (ValueError, UnicodeDecodeError) as error:
        words = "it is no text" if isinstance(error, UnicodeDecodeError) else "a number is too long, or is none"
        told = getattr(error, "msg", None) or words
        raise bad(f"the body is no JSON ({told}); send a JSON object.") from None
    if not isinstance(content, dict):
        raise bad(f"the body is a JSON {type(content).__name__}; send an object.")
    return content


def _too_deep() -> Refused:
    return bad("the request is nested too deeply; send what the protocol asks for.")


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is not a number in JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_number)
_ENCODER = json.JSONEncoder(separators=(",", ":"))


def _object(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = content.get(name)
    if found is not None and not isinstance(found, dict):
        raise bad(f"{name} is {spelled_value(found)}; give an object.")
    return found or {}


def _tensor(entry: object, limits: Limits) -> tuple[str, str, tuple[int, ...]]:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise bad(f"an input is {spelled_value(entry)}; give an object with name, shape, datatype and data.")
    name, kind = entry["name"], entry.get("datatype")
    if not isinstance(kind, str) or kind not in KINDS:
        raise bad(f"input {quoted(name)} has the datatype {spelled_value(kind)}; give one of {', '.join(KINDS)}.")
    return name, kind, check_shape(name, kind, entry.get("shape"), limits)


def _task(parameters: Mapping[str, Any]) -> str | list[str] | None:
    task = parameters.get("task")
    if task is None or isinstance(task, str):
        return task or None
    if isinstance(task, list) and all(isinstance(one, str) for one in task):
        return task
    raise bad(f"parameters.task is {spelled_value(task)}; give a task's name, or a list of one for each row.")


READING = {"missing": ("error", "mean"), "unknown": ("error", "zeros")}
"""What may be said of cells that are missing, and of categories never seen."""
PARAMETERS = ("task", *READING, "binary_data_output")
"""Of a whole request; the last is the protocol's own, of its binary extension."""
IGNORED = ("timeout", "priority", "sequence_id", "sequence_start", "sequence_end", "content_type", "headers")
"""What clients of Triton and MLServer send beside. None of it changes an answer here."""


def _reading(parameters: Mapping[str, Any]) -> dict[str, str]:
    found = {name: parameters[name] for name in READING if parameters.get(name) is not None}
    for name, value in found.items():
        if not isinstance(value, str) or value not in READING[name]:
            raise bad(f"parameters.{name} is {spelled_value(value)}; give {' or '.join(READING[name])}.")
    return found


def _id(content: Mapping[str, Any]) -> str | None:
    found = content.get("id")
    if found is not None and not isinstance(found, str):
        raise bad(f"id is {spelled_value(found)}; give a string.")
    return found


def _outputs(content: Mapping[str, Any], binary: bool) -> tuple[Output, ...]:
    """Those asked for; all where none are named."""
    asked = content.get("outputs")
    if asked is None or asked == []:
        return tuple(Output(name, binary) for name in OUTPUTS)
    if not isinstance(asked, list):
        raise bad(f"outputs is {spelled_value(asked)}; give a list of objects with a name.")
    found: dict[str, Output] = {}
    for entry in asked:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or name not in OUTPUTS:
            raise bad(f"there is no output {spelled_value(name)}; there are {', '.join(OUTPUTS)}.")
        parameters = _object(entry, "parameters")
        if parameters.get("classification"):
            raise bad("classification is not known here; the output label has the likeliest class.")
        mine = parameters.get("binary_data", binary)
        if not isinstance(mine, bool) or name in found:
            raise bad(f"output {quoted(name)} is asked for twice, or binary_data is not true or false.")
        found[name] = Output(name, mine)
    return tuple(found.values())


def tensors_of(answer: Prediction[Array]) -> dict[str, Array]:
    """The outputs of a prediction by their names."""
    values = (answer.labels.astype(object), answer.probability, answer.task.astype(object))
    return dict(zip(OUTPUTS, (*values, answer.task_probabilities, answer.entropy, answer.novelty), strict=True))  # type: ignore[arg-type]


def write_response(
    request: InferRequest, model: str, version: int, answer: Prediction[Array]
) -> tuple[bytes, int | None]:
    """The body, and where its JSON ends if bytes follow."""
    tensors = tensors_of(answer)
    outputs, parts = list[str](), list[bytes]()
    for output in request.outputs:
        values = np.asarray(tensors[output.name])
        entry: dict[str, Any] = {"name": output.name, "datatype": kind_of(values), "shape": list(values.shape)}
        if output.binary:
            parts.append(to_bytes(values))
            entry["parameters"] = {"binary_data_size": len(parts[-1])}
            outputs.append(_ENCODER.encode(entry))
        else:
            outputs.append(f'{_ENCODER.encode(entry)[:-1]},"data":{_json_of(values)}}}')
    about = {"model_name": model, "model_version": str(version)}
    if request.id is not None:
        about["id"] = request.id
    head = f'{_ENCODER.encode(about)[:-1]},"outputs":[{",".join(outputs)}]}}'.encode()
    return (head + b"".join(parts), len(head)) if parts else (head, None)


def _json_of(values: Array) -> str:
    """A tensor's values as a JSON list, of which no call of the encoder takes long: it lets no other thread run."""
    if values.size <= AT_ONCE:
        return _ENCODER.encode(to_json(values))
    flat = values.ravel()
    pieces = (_ENCODER.encode(to_json(flat[start : start + AT_ONCE])) for start in range(0, len(flat), AT_ONCE))
    return f"[{','.join(piece[1:-1] for piece in pieces)}]"


def in_query(name: str, value: object = None) -> str:
    """An option as errors call it that is given with a file."""
    return f"the parameter {name}" if value is None else f"the parameter {name}={value}"


def version_number(text: str | None) -> int | None:
    """A version as it stands in an address."""
    if text is None or text == "":
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise Refused(404, f"version is {quoted(text)}; give the number of tasks learnt, such as 1.")
    return int(text)
