"""Where the trainings of a run on a CPU go on side by side: an executor of `concurrent.futures`, chosen here alone.

A step of a small network is some two hundred operations of microseconds. A second thread inside them gains little
(and loses much where the cores are busy), threads of one interpreter wait for each other, a batched dimension gives
other bits. A process has none of these: every seed computes exactly what it computes alone.

Another engine that offers an `Executor` takes the place of `process_executor`; whatever its workers give to `tell`
must reach the function that it was opened with, and `one_at_a_time` must keep them apart.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import Any

from ibpwf.errors import TrainingError

WORTH = 500_000
"""Examples to pass in all (rows × epochs × trainings) from which on starting workers, up to ten seconds, pays."""

LOST_WORKER = (
    "a worker process ended without a word (out of memory?); finished tasks are kept, the same command with --resume "
    "goes on."
)
DIED = object()
"""Told when a worker has ended that should not have."""

Job = Callable[[], object]
Tell = Callable[[Any], None]

_run: tuple[Any, Any] | None = None  # in a worker: the queue to the run, and the lock that its workers share


def cores() -> int:
    """Those this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers_for(trainings: int, examples: int) -> int:
    """How many workers to start: 0 where the trainings had better follow one another."""
    count = min(trainings, cores())
    return count if count > 1 and examples >= WORTH and _run is None else 0


def side_by_side(chains: Sequence[Sequence[Job]], workers: int, told: Tell) -> None:
    """Do all jobs, those of a chain one after another; `told` is given what they `tell`. A failure stops them all."""
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with process_executor(workers, inbox.put) as executor:
        running: dict[Future[object], list[Job]] = {}

        def go_on(chain: list[Job]) -> None:
            with interrupts_held_back():
                future = executor.submit(chain[0])
            running[future] = chain[1:]
            future.add_done_callback(inbox.put)

        for chain in chains:
            go_on(list(chain))
        while running:
            came = inbox.get()
            if came is DIED:
                raise TrainingError(LOST_WORKER)
            if not isinstance(came, Future):
                told(came)
                continue
            rest = running.pop(came)
            try:
                came.result()
            except BrokenProcessPool:
                raise TrainingError(LOST_WORKER) from None
            if rest:
                go_on(rest)
    while not inbox.empty():
        told(inbox.get())


@contextlib.contextmanager
def process_executor(workers: int, told: Tell) -> Iterator[Executor]:
    """Worker processes of one thread each. They end with the block, and with this process however it ends."""
    context = multiprocessing.get_context("spawn")
    messages, before = context.SimpleQueue(), set(multiprocessing.active_children())
    listener = threading.Thread(target=_listen, args=(messages, told), daemon=True)
    listener.start()
    arguments = (messages, context.Lock())
    executor = ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=arguments)
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


def _start_worker(messages: Any, lock: Any) -> None:
    global _run
    _run = messages, lock
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_run, daemon=True).start()
    import torch

    torch.set_num_threads(1)


def _end_with_the_run() -> None:
    run = multiprocessing.parent_process()
    assert run is not None
    wait([run.sentinel])
    os._exit(1)


def tell(message: Any) -> None:
    """In a worker: send something to whoever opened the executor."""
    assert _run is not None
    _run[0].put(message)


def one_at_a_time() -> contextlib.AbstractContextManager[Any]:
    """What several workers may write to, one does inside; outside of workers nobody else is there."""
    return contextlib.nullcontext() if _run is None else _run[1]
