"""Where files can come from: folders and archives on this machine, mirrors on the web.

A source yields `(file, raw bytes)` for what it has of the files wanted, and raises `Unavailable` with a
short reason when it cannot go on. `fetch.py` tries sources in turn and checks every byte they give.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from http.client import IncompleteRead
from pathlib import Path
from typing import Protocol

from ibpwf.downloads.archives import UNREADABLE, FoundFiles, Recipe, is_archive, plain_files
from ibpwf.downloads.files import DataFile, Progress, install

CONNECT_SECONDS = 3.0
"""How long one address of a mirror may take to be reached. A host may have eight, tried one after the other."""
ANSWER_SECONDS = 10.0
"""How long a mirror may take to answer, and to send the next bytes, before the next one is tried."""

_CHUNK = 1 << 18
_DEPTH = 3
"""How many folders deep the user's files are looked for."""


class Unavailable(Exception):
    """A source has not got the files; the message is one short line saying why."""


class Source(Protocol):
    """One place where files may come from."""

    @property
    def label(self) -> str:
        """What the user is told this source is."""

    def files(self, wanted: Collection[DataFile], scratch: Path, progress: Progress) -> FoundFiles:
        """The wanted files this source has; `scratch` is a folder that vanishes afterwards."""


def pick(recipe: Recipe, places: Iterable[Path], wanted: Collection[DataFile], progress: Progress) -> FoundFiles:
    """What a recipe takes out of `places`; of candidates for a file the one with the right digest.

    MNIST and Fashion-MNIST share file names, so a folder may hold several. Where none is right, a wrong
    one is given, for the caller to refuse by name. A damaged place does not hide what the others have.
    """
    found: set[DataFile] = set()
    wrong: dict[DataFile, bytes] = {}
    trouble = []
    for path in places:
        contents = recipe(path, wanted)
        while True:
            progress(f"reading {path.name}", len(found), len(wanted))
            # Only the recipe's own errors count as damage, not those of the callback above.
            try:
                item = next(contents, None)
            except UNREADABLE as error:
                trouble.append(f"{path.name}: {reason(error)}")
                break
            if item is None:
                break
            file, data = item
            if file.digest_of(data) != file.digest:
                wrong.setdefault(file, data)
            elif file not in found:
                found.add(file)
                yield file, data
    yield from ((file, data) for file, data in wrong.items() if file not in found)
    if trouble and len(found) < len(wanted):
        raise Unavailable("; ".join(trouble))


@dataclass(frozen=True)
class LocalFiles:
    """Files on this machine: a folder, one of the files in it, or an archive of them."""

    path: Path
    archives: tuple[str, ...] = ()
    """Names of archives that are opened when they lie in the folder."""
    refused: tuple[str, ...] = ()
    """Names of the same data in Python's pickle format, which is never opened: it can run code."""

    @property
    def label(self) -> str:
        return str(self.path)

    def files(self, wanted: Collection[DataFile], scratch: Path, progress: Progress) -> FoundFiles:
        try:
            places = self._places(wanted)
        except OSError as error:
            raise Unavailable(reason(error)) from error
        yield from pick(plain_files, places, wanted, progress)

    def _places(self, wanted: Collection[DataFile]) -> list[Path]:
        """The files worth opening: those with a wanted name, and archives."""
        names = {name for file in wanted for name in file.names}
        if self.path.is_dir():
            seen = [path for depth in range(_DEPTH + 1) for path in sorted(self.path.glob("*/" * depth + "*"))]
        elif not self.path.exists():
            raise Unavailable("there is no such file or folder")
        elif is_archive(self.path):
            return [self.path]
        elif self.path.name in names:
            seen = sorted(self.path.parent.iterdir())
        else:
            seen = [self.path]
        places = [path for path in seen if path.name in {*names, *self.archives} and path.is_file()]
        if places:
            return places
        for path in seen:
            if path.name in self.refused:
                raise Unavailable(
                    f"{path.name} is the pickled version, which could run code; take the binary version"
                )
        expected = ", ".join([*(file.name for file in wanted), *self.archives])
        raise Unavailable(f"nothing there is called {expected} (or the same with .gz)")


@dataclass(frozen=True)
class Mirror:
    """A web folder with the files one by one, gzipped, or all in one archive."""

    url: str
    archive: str = ""

    @property
    def label(self) -> str:
        return self.url

    def files(self, wanted: Collection[DataFile], scratch: Path, progress: Progress) -> FoundFiles:
        downloads = {self.archive: wanted} if self.archive else {f"{file.name}.gz": [file] for file in wanted}
        for name, files in downloads.items():
            path = scratch / name
            download(f"{self.url}/{name}", path, progress)
            yield from pick(plain_files, [path], files, progress)
            path.unlink()


def download(url: str, target: Path, progress: Progress) -> None:
    """Fetch `url` into `target`, giving up quickly on a server that does not answer."""
    try:
        from pooch import HTTPDownloader
        from requests import RequestException
    except ImportError:
        raise Unavailable(f"downloading needs pooch; {install('lab')}") from None
    fetch = HTTPDownloader(
        progressbar=_Bar(target.name, progress),
        chunk_size=_CHUNK,
        timeout=(CONNECT_SECONDS, ANSWER_SECONDS),
        headers={"User-Agent": "ibpwf"},
    )
    try:
        fetch(url, str(target), None)
    except RequestException as error:
        raise Unavailable(f"{target.name}: {reason(error)}") from error


class _Bar:
    """Our progress callback as the bar that pooch drives."""

    def __init__(self, label: str, progress: Progress) -> None:
        self._label, self._progress = label, progress
        self.total = 0
        self.reset()

    def reset(self) -> None:
        self._done = 0
        self.update(0)

    def update(self, count: int) -> None:
        self._done += count
        # pooch counts whole chunks, also for the last one.
        self._progress(self._label, min(self._done, self.total or self._done), self.total or None)

    def close(self) -> None:
        """There is nothing to put away."""


def reason(error: BaseException) -> str:
    """An error as one short line."""
    if hasattr(error, "response"):  # of requests, which wraps what really happened several times
        if error.response is not None:
            return f"the server answers {error.response.status_code} {error.response.reason}"
        while inner := error.__cause__ or error.__context__:
            error = inner
    if isinstance(error, IncompleteRead) and isinstance(error.partial, int):
        total = error.partial + (error.expected or 0)
        return f"the connection ended after {error.partial:,} of {total:,} bytes"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split())
    return text[:160] or type(error).__name__
