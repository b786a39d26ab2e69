"""The Open Inference Protocol v2: an inference request read and checked, and its answer written.

A body is JSON, or JSON followed by the bytes of tensors (the binary extension), in which case a header says where the
JSON ends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ibpwf.files.opening import quoted
from ibpwf.serving.faults import Refused, bad, too_large
from ibpwf.serving.limits import Limits
from ibpwf.serving.passes import Answer
from ibpwf.serving.tensors import KINDS, Array, check_shape, from_bytes, from_json, kind_of, to_bytes, to_json

HEADER = "inference-header-content-length"

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


def read_request(body: bytes, header: str | None, limits: Limits) -> InferRequest:
    """A request out of its body, checked as far as that goes without the model."""
    size = len(body)
    if header is not None:
        if not header.isascii() or not header.isdigit() or len(header) > 12 or int(header) > size:
            raise bad(f"the header {HEADER} is {quoted(header)}; give the length of the JSON, at most {size}.")
        size = int(header)
    content = read_json(body[:size])
    rest, at = body[size:], 0
    parameters = _object(content, "parameters")
    for strange in sorted(set(parameters) - set(PARAMETERS)):
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
        length = _object(entry, "parameters").get("binary_data_size")
        if length is None:
            inputs[name] = from_json(name, kind, shape, entry.get("data"))
            continue
        if type(length) is not int or not 0 <= length <= len(rest) - at:
            raise bad(
                f"input {quoted(name)} announces {quoted(str(length))} bytes, and {len(rest) - at:,} are left after "
                f"the JSON; send them, with the header {HEADER}."
            )
        inputs[name] = from_bytes(name, kind, shape, rest[at : at + length])
        at += length
    if at != len(rest):
        raise bad(f"{len(rest) - at:,} bytes follow the request that no input announces; leave them out.")
    binary = parameters.get("binary_data_output", False)
    if not isinstance(binary, bool):
        raise bad(f"binary_data_output is {quoted(str(binary))}; give true or false.")
    return InferRequest(inputs, _outputs(content, binary), _task(parameters), _id(content), _reading(parameters))


def read_json(data: bytes) -> dict[str, Any]:
    """A JSON object; anything else, NaN among it, is refused."""
    try:
        content = json.loads(data, parse_constant=_no_number)
    except RecursionError:
        raise bad("the request is nested too deeply; send what the protocol asks for.") from None
    except (ValueError, UnicodeDecodeError) as error:
        told = getattr(error, "msg", None) or "it is no text"
        raise bad(f"the body is no JSON ({told}); send a JSON object.") from None
    if not isinstance(content, dict):
        raise bad(f"the body is a JSON {type(content).__name__}; send an object.")
    return content


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is not a number in JSON")


def _object(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = content.get(name)
    if found is not None and not isinstance(found, dict):
        raise bad(f"{name} is {quoted(str(found))}; give an object.")
    return found or {}


def _tensor(entry: object, limits: Limits) -> tuple[str, str, tuple[int, ...]]:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise bad(f"an input is {quoted(str(entry))}; give an object with name, shape, datatype and data.")
    name, kind = entry["name"], entry.get("datatype")
    if not isinstance(kind, str) or kind not in KINDS:
        raise bad(f"input {quoted(name)} has the datatype {quoted(str(kind))}; give one of {', '.join(KINDS)}.")
    return name, kind, check_shape(name, entry.get("shape"), limits.numbers)


def _task(parameters: Mapping[str, Any]) -> str | list[str] | None:
    task = parameters.get("task")
    if task is None or isinstance(task, str):
        return task or None
    if isinstance(task, list) and all(isinstance(one, str) for one in task):
        return task
    raise bad(f"parameters.task is {quoted(str(task))}; give a task's name, or a list of one for each row.")


READING = {"missing": ("error", "mean"), "unknown": ("error", "zeros")}
"""What may be said of cells that are missing, and of categories never seen."""
PARAMETERS = ("task", *READING, "binary_data_output")
"""Of a whole request; the last is the protocol's own, of its binary extension."""


def _reading(parameters: Mapping[str, Any]) -> dict[str, str]:
    found = {name: parameters[name] for name in READING if parameters.get(name) is not None}
    for name, value in found.items():
        if value not in READING[name]:
            raise bad(f"parameters.{name} is {quoted(str(value))}; give {' or '.join(READING[name])}.")
    return found


def _id(content: Mapping[str, Any]) -> str | None:
    found = content.get("id")
    if found is not None and not isinstance(found, str):
        raise bad(f"id is {quoted(str(found))}; give a string.")
    return found


def _outputs(content: Mapping[str, Any], binary: bool) -> tuple[Output, ...]:
    """Those asked for; all where none are named."""
    asked = content.get("outputs")
    if asked is None or asked == []:
        return tuple(Output(name, binary) for name in OUTPUTS)
    if not isinstance(asked, list):
        raise bad(f"outputs is {quoted(str(asked))}; give a list of objects with a name.")
    found: dict[str, Output] = {}
    for entry in asked:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or name not in OUTPUTS:
            raise bad(f"there is no output {quoted(str(name))}; there are {', '.join(OUTPUTS)}.")
        parameters = _object(entry, "parameters")
        if parameters.get("classification"):
            raise bad("classification is not known here; the output label has the likeliest class.")
        mine = parameters.get("binary_data", binary)
        if not isinstance(mine, bool) or name in found:
            raise bad(f"output {quoted(name)} is asked for twice, or binary_data is not true or false.")
        found[name] = Output(name, mine)
    return tuple(found.values())


def tensors_of(answer: Answer) -> dict[str, Array]:
    """An answer's outputs by their names."""
    found: dict[str, Array] = {
        "label": answer.labels,
        "probability": answer.probability,
        "task": answer.tasks,
        "task_probabilities": answer.task_probabilities,
        "entropy": answer.entropy,
    }
    if answer.novelty is not None:
        found["novelty"] = answer.novelty
    return found


def write_response(request: InferRequest, model: str, version: int, answer: Answer) -> tuple[bytes, int | None]:
    """The body, and where its JSON ends if bytes follow."""
    tensors = tensors_of(answer)
    outputs, parts = [], list[bytes]()
    for output in request.outputs:
        values = np.asarray(tensors[output.name])
        entry: dict[str, Any] = {
            "name": output.name,
            "datatype": kind_of(values),
            "shape": list(values.shape),
        }
        if output.binary:
            parts.append(to_bytes(values))
            entry["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            entry["data"] = to_json(values)
        outputs.append(entry)
    content: dict[str, Any] = {"model_name": model, "model_version": str(version), "outputs": outputs}
    if request.id is not None:
        content["id"] = request.id
    head = json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode()
    return (head + b"".join(parts), len(head)) if parts else (head, None)


def version_number(text: str | None) -> int | None:
    """A version as it stands in an address."""
    if text is None or text == "":
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise Refused(404, f"version is {quoted(text)}; give the number of tasks learnt, such as 1.")
    return int(text)
