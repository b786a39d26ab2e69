"""Data sets as tensors: `load("mnist")` gives unsigned bytes, fetched and checked on the way.

A loaded set stays in memory for the life of the process, so runs over several seeds read it once.
"""

from __future__ import annotations

import os
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ibpwf.downloads import cache
from ibpwf.downloads.files import DigestError, Progress
from ibpwf.errors import DataError
from ibpwf.lab.data.catalog import Entry, entry
from ibpwf.lab.data.fetching import fetch
from ibpwf.lab.data.formats import Bytes8, parse_cifar, parse_idx


@dataclass(frozen=True, eq=False)
class ArrayDataset:
    """A data set in memory. Images are `(N, channels, height, width)`, labels `(N,)`, all uint8.

    Everyone who loads a set gets the same tensors: treat them as read-only. `entry` has what is known of it.
    """

    entry: Entry
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor

    @classmethod
    def of(cls, entry: Entry, *arrays: Bytes8) -> ArrayDataset:
        """The data set of training images and labels, test images and labels."""
        return cls(entry, *(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays))


_loaded: dict[tuple[str, Path], ArrayDataset] = {}
_loading = threading.Lock()


def load(
    name: str, *, data_dir: str | os.PathLike[str] | None = None, progress: Progress | None = None
) -> ArrayDataset:
    """The data set called `name`, fetched first if the cache has not got it.

    The digests of all files are checked on every read. A damaged file in the cache is fetched again,
    with a warning. `data_dir` overrides the cache folder (`$IBPWF_DATA`, else the platform's).
    """
    chosen = entry(name)
    root = cache.cache_folder(data_dir) if chosen.files else Path()
    with _loading:
        if (name, root) not in _loaded:
            _loaded[name, root] = _read(chosen, root, progress) if chosen.files else _digits(chosen)
        return _loaded[name, root]


def _read(chosen: Entry, root: Path, progress: Progress | None) -> ArrayDataset:
    content = _cached(chosen, root)
    if content is None:
        fetch(chosen.name, data_dir=root, progress=progress)
        content = _cached(chosen, root)
    if content is None:
        raise DataError(
            f"{chosen.name} was fetched to {root} but is not there any more; is something else clearing that folder?"
        )
    return ArrayDataset.of(chosen, *_decoded(content))


def _cached(chosen: Entry, root: Path) -> dict[str, bytearray] | None:
    content: dict[str, bytearray] = {}
    for file in chosen.files:
        try:
            data = cache.read(root / chosen.name, file)
        except DigestError as error:
            warnings.warn(f"{error} The cached file is damaged; fetching it again.", stacklevel=4)
            return None
        if data is None:
            return None
        content[file.name] = data
    return content


def _decoded(content: dict[str, bytearray]) -> tuple[Bytes8, Bytes8, Bytes8, Bytes8]:
    if "test_batch.bin" not in content:
        train_x, train_y, test_x, test_y = (parse_idx(data, name) for name, data in content.items())
        return train_x[:, None], train_y, test_x[:, None], test_y
    *train, test = (parse_cifar(data, name) for name, data in content.items())
    images, labels = zip(*train, strict=True)
    return np.concatenate(images), np.concatenate(labels), *test


def _digits(chosen: Entry) -> ArrayDataset:
    """scikit-learn's digits, cut in a fixed way: in each class every fifth image is a test image.

    No random numbers, so the cut is the same on every machine and version; neighbours in the file are
    by the same writer, so both parts know every writer.
    """
    # Imported here: scikit-learn takes a second to import, and only this set needs it.
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = np.asarray(bunch.images, dtype=np.uint8)[:, None]
    labels = np.asarray(bunch.target, dtype=np.uint8)
    test = np.zeros(len(labels), dtype=bool)
    for label in range(len(chosen.classes)):
        test[np.flatnonzero(labels == label)[2::5]] = True
    return ArrayDataset.of(chosen, images[~test], labels[~test], images[test], labels[test])
