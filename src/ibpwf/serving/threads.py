"""Threads for one kind of slow work, so that it holds up nothing but its own kind.

What waits for a lock, or takes seconds, would take all of the event loop's own threads from everything else that is
done in one, such as writing an answer or noting a job.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Threads:
    """So many threads; what comes meanwhile waits."""

    def __init__(self, count: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(count, name)

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        """A function's result, as of `asyncio.to_thread`."""
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._pool, context.run, function, *arguments)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
