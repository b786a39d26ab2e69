"""The right to change a model folder, which one server has at a time.

It is a lock of the operating system on `.serving/lease` in the model folder. A server holds it while it runs, and
hands it on to its workers: whatever kills the server, the next one gets it once the last worker has ended, and no
sooner. Nothing has to be cleaned up, and nothing expires while its holder lives, however slow that is.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from multiprocessing import reduction
from pathlib import Path
from typing import Any

from ibpwf.serving.faults import Refused
from ibpwf.serving.records import is_file, log
from ibpwf.storage.folder import NO_LOCKS


class Lease:
    """The lease of one model folder. `problem` says why it is not held."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem = "its lease has not been asked for yet"
        self._handle: int | None = None
        self._process = 0

    def is_held(self) -> bool:
        """Whether this process has it: not one that it was forked from, and not of a folder that was replaced."""
        return self._handle is not None and self._process == os.getpid() and is_file(self._handle, self.path)

    def take(self) -> bool:
        """Take it if it is free; whether it is held now."""
        if self.is_held():
            return True
        self.release()
        try:
            self.path.parent.mkdir(exist_ok=True)
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except OSError as error:
            self.problem = f"its folder cannot be written ({error.strerror})"
            return False
        try:
            taken = _lock(handle, self.path)
            self.problem = f"another server{_holder(handle)} makes its changes"
            if not taken or not is_file(handle, self.path):
                os.close(handle)
                return False
        except OSError as error:
            os.close(handle)
            self.problem = f"its lease cannot be taken ({error.strerror})"
            return False
        self._handle, self._process = handle, os.getpid()
        with contextlib.suppress(OSError):  # of a full disk; it only says who it is
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps({"process": os.getpid(), "host": socket.gethostname()}).encode(), 0)
        return True

    def release(self) -> None:
        """Give up this process's part of it. It is free once its workers have ended, too."""
        if self._handle is not None:
            with contextlib.suppress(OSError):
                os.close(self._handle)
            self._handle = None

    def __reduce__(self) -> tuple[Any, ...]:
        """A worker that is given the lease holds the lock, too, until it ends."""
        if self._handle is None:  # another server makes the changes by now, or this one in a moment
            raise Refused(503, "the right to change the model was lost; try again.", retry_after=5)
        return _detach, (reduction.DupFd(self._handle),)


def _detach(inherited: Any) -> int:
    return int(inherited.detach())


def _lock(handle: int, path: Path) -> bool:
    import fcntl  # not on Windows

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # some disks say the latter
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        log.warning("%s: this disk has no locks. Run one server that can change the model", path)
    return True


def _holder(handle: int) -> str:
    try:
        found = json.loads(os.pread(handle, 1024, 0))
        return f" (process {int(found['process'])} on {str(found['host'])[:100]})"
    except (OSError, ValueError, KeyError, TypeError):
        return ""
