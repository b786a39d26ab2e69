"""Opening what the user names: plain files only, nothing larger than memory, every failure in words."""

from __future__ import annotations

import errno
import math
import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from ibpwf.errors import DataError, InputError, StoreError

LARGEST = 1 << 30
"""The most numbers one file may hold, 4 GiB as float32. A forged header may announce far more than there is."""

MOST_COLUMNS = 100_000
"""Of a table. Wider ones are arrays, and quicker read as such."""


def shown(path: str | os.PathLike[str]) -> str:
    """A path as it can stand in a sentence: one line, also for names with line breaks or broken encoding."""
    text = os.fspath(path)
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def quoted(value: str) -> str:
    """A value of the user's in quotes, cut where it is long."""
    return repr(value if len(value) <= 40 else value[:39] + "…")


def listed(names: Sequence[str], most: int = 6) -> str:
    """Names in quotes with commas, and how many more there are."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(quoted(name) for name in names[:most]) + rest


def few(names: Sequence[str]) -> str:
    """The first of some names, and how many there are."""
    return ", ".join(names[:8]) + (f", … ({len(names)})" if len(names) > 8 else "")


def spelled(shape: Sequence[int]) -> str:
    """A size as people write it: 28×28."""
    return "×".join(map(str, shape))


def short_reason(error: Exception) -> str:
    """What another library says is wrong, in one short line."""
    return " ".join(str(error).split())[:120] or type(error).__name__


def unreadable(path: Path, error: OSError) -> DataError:
    """The system's refusal to read, as an error that names the path and the remedy."""
    if error.errno == errno.ENOENT:  # said without waiting for torch, which the module below imports
        return DataError(f"cannot read {os.fspath(path)!r}: there is no such file or folder. Check the path.")
    from ibpwf.storage.files import plain_errors

    try:
        with plain_errors("read", path):
            raise error
    except StoreError as told:
        return DataError(str(told))


def check_there(path: Path) -> None:
    """Refuses a path that leads nowhere."""
    try:
        os.stat(path)
    except OSError as error:
        raise unreadable(path, error) from error


def open_plain(path: Path) -> BinaryIO:
    """A file opened for reading. A folder, a pipe or a device is refused: reading one may never end."""
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise DataError(f"{shown(path)} is a pipe or a device; give the path of a plain file.")
        return open(path, "rb")
    except OSError as error:
        raise unreadable(path, error) from error


def whole_file(path: Path, most: int = LARGEST) -> bytes:
    """The bytes of a file that fits into memory."""
    with open_plain(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise DataError(f"{shown(path)} is larger than {most:,} bytes; make it smaller.")
    return data


def memory() -> int:
    """The bytes of memory this machine has; without bounds where it does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return sys.maxsize


def check_columns(path: Path, count: int) -> None:
    """Refuses a table that is too wide."""
    if count > MOST_COLUMNS:
        raise DataError(
            f"{shown(path)} has {count:,} columns, more than the {MOST_COLUMNS:,} that a table may have; give arrays "
            "in an .npz file."
        )


def check_room(path: Path, shape: Sequence[int], each: int = 4) -> None:
    """Refuses an array that is too large, before anything is allocated for it; `each` is the bytes of one number."""
    needed = math.prod(map(int, shape)) * each
    if LARGEST * each >= needed > memory():
        raise DataError(
            f"{shown(path)} needs {needed / 1e9:,.1f} GB of memory, this machine has {memory() / 1e9:,.1f}; split "
            "it into smaller files."
        )
    if math.prod(map(int, shape)) > LARGEST:
        size = "×".join(f"{int(extent):,}" if extent < 1 << 64 else "more than 2^64" for extent in shape)
        raise DataError(
            f"{shown(path)} announces {size} numbers, more than the {LARGEST:,} that are read at once; "
            "split it into smaller files."
        )


def arrow(path: str | os.PathLike[str]) -> Any:
    """pyarrow, which reads and writes tables."""
    try:
        import pyarrow.compute
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError:
        raise InputError(f"{shown(path)} needs pyarrow; run pip install pyarrow, or give an .npz file.") from None
    return pyarrow
