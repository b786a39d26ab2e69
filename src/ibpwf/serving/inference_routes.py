"""Asking: the Open Inference Protocol, and files answered and compared row by row."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ibpwf import __version__
from ibpwf.data import Examples, Layout, ReadOptions, read_batches
from ibpwf.data.opening import quoted
from ibpwf.errors import IBPWFError
from ibpwf.inference.prediction import Prediction
from ibpwf.serving.access import Caller
from ibpwf.serving.batching import Rows
from ibpwf.serving.bodies import Body
from ibpwf.serving.body_process import LARGE
from ibpwf.serving.faults import Refused, bad, too_large
from ibpwf.serving.inputs import decoding, input_tensors, inputs_of, most_rows, tasks_of
from ibpwf.serving.limits import Limits
from ibpwf.serving.protocol import (
    HEADER,
    OUTPUTS,
    READING,
    Bytes,
    InferRequest,
    in_query,
    read_request,
    tensors_of,
    to_bytes,
    version_number,
    write_response,
)
from ibpwf.serving.registry import LoadedVersion
from ibpwf.serving.service import Service
from ibpwf.serving.uploads import receive_bytes, suffix_of, unpacked_size

SMALL = 1 << 16
"""Bytes of a body that is read at once; a larger one is read beside, so that others do not wait."""

LONGEST_TEXT = 4 << 17
"""Bytes of a text without a header: a cell of a table has at most 2¹⁷ characters."""

NUMBERS = [name for name, (kind, _) in OUTPUTS.items() if kind == "FP64"]
MANY = 2_000
"""Numbers of an answer above which it is written beside, too."""

EXTENSIONS = ["binary_tensor_data", "model_repository"]


async def live(service: Service, request: Request, caller: Caller) -> Response:
    return JSONResponse({"live": True})


async def ready(service: Service, request: Request, caller: Caller) -> Response:
    found = service.readiness()
    return JSONResponse(found, 200 if found["ready"] else 503)


async def server_metadata(service: Service, request: Request, caller: Caller) -> Response:
    return JSONResponse({"name": "ibpwf", "version": __version__, "extensions": EXTENSIONS, "device": service.device})


async def index(service: Service, request: Request, caller: Caller) -> Response:
    await receive_bytes(request.stream(), LARGE, service.limits.seconds)
    return JSONResponse(
        [
            {
                "name": model.name,
                "version": str(number),
                "state": "READY" if model.problem is None else "UNAVAILABLE",
                "reason": model.problem or "",
            }
            for model in service.registry
            for number in model.versions
        ]
    )


async def _version(service: Service, request: Request) -> LoadedVersion:
    model = service.model(request)
    number = request.path_params.get("version")
    if number is None and request.scope["query_string"]:
        number = request.query_params.get("version")
    return await service.version(model, version_number(number))


async def model_metadata(service: Service, request: Request, caller: Caller) -> Response:
    version, model = await _version(service, request), service.model(request)
    classifier = version.classifier
    return JSONResponse(
        {
            "name": model.name,
            "versions": [str(number) for number in model.versions],
            "platform": "ibpwf",
            "inputs": input_tensors(version),
            "outputs": [
                {"name": name, "datatype": kind, "shape": [-1, len(version.tasks)] if name.endswith("ies") else [-1]}
                for name, (kind, _) in OUTPUTS.items()
            ],
            "parameters": {
                "version": str(version.number),
                "read_only": service.read_only(model),
                "tasks": version.tasks,
                "classes": {task: [str(label) for label in classifier.labels_of(task)] for task in version.tasks},
            },
        }
    )


async def model_ready(service: Service, request: Request, caller: Caller) -> Response:
    version, problem = await _version(service, request), service.model(request).problem
    if problem is None:
        return JSONResponse({"name": version.model, "ready": True})
    return JSONResponse({"name": version.model, "ready": False, "reason": problem}, 503)


async def infer(service: Service, request: Request, caller: Caller) -> Response:
    async with service.bodies.receive(request) as received:
        coding, header = request.headers.get("content-encoding", "").lower(), request.headers.get(HEADER)
        body, header = await service.bodies.readable(received, coding, header)
        version = await _version(service, request)
        read = partial(_read, body, header, version, service.limits)
        asked, rows = await service.reading.run(read) if _takes_long(body, version) else read()
        del body, read  # an answer may take long
        answer = await service.ask(version, rows)
    write = partial(write_response, asked, version.model, version.number, answer)
    content, length = await asyncio.to_thread(write) if len(rows) * len(version.tasks) > MANY else write()
    if length is None:
        return Response(content, media_type="application/json")
    return Response(content, media_type="application/octet-stream", headers={HEADER: str(length)})


def _takes_long(body: Bytes, version: LoadedVersion) -> bool:
    """To be made rows of: much, or images and texts."""
    layout = version.layout
    encoded = layout is not None and (layout.kind == "images" or any(one.kind == "text" for one in layout.columns))
    return encoded or len(body) > SMALL


def _read(body: Bytes, header: str | None, version: LoadedVersion, limits: Limits) -> tuple[InferRequest, Rows]:
    asked = read_request(body, header, limits)
    x = inputs_of(asked.inputs, version, limits, asked.reading)
    return asked, Rows(x, tasks_of(asked.task, asked.inputs, version, len(x)), asked.wants_novelty)


async def tasks(service: Service, request: Request, caller: Caller) -> Response:
    """What each task of a version has: classes, rows, accuracy, and factors shared and new."""
    version = await _version(service, request)
    return JSONResponse({"model": version.model, "version": version.number, "tasks": describe_tasks(version)})


def describe_tasks(version: LoadedVersion) -> list[dict[str, Any]]:
    learner, classifier = version.classifier.learner_, version.classifier
    return [
        {
            "name": task.name,
            "classes": [str(label) for label in classifier.labels_of(task.name)],
            "examples": task.examples,
            "accuracy": task.accuracy,
            "factors": {name: dict(use) for name, use in learner.method.use(task.number).items()},
        }
        for task in learner.tasks
    ]


async def predict_file(service: Service, request: Request, caller: Caller) -> Response:
    """A table, arrays, an image or a text, predicted row by row. `accuracy` is by the file's own labels, in per cent,
    where it has any."""
    version, accuracy = await _version(service, request), None
    async with _examples(service, request, version) as examples:
        answer = await _ask(service, version, examples, request.query_params.get("task") or None)
    if examples.y is not None:  # compared one by one: as an array, each text would take as much memory as the longest
        right = sum(label == str(found) for label, found in zip(examples.y, answer.labels, strict=True))
        accuracy = 100.0 * right / len(examples.y)
    about = {"model": version.model, "version": version.number, "tasks": version.tasks, "accuracy": accuracy}
    return await _with_rows(about, _rows(answer))


async def _ask(service: Service, version: LoadedVersion, examples: Examples, task: str | None) -> Prediction[Any]:
    x = examples.inputs.reshape(len(examples), -1)
    return await service.ask(version, Rows(x, tasks_of(task, {}, version, len(x))))


def _rows(answer: Prediction[Any]) -> Iterator[dict[str, Any]]:
    for row in range(len(answer.labels)):
        found = {name: values[row] for name, values in tensors_of(answer).items()}
        yield {
            name: value.tolist() if name == "task_probabilities" else float(value) if name in NUMBERS else str(value)
            for name, value in found.items()
        } | ({} if np.isfinite(found["novelty"]) else {"novelty": None})


async def _with_rows(content: dict[str, Any], rows: Iterable[dict[str, Any]]) -> Response:
    """A JSON object that also has `rows`, which are encoded one by one beside: all at once they hold everybody up."""

    def encoded() -> str:
        return f'{json.dumps(content)[:-1]}, "rows": [{", ".join(map(json.dumps, rows))}]}}'

    return Response(await asyncio.to_thread(encoded), media_type="application/json")


async def compare(service: Service, request: Request, caller: Caller) -> Response:
    """A file predicted by two versions: task-incremental predictions of old tasks are bit-identical, and `changed`
    has the rows whose class-incremental label is another one."""
    model = service.model(request)
    asked = [version_number(text) for text in request.query_params.get("versions", "").split(",")]
    if len(asked) != 2 or None in asked:
        raise bad("versions is missing; give two of them, such as versions=1,3.")
    pair = [await service.version(model, number) for number in asked]
    tasks = list[dict[str, Any]]()
    async with _examples(service, request, pair[1]) as examples:
        one, two = [await _ask(service, version, examples, None) for version in pair]
        for task in [task for task in pair[0].tasks if task in pair[1].tasks]:
            different = _different(*[await _ask(service, version, examples, task) for version in pair])
            tasks.append({"task": task, "bit_identical": not different, "different": different})
    changed = [row for row in range(len(examples)) if one.labels[row] != two.labels[row]]
    about = {"model": model.name, "versions": [version.number for version in pair]}
    pairs = ({"before": a, "after": b} for a, b in zip(_rows(one), _rows(two), strict=True))
    return await _with_rows({**about, "changed": changed, "task_incremental": tasks}, pairs)


SAME = ("label", "probability", "task", "entropy")
"""Outputs that other tasks do not change where the task is known. Novelty is about all tasks of a version."""


def _different(one: Prediction[Any], two: Prediction[Any]) -> list[str]:
    """Those of them that are not bit-identical."""
    pairs = {name: (tensors_of(one)[name], tensors_of(two)[name]) for name in SAME}
    return [
        name for name, (before, after) in pairs.items() if to_bytes(before) != to_bytes(after)
    ]  # as 0.0 equals -0.0


@contextlib.asynccontextmanager
async def _examples(service: Service, request: Request, version: LoadedVersion) -> AsyncIterator[Examples]:
    """The examples of a file, which has its place among large requests until they are answered."""
    async with service.bodies.receive_file(request) as file:
        if not file.size:
            raise bad("the body is empty; send a table, arrays, an image or a text.")
        layout, reading = version.layout, _reading(request)
        if layout is None:
            raise Refused(409, "this model was not learnt from files; ask it with /infer and the tensor 'x'.")
        path = file.path = await service.reading.run(_named, file.path, layout, service.limits)
        await _check_size(service, file, path, [*reading.ignore, *layout.ignored])
        yield await service.reading.run(_read_file, path, version, layout, service.limits, reading)


async def _check_size(service: Service, file: Body, path: Path, ignored: list[str]) -> None:
    """Reject a file that is small to send and large to read, before it is read here."""
    ending, bodies = path.suffix, service.bodies
    if ending == ".npz":
        size = await service.reading.run(unpacked_size, path, service.limits)
        if size > LARGE:
            await bodies.take_place(file)
            bodies.count(file, size)
    elif ending == ".parquet" or (ending in (".csv", ".tsv") and file.size > LARGE):
        await bodies.check_table(file, ignored)


def _reading(request: Request) -> ReadOptions:
    """How the file of a request is to be read, as its address says."""
    given = {name: request.query_params.get(name) for name in READING}
    for name, value in given.items():
        if value is not None and value not in READING[name]:
            raise bad(f"{name} is {quoted(value)}; give {' or '.join(READING[name])}.")
    ignore = tuple(request.query_params.getlist("ignore"))
    return ReadOptions(ignore=ignore, naming=in_query, **given)  # type: ignore[arg-type]


def _named(path: Path, layout: Layout, limits: Limits) -> Path:
    """A file under a name that says what it is; a text without a header as a table with one."""
    ending = suffix_of(path, limits)
    if ending == ".zip":
        raise bad("the file is a zip archive; send one table, image or .npz file.")
    if ending == ".csv" and _is_plain_text(path, layout):
        if path.stat().st_size > LONGEST_TEXT:
            raise too_large(f"the text has more than {LONGEST_TEXT:,} bytes, which is the limit; send less.")
        text = path.read_bytes().decode("utf-8", "replace").strip()
        path.write_text(f"{layout.columns[0].name}\n" + '"' + text.replace('"', '""') + '"\n')
    return path.rename(path.with_name(f"file{ending}"))


def _is_plain_text(path: Path, layout: Layout) -> bool:
    """Whether a file without a header is the one text that a model takes."""
    if [column.kind for column in layout.columns] != ["text"]:
        return False
    with path.open("rb") as file:
        first = file.readline(LONGEST_TEXT).decode("utf-8", "replace").strip().strip('"')
    return layout.columns[0].name not in (part.strip().strip('"') for part in first.split(","))


def _read_file(path: Path, version: LoadedVersion, layout: Layout, limits: Limits, reading: ReadOptions) -> Examples:
    """A file's examples."""
    most = most_rows(version, limits)
    try:
        with decoding(path, "the image", limits) if layout.kind == "images" else contextlib.nullcontext():
            found = next(read_batches(path, most + 1, replace(reading, like=layout)))
    except Refused:
        raise
    except StopIteration:
        raise bad("the file has no rows; send at least one.") from None
    except IBPWFError as error:
        raise bad(str(error).replace(f"{path.parent}/", "")) from None
    if len(found) > most:
        raise too_large(f"the file has more than {most:,} rows, which is the limit; send fewer at once.")
    return found


async def metrics(service: Service, request: Request, caller: Caller) -> Response:
    found = service.metrics
    found.waiting_rows.set(service.batcher.waiting)
    found.note_models(service.registry)
    return Response(found.text(), media_type="text/plain; version=0.0.4")
