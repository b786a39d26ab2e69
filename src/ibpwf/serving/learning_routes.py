"""Changing: the next task uploaded, jobs looked at and cancelled, tasks forgotten, models verified and exported."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import secrets
import shutil
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse

from ibpwf.data.opening import quoted
from ibpwf.errors import StoreError
from ibpwf.serving.access import Caller, Role
from ibpwf.serving.body_process import LARGE
from ibpwf.serving.faults import FULL, Refused, bad, busy
from ibpwf.serving.jobs import exports_folder, new_job
from ibpwf.serving.protocol import read_json
from ibpwf.serving.records import audit
from ibpwf.serving.service import Service
from ibpwf.serving.uploads import receive_bytes
from ibpwf.serving.versions import make_state_folder
from ibpwf.serving.worker import DISK_FULL
from ibpwf.storage.files import read_json as read_json_file
from ibpwf.storage.files import write_json
from ibpwf.storage.model_folder import verify_model

LONGEST_NAME = 200
EXPORT_SECONDS = 300.0
EXPORTS = 2
"""That are written at a time; each is a process."""
FORMATS = ("onnx", "pt2", "safetensors", "peft", "mlflow", "folder")


async def learn(service: Service, request: Request, caller: Caller) -> Response:
    """Upload a table, arrays or a zip archive of images as the next task, or as more rows of one."""
    model, query = service.model(request), request.query_params
    task, update = _task_name(query.get("task")), _flag(query.get("update"), "update", False)
    queue = _flag(query.get("queue"), "queue", True)
    newest = model.newest
    if newest.layout is None:
        raise Refused(409, f"model '{model.name}' was not learned from files, so its columns are not known.")
    if update and task not in newest.tasks:
        raise bad(f"there is no task {quoted(task)} to learn more rows of; there are {', '.join(newest.tasks[:8])}.")
    options: dict[str, Any] = {
        "label": query.get("label"),
        "ignore": query.getlist("ignore"),
        "categories": query.getlist("categories"),
        "missing": _choice(query.get("missing"), "missing", ("error", "mean")),
        "unknown": _choice(query.get("unknown"), "unknown", ("error", "zeros")),
    }
    fraction = _fraction(query.get("validation_fraction"))
    keep = _choice(query.get("keep"), "keep", ("better", "always")) or "better"
    work = {"options": options, "validation_fraction": fraction, "keep": keep}
    job = new_job(model.name, "update" if update else "learn", task, caller.name, work=work)
    announced = request.headers.get("content-length", "0")
    length = int(announced) if re.fullmatch("[0-9]{1,18}", announced) else 0
    job = await service.jobs.submit(model, job, request.stream(), length=length, queue=queue)
    return JSONResponse(job.shown(), 202, headers={"Location": f"/v2/jobs/{job.id}"})


def _task_name(text: str | None) -> str:
    if text is None or not text.strip():
        raise bad("task is missing; name the task that is to be learnt, such as task=autumn.")
    if len(text) > LONGEST_NAME or not text.isprintable() or "@" in text:
        raise bad(f"task is {quoted(text)}; give a name of at most {LONGEST_NAME} printable characters, without '@'.")
    return text


def _flag(text: str | None, name: str, default: bool) -> bool:
    chosen = _choice(None if text is None else text.lower(), name, ("true", "false", "1", "0"))
    return default if chosen is None else chosen in ("true", "1")


def _choice(text: str | None, name: str, known: tuple[str, ...]) -> str | None:
    if text is not None and text not in known:
        raise bad(f"{name} is {quoted(text)}; give {' or '.join(known)}.")
    return text


def _fraction(text: str | None) -> float | None:
    with contextlib.suppress(ValueError):
        if text is None or 0 < float(text) < 1:
            return None if text is None else float(text)
    raise bad(f"validation_fraction is {quoted(str(text))}; give a number above 0 and below 1, such as 0.1.")


async def list_jobs(service: Service, request: Request, caller: Caller) -> Response:
    return JSONResponse([job.shown() for job in await service.jobs.known()])


async def show_job(service: Service, request: Request, caller: Caller) -> Response:
    return JSONResponse((await service.jobs.find(request.path_params["job"])).shown())


async def job_events(service: Service, request: Request, caller: Caller) -> Response:
    """What a job tells, as server-sent events, from its beginning to its end."""
    job = await service.jobs.find(request.path_params["job"])

    async def lines() -> AsyncIterator[bytes]:
        async for event in service.jobs.events(job.id):
            if service.caller(request).role < Role.learn:  # the token was revoked meanwhile
                return
            kind = event["event"]
            yield f"event: {kind}\ndata: {json.dumps(event)}\n\n".encode()

    return StreamingResponse(lines(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


async def cancel_job(service: Service, request: Request, caller: Caller) -> Response:
    job = await service.jobs.find(request.path_params["job"])
    ended = await service.jobs.cancel(job)
    if ended.state == "cancelled":
        path = service.registry[job.model].path
        await asyncio.to_thread(audit, path, caller.name, "cancelled", task=job.task, job=job.id)
    return JSONResponse(ended.shown())


async def forget(service: Service, request: Request, caller: Caller) -> Response:
    """Remove a task and all that only it used; versions without it keep their numbers."""
    model = service.model(request)
    content = read_json(await receive_bytes(request.stream(), LARGE, service.limits.seconds))
    task = content.get("task")
    if not isinstance(task, str) or task not in model.newest.classifier.learner_.names():
        known = ", ".join(model.newest.tasks[:8])
        raise bad(f"task is {quoted(str(task))}; name the task that is to be forgotten, one of {known}.")
    if model.newest.tasks == [task]:
        raise Refused(409, f"task {quoted(task)} is the only one of model '{model.name}', and stays.")
    job = await service.jobs.submit(model, new_job(model.name, "forget", task, caller.name))
    return JSONResponse(job.shown(), 202, headers={"Location": f"/v2/jobs/{job.id}"})


async def verify(service: Service, request: Request, caller: Caller) -> Response:
    """Every file of a model folder against its digest."""
    model = service.model(request)
    try:
        checked = await asyncio.to_thread(verify_model, model.path)
    except StoreError as error:  # there is no such folder any more
        raise Refused(503, f"model '{model.name}' cannot be verified: {model.plain(error)}", retry_after=10) from None
    problems = [{"file": one.file, "message": model.plain(one.message)} for one in checked.problems]
    await asyncio.to_thread(audit, model.path, caller.name, "verified", intact=not problems)
    counts = {"leftovers": checked.leftovers, "files": checked.files, "bytes": checked.bytes}
    return JSONResponse({"model": model.name, "intact": not problems, "problems": problems, **counts})


async def export_model(service: Service, request: Request, caller: Caller) -> Response:
    """The newest version as a zip archive of files for another program, or of the model folder itself."""
    model, query = service.model(request), request.query_params
    to = _choice(query.get("to", "folder"), "to", FORMATS) or "folder"
    task = query.get("task") or None
    if task is not None and task not in model.newest.tasks:
        raise bad(f"there is no task {quoted(task)}; there are {', '.join(model.newest.tasks[:8])}.")
    service.jobs.check_writes(model)
    if service.exporting >= EXPORTS:
        raise busy(f"{service.exporting} exports are being written; ask again later.", 10)
    folder = exports_folder(model) / secrets.token_hex(8)
    clean = BackgroundTask(shutil.rmtree, folder, ignore_errors=True)
    service.exporting += 1  # before the first await: requests that come together would all find a free place
    try:
        await asyncio.to_thread(model.check_changeable)
        make_state_folder(model.path, "exports", folder.name)
        await asyncio.to_thread(write_json, folder / "job.json", {"kind": "export", "to": to, "task": task})
        worker = await service.jobs.start_worker(model, folder)
        try:
            async with asyncio.timeout(EXPORT_SECONDS):
                code = await worker.wait()
        except TimeoutError:
            raise Refused(409, f"the export took longer than {EXPORT_SECONDS:g} s and was stopped.") from None
        finally:
            worker.kill()
        if code == DISK_FULL:
            raise Refused(507, FULL)
        try:
            result = read_json_file(folder / "result.json")
        except StoreError:
            raise Refused(409, "the export could not be written; the server's log says why.") from None
        if "error" in result:
            raise Refused(409, result["error"])
        await asyncio.to_thread(audit, model.path, caller.name, "exported", to=to, task=task)
    except BaseException:
        await clean()
        raise
    finally:
        service.exporting -= 1
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(result['name'])}"}
    return FileResponse(folder / result["file"], media_type="application/zip", headers=headers, background=clean)
