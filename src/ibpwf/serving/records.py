"""What a server records: its log, an audit line for every change, the access log, and metrics for Prometheus."""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ibpwf.errors import StoreError
from ibpwf.serving.versions import STATE
from ibpwf.storage.files import StrPath, append_jsonl, plain_errors

if TYPE_CHECKING:
    from ibpwf.serving.registry import Registry

log = logging.getLogger("ibpwf.serving")

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="-")
"""Of the request that is being answered; every line of the log has it."""


def configure_logging() -> None:
    """Log to standard error, each line with the ID of the request that it belongs to."""
    handler = logging.StreamHandler()
    handler.addFilter(_with_request_id)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s [%(request)s] %(message)s", handlers=[handler]
    )


def _with_request_id(record: logging.LogRecord) -> bool:
    record.request = REQUEST_ID.get()
    return True


class RateLimitedLog:
    """Logs one line per key and interval, with the number of those left out: a flood must not fill the disk.

    Keys beyond `keys` in an interval share one line.
    """

    def __init__(self, level: int = logging.WARNING, seconds: float = 10.0, keys: int = 20) -> None:
        self.level, self.seconds, self.keys = level, seconds, keys
        self._seen: dict[str, list[float]] = {}  # when a key was logged last, and how many were left out since

    def note(self, key: str, message: str) -> None:
        now = time.monotonic()
        seen = self._seen.get(key)
        if seen is None and len(self._seen) >= self.keys:
            self._seen = {one: kept for one, kept in self._seen.items() if now - kept[0] < self.seconds}
            key = key if len(self._seen) < self.keys else ""
            seen = self._seen.get(key)
        if seen is not None and now - seen[0] < self.seconds:
            seen[1] += 1
            return
        left_out = 0 if seen is None else int(seen[1])
        log.log(self.level, "%s%s", message, f" ({left_out} more since the last such line)" if left_out else "")
        self._seen[key] = [now, 0]


class AccessLog:
    """One JSON line per request, written by a thread of its own: a slow disk does not delay responses.

    `where` is a file, or "-" for standard output. A file that was moved or removed, as log rotation does, is opened
    anew. Lines that cannot be written, or come faster than the disk takes them, are dropped, and the log says so.
    """

    WAITING = 10_000

    def __init__(self, where: str) -> None:
        self.where = where
        self._lines: queue.Queue[str | None] = queue.Queue(self.WAITING)
        self._trouble = RateLimitedLog(logging.ERROR, 60.0)
        self._file: Any = sys.stdout.buffer if where == "-" else None
        if where != "-":
            with plain_errors("write", where):
                self._file = open(where, "ab", buffering=0)  # noqa: SIM115 - until it is rotated
        self._thread = threading.Thread(target=self._write_all, name="access-log", daemon=True)
        self._thread.start()

    def note(self, scope: Mapping[str, Any], id: str, status: int, size: int, seconds: float) -> None:
        client = scope.get("client")
        line = {
            "time": now(),
            "request": id,
            "address": client[0] if client else None,
            "caller": scope.get("ibpwf.caller"),
            "method": scope["method"],
            "path": scope["path"],
            "status": status or None,  # None: the client was gone before there was a response
            "bytes": size,
            "seconds": round(seconds, 6),
        }
        try:
            self._lines.put_nowait(json.dumps(line))
        except queue.Full:
            self._trouble.note("full", "the access log is written too slowly; lines are dropped")

    def close(self) -> None:
        """Write what is left."""
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=5)
        self._thread.join(5)

    def _write_all(self) -> None:
        ended = False
        while not ended:
            lines = [self._lines.get()]
            while len(lines) < 1000 and not self._lines.empty():  # whatever else waits goes with it
                lines.append(self._lines.get())
            ended = None in lines
            try:
                self._write("".join(f"{line}\n" for line in lines if line is not None).encode("ascii"))
            except (OSError, ValueError) as error:
                self._trouble.note("error", f"the access log {self.where} cannot be written: {error}")
        if self.where != "-":
            self._file.close()

    def _write(self, data: bytes) -> None:
        if self.where == "-":
            self._file.write(data)
            self._file.flush()
            return
        if not is_file(self._file.fileno(), self.where):
            self._file.close()
            self._file = open(self.where, "ab", buffering=0)  # noqa: SIM115
        size = os.fstat(self._file.fileno()).st_size
        try:
            if self._file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            with contextlib.suppress(OSError):  # no half lines
                self._file.truncate(size)
            raise


def is_file(handle: int, path: StrPath) -> bool:
    """Whether an open file is still the one at a path."""
    try:
        ours, there = os.fstat(handle), os.stat(path)
    except OSError:
        return False
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


_auditing = threading.Lock()


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def audit(model: Path, who: str, what: str, **details: Any) -> None:
    """A line of `.serving/audit.jsonl` in a model folder: who changed what, and when."""
    line = {"time": now(), "who": who, "what": what, **details}
    if (request := REQUEST_ID.get()) != "-":
        line["request"] = request
    log.info("%s", line)
    with contextlib.suppress(OSError):
        (model / STATE).mkdir(exist_ok=True)
    try:
        with _auditing:
            append_jsonl(model / STATE / "audit.jsonl", line)
    except StoreError as error:  # the change is made; that it could not be noted must be seen
        log.error("the audit log could not be written: %s", error)


SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)
METRICS: dict[str, tuple[type[Any], str, tuple[str, ...], dict[str, Any]]] = {
    "requests_total": (Counter, "Requests by route and status.", ("route", "status"), {}),
    "request_seconds": (Histogram, "Time to answer, by route.", ("route",), {"buckets": SECONDS}),
    "rows_total": (Counter, "Rows predicted.", ("model",), {}),
    "pass_rows": (Histogram, "Rows of a pass.", (), {"buckets": (1, 2, 4, 8, 16, 32, 64, 128)}),
    "pass_seconds": (Histogram, "Time of a pass.", (), {"buckets": SECONDS[:-2]}),
    "waiting_rows": (Gauge, "Rows that wait or are being predicted.", (), {}),
    "versions": (Gauge, "Versions of a model.", ("model",), {}),
    "model_ready": (Gauge, "1 where the model's folder can be used, else 0.", ("model",), {}),
    "writer": (Gauge, "1 if this server makes the changes of a model, 0 if another one does.", ("model",), {}),
    "authentication_failures_total": (
        Counter,
        "Requests without a valid token where one is needed (missing, unknown), or without the role (role).",
        ("reason",),
        {},
    ),
    "connections": (Gauge, "Open connections.", (), {}),
    "disconnected_total": (
        Counter,
        "Connections ended at the limit: idle ones that were closed, new ones that were rejected.",
        ("reason",),
        {},
    ),
    "jobs_total": (Counter, "Jobs by how they ended.", ("model", "state"), {}),
}
"""By name after `ibpwf_`: type, description, labels and options."""


class Metrics:
    """Numbers for Prometheus, of one server, as attributes by their names."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._all = {
            name: kind(f"ibpwf_{name}", description, labels, registry=self.registry, **options)
            for name, (kind, description, labels, options) in METRICS.items()
        }

    def __getattr__(self, name: str) -> Any:
        if name not in METRICS:
            raise AttributeError(name)
        return self._all[name]

    def note_pass(self, requests: int, rows: int, seconds: float) -> None:
        self.pass_rows.observe(rows)
        self.pass_seconds.observe(seconds)

    def note_models(self, registry: Registry) -> None:
        self.model_ready.clear()
        for name in registry.faults:
            self.model_ready.labels(name).set(0)
        for model in registry:
            self.versions.labels(model.name).set(len(model.versions))
            self.model_ready.labels(model.name).set(model.problem is None)

    def text(self) -> bytes:
        return generate_latest(self.registry)
