"""The folder where fetched files stay: found, locked, checked on every read."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from ibpwf.downloads.files import DataFile, check, install
from ibpwf.errors import DataError

_POLL_SECONDS = 0.1
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_FULL = "the disk is full. Free some space, or set IBPWF_DATA to a folder on another disk."
_DENIED = "permission denied. Change the rights, or set IBPWF_DATA to a folder you can write to."
_REASONS = dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), _FULL)
_REASONS |= dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), _DENIED)


def cache_folder(data_dir: str | os.PathLike[str] | None = None, extra: str = "lab") -> Path:
    """The root of the cache: `data_dir`, else `$IBPWF_DATA`, else the platform's cache folder. `extra` is what brings
    all that is needed for what the folder is wanted for."""
    given = os.environ.get("IBPWF_DATA") if data_dir is None else data_dir
    if given:
        return Path(given).expanduser().absolute()
    try:
        from platformdirs import user_cache_path
    except ImportError:
        raise DataError(
            f"no folder is set for data sets and trained networks: set IBPWF_DATA to one, or {install(extra)}, which "
            "brings platformdirs to find the platform's cache folder."
        ) from None
    return user_cache_path("ibpwf", appauthor=False, opinion=False)


def read(folder: Path, file: DataFile) -> bytearray | None:
    """The bytes of a cached file, checked; None if it is not there, `DigestError` if it is damaged.

    A bytearray, so that tensors can be laid over it without a copy.
    """
    path = folder / file.name
    with disk_errors(f"read {path}"):
        try:
            with open(path, "rb") as stream:
                data = bytearray(min(os.fstat(stream.fileno()).st_size, file.size + 1))
                stream.readinto(data)
        except FileNotFoundError:
            return None
    check(file, data, str(path))
    return data


@contextlib.contextmanager
def locked(folder: Path, waiting: Callable[[], None]) -> Iterator[bool]:
    """Hold the folder's lock; `waiting` is called now and then while another process holds it.

    Gives False on a file system without locks: there two processes may do the same work.
    """
    lock = FileLock(folder / ".lock")
    try:
        while not lock.is_locked:
            try:
                lock.acquire(timeout=_POLL_SECONDS)
            except Timeout:
                waiting()
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    try:
        yield lock.is_locked
    finally:
        lock.release()


@contextlib.contextmanager
def disk_errors(action: str) -> Iterator[None]:
    """Turns an error of the disk met while trying to `action` into a sentence with a remedy."""
    try:
        yield
    except OSError as error:
        other = f"{error.strerror or error}. Check the folder, or set IBPWF_DATA to another one."
        raise DataError(f"cannot {action}: {_REASONS.get(error.errno or 0, other)}") from error


def check_space(folder: Path, needed: int) -> None:
    """Raise the system's error of a full disk if so many bytes do not fit: better before a download than after."""
    usage = shutil.disk_usage(folder)
    if usage.total and usage.free < needed:  # some network disks answer zero for everything
        raise OSError(errno.ENOSPC, "disk full")
