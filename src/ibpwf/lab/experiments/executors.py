"""Several trainings of a run on a CPU: worker processes of one thread each, as many as there are cores.

A step of a small network is some two hundred operations of microseconds. A second thread inside them gains little
(and loses much where the cores are busy), threads of one interpreter wait for each other, a batched dimension gives
other bits. A process has none of these: every seed computes exactly what it computes alone.

A worker takes the next task of any training that nobody is at, and goes on from its stored model: five seeds keep two
workers busy to the end. It writes to that training's own folder; everything the run shares (metrics,
progress) it sends as a line of JSON and waits for the answer, so that a row is on disk before its model is. When the
run stops for whatever reason, the workers' input closes and they end at once; finished tasks are kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ibpwf import errors

WORTH = 500_000
"""Examples to pass in all (rows × epochs × trainings) from which on starting workers, up to ten seconds, pays."""

Job = Mapping[str, Any]
Answer = Callable[[Mapping[str, Any]], None]


@contextlib.contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Let torch use so many threads inside; None: as many as before."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def cores() -> int:
    """Those this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers_for(trainings: int, examples: int) -> int:
    """How many workers to start: 0 where the trainings had better follow one another."""
    count = min(trainings, cores())
    return count if count > 1 and examples >= WORTH else 0


def side_by_side(chains: Sequence[Sequence[Job]], workers: int, told: Answer) -> None:
    """Have `workers` processes do all jobs, those of a chain one after another; `told` is given what they say. One
    that fails stops them all."""
    waiting = [list(chain) for chain in chains]
    at: dict[int, list[Job]] = {}  # the chain each worker is at
    idle: set[int] = set()
    said: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
    running: list[subprocess.Popen[str]] = []
    try:
        for number in range(workers):
            running.append(_start())
            threading.Thread(target=_listen, args=(running[-1], number, said), daemon=True).start()
        while waiting or at or len(idle) < workers:
            number, message = said.get()
            if message is None:
                raise errors.TrainingError(
                    f"a worker process ended without a word (exit code {running[number].wait()}; out of memory?); "
                    "finished tasks are kept, the same command with --resume goes on."
                )
            if message["kind"] == "failed":
                raise _as_error(message)
            if message["kind"] != "ready":
                told(message)
                _say(running[number], {})
                continue
            idle.add(number)
            if chain := at.pop(number, []):
                waiting.append(chain)
            while waiting and idle:
                number, chain = idle.pop(), max(waiting, key=len)  # the longest first: none is left for the end
                waiting.remove(chain)
                _say(running[number], chain.pop(0))
                at[number] = chain
    finally:
        for process in running:
            with contextlib.suppress(OSError):
                assert process.stdin is not None
                process.stdin.close()  # a worker whose input closes ends
        for process in running:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _start() -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    environment |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "ibpwf.lab.experiments.side_by_side"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=environment,
    )


def _listen(
    process: subprocess.Popen[str], number: int, said: queue.Queue[tuple[int, dict[str, Any] | None]]
) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        said.put((number, json.loads(line)))
    said.put((number, None))


def _say(process: subprocess.Popen[str], message: Job) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended: the listener says so
        process.stdin.write(json.dumps(message) + "\n")
        process.stdin.flush()


def _as_error(message: Mapping[str, Any]) -> Exception:
    """The error a worker met, of the same kind where it is one of ours."""
    kind = getattr(errors, message["error"], None)
    if isinstance(kind, type) and issubclass(kind, errors.IBPWFError):
        return kind(message["text"])
    return RuntimeError(f"{message['training']}: {message['error']}: {message['text']}")


class _Parent:
    """The run, as a worker sees it: lines out, answers in. When it is gone, so is the worker."""

    def __init__(self) -> None:
        self.out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)  # whatever prints is not to be taken for a message
        self.answers: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            self.answers.put(json.loads(line))
        os._exit(1)

    def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        self.out.write(json.dumps(message) + "\n")
        self.out.flush()
        return self.answers.get()


def main() -> None:
    """A worker: do jobs until the run closes its input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run is interrupted, and closes our input
    torch.set_flush_denormal(True)
    from ibpwf.lab.experiments.run import train_on
    from ibpwf.lab.experiments.run_config import RunConfig

    parent = _Parent()
    while True:
        job = parent.ask({"kind": "ready"})
        try:
            config = RunConfig(**{**job["config"], "seeds": tuple(job["config"]["seeds"])})
            with threads(1):
                train_on(config, job["seed"], tuple(job["answers"]), Path(job["out"]), job["tasks"], parent.ask)
        except Exception as error:
            failed = {"error": type(error).__name__, "text": str(error), "training": f"seed {job['seed']}"}
            parent.ask({"kind": "failed", **failed})


if __name__ == "__main__":
    main()
