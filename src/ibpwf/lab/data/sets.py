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

from ibpwf.errors import DataError
from ibpwf.lab.data import cache
from ibpwf.lab.data.cache import cache_folder
from ibpwf.lab.data.catalog import DATA_SETS, DIGITS, Entry, entry
from ibpwf.lab.data.fetching import fetch
from ibpwf.lab.data.files import DigestError, Progress
from ibpwf.lab.data.formats import Bytes8, parse_cifar, parse_idx


@dataclass(frozen=True, eq=False)
class ArrayDataset:
    """A data set in memory. Images are `(N, channels, height, width)`, labels `(N,)`, all uint8.

    Everyone who loads a set gets the same tensors: treat them as read-only. `mean` and `std` are fixed
    constants per channel for images divided by `levels`, the largest value a pixel can have.
    """

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    levels: int = 255

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one image: channels, height, width."""
        return tuple(self.train_x.shape[1:])


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
    key = (name, cache_folder(data_dir))
    with _loading:
        if key not in _loaded:
            _loaded[key] = _digits(chosen) if chosen is DIGITS else _read(chosen, key[1], progress)
        return _loaded[key]


def data_set_names() -> list[str]:
    """The names `load` knows."""
    return list(DATA_SETS)


def forget() -> None:
    """Drop the data sets held in memory."""
    with _loading:
        _loaded.clear()


def _read(chosen: Entry, root: Path, progress: Progress | None) -> ArrayDataset:
    content = _cached(chosen, root)
    if content is None:
        fetch(chosen.name, data_dir=root, progress=progress)
        content = _cached(chosen, root)
    if content is None:
        raise DataError(
            f"{chosen.name} was fetched to {root} but is not there any more; is something else clearing that folder?"
        )
    decode = _cifar if chosen.shape[0] == 3 else _idx
    return _dataset(chosen, *decode(content))


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


def _idx(content: dict[str, bytearray]) -> tuple[Bytes8, Bytes8, Bytes8, Bytes8]:
    train_x, train_y, test_x, test_y = (parse_idx(data, name) for name, data in content.items())
    return train_x[:, None], train_y, test_x[:, None], test_y


def _cifar(content: dict[str, bytearray]) -> tuple[Bytes8, Bytes8, Bytes8, Bytes8]:
    *train, (test_x, test_y) = (parse_cifar(data, name) for name, data in content.items())
    train_x = np.concatenate([images for images, _ in train])
    train_y = np.concatenate([labels for _, labels in train])
    return train_x, train_y, test_x, test_y


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
    return _dataset(chosen, images[~test], labels[~test], images[test], labels[test])


def _dataset(chosen: Entry, train_x: Bytes8, train_y: Bytes8, test_x: Bytes8, test_y: Bytes8) -> ArrayDataset:
    return ArrayDataset(
        name=chosen.name,
        train_x=_tensor(train_x),
        train_y=_tensor(train_y),
        test_x=_tensor(test_x),
        test_y=_tensor(test_y),
        classes=chosen.classes,
        mean=chosen.mean,
        std=chosen.std,
        levels=chosen.levels,
    )


def _tensor(array: Bytes8) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))
