"""Data sets in the cache: fetched from the first source that has them, and checked."""

from __future__ import annotations

import os
from pathlib import Path

from ibpwf.downloads.cache import cache_folder
from ibpwf.downloads.fetch import FileCheck, all_there, fetch_into, verify_files
from ibpwf.downloads.files import Progress
from ibpwf.errors import DataError
from ibpwf.lab.data.catalog import entry


def folder_of(name: str, data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder in the cache where the files of data set `name` are, or will be."""
    return cache_folder(data_dir) / entry(name).place


def is_cached(name: str, data_dir: str | os.PathLike[str] | None = None) -> bool:
    """Whether all files are there with the right length; digests are checked when they are read."""
    try:
        return all_there(entry(name).files, folder_of(name, data_dir))
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
    """Make sure data set `name` is in the cache and right; returns its folder.

    `source` is a folder, file or archive of the user's to take the files from, instead of the known
    sources. `again` fetches also what the cache already has. Processes that fetch the same set at the
    same time take turns: the second one waits and then finds the files in place.
    """
    chosen = entry(name)
    if not chosen.files:
        return folder_of(name, data_dir)
    return fetch_into(cache_folder(data_dir), chosen, source=source, again=again, progress=progress)


def verify(
    name: str,
    *,
    source: str | os.PathLike[str] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
) -> list[FileCheck]:
    """Check the digest of every file of a data set in the cache, or in the user's `source`."""
    folder = Path() if source is not None else folder_of(name, data_dir)
    return verify_files(entry(name), folder, source)
