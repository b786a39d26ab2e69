"""The Open Inference Protocol v2: an inference request read and checked, and its answer written.

A body is JSON, or JSON followed by the bytes of tensors (the binary extension), in which case a header says where the
JSON ends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ibpwf.data.opening import quoted
from ibpwf.serving.faults import Refused, bad, too_large
from ibpwf.serving.limits import Limits
from ibpwf.serving.tensors import (
    KINDS,
    Array,
    check_shape,
    decode_content,
    from_bytes,
    from_json,
    kind_of,
    spelled_value,
    to_bytes,
    to_json,
)

if TYPE_CHECKING:  # bodies are also read by a process that does without torch
    from ibpwf.inference.prediction import Prediction

HEADER = "inference-header-content-length"

Bytes = bytes | bytearray | memoryview

AT_ONCE = 5_000
"""Numbers that are written as JSON at a time, in a few milliseconds."""

OUTPUTS = {
    "label": ("BYTES", "the likeliest label"),
    "probability": ("FP64", "how probable it is"),
    "task": ("BYTES", "the task that it was answered for"),
    "task_probabilities": ("FP64", "how probable each task is, in the order in which they were learnt"),
    "entropy": ("FP64", "how unsure the answer is, in nats"),
    "novelty": ("FP64", "above 1 for a row that looks like nothing learnt"),
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
