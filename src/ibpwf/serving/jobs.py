"""Changes to models as jobs: one at a time for each model, on disk before they are promised, resumed after a crash.

A job is a folder in `.serving/jobs` of its model. It comes into being by a rename once its data are on the disk, so
that a killed server leaves a job that can be done, or none. What is done is done by a `worker` process.
"""

from __future__ import annotations

import asyncio
import contextvars
import secrets
import shutil
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ibpwf.errors import IBPWFError, StoreError
from ibpwf.files.opening import quoted
from ibpwf.serving.faults import Refused, busy
from ibpwf.serving.limits import Limits
from ibpwf.serving.records import Metrics, audit, log
from ibpwf.serving.registry import Registry, ServedModel
from ibpwf.serving.uploads import receive_file, suffix_of
from ibpwf.serving.versions import STATE
from ibpwf.serving.worker import DONE, FAILED, LOCKED
from ibpwf.serving.workshop import Worker, Workshop
from ibpwf.storage.checkpoint_folder import discard, task_in_progress
from ibpwf.storage.files import read_json, read_jsonl, sync_folder, write_json
from ibpwf.storage.folder import lock_folder

Kind = Literal["learn", "more", "forget"]
JobState = Literal["queued", "running", "done", "failed", "cancelled"]
FINISHED = ("done", "failed", "cancelled")

KEPT = 50
"""Finished jobs of a model that can still be looked at."""

TRIES = 3
"""Of a job whose process ends by itself."""

PAUSE = 0.25
"""Seconds between two looks at what a job has told."""


@dataclass(frozen=True)
class Job:
    """A change that was asked for, and how far it has come."""

    id: str
    model: str
    kind: Kind
    task: str
    who: str
    created: float
    state: JobState = "queued"
    data: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    validate: float | None = None
    keep: str = "better"
    limits: dict[str, Any] = field(default_factory=dict)
    version: int | None = None
    error: str | None = None
    result: dict[str, Any] = field(default_factory=dict)

    def shown(self) -> dict[str, Any]:
        """What clients are told."""
        hidden = ("data", "limits", "options", "keep", "validate")
        return {name: value for name, value in asdict(self).items() if name not in hidden}


def jobs_folder(model: ServedModel) -> Path:
    return model.path / STATE / "jobs"


class Jobs:
    """The jobs of all models."""

    def __init__(self, registry: Registry, limits: Limits, metrics: Metrics) -> None:
        self.registry, self.limits, self.metrics = registry, limits, metrics
        self.all: dict[str, Job] = {}
        self._waiting: dict[str, list[str]] = {}
        self._runners: dict[str, asyncio.Task[None]] = {}
        self.workshop = Workshop()
        self._workers: dict[str, Worker] = {}
        self._cancelled: set[str] = set()
        self._closing = False

    # Asking for one

    def check_room(self, model: ServedModel, *, queue: bool) -> None:
        """Refuse a job that would have to wait where that is not wanted, or with too many before it."""
        waiting = self._waiting.get(model.name, [])
        busy_now = bool(waiting) or model.name in self._runners
        if busy_now and not queue:
            raise Refused(409, f"model '{model.name}' is being changed; ask again later, or with queue=true to wait.")
        if len(waiting) >= self.limits.jobs:
            raise busy(f"{len(waiting)} jobs of model '{model.name}' wait already; ask again later.", 30)

    async def submit(self, model: ServedModel, job: Job, body: AsyncIterator[bytes] | None = None) -> Job:
        """Take a job on, with its data. Once this returns, the job is done or failed, whatever happens."""
        folder = jobs_folder(model)
        folder.mkdir(parents=True, exist_ok=True)
        aside = folder / f"{job.id}.new"
        aside.mkdir()
        try:
            if body is not None:
                arrived = aside / "data"
                await receive_file(body, arrived, self.limits.upload, self.limits.upload_seconds)
                ending = await asyncio.to_thread(suffix_of, arrived, self.limits)
                arrived.rename(aside / f"data{ending}")
                job = replace(job, data=f"data{ending}", limits=asdict(self.limits))
            write_json(aside / "job.json", asdict(job))
            aside.rename(folder / job.id)
            sync_folder(folder)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        self.all[job.id] = job
        audit(model.path, job.who, f"asked to {job.kind}", task=job.task, job=job.id)
        self._enqueue(model, job)
        return job

    def _enqueue(self, model: ServedModel, job: Job) -> None:
        self._waiting.setdefault(model.name, []).append(job.id)
        if model.name not in self._runners:
            runner = asyncio.create_task(self._run_all(model), context=contextvars.Context())  # of no request
            self._runners[model.name] = runner

    def find(self, id: str) -> Job:
        if id not in self.all:
            raise Refused(404, f"there is no job {quoted(id)}; GET /v2/jobs lists those that are.")
        return self.all[id]

    def recover(self) -> None:
        """Take up what a server before this one has left."""
        self.workshop.prepare()
        for model in self.registry:
            folder = jobs_folder(model)
            if not folder.is_dir():
                continue
            found = []
            for path in folder.iterdir():
                job = None if path.name.endswith(".new") else _read(path)
                if job is None:
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    found.append(replace(job, model=model.name))
            for job in sorted(found, key=lambda one: one.created):
                self.all[job.id] = job
                if job.state not in FINISHED:
                    self._enqueue(model, job)

    # Doing them

    async def _run_all(self, model: ServedModel) -> None:
        try:
            while waiting := self._waiting.get(model.name):
                await self._run(model, self.all[waiting.pop(0)])
                self._drop_old(model)
        finally:
            del self._runners[model.name]

    async def _run(self, model: ServedModel, job: Job) -> None:
        folder, tries = jobs_folder(model) / job.id, 0
        job = self._note(model, replace(job, state="running"))
        try:
            while job.id not in self._cancelled and not self._closing:
                code = await self._work(model, job, folder)
                if self._closing:
                    return
                if code == LOCKED:
                    await asyncio.sleep(1)
                    continue
                tries += 1
                if code in (DONE, FAILED) or tries == TRIES:
                    await self._finish(model, job, folder, code)
                    return
            if not self._closing:
                await self._cancel(model, job, folder)
        except (IBPWFError, OSError) as error:
            log.exception("job %s", job.id)
            self._end(model, replace(job, state="failed", error=str(error).replace(str(model.path), model.name)))

    async def _work(self, model: ServedModel, job: Job, folder: Path) -> int:
        worker = await self.workshop.start(model.path, folder)
        self._workers[job.id] = worker
        try:
            if job.id in self._cancelled:
                worker.kill()
            return await worker.wait()
        finally:
            del self._workers[job.id]

    async def _finish(self, model: ServedModel, job: Job, folder: Path, code: int) -> None:
        result = _result(folder)
        if result is not None:
            result.pop("tasks", None)  # which may be forgotten later
        if code != DONE or result is None:
            error = (result or {}).get("error", "the process that did it ended unexpectedly; ask again.")
            await asyncio.to_thread(_discard, model.path, job.task)
            self._end(model, replace(job, state="failed", error=error))
            return
        await asyncio.to_thread(model.refresh)
        self._end(model, replace(job, state="done", result=result, version=model.newest.number))
        if job.kind == "forget":  # nor may older jobs tell of the task
            told = [one for one in self.all.values() if (one.model, one.task) == (job.model, job.task)]
            self._drop(model, [one for one in told if one.state in FINISHED and one.id != job.id])

    async def _cancel(self, model: ServedModel, job: Job, folder: Path) -> None:
        """What was finished before it could be cancelled counts."""
        if _result(folder) is not None:
            await self._finish(model, job, folder, DONE)
            return
        await asyncio.to_thread(model.refresh)
        if job.kind == "learn" and job.task in model.newest.tasks:
            self._end(model, replace(job, state="done", version=model.newest.number))
            return
        await asyncio.to_thread(_discard, model.path, job.task)
        self._end(model, replace(job, state="cancelled"))

    async def cancel(self, job: Job) -> Job:
        """Stop a job; one that has ended stays as it is."""
        if job.state in FINISHED:
            raise Refused(409, f"job '{job.id}' is {job.state}; there is nothing to cancel.")
        model = self.registry[job.model]
        waiting = self._waiting.get(job.model, [])
        if job.id in waiting:
            waiting.remove(job.id)
            self._end(model, replace(job, state="cancelled"))
            return self.all[job.id]
        self._cancelled.add(job.id)
        if job.id in self._workers:
            self._workers[job.id].kill()
        while self.all[job.id].state not in FINISHED:
            await asyncio.sleep(0.02)
        return self.all[job.id]

    def _note(self, model: ServedModel, job: Job) -> Job:
        self.all[job.id] = job
        write_json(jobs_folder(model) / job.id / "job.json", asdict(job))
        return job

    def _end(self, model: ServedModel, job: Job) -> None:
        folder = jobs_folder(model) / job.id
        self._cancelled.discard(job.id)
        self._note(model, job)
        for path in (*folder.glob("data*"), folder / "result.json"):
            path.unlink(missing_ok=True)
        self.metrics.jobs.labels(model.name, job.state).inc()
        details = {"error": job.error} if job.error else {"version": job.version} if job.version else {}
        audit(model.path, job.who, f"{job.kind} {job.state}", task=job.task, job=job.id, **details)

    def _drop_old(self, model: ServedModel) -> None:
        ended = [job for job in self.all.values() if job.model == model.name and job.state in FINISHED]
        self._drop(model, sorted(ended, key=lambda one: one.created)[:-KEPT])

    def _drop(self, model: ServedModel, jobs: list[Job]) -> None:
        for job in jobs:
            del self.all[job.id]
            shutil.rmtree(jobs_folder(model) / job.id, ignore_errors=True)

    # Looking on

    async def events(self, id: str) -> AsyncIterator[dict[str, Any]]:
        """What a job tells, from its beginning to its end."""
        seen, told = 0, ""
        while id in self.all:
            job = self.all[id]
            lines = await asyncio.to_thread(progress_of, jobs_folder(self.registry[job.model]) / id)
            for line in lines[seen:]:
                yield line
            seen = len(lines)
            if job.state in FINISHED:
                yield {"event": job.state, "job": job.shown()}
                return
            if job.state != told:
                told = job.state
                yield {"event": "state", "state": told}
            await asyncio.sleep(PAUSE)

    async def close(self) -> None:
        """Stop what runs; it goes on when the server is started again."""
        self._closing = True
        for worker in list(self._workers.values()):
            worker.stop()
        runners = list(self._runners.values())
        if runners:
            await asyncio.wait(runners, timeout=15)
        for worker in list(self._workers.values()):
            worker.kill()


def new_job(model: str, kind: Kind, task: str, who: str, **details: Any) -> Job:
    return Job(secrets.token_hex(8), model, kind, task, who, time.time(), **details)


def progress_of(folder: Path) -> list[dict[str, Any]]:
    """What a job has told so far, of its last attempt."""
    try:
        lines = read_jsonl(folder / "progress.jsonl")
    except StoreError:
        return []
    starts = [at for at, line in enumerate(lines) if line.get("event") == "start"]
    return lines[starts[-1] :] if starts else lines


def _read(folder: Path) -> Job | None:
    try:
        found = read_json(folder / "job.json")
        return Job(**found)
    except (StoreError, TypeError):
        return None


def _result(folder: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = read_json(folder / "result.json")
    except StoreError:
        return None
    return found


def _discard(model: Path, task: str) -> None:
    """Drop what a job has left of its task in progress; another task's is not ours to drop."""
    for _ in range(50):
        try:
            with lock_folder(model):
                found = task_in_progress(model)
                if found is not None and found.task.partition("@")[0] == task:
                    discard(model)
            return
        except StoreError:  # its process may not be gone yet
            time.sleep(0.1)
