"""Processes that do jobs, beside the one that answers.

They are forked from a process that has imported all that a job needs, which takes seconds of a core and is done once,
and end with the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ibpwf.serving.lease import Lease
from ibpwf.serving.worker import run

NEEDED = [
    *("ibpwf.estimator.files", "ibpwf.serving.worker", "ibpwf.serving.versions"),
    *("pyarrow.csv", "pyarrow.compute", "torch"),
    "torch._dynamo",  # which the first optimizer imports: most of the time of a short job
]


_ALONE = threading.Lock()
"""Starting a process also looks whether others have ended: two threads that read one exit code get 255 of it."""


class Worker:
    """A process that does one job."""

    def __init__(self, process: Any, held: Connection) -> None:
        self._process, self._held = process, held

    async def wait(self) -> int:
        """Its exit code, once it has ended; below 0 if a signal has ended it."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._process.sentinel, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._process.sentinel)
        self.stop()
        return await asyncio.to_thread(self._exit_code)

    def _exit_code(self) -> int:
        with _ALONE:
            self._process.join()
            return int(self._process.exitcode)

    def stop(self) -> None:
        """Let it keep what it has and end."""
        with contextlib.suppress(OSError):
            self._held.close()

    def kill(self) -> None:
        self._process.kill()


class Workshop:
    """Starts such processes."""

    def __init__(self) -> None:
        methods = multiprocessing.get_all_start_methods()
        self._context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")

    def prepare(self) -> None:
        """Import beforehand what jobs need, in the background."""
        if self._context.get_start_method() == "forkserver":
            from multiprocessing import forkserver

            self._context.set_forkserver_preload(NEEDED)
            threading.Thread(target=forkserver.ensure_running, daemon=True).start()

    async def start(self, model: Path, folder: Path, lease: Lease, device: str) -> Worker:
        return await asyncio.to_thread(self._start, model.resolve(), folder.resolve(), lease, device)

    def _start(self, model: Path, folder: Path, lease: Lease, device: str) -> Worker:
        theirs, ours = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=run, args=(str(model), str(folder), theirs, lease, device), daemon=True
        )
        with _ALONE:
            process.start()
        theirs.close()
        return Worker(process, ours)
