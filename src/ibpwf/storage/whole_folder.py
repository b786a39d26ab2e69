"""A folder of files that belong together, replaced in one step: killed at any moment, its place holds all of the old
files or all of the new ones."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from ibpwf.storage.files import StrPath, plain_errors, sync_folder
from ibpwf.storage.leftovers import aside_of, hold, remove_leftovers

_HERE = -100  # AT_FDCWD: paths are relative to the working folder
_SWAP = 2  # RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)


@contextlib.contextmanager
def replacing_folder(path: StrPath) -> Iterator[Path]:
    """A new folder to fill, which takes the place of `path` when the block ends, or is removed if it fails."""
    target = Path(os.path.realpath(path))  # of a link, the folder that it leads to
    aside = aside_of(target)
    with plain_errors("write", path), contextlib.ExitStack() as open_folder:
        try:
            os.mkdir(aside)
            if os.name != "nt":
                handle = os.open(aside, os.O_RDONLY)
                open_folder.callback(os.close, handle)
                hold(handle)
            yield aside
            sync_folder(aside)
            if target.is_dir():
                exchange(aside, target)
            else:
                os.rename(aside, target)
            sync_folder(target.parent)
        finally:
            with contextlib.suppress(OSError):
                shutil.rmtree(aside)  # after an exchange, the old one
    remove_leftovers(target)


def exchange(one: Path, other: Path) -> None:
    """Swap two folders beside each other, in one step where the system can. Elsewhere (Windows, some network disks)
    there is a moment without `other`, which then lies whole beside it."""
    if _exchanged(one, other):
        return
    kept = one.with_name(f"{one.name}.old")
    os.rename(other, kept)
    try:
        os.rename(one, other)
    except BaseException:
        os.rename(kept, other)
        raise
    os.rename(kept, one)


def _exchanged(one: Path, other: Path) -> bool:
    """Whether the system's own call has swapped them; False where it has none."""
    names = os.fsencode(one), os.fsencode(other)
    if sys.platform == "linux":
        call, words = "renameat2", (_HERE, names[0], _HERE, names[1], _SWAP)
    elif sys.platform == "darwin":
        call, words = "renamex_np", (*names, _SWAP)
    else:
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), call, None)
    if rename is None:
        return False
    if rename(*words) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), os.fspath(other))
