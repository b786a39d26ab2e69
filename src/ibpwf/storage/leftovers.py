"""What a killed program left beside a file or folder that it was replacing.

A writer locks what it fills, and the system takes the lock away when the writer dies. So what has no lock is removed,
and another program that writes to the same place meanwhile is left alone.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from pathlib import Path

_BEGINNING = 40  # of the name only, so that a name which just fits does not fail because of the suffix


def aside_of(target: Path) -> Path:
    """A new name beside the target, under which it is written first."""
    return target.parent / f"{target.name[:_BEGINNING]}.tmp-{secrets.token_hex(8)}"


def hold(handle: int) -> bool:
    """Lock an open file or folder until it is closed; whether nobody else has. Some disks have no locks."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except (ImportError, OSError):
        return True
    return True


def remove_leftovers(target: Path) -> None:
    """Remove what earlier writes of this target left unfinished, as far as possible."""
    name = re.compile(re.escape(target.name[:_BEGINNING]) + r"\.tmp-[0-9a-f]{16}(\.old)?")
    with contextlib.suppress(OSError):
        for entry in sorted(os.listdir(target.parent)):
            path = target.parent / entry
            if name.fullmatch(entry) and not path.is_symlink():
                _remove(path)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if os.name == "nt":  # which has no handles of folders, and keeps files that are open
            path.unlink()
            return
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if hold(handle):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        finally:
            os.close(handle)
