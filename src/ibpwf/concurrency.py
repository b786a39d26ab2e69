"""One writer at a time, and readers that never wait: neither needs a lock.

A change is made on a copy, which replaces the original by one assignment. `SingleWriter` rejects a second change
while one is under way; `at_one_moment` lets a reader work on one state while another thread replaces it.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Generator
from typing import Any, Concatenate, ParamSpec, TypeVar

from ibpwf.errors import BusyError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class SingleWriter:
    """Claimed by every change of an object; a second change is rejected at once, so no update is lost.

    A change is a generator that reads the old state after the claim and assigns the new one before it ends. The claim
    ends with the generator: finished, closed or garbage-collected. Nothing has to be released, so no interrupt can
    leave the object claimed. A copy starts unclaimed. Objects that change together share one writer, whose `holder`
    is the one that the others are parts of.
    """

    def __init__(self, holder: object | None = None) -> None:
        self._changes: list[weakref.ref[Generator[None, None, Any]]] = []
        self.hold_for(holder)

    @property
    def holder(self) -> Any:
        """What the changed objects are parts of; None where that is gone, unknown, or the object itself."""
        return None if self._holder is None else self._holder()

    def hold_for(self, holder: object | None) -> None:
        self._holder = None if holder is None else weakref.ref(holder)

    def __reduce__(self) -> tuple[type[SingleWriter], tuple[()]]:
        return SingleWriter, ()

    def claim(self, change: Generator[None, None, Any], doing: str) -> None:
        mine = weakref.ref(change)
        self._changes.append(mine)  # of several threads, the first in the list wins
        if next(one for one in list(self._changes) if one is mine or _under_way(one)) is not mine:
            change.close()
            raise _busy(doing)
        for old in [one for one in self._changes if not _under_way(one)]:
            self._changes.remove(old)

    def run(self, doing: str, change: Callable[[], R]) -> R:
        """Make a change that is a single call."""
        step = _single_step(change)
        try:
            self.claim(step, doing)
            return finish(step)
        finally:
            step.close()  # an interrupt may come between the two; a traceback must not keep the claim

    def check(self, doing: str) -> None:
        """Reject what must not be started while a change is under way; it does not protect what follows."""
        if any(_under_way(change) for change in list(self._changes)):
            raise _busy(doing)


def _single_step(change: Callable[[], R]) -> Generator[None, None, R]:
    return change()
    yield


def finish(steps: Generator[None, None, R]) -> R:
    """Run a generator to its end; its return value. An interrupt closes it, though a traceback may keep it alive."""
    try:
        while True:
            try:
                next(steps)
            except StopIteration as end:
                found: R = end.value
                return found
    finally:
        steps.close()


def _busy(doing: str) -> BusyError:
    return BusyError(
        f"another change is under way (a task is being learned, updated or deleted), so nothing else can be {doing} "
        "until it ends. Predictions keep using the tasks learned before it."
    )


def _under_way(change: weakref.ref[Generator[None, None, Any]]) -> bool:
    found = change()
    return found is not None and inspect.getgeneratorstate(found) != inspect.GEN_CLOSED


def moment_of(original: T) -> T:
    """The object as it is now; it stays so if the original changes by replacing its `__dict__`."""
    now = object.__new__(type(original))
    now.__dict__ = vars(original)
    return now


def at_one_moment(ask: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """A method that reads one state of its object, whatever another thread replaces it with meanwhile."""

    @functools.wraps(ask)
    def asked(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return ask(moment_of(self), *args, **kwargs)

    return asked
