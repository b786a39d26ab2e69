"""What each address takes and gives, as OpenAPI has it."""

from __future__ import annotations

from typing import Any

from ibpwf.serving.protocol import IGNORED, KINDS, READING

Schema = dict[str, Any]


def _body(kind: str, schema: Schema) -> Schema:
    return {"content": {kind: {"schema": schema}}}


def _object(required: str, **properties: Any) -> Schema:
    return {"type": "object", "required": required.split(), "properties": properties}


_TEXT: Schema = {"type": "string"}
_ERROR = {
    "description": "What is wrong, in one sentence.",
    **_body("application/json", _object("error", error=_TEXT)),
}
_TENSOR = _object(
    "name shape datatype data",
    name=_TEXT,
    shape={"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1, "maxItems": 8},
    datatype={"enum": list(KINDS)},
    data={"type": "array"},
    parameters={"type": "object"},
)
_OPTIONS: Schema = {name: {"enum": list(values)} for name, values in READING.items()}
_OPTIONS |= {"task": _TEXT, "binary_data_output": {"type": "boolean"}, **{name: {} for name in IGNORED}}
_INFER = _object(
    "inputs",
    id=_TEXT,
    parameters={"type": "object", "properties": _OPTIONS, "additionalProperties": False},
    inputs={"type": "array", "minItems": 1, "items": _TENSOR},
    outputs={"type": "array", "items": {"type": "object", "properties": {"name": _TEXT}}},
)
_FORGET = _object("task", task=_TEXT)
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
    "POST /v2/models/{model}/predict": [_VERSION, _TASK, *_READING],
    "POST /v2/models/{model}/compare": [_query("versions", "Two versions, such as 1,3."), *_READING],
    "POST /v2/models/{model}/tasks": [
        _TASK,
        _query("label", "The column with the labels."),
        _query("update", "More rows of a task that is known.", type="boolean"),
        _query("keep", "Of more rows: better, or always to keep them in any case."),
        _query("categories", "A column of categories that look like numbers; repeatable."),
        *_READING,
        _query("validation_fraction", "Fraction of the rows for validation.", type="number"),
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
    parameters = [{"name": name, "in": "path", "required": True, "schema": _TEXT} for name in inside]
    responses: Schema = dict.fromkeys(_STATUSES, _ERROR)
    found: Schema = {"parameters": [*parameters, *_PARAMETERS.get(key, [])], "responses": responses}
    name = path.rpartition("/")[2]
    if name in ("infer", "forget"):
        schema = _INFER if name == "infer" else _FORGET
        found["requestBody"] = {"required": True, **_body("application/json", schema)}
    elif method == "POST" and name in ("tasks", "predict", "compare"):
        found["requestBody"] = {"required": True, **_body("application/octet-stream", _BYTES)}
        responses["202"] = {"description": "A job."}
    return found
