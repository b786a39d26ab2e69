"""Who may change something, and who answers meanwhile: neither needs a lock.

A change is made on a copy, which takes the place of the original in one step. `OneAtATime` sees to it that there is
one change at a time; `at_one_moment` lets an answer come from one state, whatever takes its place meanwhile.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Generator
from typing import Any, Concatenate, ParamSpec, TypeVar

from ibpwf.errors import InputError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class OneAtATime:
    """Who is changing something: only one at a time may, and a second is refused at once.

    A change is a generator. It is over when that has ended, was closed, or is nobody's any more, so nothing has to be
    given back, and no interrupt can leave it taken. A copy has no changes under way.
    """

    def __init__(self) -> None:
        self._changes: list[weakref.ref[Generator[None, None, Any]]] = []

    def __reduce__(self) -> tuple[type[OneAtATime], tuple[()]]:
        return OneAtATime, ()

    def claim(self, change: Generator[None, None, Any], doing: str) -> None:
        mine = weakref.ref(change)
        self._changes.append(mine)  # several threads may: the first of them goes on
        if next(one for one in list(self._changes) if one is mine or _under_way(one)) is not mine:
            change.close()
            raise _busy(doing)
        for old in [one for one in self._changes if not _under_way(one)]:
            self._changes.remove(old)

    def check(self, doing: str) -> None:
        """Refuse what must not be done meanwhile."""
        if any(_under_way(change) for change in list(self._changes)):
            raise _busy(doing)


def _busy(doing: str) -> InputError:
    return InputError(
        f"a task is being learnt; nothing else can be {doing} until that is done. Answers come from the tasks before "
        "it meanwhile."
    )


def _under_way(change: weakref.ref[Generator[None, None, Any]]) -> bool:
    found = change()
    return found is not None and inspect.getgeneratorstate(found) != inspect.GEN_CLOSED


def moment_of(original: T) -> T:
    """An object as it is at this moment, and stays, if it changes by being given another `__dict__`."""
    now = object.__new__(type(original))
    now.__dict__ = vars(original)
    return now


def at_one_moment(ask: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """A method that answers from one state of its object, whatever another thread does to that meanwhile."""

    @functools.wraps(ask)
    def asked(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return ask(moment_of(self), *args, **kwargs)

    return asked
