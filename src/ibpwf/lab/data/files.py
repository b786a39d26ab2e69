"""What a data file must be: its name, its length and the digest of its raw bytes.

Every byte that reaches a tensor has passed `check`, wherever it came from, the cache included.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from ibpwf.errors import DataError

Progress = Callable[[str, int, "int | None"], None]
"""`progress(label, done, total)`: bytes or steps done, `total` is None where nobody knows it."""

INSTALL = "run pip install 'ibpwf[lab]'"


class DigestError(DataError):
    """Bytes that are not the file they should be. Such bytes are never used and never kept."""


@dataclass(frozen=True)
class DataFile:
    """One file of a data set, described by its uncompressed content; `aliases` are other names it goes by."""

    name: str
    md5: str
    size: int
    aliases: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Every file name, plain or compressed, that may hold these bytes."""
        plain = (self.name, *self.aliases)
        return plain + tuple(f"{name}.gz" for name in plain)


def digest(data: bytes | bytearray) -> str:
    """The md5 digest; it guards against wrong and damaged files, not against forgers."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def check(file: DataFile, data: bytes | bytearray, where: str) -> None:
    """Raise `DigestError` unless `data` is `file`, byte for byte; `where` says where it came from."""
    found = digest(data)
    if found == file.md5 and len(data) == file.size:
        return
    length = ""
    if len(data) > file.size:  # readers stop one byte past the expected end, so how long it is nobody knows
        length = f" (more than the expected {file.size:,} bytes)"
    elif len(data) < file.size:
        length = f" ({len(data):,} bytes, expected {file.size:,})"
    raise DigestError(f"{where}: md5 of {file.name} is {found}, expected {file.md5}{length}.")
