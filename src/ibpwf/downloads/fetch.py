"""Fetches files into the cache from the first source that has them, and checks what is there.

The order: files the user points to (then nothing else is asked), the cache, what is installed on this
machine, mirrors, package registries. A cached file whose digest is wrong counts as missing: it is
replaced by a good one, or named in the error if no source has one.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ibpwf.downloads import cache
from ibpwf.downloads.files import DataFile, DigestError, Progress, check
from ibpwf.downloads.sources import LocalFiles, Source, Unavailable
from ibpwf.errors import DataError

_SCRATCH = ".fetch-"
"""How the names of folders begin that a fetch works in, on the cache's own disk."""


class Fetchable(Protocol):
    """What is fetched: some files that belong together, and where they can be had."""

    @property
    def name(self) -> str: ...

    @property
    def place(self) -> str:
        """Of its folder in the cache."""

    @property
    def title(self) -> str: ...

    @property
    def files(self) -> tuple[DataFile, ...]: ...

    @property
    def sources(self) -> tuple[Source, ...]: ...

    @property
    def archives(self) -> tuple[str, ...]:
        """Names of archives that are opened where they lie in a user's folder."""

    @property
    def refused(self) -> tuple[str, ...]:
        """Names of the same in Python's pickle format, which is never opened."""

    @property
    def command(self) -> str:
        """What to type to take these files from a path of one's own."""


def all_there(files: tuple[DataFile, ...], folder: Path) -> bool:
    """Whether all files are there with the right length; digests are checked when they are read."""
    paths = [(folder / file.name, file.size) for file in files]
    return all(path.is_file() and path.stat().st_size == size for path, size in paths)


def fetch_into(
    cached: Path,
    chosen: Fetchable,
    *,
    source: str | os.PathLike[str] | None = None,
    again: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Make sure all files of `chosen` are in the cache and right; returns their folder.

    `source` is a folder, file or archive of the user's to take the files from, instead of the known
    sources. `again` fetches also what the cache already has. Processes that fetch the same at the
    same time take turns: the second one waits and then finds the files in place.
    """
    folder = cached / chosen.place
    report = progress or _silent
    sources = chosen.sources
    if source is not None:
        sources, again = (_users(chosen, source),), True
    if not again and not _missing(chosen, folder, []):
        return folder

    label = f"waiting for another process that is fetching {chosen.name}"
    failures: list[str] = []
    with cache.disk_errors(f"write to {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        with cache.locked(folder, lambda: report(label, 0, None)) as alone:
            if alone:  # then what is there was left by a process that was killed
                for left in folder.glob(f"{_SCRATCH}*"):
                    shutil.rmtree(left, ignore_errors=True)
            missing = list(chosen.files) if again else _missing(chosen, folder, failures)
            cache.check_space(folder, sum(file.size for file in missing))
            for place in sources:
                if missing:
                    _take(place, folder, missing, failures, report)
    if missing:
        raise _nowhere(chosen, failures, own=source is not None)
    return folder


def _silent(label: str, done: int, total: int | None) -> None:
    """The progress callback of someone who does not want to hear."""


def _users(chosen: Fetchable, path: str | os.PathLike[str]) -> LocalFiles:
    return LocalFiles(Path(path).expanduser(), chosen.archives, chosen.refused)


def _missing(chosen: Fetchable, folder: Path, failures: list[str]) -> list[DataFile]:
    """The files the cache has not got in good order."""
    missing, absent = [], []
    for file in chosen.files:
        try:
            if cache.read(folder, file) is not None:
                continue
            absent.append(file.name)
        except DigestError as error:
            failures.append(str(error))
        missing.append(file)
    if absent:
        failures.append(f"{folder}: has no {', '.join(absent)}.")
    return missing


def _take(place: Source, folder: Path, missing: list[DataFile], failures: list[str], report: Progress) -> None:
    """Write to the cache what this source has of `missing`, and strike it off.

    A file appears under its name only when all of it is written and its digest is right, so whatever
    interrupts a fetch (Ctrl-C, a full disk, a second process) cannot leave a half-written file behind.
    """
    trouble: list[str] = []
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=folder, ignore_cleanup_errors=True) as made:
        scratch = Path(made)
        try:
            for file, data in place.files(tuple(missing), scratch, report):
                try:
                    check(file, data, place.label)
                except DigestError as error:
                    trouble.append(str(error))
                    continue
                with open(scratch / "whole", "wb") as stream:
                    stream.write(data)
                    stream.flush()
                    os.fsync(stream.fileno())
                os.replace(scratch / "whole", folder / file.name)
                missing.remove(file)
        except Unavailable as error:
            trouble.append(f"{place.label}: {error}.")
    if missing:
        failures += trouble or [f"{place.label}: has no {', '.join(file.name for file in missing)}."]


def _nowhere(chosen: Fetchable, failures: list[str], *, own: bool) -> DataError:
    lines = [f"{chosen.title} ({chosen.name}) could not be had:", *(f"  - {line}" for line in failures)]
    names = ", ".join(file.name for file in chosen.files)
    archive = "".join(f", or {name}" for name in chosen.archives[:1])
    if own:
        lines.append(f"Give a folder or archive with {names} (plain or .gz){archive}.")
    else:
        lines.append(
            f"Get {names} (plain or .gz){archive} yourself and run `{chosen.command}`, "
            f"or set IBPWF_DATA to a folder that has the plain files in {chosen.place}/."
        )
    return DataError("\n".join(lines))


@dataclass(frozen=True)
class FileCheck:
    """What `verify_files` found out about one file; `found` is None where there is no such file."""

    name: str
    expected: str
    found: str | None
    note: str = ""

    @property
    def ok(self) -> bool:
        return self.found == self.expected


def verify_files(chosen: Fetchable, folder: Path, source: str | os.PathLike[str] | None = None) -> list[FileCheck]:
    """Check the digest of every file in `folder`, or in the user's `source`."""
    found, note = {}, "not there"
    if source is None:
        with cache.disk_errors(f"read {folder}"):
            here = {file: folder / file.name for file in chosen.files}
            found = {file.name: file.digest_of(path.read_bytes()) for file, path in here.items() if path.is_file()}
    else:
        place = _users(chosen, source)
        try:
            for file, data in place.files(chosen.files, Path(), _silent):
                found[file.name] = file.digest_of(data)
        except Unavailable as error:
            note = str(error)
            if not found:
                raise DataError(f"{place.label}: {error}.") from error
    return [FileCheck(file.name, file.digest, found.get(file.name), note) for file in chosen.files]
