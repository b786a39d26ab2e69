"""Ctrl-C and SIGTERM: what is kept, what to do to continue, and which exit code."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from ibpwf.errors import printable


class Interrupted(KeyboardInterrupt):
    """An interrupt with something to tell the user; the program ends with this exit code."""

    def __init__(self, message: str, code: int = 128 + signal.SIGINT) -> None:
        super().__init__(message)
        self.code = code


def interrupted(folder: Path, what: str = "runs", how: str = "--resume") -> Interrupted:
    """What an interrupt has left in a folder of runs."""
    where = printable(str(folder))
    return Interrupted(f"Interrupted. Finished {what} are kept in {where}; to continue, add {how} to the command.")


@contextlib.contextmanager
def stopping(caught: list[int]) -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM end the task after the step that is running, so that it can be kept; a second one ends it
    at once. `caught` gets the signal's number."""

    def handle(number: int, _: object) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(caught)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
