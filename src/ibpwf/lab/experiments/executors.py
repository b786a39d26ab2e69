"""Where jobs go on side by side: an executor of `concurrent.futures`, opened by an `Engine`, here or elsewhere.

A step of a small network is some two hundred operations of microseconds. A second thread inside them gains little
(and loses much where the cores are busy), threads of one interpreter wait for each other, a batched dimension gives
other bits. A process has none of these: every seed computes exactly what it computes alone. `Processes` are those of
this machine; `cluster.py` has those of other machines. Whoever hands out jobs does not know which.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing.connection import wait
from typing import Any, Protocol

from ibpwf.errors import TrainingError

WORTH = 500_000
"""Examples to pass in all (rows × epochs × trainings) from which on starting workers, up to ten seconds, pays."""

LOST_WORKER = (
    "a worker process ended without a word (out of memory?); finished tasks are kept, the same command with --resume "
    "goes on."
)
DIED = object()
"""Told when a worker has ended that should not have."""

Job = Callable[[], Any]
Chain = Generator[Job, Any, None]
"""Jobs that follow one another: it is sent what each has given, or thrown what that has raised."""
Tell = Callable[[Any], None]

_tell: Tell | None = None  # in a worker: sends to whoever opened the executor


class Engine(Protocol):
    """Who does jobs."""

    def check(self) -> None:
        """Refuse, before anything is read or written, an engine that cannot be reached."""

    def open(self, told: Tell) -> contextlib.AbstractContextManager[Executor]:
        """An executor for the time of the block. `told` is given what jobs `tell`, in any thread."""

    def explained(self, error: Exception) -> Exception:
        """What a job's future has raised, in words of ours where a worker was lost."""


def cores() -> int:
    """Those this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers_for(trainings: int, examples: int) -> int:
    """How many workers to start: 0 where the trainings had better follow one another."""
    count = min(trainings, cores())
    return count if count > 1 and examples >= WORTH and _tell is None else 0


def side_by_side(chains: Sequence[Chain], engine: Engine, told: Tell) -> None:
    """Do all jobs; `told` is given what they `tell`. What a chain raises stops them all."""
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with engine.open(inbox.put) as executor:
        running: dict[Future[Any], Chain] = {}

        def go_on(chain: Chain, step: Callable[[], Job]) -> None:
            try:
                job = step()
            except StopIteration:
                return
            with interrupts_held_back():
                future = executor.submit(job)
            running[future] = chain
            future.add_done_callback(inbox.put)

        for chain in chains:
            go_on(chain, partial(next, chain))
        while running:
            came = inbox.get()
            if came is DIED:
                raise TrainingError(LOST_WORKER)
            if not isinstance(came, Future):
                told(came)
                continue
            chain = running.pop(came)
            try:
                given = came.result()
            except Exception as error:
                go_on(chain, partial(chain.throw, engine.explained(error)))
            else:
                go_on(chain, partial(chain.send, given))
    while not inbox.empty():
        told(inbox.get())


class Processes:
    """Worker processes of one thread each. They end with the block, and with this process however it ends."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def check(self) -> None:
        """They are started when they are needed."""

    def explained(self, error: Exception) -> Exception:
        return TrainingError(LOST_WORKER) if isinstance(error, BrokenProcessPool) else error

    @contextlib.contextmanager
    def open(self, told: Tell) -> Iterator[Executor]:
        context = multiprocessing.get_context("spawn")
        messages, before = context.SimpleQueue(), set(multiprocessing.active_children())
        listener = threading.Thread(target=_listen, args=(messages, told), daemon=True)
        listener.start()
        executor = ProcessPoolExecutor(self.workers, context, initializer=_start_worker, initargs=(messages,))
        over = threading.Event()
        threading.Thread(target=_watch, args=(before, told, over), daemon=True).start()
        try:
            yield executor
            over.set()
        except BaseException:
            over.set()
            for process in set(multiprocessing.active_children()) - before:
                process.terminate()
            executor.shutdown(cancel_futures=True)
            raise
        executor.shutdown()
        messages.put(None)
        listener.join()


@contextlib.contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Ctrl-C reaches a terminal's whole group of processes. One that is started in here never sees it: this process
    does, afterwards, and ends the others."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _watch(before: set[Any], told: Tell, over: threading.Event) -> None:
    """Tell of a worker that dies. The executor itself may not notice before another worker has something to say: it
    waits for the processes it knew of when it last woke up."""
    seen: set[Any] = set()
    while not over.wait(0.5):
        seen |= set(multiprocessing.active_children()) - before
        if any(process.exitcode not in (None, 0) for process in seen):
            told(DIED)
            return


def _listen(messages: Any, told: Tell) -> None:
    with contextlib.suppress(EOFError, OSError):
        while (message := messages.get()) is not None:
            told(message)


def _start_worker(messages: Any) -> None:
    global _tell
    _tell = messages.put
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_run, daemon=True).start()
    import torch

    torch.set_num_threads(1)


def _end_with_the_run() -> None:
    run = multiprocessing.parent_process()
    assert run is not None
    wait([run.sentinel])
    os._exit(1)


@contextlib.contextmanager
def telling(way: Tell) -> Iterator[None]:
    """In a worker that does other things too: what the job inside tells goes this way."""
    global _tell
    _tell = way
    try:
        yield
    finally:
        _tell = None


def tell(message: Any) -> None:
    """In a worker: send something to whoever opened the executor."""
    assert _tell is not None
    _tell(message)
