"""IDX files as MNIST ships them: one of images, one of labels beside it, gzipped or not."""

from __future__ import annotations

import gzip
import math
import re
import struct
from pathlib import Path
from typing import Protocol

from ibpwf.errors import DataError, InputError
from ibpwf.files.arrays import array_examples
from ibpwf.files.examples import Examples
from ibpwf.files.opening import check_room, listed, open_plain, shown
from ibpwf.files.request import Request
from ibpwf.lab.data.formats import Bytes8, parse_idx
from ibpwf.lab.data.unpack import UNREADABLE, read_plain

_NAME = re.compile(r".*(?:idx\d*|ubyte)(?:\.gz)?", re.IGNORECASE)
_LAST_IMAGES = re.compile(r"images(?!.*images)", re.IGNORECASE)


def is_idx(name: str) -> bool:
    """Whether a file is called as IDX files are: …-images-idx3-ubyte, ….idx, ….idx3-ubyte, each maybe with .gz."""
    return bool(_NAME.fullmatch(name))


def read_idx(request: Request) -> Examples:
    """The examples in a file of images and the file of labels beside it."""
    images = request.path
    if not _LAST_IMAGES.search(images.name):
        hint = "the images" if "labels" in images.name.lower() else "a file called …-images…"
        raise InputError(f"{request.file} is not a file of images by its name; give the path of {hint}.")
    partner = _labels_beside(images)
    if partner is None and request.needs_labels:
        name = _label_names(images)[0]
        raise DataError(f"{request.file} has no file of labels beside it; put {name} into the same folder.")
    x = _read(images)
    if x.ndim < 2:
        raise DataError(f"{request.file} holds a list of {len(x):,} values, not images; is it a file of labels?")
    y = None
    if partner is not None and request.wants_labels:
        y = _read(partner)
        if y.ndim != 1 or len(y) != len(x):
            raise DataError(
                f"{request.file} has {len(x):,} images but {shown(partner)} has {'×'.join(map(str, y.shape))} "
                "labels; give files that belong together."
            )
    return array_examples(x, y, request)


def only_images(folder: Path, names: list[str]) -> Path:
    """The one file of images in a folder of IDX files."""
    images = sorted(name for name in names if is_idx(name) and _LAST_IMAGES.search(name))
    if len(images) != 1:
        raise InputError(
            f"{shown(folder)} holds {len(images)} IDX files of images ({listed(images)}); give one of them."
        )
    return folder / images[0]


def _labels_beside(images: Path) -> Path | None:
    for name in _label_names(images):
        for candidate in (images.with_name(name), images.with_name(name + ".gz")):
            if candidate.is_file():
                return candidate
    return None


def _label_names(images: Path) -> tuple[str, str]:
    """What the file of labels may be called: MNIST's say how many dimensions they have."""
    plain = re.sub(r"\.gz$", "", images.name, flags=re.IGNORECASE)
    labels = _LAST_IMAGES.sub("labels", plain)
    return re.sub(r"idx\d", "idx1", labels, flags=re.IGNORECASE), labels


def _read(path: Path) -> Bytes8:
    with open_plain(path) as file:
        try:
            start = file.read(2)
            file.seek(0)
            if start == b"\x1f\x8b":
                with gzip.open(file) as unzipped:
                    size = _announced(unzipped, path)
                file.seek(0)
            else:
                size = _announced(file, path)
                file.seek(0)
            return parse_idx(read_plain(file, size), shown(path))
        except UNREADABLE as error:
            reason = " ".join(str(error).split())[:120]
            raise DataError(f"{shown(path)} is cut short or damaged ({reason}); fetch it again.") from error


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


def _announced(stream: _Stream, path: Path) -> int:
    """The length of the whole file by its header, refused before anything is read if it is too large."""
    header = stream.read(4)
    if len(header) < 4 or header[:3] != b"\x00\x00\x08":
        start = header.hex(" ") or "nothing"
        raise DataError(
            f"{shown(path)} is no IDX file of bytes: it starts with {start}, expected 00 00 08; check the file."
        )
    rank = header[3]
    extents = stream.read(4 * rank)
    if len(extents) < 4 * rank:
        raise DataError(f"{shown(path)} ends inside its header; it is cut short. Fetch it again.")
    shape = struct.unpack(f">{rank}I", extents)
    check_room(path, shape)
    return 4 + 4 * rank + int(math.prod(shape))
