"""What a fetched file must be: its name, its length and the digest of its raw bytes.

Every byte that reaches a tensor has passed `check`, wherever it came from, the cache included.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from ibpwf.errors import DataError

Progress = Callable[[str, int, "int | None"], None]
"""`progress(label, done, total)`: bytes or steps done, `total` is None where nobody knows it."""


def install(extra: str) -> str:
    """The words that name the remedy for a missing package."""
    return f"run pip install 'ibpwf[{extra}]'"


_MD5_LENGTH = 32


class DigestError(DataError):
    """Bytes that are not the file they should be. Such bytes are never used and never kept."""


@dataclass(frozen=True)
class DataFile:
    """One file, described by its uncompressed content: `digest` is the md5 or the sha256 of it, told apart by their
    lengths; `aliases` are other names it goes by."""

    name: str
    digest: str
    size: int
    aliases: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Every file name, plain or compressed, that may hold these bytes."""
        plain = (self.name, *self.aliases)
        return plain + tuple(f"{name}.gz" for name in plain)

    @property
    def algorithm(self) -> str:
        """md5 guards against wrong and damaged files, sha256 against forgers too."""
        return "md5" if len(self.digest) == _MD5_LENGTH else "sha256"

    def digest_of(self, data: bytes | bytearray) -> str:
        """The digest these bytes have, to be compared with the one they should have."""
        return hashlib.new(self.algorithm, data, usedforsecurity=False).hexdigest()


def check(file: DataFile, data: bytes | bytearray, where: str) -> None:
    """Raise `DigestError` unless `data` is `file`, byte for byte; `where` says where it came from."""
    found = file.digest_of(data)
    if found == file.digest and len(data) == file.size:
        return
    length = ""
    if len(data) > file.size:  # readers stop one byte past the expected end, so how long it is nobody knows
        length = f" (more than the expected {file.size:,} bytes)"
    elif len(data) < file.size:
        length = f" ({len(data):,} bytes, expected {file.size:,})"
    raise DigestError(f"{where}: {file.algorithm} of {file.name} is {found}, expected {file.digest}{length}.")
