"""Files that clients send: under names of ours, told by their first bytes, never unpacked to a path of theirs."""

from __future__ import annotations

import asyncio
import math
import os
import struct
import zipfile
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np

from ibpwf.data import Layout
from ibpwf.data.image_file import MOST_BYTES, SUFFIXES
from ibpwf.data.image_folder import is_junk
from ibpwf.data.labels import clean_label
from ibpwf.data.npz_file import header_of
from ibpwf.data.opening import quoted
from ibpwf.errors import DataError, IBPWFError
from ibpwf.serving.faults import Refused, bad, too_large
from ibpwf.serving.inputs import check_pixels, pixels_like
from ibpwf.serving.limits import Limits

_MAGIC = {
    b"PAR1": ".parquet",
    b"\x89PNG": ".png",
    b"\xff\xd8\xff": ".jpg",
    b"GIF8": ".gif",
    b"RIFF": ".webp",
    b"II*\x00": ".tif",
    b"MM\x00*": ".tif",
    b"PK\x05\x06": ".zip",
}
_END = (1 << 16) + 22 + 20
"""Bytes in which an archive's end is: a comment, the end record, and what would lead to one of ZIP64."""

DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, RuntimeError, EOFError, OverflowError, OSError, ValueError)
"""What a damaged archive makes zipfile say: places before its beginning are an OSError, odd names a ValueError."""


async def receive(
    stream: AsyncIterator[bytes], most: int, seconds: float, stall: float | None = None
) -> AsyncIterator[bytes]:
    """A body of at most `most` bytes that comes within `seconds`, without a pause of `stall` seconds."""
    size, loop = 0, asyncio.get_running_loop()
    parts, end = aiter(stream), loop.time() + seconds
    while True:
        by = end if stall is None else min(end, loop.time() + stall)
        try:
            async with asyncio.timeout_at(by):  # of each part: what the caller does with it is not the client's time
                part = await anext(parts, None)
        except TimeoutError:
            slow = f"did not come within {seconds:g} s" if by == end else f"stopped for {stall:g} s"
            raise Refused(408, f"the body {slow}; send it faster, or less of it.") from None
        if part is None:
            return
        size += len(part)
        if size > most:
            raise too_large(f"the body has more than {most:,} bytes, which is the limit; send less at once.")
        if part:
            yield part


async def receive_bytes(stream: AsyncIterator[bytes], most: int, seconds: float) -> bytes:
    """A small body in memory. Those of inference requests, which may be large, are received by `Bodies`."""
    return b"".join([part async for part in receive(stream, most, seconds)])


async def receive_file(
    stream: AsyncIterator[bytes], path: Path, limits: Limits, count: Callable[[int], None] | None = None
) -> int:
    """A body into a file, which is on the disk afterwards; its size. `count` is called with the size of each part
    before it is written, and may reject it."""
    size = 0
    with open(path, "wb") as file:
        async for part in receive(stream, limits.upload, limits.upload_seconds, limits.seconds):
            if count is not None:
                count(len(part))
            await asyncio.to_thread(file.write, part)
            size += len(part)
        await asyncio.to_thread(_sync, file)
    if not size:
        raise bad("the body is empty; send a table, arrays or a zip archive of images.")
    return size


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def suffix_of(path: Path, limits: Limits) -> str:
    """What a file is, by what is in it: an ending that readers know."""
    with path.open("rb") as file:
        start = file.read(4096)
    if start.startswith(b"PK\x03\x04"):
        check_archive(path, limits)
        return ".npz" if _first_name(start).endswith(b".npy") else ".zip"
    return ending_of(start)


def ending_of(start: bytes) -> str:
    """What a file is by how it begins, unless it is an archive."""
    found = next((ending for magic, ending in _MAGIC.items() if start.startswith(magic)), None)
    if found is not None:
        return found
    first = start.split(b"\n", 1)[0]
    return ".tsv" if b"\t" in first and b"," not in first and b";" not in first else ".csv"


def _first_name(start: bytes) -> bytes:
    """The name of an archive's first entry: a large archive's directory takes long to read."""
    length = int.from_bytes(start[26:28], "little")
    return start[30 : 30 + length]


def check_archive(path: Path, limits: Limits) -> None:
    """Refuse an archive with too many entries before its directory is parsed. The number that it gives itself is not
    believed: its reader goes by the directory's size."""
    size, most = path.stat().st_size, min(limits.files, 0xFFFE)
    with path.open("rb") as file:
        file.seek(max(0, size - _END))
        end = file.read()
        at = end.rfind(b"PK\x05\x06")
        if at < 0 or at + 20 > len(end):
            raise bad("the archive has no end; it was cut short. Send a whole zip file.")
        count, directory = struct.unpack_from("<HI", end, at + 10)
        few = count <= most and directory <= 512 * (most + 1)
        if few and end[max(0, at - 20) : at].startswith(b"PK\x06\x07"):  # of more files, or bytes, than can be sent
            raise bad("the archive has a directory in the form ZIP64; pack it without.")
        if few:
            file.seek(max(0, size - len(end) + at - directory))
            few = file.read(directory).count(b"PK\x01\x02") <= most
    if not few:
        raise too_large(f"the archive has too many files; at most {most:,} are taken at once.")


def unpacked_size(path: Path, limits: Limits) -> int:
    """The bytes to which an .npz file unpacks, by its directory and the headers of its arrays, which its reader holds
    it to. One with too many is rejected; of a damaged one the reader says so."""
    size = 0
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                size += entry.file_size
                with archive.open(entry) as stream:
                    shape, _, _ = header_of(stream, entry.filename, "the file")
                if math.prod(shape) > limits.numbers:
                    raise too_large(
                        f"array {quoted(entry.filename)} of the file has {math.prod(shape):,} numbers; at most "
                        f"{limits.numbers:,} are taken."
                    )
    except Refused:
        raise
    except (IBPWFError, *DAMAGED):
        return size
    if size > limits.body:
        raise too_large(f"the file unpacks to more than {limits.body:,} bytes, which is the limit; send less.")
    return size


def images_to_arrays(path: Path, into: Path, layout: Layout, limits: Limits) -> None:
    """A zip archive of images, a folder per class, as an .npz file: no name in the archive becomes a path."""
    check_archive(path, limits)
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [one for one in archive.infolist() if not one.is_dir() and not _is_junk(one.filename)]
            _check_sizes(entries, limits)
            images, labels = _read_images(archive, entries, layout, limits)
    except IBPWFError:
        raise
    except DAMAGED as error:
        raise DataError(f"the archive is damaged ({quoted(str(error))}); send a whole zip file.") from None
    with into.open("wb") as file:
        np.savez(file, x=images, y=np.array(labels))


def _is_junk(name: str) -> bool:
    return any(is_junk(part) for part in PurePosixPath(name).parts)


def _check_sizes(entries: list[zipfile.ZipInfo], limits: Limits) -> None:
    if not entries:
        raise DataError("the archive holds no files; send a folder of images per class.")
    for entry in entries:
        if entry.file_size > MOST_BYTES:
            raise too_large(f"{quoted(entry.filename)} unpacks to {entry.file_size:,} bytes; make it smaller.")
    whole = sum(entry.file_size for entry in entries)
    if whole > limits.unpacked:
        raise too_large(f"the archive unpacks to {whole:,} bytes; at most {limits.unpacked:,} are taken.")


def _read_images(
    archive: zipfile.ZipFile, entries: list[zipfile.ZipInfo], layout: Layout, limits: Limits
) -> tuple[Any, list[str]]:
    if len(entries) * int(np.prod(layout.shape)) > limits.unpacked:
        raise too_large(f"{len(entries):,} images take more than {limits.unpacked:,} bytes; send fewer at once.")
    x = np.empty((len(entries), *layout.shape), dtype=np.uint8)
    labels = []
    for row, entry in enumerate(sorted(entries, key=lambda one: one.filename)):
        parts = PurePosixPath(entry.filename).parts
        name = quoted(entry.filename)
        if len(parts) < 2 or not entry.filename.lower().endswith(SUFFIXES):
            raise DataError(f"{name} is no image in a folder of its class; pack them as cat/1.png.")
        with archive.open(entry) as file:
            data = file.read(entry.file_size + 1)
        check_pixels(data, name, limits)
        x[row] = pixels_like(data, name, layout)
        label = clean_label(parts[-2])
        if not label or not label.isprintable():
            raise DataError(f"{name}: the folder's name is no class name; rename it.")
        labels.append(label)
    return x, labels
