"""IDX files as MNIST ships them: one of images, one of labels beside it, gzipped or not."""

from __future__ import annotations

import gzip
import math
import os
import re
import struct
import zlib
from pathlib import Path
from typing import IO, cast

import numpy as np

from ibpwf.data.arrays import Array, array_examples
from ibpwf.data.examples import Examples
from ibpwf.data.opening import check_room, listed, open_plain, short_reason, shown, spelled
from ibpwf.data.options import ReadOptions
from ibpwf.errors import DataError, InputError

_NAME = re.compile(r".*(?:idx\d*|ubyte)(?:\.gz)?", re.IGNORECASE)
_LAST_IMAGES = re.compile(r"images(?!.*images)", re.IGNORECASE)


def is_idx(name: str) -> bool:
    """Whether a file is called as IDX files are: …-images-idx3-ubyte, ….idx, ….idx3-ubyte, each maybe with .gz."""
    return bool(_NAME.fullmatch(name))


def read_idx(images: Path, options: ReadOptions) -> Examples:
    """The examples in a file of images and the file of labels beside it."""
    if not _LAST_IMAGES.search(images.name):
        hint = "the images" if "labels" in images.name.lower() else "a file called …-images…"
        raise InputError(f"{shown(images)} is not a file of images by its name; give the path of {hint}.")
    names = _label_names(images)
    beside = (images.with_name(name + ending) for name in names for ending in ("", ".gz"))
    partner = next((path for path in beside if path.is_file()), None)
    if partner is None and options.needs_labels:
        raise DataError(f"{shown(images)} has no file of labels beside it; put {names[0]} into the same folder.")
    x = _read(images)
    if x.ndim < 2:
        raise DataError(f"{shown(images)} holds a list of {len(x):,} values, not images; is it a file of labels?")
    y = None
    if partner is not None and options.wants_labels:
        y = _read(partner)
        if y.ndim != 1 or len(y) != len(x):
            raise DataError(
                f"{shown(images)} has {len(x):,} images but {shown(partner)} has {spelled(y.shape)} labels; give "
                "files that belong together."
            )
    return array_examples(images, x, y, options)


def only_images(folder: Path, names: list[str]) -> Path:
    """The one file of images in a folder of IDX files."""
    images = sorted(name for name in names if is_idx(name) and _LAST_IMAGES.search(name))
    if len(images) != 1:
        raise InputError(
            f"{shown(folder)} holds {len(images)} IDX files of images ({listed(images)}); give one of them."
        )
    return folder / images[0]


def _label_names(images: Path) -> tuple[str, str]:
    """What the file of labels may be called: MNIST's say how many dimensions they have."""
    plain = re.sub(r"\.gz$", "", images.name, flags=re.IGNORECASE)
    labels = _LAST_IMAGES.sub("labels", plain)
    return re.sub(r"idx\d", "idx1", labels, flags=re.IGNORECASE), labels


def _read(path: Path) -> Array:
    with open_plain(path) as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        try:
            if packed:
                return _array(cast(IO[bytes], gzip.open(file)), shown(path))
            return _array(file, shown(path), os.fstat(file.fileno()).st_size)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(
                f"{shown(path)} is cut short or damaged ({short_reason(error)}); fetch it again."
            ) from error


def _array(stream: IO[bytes], file: str, size: int | None = None) -> Array:
    """The bytes that the header announces: two zero bytes, the type (8), the rank, each extent as a big-endian
    uint32. A header that announces too much, or more than the `size` of the file, is refused before anything is
    read."""
    header = stream.read(4)
    if len(header) < 4 or header[:3] != b"\x00\x00\x08":
        start = header.hex(" ") or "nothing"
        raise DataError(f"{file} is no IDX file of bytes: it starts with {start}, expected 00 00 08; check the file.")
    rank = header[3]
    extents = stream.read(4 * rank)
    if not rank or len(extents) < 4 * rank:
        raise DataError(f"{file} ends inside its header; it is cut short. Fetch it again.")
    shape = struct.unpack(f">{rank}I", extents)
    check_room(Path(file), shape)
    count = math.prod(shape)
    there = None if size is None else max(size - 4 - 4 * rank, 0)
    values = stream.read(count + 1) if there is None or there >= count else b""
    if len(values) != count:
        found = len(values) if there is None else there
        holds = f"{found:,}" if found < count else "more"
        raise DataError(
            f"{file} announces {spelled(shape)} values but holds {holds}; it is cut short or no IDX file."
        )
    return np.frombuffer(values, np.uint8).reshape(shape)
