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


@contextlib.contextmanager
def full_disk(at: int, error: Callable[[], BaseException]) -> Iterator[list[int]]:
    """Lets call number `at` that takes space, and all later ones, fail; reading and removing go on. 0: none fails."""
    count = [0]

    def wrap(call: Callable[..., Any], takes_space: Callable[..., bool]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if takes_space(*args, **kwargs):
                count[0] += 1
                if at and count[0] >= at:
                    raise error()
            return call(*args, **kwargs)

        return wrapped

    def always(*args: Any, **kwargs: Any) -> bool:
        return True

    def opens(path: Any, flags: int, *args: Any, **kwargs: Any) -> bool:
        return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))

    def writes(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> bool:
        return any(letter in mode for letter in "wax+")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("replace", "rename", "mkdir", "fsync"):
            patch.setattr(os, name, wrap(getattr(os, name), always))
        patch.setattr(os, "open", wrap(os.open, opens))
        patch.setattr(builtins, "open", wrap(builtins.open, writes))
        yield count
