"""A process that kills itself at a chosen call to the disk, before it, after it, or in the middle of a write."""

from __future__ import annotations

import builtins
import contextlib
import os
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Any

CALLS = ("open", "replace", "rename", "fsync", "unlink", "mkdir", "makedirs", "rmdir", "fdopen")


class _Counted:
    """Kills the process at event number `at`; 0 only counts."""

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0

    def __call__(self) -> None:
        self.count += 1
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self()
            result = call(*args, **kwargs)
            self()
            return _Halved(result, self) if call.__name__ == "fdopen" and "wb" in args else result

        return wrapped

    def wrap_open(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`open`, of which only files that are appended to count."""

        def wrapped(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            file = call(path, mode, *args, **kwargs)
            return _Halved(file, self) if "a" in mode else file

        return wrapped


class _Halved:
    """An open file that is written in two halves, so that the process may end between them."""

    def __init__(self, file: Any, counted: _Counted) -> None:
        self._file, self._counted = file, counted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Halved:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, data: bytes) -> int:
        middle = len(data) // 2
        self._file.write(data[:middle])
        self._file.flush()
        self._counted()
        self._file.write(data[middle:])
        return len(data)


def run_until(work: Callable[[], object], at: int) -> tuple[int, int]:
    """Do some work in a forked process that kills itself at event `at`; how it ended, and how many events it saw."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if not child:
        status = 1
        with contextlib.suppress(BaseException):
            warnings.simplefilter("ignore")
            counted = _Counted(at)
            for name in CALLS:
                setattr(os, name, counted.wrap(getattr(os, name)))
            builtins.open = counted.wrap_open(builtins.open)  # type: ignore[assignment]
            work()
            os.write(writer, str(counted.count).encode())
            status = 0
        os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), int(said or 0)
