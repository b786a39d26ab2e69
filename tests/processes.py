"""Processes of our own to run the command line, or a function, in.

They are forked from a server that has imported torch already, so that a test does not wait seconds for each.
Everything else about them is as in a process started by hand: own memory, own signals, own exit code.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_context = multiprocessing.get_context("forkserver")
_RUN = ["ibpwf.lab.experiments.run", "ibpwf.cli.run", "torch._dynamo", "sklearn.datasets"]
_RUN += ["ibpwf.cli", "ibpwf.cli.run_display", "ibpwf.lab.experiments.compare", "ibpwf.lab.report.page"]
_OWN = ["ibpwf.estimator.files", "ibpwf.estimator.scoring", "pandas", "pyarrow.csv"]
_OWN += ["ibpwf.cli.learn_bar", "ibpwf.cli.learn", "ibpwf.cli.predict", "ibpwf.cli.evaluate"]
_SERVE = ["ibpwf.serving.routes", "ibpwf.serving.worker", "ibpwf.estimator.files", "uvicorn"]
_context.set_forkserver_preload([*_RUN, *_OWN, *_SERVE])


@dataclass(frozen=True)
class Finished:
    """How a command ended."""

    code: int
    out: str
    err: str


class Started:
    """A command that is running."""

    def __init__(self, process: Any, out: Path, err: Path) -> None:
        self._process, self._out, self._err = process, out, err

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    @property
    def out(self) -> str:
        """What it has written to standard output so far."""
        return self._out.read_text() if self._out.exists() else ""

    @property
    def err(self) -> str:
        """What it has written to standard error so far."""
        return self._err.read_text() if self._err.exists() else ""

    def send(self, number: signal.Signals) -> None:
        os.kill(self._process.pid, number)

    def wait_until(self, condition: Callable[[], bool], seconds: float = 240) -> bool:
        """Wait for the condition; False if the command ended before it held."""
        end = time.monotonic() + seconds
        while not condition():
            if not self._process.is_alive():
                return condition()
            assert time.monotonic() < end, "waited in vain"
            time.sleep(0.002)
        return True

    def finish(self, seconds: float = 240) -> Finished:
        self._process.join(seconds)
        assert self._process.exitcode is not None, "the command did not end"
        return Finished(self._process.exitcode, self._out.read_text(), self._err.read_text())

    def end(self) -> None:
        """Make sure that nothing is left running."""
        self._process.kill()
        self._process.join()


def start(words: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> Started:
    """Start `ibpwf` with these words, its standard output and error in files."""
    folder = Path(tempfile.mkdtemp(dir=cwd.parent))
    out, err = folder / "out", folder / "err"
    process = _context.Process(target=_command, args=(list(words), str(cwd), dict(environment), str(out), str(err)))
    process.start()
    return Started(process, out, err)


def begin(function: Callable[..., None], *arguments: object) -> Any:
    """Call a function of an importable module in another process, which may be killed."""
    process = _context.Process(target=function, args=arguments, daemon=True)
    process.start()
    return process


def call(function: Callable[..., None], *arguments: object) -> None:
    """Call a function of an importable module in another process and wait for it."""
    process = begin(function, *arguments)
    process.join()
    assert process.exitcode == 0


def _command(words: list[str], cwd: str, environment: dict[str, str], out: str, err: str) -> None:
    os.chdir(cwd)
    os.environ.pop("COLUMNS", None)
    os.environ.update(environment)
    for path, number in ((out, 1), (err, 2)):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(handle, number)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    sys.argv = ["ibpwf", *words]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    import torch

    torch.set_num_threads(1)
    _share_server()
    from ibpwf.cli import main

    try:
        main()
    finally:
        sys.stdout.flush()


def _share_server() -> None:
    """Let processes that this one starts be forked from the same server, which has imported all they need."""
    from multiprocessing import forkserver

    running: Any = forkserver._forkserver  # type: ignore[attr-defined]
    running.ensure_running = lambda: None
    forkserver.ensure_running = running.ensure_running
