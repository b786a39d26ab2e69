"""Faults of the disk, put in at a chosen call."""

from __future__ import annotations

import builtins
import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest


class Killed(BaseException):
    """Stands for kill -9: from then on, no call of this process reaches the disk."""


TOUCHING = ["open", "replace", "fsync", "unlink", "fdopen", "truncate", "makedirs"]


@contextlib.contextmanager
def fault(at: int, error: Callable[[], BaseException], stays: bool, after: bool = False) -> Iterator[list[int]]:
    """Lets disk call number `at` fail (with `after`, once it is done), and with `stays` all later ones."""
    count = [0]

    def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            count[0] += 1
            if after and count[0] == at:
                call(*args, **kwargs)
            if count[0] == at or (stays and count[0] > at):
                raise error()
            return call(*args, **kwargs)

        return wrapped

    with pytest.MonkeyPatch.context() as patch:
        for name in TOUCHING:
            patch.setattr(os, name, wrap(getattr(os, name)))
        patch.setattr(builtins, "open", wrap(builtins.open))
        yield count


def calls_of(work: Callable[[], None]) -> int:
    with fault(0, Killed, False) as count:
        work()
    return count[0]
