"""Changes to models as jobs: one at a time for each model, on disk before they are promised, resumed after a crash.

A job is a folder in `.serving/jobs` of its model. It comes into being by a rename once its data are on the disk, so
that a killed server leaves a job that can be done, or none. What is done is done by a `worker` process.

Of several servers of a model one has its lease. It alone takes jobs on, does them and writes what is in `.serving`;
the others show what they find there, and the first to get the lease takes up what is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import re
import secrets
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from ibpwf.data.opening import quoted
from ibpwf.errors import IBPWFError, StoreError
from ibpwf.serving.faults import FAULT, FULL, Refused, busy, is_disk_full
from ibpwf.serving.lease import Lease
from ibpwf.serving.limits import Limits
from ibpwf.serving.records import Metrics, RateLimitedLog, audit, log
from ibpwf.serving.registry import Registry, ServedModel
from ibpwf.serving.uploads import receive_file, suffix_of
from ibpwf.serving.versions import STATE, locked, make_state_folder
from ibpwf.serving.worker import DISK_FULL, DONE, FAILED, LOCKED, Worker, Workshop
from ibpwf.storage.checkpoint_folder import discard, task_in_progress
from ibpwf.storage.files import read_json, read_jsonl, sync_folder, write_json
from ibpwf.storage.folder import MANIFEST

_ID = re.compile("[0-9a-f]{16}")

Kind = Literal["learn", "update", "forget"]
JobState = Literal["queued", "running", "done", "failed", "cancelled"]
FINISHED = ("done", "failed", "cancelled")

CHANGES: dict[Kind, str] = {"learn": "learnt", "update": "updated", "forget": "forgot"}
"""What a model's history says of a job that has changed it."""

KEPT = 50
"""Finished jobs of a model that can still be looked at."""

TRIES = 3
"""Of a job whose process ends by itself, without having got further than the one before."""

PAUSE = 0.25
"""Seconds between two looks at what a job has told."""

LOOK = 0.5
"""Seconds between two looks at the leases."""


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
    work: dict[str, Any] = field(default_factory=dict)  # what its process is to know beside
    begun: int | None = None  # events of the model's history when it was begun first
    version: int | None = None
    error: str | None = None
    result: dict[str, Any] = field(default_factory=dict)

    def shown(self) -> dict[str, Any]:
        """What clients are told."""
        return {name: value for name, value in asdict(self).items() if name not in ("work", "begun")}


def jobs_folder(model: ServedModel) -> Path:
    return model.path / STATE / "jobs"


def exports_folder(model: ServedModel) -> Path:
    return model.path / STATE / "exports"


class Jobs:
    """The jobs of all models."""

    def __init__(self, registry: Registry, limits: Limits, metrics: Metrics, device: str = "cpu") -> None:
        self.registry, self.limits, self.metrics, self.device = registry, limits, metrics, device
        self.all: dict[str, Job] = {}
        self._waiting: dict[str, list[str]] = {}
        self._runners: dict[str, asyncio.Task[None]] = {}
        self.workshop = Workshop()
        self._workers: dict[str, Worker] = {}
        self._cancelled: set[str] = set()
        self._arriving: Counter[str] = Counter()  # jobs of each model whose data are being received
        self._uploading = 0
        self._stored: dict[str, int] = {}  # bytes on disk of the data of each job
        self._leases: dict[str, Lease] = {}
        self._ours = set[str]()  # models whose lease this server has, and whose jobs it has taken up
        self._looking: asyncio.Task[None] | None = None
        self._trouble = RateLimitedLog(logging.ERROR, 60.0)
        self._closing = False
        self.telling = True  # once it is not, whoever watches a job is to ask the next server

    # Who makes the changes

    def writes(self, model: ServedModel) -> bool:
        return model.name in self._ours and not self._closing

    def problem(self, model: ServedModel) -> str | None:
        """Why this server cannot change a model for now; None if it can."""
        if self.writes(model):
            return None
        lease = self._leases.get(model.name)
        unusable = None if model.problem is None else "its folder cannot be used"
        why = "the server is starting" if lease is None else unusable or lease.problem
        why = "the server is being stopped" if self._closing else why
        return f"Model '{model.name}' cannot be changed here for now: {why}. Predictions are not affected."

    def check_writes(self, model: ServedModel) -> None:
        if (problem := self.problem(model)) is not None:
            raise Refused(503, problem, retry_after=5)

    async def recover(self) -> None:
        """Take the leases that are free, with what servers before this one have left, now and from now on."""
        self.workshop.prepare()
        await self._look()
        self._looking = asyncio.create_task(self._look_on())

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            await self._look()

    async def _look(self) -> None:
        models = {model.name: model for model in self.registry}
        for model in models.values():
            try:
                await self._look_at(model)
            except Exception as error:  # what cannot be read now is looked at again, and does not hinder the others
                what = f"looking at the jobs of model {model.name}: {type(error).__name__}: {error}"
                self._trouble.note(model.name, what)
        for name in [name for name in self._leases if name not in models]:
            self._leave(name)
            self._leases.pop(name).release()

    async def _look_at(self, model: ServedModel) -> None:
        new = model.name not in self._leases
        lease = self._leases.setdefault(model.name, Lease(model.path / STATE / "lease"))
        taken = await asyncio.to_thread(_take, lease, model)
        if taken and model.name not in self._ours:
            await self._adopt(model)
        elif not taken and (new or model.name in self._ours):
            self._leave(model.name)
            log.warning("%s", self.problem(model))
            model.read_only = True

    async def _adopt(self, model: ServedModel) -> None:
        """Make a model's changes from now on, beginning with those that were promised."""
        if (runner := self._runners.get(model.name)) is not None:  # of the lease that was lost
            await asyncio.wait([runner])
        found = await asyncio.to_thread(_left_by_others, model)
        try:
            await asyncio.to_thread(model.keep_versions)
        except (OSError, StoreError) as error:  # each job tries it, too, before it changes anything
            log.error("model %s: its version could not be kept: %s", model.name, error)
        self._ours.add(model.name)  # from here on nothing may fail: the jobs are taken up all together, and once
        for job, stored in found:
            self.all[job.id] = job
            if job.state not in FINISHED:
                self._stored[job.id] = stored
                self._enqueue(model, job)
        waiting = len(self._waiting.get(model.name, []))
        log.info("this server makes the changes of model %s; it has found %d unfinished jobs", model.name, waiting)
        self.metrics.writer.labels(model.name).set(1)

    def _leave(self, name: str) -> None:
        """Make a model's changes no longer."""
        self._ours.discard(name)
        self._waiting.pop(name, None)
        for job in [job for job in self.all.values() if job.model == name]:
            if job.id in self._workers:
                self._workers[job.id].kill()
            self._stored.pop(job.id, None)
            del self.all[job.id]
        self.metrics.writer.labels(name).set(0)

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
        self.check_writes(model)
        folder = jobs_folder(model)
        aside = folder / f"{job.id}.new"
        with self._place(model, queue=queue):
            try:
                make_state_folder(model.path, "jobs")
                aside.mkdir()
                if body is not None:
                    job = await self._receive(job, body, aside, length)
                await asyncio.to_thread(write_json, aside / "job.json", asdict(job))
                self.check_writes(model)  # the data may have taken long to arrive
                aside.rename(folder / job.id)
                await asyncio.to_thread(sync_folder, folder)
                what = f"asked to {job.kind}"
                await asyncio.to_thread(audit, model.path, job.who, what, task=job.task, job=job.id)
            except BaseException:
                await asyncio.to_thread(_remove, aside, folder / job.id)  # not promised: it must not be done either
                self._stored.pop(job.id, None)
                raise
            self.all[job.id] = job
            self._enqueue(model, job)
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
        return replace(job, work={**job.work, "data": f"data{ending}", "limits": asdict(self.limits)})

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

    async def find(self, id: str) -> Job:
        job = self.all.get(id)
        if job is None and _ID.fullmatch(id):
            job = next(iter(await asyncio.to_thread(self._elsewhere, id)), None)
        if job is None:
            raise Refused(404, f"there is no job {quoted(id)}; GET /v2/jobs lists those that are.")
        return job

    async def known(self, model: ServedModel | None = None) -> list[Job]:
        """All jobs, or those of one model, the oldest first."""
        elsewhere = await asyncio.to_thread(self._elsewhere)
        found = {job.id: job for job in (*elsewhere, *self.all.values())}.values()  # some may be ours by now
        return sorted((job for job in found if model is None or job.model == model.name), key=lambda one: one.created)

    def _elsewhere(self, id: str | None = None) -> list[Job]:
        """Jobs of other servers, as these have stored them: all of them, or the one with an ID."""
        found = list[Job]()
        for model in self.registry:
            if model.name not in self._ours:
                folders = _job_folders(model) if id is None else [jobs_folder(model) / id]
                found += [replace(job, model=model.name) for job in map(_read, folders) if job]
        return found

    # Doing them

    async def _run_all(self, model: ServedModel) -> None:
        try:
            while self.writes(model) and (waiting := self._waiting.get(model.name)):
                await self._run(model, self.all[waiting.pop(0)])
                await self._drop_old(model)
        finally:
            del self._runners[model.name]

    async def _run(self, model: ServedModel, job: Job) -> None:
        folder, tries, reached = jobs_folder(model) / job.id, 0, None
        try:
            await asyncio.to_thread(model.look)
            if not self.writes(model):
                return
            job = replace(job, state="running", begun=len(model.history) if job.begun is None else job.begun)
            await self._begin(model, job)
            while job.id not in self._cancelled and self.writes(model):
                await asyncio.to_thread(model.look)
                if model.problem is not None:
                    await self._end(model, replace(job, state="failed", error=model.problem))
                    return
                code = await self._work(model, job, folder)
                if not self.writes(model):
                    return
                if code == LOCKED:
                    await asyncio.sleep(1)
                    continue
                before, reached = reached, await asyncio.to_thread(_reached, model.path, job.task)
                tries = tries + 1 if reached == before else 1
                if code in (DONE, FAILED, DISK_FULL) or tries == TRIES:
                    await self._finish(model, job, folder, code)
                    return
            if self.writes(model):
                await self._cancel(model, job, folder)
        except Exception as error:
            known = isinstance(error, IBPWFError | OSError)
            told = model.plain(error) if known else FAULT
            told = FULL if is_disk_full(error) else told
            log.error("job %s: %s", job.id, error, exc_info=not is_disk_full(error))
            if not self.writes(model):
                return
            await self._end(model, replace(job, state="failed", error=told))

    async def _work(self, model: ServedModel, job: Job, folder: Path) -> int:
        try:
            worker = await self.start_worker(model, folder)
        except Refused:  # the lease was lost
            return LOCKED
        self._workers[job.id] = worker
        try:
            if job.id in self._cancelled or not self.writes(model):  # since it was started
                worker.kill()
            return await worker.wait()
        finally:
            del self._workers[job.id]

    async def start_worker(self, model: ServedModel, folder: Path) -> Worker:
        """A process that does what `job.json` in a folder says. It has the lease, too, until it ends."""
        return await self.workshop.start(model.path, folder, self._leases[model.name], self.device)

    async def _finish(self, model: ServedModel, job: Job, folder: Path, code: int) -> None:
        result = _result(folder) or {}  # what is done is done, though the disk may have been too full to say so
        result.pop("tasks", None)  # which may be forgotten later
        if code != DONE:
            ended = FULL if code == DISK_FULL else "the process that did it ended unexpectedly; ask again."
            error = result.get("error", ended)
            await asyncio.to_thread(_discard, model.path, job.task)
            await self._end(model, replace(job, state="failed", error=error))
            return
        await asyncio.to_thread(model.refresh)
        if job.kind == "forget":  # nor may older jobs tell of the task
            told = [one for one in self.all.values() if (one.model, one.task) == (job.model, job.task)]
            await self._drop(model, [one for one in told if one.state in FINISHED and one.id != job.id])
        await self._end(model, replace(job, state="done", result=result, version=model.newest.number))

    async def _cancel(self, model: ServedModel, job: Job, folder: Path) -> None:
        """What was done before it could be cancelled counts."""
        result = _result(folder)
        if result is None:
            await asyncio.to_thread(model.refresh)
            if CHANGES[job.kind] not in [event["event"] for event in model.history[job.begun :]]:
                await asyncio.to_thread(_discard, model.path, job.task)
                await self._end(model, replace(job, state="cancelled"))
                return
        await self._finish(model, job, folder, FAILED if result is not None and "error" in result else DONE)

    async def cancel(self, job: Job) -> Job:
        """Stop a job; one that has ended stays as it is."""
        if job.state in FINISHED:
            raise Refused(409, f"job '{job.id}' is {job.state}; there is nothing to cancel.")
        model = self.registry[job.model]
        self.check_writes(model)
        waiting = self._waiting.get(job.model, [])
        if job.id in waiting:
            waiting.remove(job.id)
            ended = replace(job, state="cancelled")
            await self._end(model, ended)
            return ended
        self._cancelled.add(job.id)
        if job.id in self._workers:
            self._workers[job.id].kill()
        while (found := await self.find(job.id)).state not in FINISHED:
            await asyncio.sleep(0.02)
            self.check_writes(model)
        return found

    def _tell(self, model: ServedModel, job: Job) -> None:
        """Let clients see a job's state, which is on disk; that of one that another server has by now is not ours."""
        if model.name in self._ours:
            self.all[job.id] = job

    async def _begin(self, model: ServedModel, job: Job) -> None:
        await asyncio.to_thread(_store, jobs_folder(model) / job.id, job)
        self._tell(model, job)

    async def _end(self, model: ServedModel, job: Job) -> None:
        await asyncio.to_thread(_store_end, model, job)
        self._cancelled.discard(job.id)
        self._stored.pop(job.id, None)
        self._tell(model, job)
        self.metrics.jobs_total.labels(model.name, job.state).inc()

    async def _drop_old(self, model: ServedModel) -> None:
        ended = [job for job in self.all.values() if job.model == model.name and job.state in FINISHED]
        await self._drop(model, sorted(ended, key=lambda one: one.created)[:-KEPT])

    async def _drop(self, model: ServedModel, jobs: list[Job]) -> None:
        for job in jobs:
            del self.all[job.id]
        await asyncio.to_thread(_remove, *(jobs_folder(model) / job.id for job in jobs))

    # Looking on

    async def events(self, id: str) -> AsyncIterator[dict[str, Any]]:
        """What a job tells, from its beginning to its end."""
        seen, told = 0, ""
        while self.telling:
            try:
                job = await self.find(id)
            except Refused:  # it was dropped meanwhile
                return
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
        """Stop what runs; the next server goes on with it."""
        if self._looking is not None:
            self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looking
        self._closing = True
        for worker in list(self._workers.values()):
            worker.stop()
        runners = list(self._runners.values())
        if runners:
            await asyncio.wait(runners, timeout=15)
        for worker in list(self._workers.values()):
            worker.kill()
        for lease in self._leases.values():
            lease.release()


def new_job(model: str, kind: Kind, task: str, who: str, **details: Any) -> Job:
    return Job(secrets.token_hex(8), model, kind, task, who, time.time(), **details)


def progress_of(folder: Path) -> list[dict[str, Any]]:
    """What a job has told so far, of its last attempt."""
    lines = list[dict[str, Any]]()
    with contextlib.suppress(StoreError):
        lines = read_jsonl(folder / "progress.jsonl")
    starts = [at for at, line in enumerate(lines) if line.get("event") == "start"]
    return lines[starts[-1] :] if starts else lines


def _read(folder: Path) -> Job | None:
    """A job as it was stored, maybe by a server of another version."""
    with contextlib.suppress(StoreError, TypeError, AttributeError):
        found, known = read_json(folder / "job.json"), {one.name for one in fields(Job)}
        return Job(**{name: value for name, value in found.items() if name in known})
    return None


def _store(folder: Path, job: Job) -> bool:
    """Record a job's state; whether the disk took it. If not, a restarted server does the job again."""
    try:
        write_json(folder / "job.json", asdict(job))
    except StoreError as error:
        log.error("job %s: its state %s could not be stored: %s", job.id, job.state, error)
        return False
    return True


def _store_end(model: ServedModel, job: Job) -> None:
    """Record how a job has ended, and remove its data."""
    folder = jobs_folder(model) / job.id
    stored = _store(folder, job)
    for path in (*folder.glob("data*"), folder / "result.json"):
        with contextlib.suppress(OSError):  # what stays goes with the job
            path.unlink()
    if not stored:
        _store(folder, job)  # there may be room now
    details = {"error": job.error} if job.error else {"version": job.version} if job.version else {}
    audit(model.path, job.who, f"{job.kind} {job.state}", task=job.task, job=job.id, **details)


def _remove(*folders: Path) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _take(lease: Lease, model: ServedModel) -> bool:
    """Whether the lease of a model is held. That of a folder which is damaged, or another model's, is not taken."""
    if lease.is_held():
        return True
    model.look()
    return model.problem is None and lease.take()


def _job_folders(model: ServedModel) -> list[Path]:
    try:
        return [path for path in jobs_folder(model).iterdir() if _ID.fullmatch(path.name)]
    except OSError:
        return []


def _left_by_others(model: ServedModel) -> list[tuple[Job, int]]:
    """The jobs in a folder whose lease was just taken, the oldest first, and the bytes of their data. What was never
    promised is removed: uploads broken off, and exports that nobody waits for any more. A job that cannot be read is
    left where it is."""
    _remove(exports_folder(model), *jobs_folder(model).glob("*.new"))
    found = []
    for path in _job_folders(model):
        job = _read(path)
        if job is not None:
            state: JobState = job.state if job.state in FINISHED else "queued"
            stored = sum(file.stat().st_size for file in path.glob("data*"))
            found.append((replace(job, model=model.name, state=state), stored))
        elif (path / "job.json").exists():
            log.error("model %s: job %s cannot be read and is not done", model.name, path.name)
        else:
            shutil.rmtree(path, ignore_errors=True)  # half of one that was removed
    return sorted(found, key=lambda one: one[0].created)


def _reached(model: Path, task: str) -> tuple[int, int, int] | None:
    """How far a task in progress has come: its phase, epoch and step."""
    found = task_in_progress(model)
    if found is None or found.task.partition("@")[0] != task:
        return None
    return found.phase, found.epoch, found.done


def _result(folder: Path) -> dict[str, Any] | None:
    with contextlib.suppress(StoreError):
        found: dict[str, Any] = read_json(folder / "result.json")
        return found
    return None


def _discard(model: Path, task: str) -> None:
    """Drop what a job has left of its task in progress; another task's is not ours to drop."""
    if os.path.lexists(model / MANIFEST):  # to lock a folder that is gone would make it again
        with contextlib.suppress(StoreError), locked(model, 5):  # its process may not be gone yet
            found = task_in_progress(model)
            if found is not None and found.task.partition("@")[0] == task:
                discard(model)
