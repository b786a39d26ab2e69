"""What each address takes and gives, as OpenAPI has it."""

from __future__ import annotations

from typing import Any

from ibpwf.serving.protocol import IGNORED
from ibpwf.serving.tensors import KINDS

Schema = dict[str, Any]

_ERROR: Schema = {
    "description": "What is wrong, in one sentence.",
    "content": {
        "application/json": {
            "schema": {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
        }
    },
}
_TENSOR: Schema = {
    "type": "object",
    "required": ["name", "shape", "datatype", "data"],
    "properties": {
        "name": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1, "maxItems": 8},
        "datatype": {"enum": list(KINDS)},
        "data": {"type": "array"},
        "parameters": {"type": "object"},
    },
}
_INFER: Schema = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "id": {"type": "string"},
        "parameters": {
            "type": "object",
            "properties": {
                "task": {"type": "string"},
                "missing": {"enum": ["error", "mean"]},
                "unknown": {"enum": ["error", "zeros"]},
                "binary_data_output": {"type": "boolean"},
                **{name: {} for name in IGNORED},
            },
            "additionalProperties": False,
        },
        "inputs": {"type": "array", "minItems": 1, "items": _TENSOR},
        "outputs": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}},
    },
}
_FORGET: Schema = {"type": "object", "required": ["task"], "properties": {"task": {"type": "string"}}}
_STATUSES = ("400", "401", "403", "404", "405", "408", "409", "413", "414", "415", "429", "431", "503", "507")
_BYTES: Schema = {"type": "string", "format": "binary"}


def _query(name: str, description: str, **schema: Any) -> Schema:
    found = {"type": "string", **schema}
    return {"name": name, "in": "query", "required": False, "description": description, "schema": found}


_VERSION = _query("version", "A version; the newest without.")
_TASK = _query("task", "A task's name.")
_READING = [
    _query("ignore", "A column of the file to leave out; repeatable."),
    _query("missing", "error, or mean to fill in a missing value."),
    _query("unknown", "error, or zeros to let a category never seen stand for none."),
]
_PARAMETERS: dict[str, list[Schema]] = {
    "GET /v2/models/{model}": [_VERSION],
    "GET /v2/models/{model}/ready": [_VERSION],
    "POST /v2/models/{model}/infer": [_VERSION],
    "GET /v2/models/{model}/tasks": [_VERSION],
    "POST /v2/models/{model}/answer": [_VERSION, _TASK, *_READING],
    "POST /v2/models/{model}/compare": [_query("versions", "Two versions, such as 1,3."), *_READING],
    "POST /v2/models/{model}/tasks": [
        _TASK,
        _query("label", "The column with the labels."),
        _query("update", "More rows of a task that is known.", type="boolean"),
        _query("keep", "Of more rows: better, or always to keep them in any case."),
        _query("categories", "A column of categories that look like numbers; repeatable."),
        *_READING,
        _query("validate", "Share of the rows to hold out and measure on.", type="number"),
        _query("queue", "Wait for jobs before this one, or be refused with 409.", type="boolean"),
    ],
    "POST /v2/models/{model}/export": [_TASK, _query("to", "onnx, pt2, safetensors, peft, mlflow or folder.")],
}


def query_names(method: str, path: str) -> frozenset[str]:
    """The parameters that an address takes after its question mark."""
    return frozenset(one["name"] for one in _PARAMETERS.get(f"{method} {path}", []))


def of_route(method: str, path: str) -> Schema:
    """What FastAPI is to say of an address beside what it knows."""
    key = f"{method} {path}"
    inside = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in inside]
    found: Schema = {
        "parameters": [*parameters, *_PARAMETERS.get(key, [])],
        "responses": dict.fromkeys(_STATUSES, _ERROR),
    }
    if path.endswith("/infer"):
        found["requestBody"] = _body("application/json", _INFER)
    elif path.endswith("/forget"):
        found["requestBody"] = _body("application/json", _FORGET)
    elif method == "POST" and path.rpartition("/")[2] in ("tasks", "answer", "compare"):
        found["requestBody"] = _body("application/octet-stream", _BYTES)
        found["responses"]["202"] = {"description": "A job."}
    return found


def _body(kind: str, schema: Schema) -> Schema:
    return {"required": True, "content": {kind: {"schema": schema}}}
