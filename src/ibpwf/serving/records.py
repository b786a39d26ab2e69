"""What is noted of a server's doings: a line for every change, and numbers for Prometheus."""

from __future__ import annotations

import contextlib
import datetime
import logging
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ibpwf.errors import StoreError
from ibpwf.serving.versions import STATE
from ibpwf.storage.files import append_jsonl

log = logging.getLogger("ibpwf.serving")


def audit(model: Path, who: str, what: str, **details: Any) -> None:
    """A line of `.serving/audit.jsonl` in a model folder: who changed what, and when."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    line = {"time": now, "who": who, "what": what, **details}
    log.info("%s", line)
    with contextlib.suppress(OSError):
        (model / STATE).mkdir(exist_ok=True)
    try:
        append_jsonl(model / STATE / "audit.jsonl", line)
    except StoreError as error:  # the change is made; that it could not be noted must be seen
        log.error("the audit log could not be written: %s", error)


class Metrics:
    """Numbers for Prometheus, of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "ibpwf_requests_total", "Requests by route and status.", ["route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "ibpwf_request_seconds",
            "Time to answer, by route.",
            ["route"],
            buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
            registry=self.registry,
        )
        self.rows = Counter("ibpwf_rows_total", "Rows answered.", ["model"], registry=self.registry)
        self.passes = Histogram(
            "ibpwf_pass_rows", "Rows of a pass.", buckets=(1, 2, 4, 8, 16, 32, 64, 128), registry=self.registry
        )
        self.pass_seconds = Histogram(
            "ibpwf_pass_seconds",
            "Time of a pass.",
            buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3),
            registry=self.registry,
        )
        self.waiting = Gauge("ibpwf_waiting_rows", "Rows that wait or are being answered.", registry=self.registry)
        self.versions = Gauge("ibpwf_versions", "Versions of a model.", ["model"], registry=self.registry)
        self.jobs = Counter("ibpwf_jobs_total", "Jobs by how they ended.", ["model", "state"], registry=self.registry)

    def told(self, questions: int, rows: int, seconds: float) -> None:
        self.passes.observe(rows)
        self.pass_seconds.observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self.registry)
