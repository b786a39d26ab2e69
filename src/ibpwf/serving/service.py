"""All that requests are answered with: models, passes, jobs, who may, and what is noted."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from starlette.requests import Request

from ibpwf.device import choose_device
from ibpwf.errors import StoreError
from ibpwf.inference.prediction import Prediction
from ibpwf.serving.access import Access, Caller, Rate, TokenFile
from ibpwf.serving.batching import Batcher, Rows
from ibpwf.serving.bodies import Bodies
from ibpwf.serving.faults import Refused, busy
from ibpwf.serving.jobs import Jobs
from ibpwf.serving.limits import Limits
from ibpwf.serving.records import AccessLog, Metrics, RateLimitedLog, log
from ibpwf.serving.registry import LoadedVersion, NoSuchModel, Registry, ServedModel

T = TypeVar("T")

READ_ONLY = "The server was started read-only."

POLL = 2.0
"""Seconds between two looks at the model folders."""
READERS = min(4, max(2, os.cpu_count() or 1))
"""Threads that make rows of requests: a small one with images may have 64 MB of them."""
LOADERS = 2
"""Threads that load versions; those of one model are loaded one after another."""


@dataclass(frozen=True)
class ServeOptions:
    """What is served, to whom, and how much of it."""

    path: Path
    tokens: Path | None = None
    read_only: bool = False
    limits: Limits = field(default_factory=Limits)
    batching: bool = True
    poll: float = POLL
    hosts: frozenset[str] = frozenset()  # by which the server may be called beside loopback names
    access_log: str | None = None  # a file, or "-" for standard output
    device: str = "cpu"  # where passes and jobs are computed
    drain: float = 0.0  # seconds for which a server that is asked to stop still answers, though it is not ready


class Threads:
    """So many threads for one kind of slow work, so that it holds up nothing but its own kind: what waits for a lock,
    or takes seconds, would take the event loop's own threads from everything else that is done in one."""

    def __init__(self, count: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(count, name)

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        """A function's result, as of `asyncio.to_thread`."""
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._pool, context.run, function, *arguments)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class Service:
    """One server's state. Its models are loaded when it is made; `running` lets it look after them."""

    def __init__(self, options: ServeOptions) -> None:
        self.options, self.limits = options, options.limits
        tokens = None if options.tokens is None else TokenFile(options.tokens)
        self.access = Access(tokens, read_only=options.read_only)
        self.access_log = None if options.access_log is None else AccessLog(options.access_log)
        self.denied, self.trouble = RateLimitedLog(), RateLimitedLog(logging.ERROR)
        self.rate = Rate(self.limits.rate)
        self.metrics = Metrics()
        self.device = str(choose_device(options.device))
        # It writes to a folder only once it has its lease.
        self.registry = Registry(options.path, read_only=True, device=self.device)
        most = self.limits.waiting, 2 * self.limits.numbers
        self.batcher = Batcher(*most, together=options.batching, told=self.metrics.note_pass)
        self.bodies = Bodies(self.limits)
        self.reading = Threads(READERS, "reading")
        self.loading = Threads(LOADERS, "loading")
        self.jobs = Jobs(self.registry, self.limits, self.metrics, self.device)
        self.ready = False
        self.exporting = 0  # exports that are being written

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        if not self.options.read_only:
            await self.jobs.recover()
        watching = asyncio.create_task(self._watch())
        self.ready = True
        try:
            yield
        finally:
            self.ready = False
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
            await self.jobs.close()
            await self.bodies.close()
            for threads in (self.batcher, self.reading, self.loading):
                threads.close()
            if self.access_log is not None:
                await asyncio.to_thread(self.access_log.close)

    def read_only(self, model: ServedModel) -> str | None:
        """Why a model cannot be changed here; None if it can."""
        return READ_ONLY if self.options.read_only else self.jobs.problem(model)

    def readiness(self) -> dict[str, object]:
        """What anybody may know: whether requests should be sent here, and whether models can be changed here."""
        reason, problems = "", len(self.registry.problems)
        if problems:
            reason = f"{problems} served models have a problem; see the log."
        elif self.options.read_only:
            reason = READ_ONLY
        elif elsewhere := sum(not self.jobs.writes(model) for model in self.registry):
            reason = f"{elsewhere} models cannot be changed here for now; another server may make their changes."
        found: dict[str, object] = {"ready": self.ready and not problems, "learning": not reason}
        return {**found, "reason": reason} if reason else found

    async def _watch(self) -> None:
        """See changes to the folders, whoever makes them."""
        while True:
            await asyncio.sleep(self.options.poll)
            try:
                for model in await asyncio.to_thread(self.registry.refresh):
                    log.info("model %s has version %d now", model.name, model.newest.number)
            except Exception as error:  # a fault of ours; the folders are looked at again
                self.trouble.note("watch", f"looking at the model folders: {type(error).__name__}: {error}")

    def caller(self, request: Request) -> Caller:
        """Who sent a request: the bearer of a token, in a header or the page's cookie."""
        return self.access.caller(token_of(request))

    def note_denied(self, request: Request, reason: Literal["missing", "unknown", "role"]) -> None:
        """Count and log a request that lacks a valid token or its role. The token itself is not logged."""
        self.metrics.authentication_failures_total.labels(reason).inc()
        address = "nobody" if request.client is None else request.client.host
        what = {"missing": "no token", "unknown": "an unknown token", "role": "a token without the role"}[reason]
        line = f"access denied: {what}, address {address}, {request.method} {request.url.path[:200]!r}"
        self.denied.note(f"{address} {reason}", line)

    def model(self, request: Request) -> ServedModel:
        return self.registry[request.path_params["model"]]

    async def version(self, model: ServedModel, number: int | None) -> LoadedVersion:
        """A version to ask. One whose files go while they are read is gone, or, if it is being rewritten because a
        task is forgotten, there again in a moment."""
        if (found := model.in_memory(number)) is not None:
            return found
        try:
            return await self.loading.run(model.version, number)
        except (StoreError, OSError) as error:
            await asyncio.to_thread(model.look)
            if number is not None and number not in model.versions:
                raise NoSuchModel(f"model '{model.name}' has no version {number} any more.") from None
            self.trouble.note(model.name, f"model {model.name}, version {number} cannot be read: {error}")
            why = "is being rewritten; try again." if model.problem is None else f"cannot be read: {model.problem}"
            raise Refused(503, f"version {number} {why}", retry_after=1) from None

    async def ask(self, version: LoadedVersion, rows: Rows) -> Prediction[Any]:
        """An answer, within the time there is for it."""
        seconds = self.limits.seconds
        try:
            async with asyncio.timeout(seconds):
                found = await self.batcher.ask(version, rows)
        except TimeoutError:
            raise busy(f"it could not be answered within {seconds:g} s; ask later, or for fewer rows.") from None
        self.metrics.rows_total.labels(version.model).inc(len(rows))
        return found


def token_of(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else request.cookies.get("ibpwf-token")
