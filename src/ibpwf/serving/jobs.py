"""Changes to models as jobs: one at a time for each model, on disk before they are promised, resumed after a crash.

A job is a folder in `.serving/jobs` of its model. It comes into being by a rename once its data are on the disk, so
that a killed server leaves a job that can be done, or none. What is done is done by a `worker` process.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import secrets
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ibpwf.errors import IBPWFError, StoreError
from ibpwf.files.opening import quoted
from ibpwf.serving.faults import FULL, Refused, busy, is_disk_full
from ibpwf.serving.limits import Limits
from ibpwf.serving.records import Metrics, audit, log
from ibpwf.serving.registry import Registry, ServedModel
from ibpwf.serving.uploads import receive_file, suffix_of
from ibpwf.serving.versions import STATE, make_state_folder
from ibpwf.serving.worker import DISK_FULL, DONE, FAILED, LOCKED
from ibpwf.serving.workshop import Worker, Workshop
from ibpwf.storage.checkpoint_folder import discard, task_in_progress
from ibpwf.storage.files import read_json, read_jsonl, sync_folder, write_json
from ibpwf.storage.folder import MANIFEST, lock_folder

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


def exports_folder(model: ServedModel) -> Path:
    return model.path / STATE / "exports"


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
        self._arriving: Counter[str] = Counter()  # jobs of each model whose data are being received
        self._uploading = 0
        self._stored: dict[str, int] = {}  # bytes on disk of the data of each job
        self._closing = False

    # Asking for one

    @contextlib.contextmanager
    def _place(self, model: ServedModel, *, queue: bool) -> Iterator[None]:
        """A place for a job, held while its data arrive: those that arrive together count as those that wait do."""
        waiting = len(self._waiting.get(model.name, [])) + self._arriving[model.name]
        if not queue and (waiting or model.name in self._runners):
            raise Refused(409, f"model '{model.name}' is being changed; ask again later, or with queue=true to wait.")
        if waiting >= self.limits.jobs:
            raise busy(f"{waiting} jobs of model '{model.name}' wait already; ask again later.", 30)
        self._arriving[model.name] += 1
        try:
            yield
        finally:
            self._arriving[model.name] -= 1

    async def submit(
        self,
        model: ServedModel,
        job: Job,
        body: AsyncIterator[bytes] | None = None,
        *,
        length: int = 0,
        queue: bool = True,
    ) -> Job:
        """Take a job on, with its data. Once this returns, the job is done or failed, whatever happens. `length` is
        the size of the data that the client announces; without `queue` a job that would have to wait is rejected."""
        await asyncio.to_thread(model.check_changeable)
        folder = jobs_folder(model)
        aside = folder / f"{job.id}.new"
        with self._place(model, queue=queue):
            try:
                make_state_folder(model.path, "jobs")
                aside.mkdir()
                if body is not None:
                    job = await self._receive(job, body, aside, length)
                await asyncio.to_thread(write_json, aside / "job.json", asdict(job))
                aside.rename(folder / job.id)
                await asyncio.to_thread(sync_folder, folder)
            except BaseException:
                self._stored.pop(job.id, None)
                shutil.rmtree(aside, ignore_errors=True)
                shutil.rmtree(folder / job.id, ignore_errors=True)  # not promised: it must not be done either
                raise
            self.all[job.id] = job
            self._enqueue(model, job)
        audit(model.path, job.who, f"asked to {job.kind}", task=job.task, job=job.id)
        return job

    async def _receive(self, job: Job, body: AsyncIterator[bytes], aside: Path, length: int) -> Job:
        """The job with its data, which count against what may be stored from their first byte."""
        if self._uploading >= self.limits.uploads:
            raise busy(f"{self._uploading} files are being uploaded; ask again later.", 30)
        self._count(job, 0, length)
        self._uploading += 1
        try:
            arrived = aside / "data"
            await receive_file(body, arrived, self.limits, lambda size: self._count(job, size))
            ending = await asyncio.to_thread(suffix_of, arrived, self.limits)
            arrived.rename(aside / f"data{ending}")
        finally:
            self._uploading -= 1
        return replace(job, data=f"data{ending}", limits=asdict(self.limits))

    def _count(self, job: Job, size: int, announced: int = 0) -> None:
        """Add to the bytes that are stored for a job, or reject them."""
        stored = sum(self._stored.values())
        if stored + max(size, announced) > self.limits.stored:
            raise busy(f"{stored:,} bytes of uploaded files are stored already; ask again later.", 30)
        self._stored[job.id] = self._stored.get(job.id, 0) + size

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
            shutil.rmtree(exports_folder(model), ignore_errors=True)  # that nobody waits for any more
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
                    self._stored[job.id] = sum(file.stat().st_size for file in (folder / job.id).glob("data*"))
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
        job = replace(job, state="running")
        self._note(model, job)
        try:
            while job.id not in self._cancelled and not self._closing:
                await asyncio.to_thread(model.look)
                if model.problem is not None:
                    self._end(model, replace(job, state="failed", error=model.problem))
                    return
                code = await self._work(model, job, folder)
                if self._closing:
                    return
                if code == LOCKED:
                    await asyncio.sleep(1)
                    continue
                tries += 1
                if code in (DONE, FAILED, DISK_FULL) or tries == TRIES:
                    await self._finish(model, job, folder, code)
                    return
            if not self._closing:
                await self._cancel(model, job, folder)
        except (IBPWFError, OSError) as error:
            told = FULL if is_disk_full(error) else str(error).replace(str(model.path), model.name)
            log.error("job %s: %s", job.id, error, exc_info=not is_disk_full(error))
            self._end(model, replace(job, state="failed", error=told))

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
        result = _result(folder) or {}  # what is done is done, though the disk may have been too full to say so
        result.pop("tasks", None)  # which may be forgotten later
        if code != DONE:
            ended = FULL if code == DISK_FULL else "the process that did it ended unexpectedly; ask again."
            error = result.get("error", ended)
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

    def _note(self, model: ServedModel, job: Job) -> bool:
        """Record a job's state; whether the disk took it. If not, a restarted server does the job again."""
        self.all[job.id] = job
        try:
            write_json(jobs_folder(model) / job.id / "job.json", asdict(job))
        except StoreError as error:
            log.error("job %s: its state %s could not be stored: %s", job.id, job.state, error)
            return False
        return True

    def _end(self, model: ServedModel, job: Job) -> None:
        folder = jobs_folder(model) / job.id
        self._cancelled.discard(job.id)
        noted = self._note(model, job)
        for path in (*folder.glob("data*"), folder / "result.json"):
            path.unlink(missing_ok=True)
        self._stored.pop(job.id, None)
        if not noted:
            self._note(model, job)  # there may be room now
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
        if not os.path.lexists(model / MANIFEST):
            return  # to lock a folder that is gone would make it again
        try:
            with lock_folder(model):
                found = task_in_progress(model)
                if found is not None and found.task.partition("@")[0] == task:
                    discard(model)
            return
        except StoreError:  # its process may not be gone yet
            time.sleep(0.1)
