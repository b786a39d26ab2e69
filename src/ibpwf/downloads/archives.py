"""Takes files out of files and archives: only the named members, into memory, nothing is ever run.

A recipe yields `(file, raw bytes)`. What comes out is not trusted: whoever calls checks digests.
"""

from __future__ import annotations

import gzip
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from ibpwf.downloads.files import DataFile

FoundFiles = Iterator[tuple[DataFile, bytes]]
Recipe = Callable[[Path, Collection[DataFile]], FoundFiles]

UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    OverflowError,
    RuntimeError,
    zlib.error,
    tarfile.TarError,
    zipfile.BadZipFile,
)
"""What Python raises for archives and compressed files that are cut short or damaged."""

_LARGEST_MEMBER = 1 << 28
"""No file of ours is larger; an archive that says otherwise is not the one we know."""


def read_plain(stream: IO[bytes], size: int) -> bytes:
    """The content of a plain or gzip file, at most one byte past `size`: enough to see it is too long."""
    start = stream.read(2)
    stream.seek(0)
    if start == b"\x1f\x8b":
        with gzip.open(stream) as unzipped:
            return unzipped.read(size + 1)
    return stream.read(size + 1)


def is_archive(path: Path) -> bool:
    """Whether the file is a tar (compressed or not) or a zip."""
    return zipfile.is_zipfile(path) or tarfile.is_tarfile(path)


def members(path: Path, names: Collection[str]) -> Iterator[tuple[str, IO[bytes]]]:
    """The members of a tar or zip whose last path component is in `names`, as `(component, stream)`."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as bundle:
            for entry in bundle.infolist():
                name = PurePosixPath(entry.filename).name
                if name in names and not entry.is_dir() and entry.file_size <= _LARGEST_MEMBER:
                    with bundle.open(entry) as stream:
                        yield name, stream
        return
    # Streaming mode would be quicker on truncated files, but members must be seekable for gzip.
    with tarfile.open(path) as tape:
        for member in tape:
            name = PurePosixPath(member.name).name
            if name in names and member.isreg() and member.size <= _LARGEST_MEMBER:
                stream_or_none = tape.extractfile(member)
                if stream_or_none is not None:
                    yield name, stream_or_none


def plain_files(path: Path, wanted: Collection[DataFile]) -> FoundFiles:
    """Recipe: one of the files itself, plain or gzipped, or an archive of them."""
    by_name = {name: file for file in wanted for name in file.names}
    if path.name in by_name:
        with open(path, "rb") as stream:
            yield by_name[path.name], read_plain(stream, by_name[path.name].size)
        return
    for name, member in members(path, by_name):
        yield by_name[name], read_plain(member, by_name[name].size)
