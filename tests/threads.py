"""Work that threads begin together."""

from __future__ import annotations

import threading
from collections.abc import Callable


def at_once(work: Callable[[int], object], threads: int) -> list[BaseException]:
    """Run `work` in so many threads that start together, each with its number; what they raised."""
    barrier, raised = threading.Barrier(threads), list[BaseException]()

    def run(number: int) -> None:
        barrier.wait()
        try:
            work(number)
        except BaseException as error:
            raised.append(error)

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return raised
