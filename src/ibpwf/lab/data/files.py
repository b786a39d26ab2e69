"""What a data file must be: its name, its length and the digest of its raw bytes.

Every byte that reaches a tensor has passed `check`, whether it came from a mirror, a package, the
user's own folder or the cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

from ibpwf.errors import DataError

Progress = Callable[[str, int, "int | None"], None]
"""`progress(label, done, total)`: bytes or steps done, `total` is None where nobody knows it."""


def silent(label: str, done: int, total: int | None) -> None:
    """The progress callback of someone who does not want to hear."""


class DigestError(DataError):
    """Bytes that are not the file they should be. Such bytes are never used and never kept."""


@dataclass(frozen=True)
class DataFile:
    """One file of a data set, described by its uncompressed content."""

    name: str
    md5: str
    size: int
    aliases: tuple[str, ...] = field(default=())
    """Other names the same bytes are handed around under."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every file name, plain or compressed, that may hold these bytes."""
        plain = (self.name, *self.aliases)
        return plain + tuple(f"{name}.gz" for name in plain)


def digest(data: bytes | bytearray | memoryview) -> str:
    """The md5 digest; it guards against wrong and damaged files, not against forgers."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def check(file: DataFile, data: bytes | bytearray, where: str) -> None:
    """Raise `DigestError` unless `data` is `file`, byte for byte; `where` says where it came from."""
    found = digest(data)
    if found == file.md5 and len(data) == file.size:
        return
    length = "" if len(data) == file.size else f" ({_length(file, data)})"
    raise DigestError(f"{where}: md5 of {file.name} is {found}, expected {file.md5}{length}.")


def _length(file: DataFile, data: bytes | bytearray) -> str:
    # Readers stop one byte past the expected end, so the true length of a longer file is not known.
    if len(data) > file.size:
        return f"more than the expected {file.size:,} bytes"
    return f"{len(data):,} bytes, expected {file.size:,}"
