"""The folder where fetched data sets stay: found, locked, written whole, checked on every read.

A file appears under its name only when all of it is written and its digest is right, so whatever
interrupts a fetch (Ctrl-C, a full disk, a second process) cannot leave a half-written file behind.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ibpwf.errors import DataError
from ibpwf.lab.data.files import DataFile, check

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_SCRATCH = ".fetch-"
_PARTIAL = ".part"
_POLL_SECONDS = 0.1

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


def cache_folder(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The root of the cache: `data_dir`, else `$IBPWF_DATA`, else the platform's cache folder."""
    if data_dir is not None:
        return Path(data_dir).expanduser().absolute()
    if given := os.environ.get("IBPWF_DATA"):
        return Path(given).expanduser().absolute()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = str(Path.home() / "Library" / "Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "ibpwf"


def read(folder: Path, file: DataFile) -> bytearray | None:
    """The bytes of a cached file, checked; None if it is not there.

    Raises `DigestError` if the file on disk is damaged. The result is a bytearray so that tensors can
    be laid over it without a copy.
    """
    path = folder / file.name
    try:
        with open(path, "rb") as stream:
            length = os.fstat(stream.fileno()).st_size
            data = bytearray(min(length, file.size + 1))
            view, filled = memoryview(data), 0
            while filled < len(data) and (count := stream.readinto(view[filled:])):
                filled += count
    except FileNotFoundError:
        return None
    except OSError as error:
        raise disk_error(error, f"read {path}") from error
    check(file, data, str(path))
    return data


def write(folder: Path, file: DataFile, data: bytes | bytearray, where: str) -> Path:
    """Check `data` and put it in place as `file` in one step; `where` says where it came from."""
    check(file, data, where)
    target = folder / file.name
    partial = folder / f".{file.name}.{os.getpid()}-{secrets.token_hex(4)}{_PARTIAL}"
    try:
        # Not mkstemp: its files are private, and a cache may be shared; here the umask decides.
        handle = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0), 0o666)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(handle, view) :]
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(partial, target)
    except OSError as error:
        raise disk_error(error, f"write {target} ({file.size / 1e6:.0f} MB)") from error
    finally:
        # Gone already after a replace; after anything else, Ctrl-C included, this is the clean-up.
        with contextlib.suppress(OSError):
            partial.unlink()
    return target


@contextlib.contextmanager
def locked(folder: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the folder's lock; `waiting` is called now and then while another process holds it.

    The lock is the operating system's, on a file that stays: it goes when its process goes, however
    that ends. Under it, what dead processes left half-written is swept away.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise disk_error(error, f"write to {folder}") from error
    try:
        while (held := _try_lock(handle)) is False:
            waiting()
            time.sleep(_POLL_SECONDS)
        if held:
            _sweep(folder)
        yield
    finally:
        os.close(handle)


def _try_lock(handle: int) -> bool | None:
    """True: locked. False: someone else has it. None: this file system has no locks.

    Without locks two processes may both fetch; each still writes whole files only.
    """
    try:
        if sys.platform == "win32":
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return None if error.errno in _NO_LOCKS else False
    return True


def _sweep(folder: Path) -> None:
    for path in folder.glob(".*"):
        if path.name.startswith(_SCRATCH):
            shutil.rmtree(path, ignore_errors=True)
        elif path.name.endswith(_PARTIAL):
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """A private folder on the cache's own disk, gone with everything in it when the block ends."""
    try:
        path = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=folder))
    except OSError as error:
        raise disk_error(error, f"write to {folder}") from error
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def check_space(folder: Path, needed: int) -> None:
    """Raise the error of a full disk if `needed` bytes more cannot fit: better before a download than after."""
    usage = shutil.disk_usage(folder)
    # Some network file systems answer zero for everything.
    if usage.total and usage.free < needed:
        raise disk_error(OSError(errno.ENOSPC, "disk full"), f"write {needed / 1e6:.0f} MB to {folder}")


def disk_error(error: OSError, action: str) -> DataError:
    """A sentence for an error of the disk met while trying to `action`."""
    if error.errno in _FULL:
        return DataError(
            f"cannot {action}: the disk is full. Free some space, or set IBPWF_DATA to a folder on another disk."
        )
    if error.errno in _FORBIDDEN:
        return DataError(
            f"cannot {action}: permission denied. Change the rights, or set IBPWF_DATA to a folder you can write to."
        )
    reason = error.strerror or str(error)
    return DataError(f"cannot {action}: {reason}. Check the folder, or set IBPWF_DATA to another one.")
