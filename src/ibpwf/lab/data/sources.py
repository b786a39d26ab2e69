"""Where data files can come from: the user's own files, an installed package, a mirror.

A source yields `(file, raw bytes)` for what it has of the files wanted, and raises `Unavailable` with a
short reason when it cannot go on. `fetching.py` tries sources in turn and checks every byte they give.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Protocol

from ibpwf.lab.data.cache import disk_error
from ibpwf.lab.data.files import DataFile, Progress, digest
from ibpwf.lab.data.unpack import UNREADABLE, Recipe, is_archive, members, plain_members, read_plain

ANSWER_SECONDS = 10.0
"""How long a mirror may take to answer, and to send the next bytes, before the next one is tried."""

_CHUNK = 1 << 18
_DEPTH = 3
"""How many folders deep the user's files are looked for."""


class Unavailable(Exception):
    """A source has not got the files; the message is one short line saying why."""


class Source(Protocol):
    """One place the files of a data set may come from."""

    @property
    def label(self) -> str:
        """What the user is told this source is."""

    def files(
        self, wanted: Collection[DataFile], scratch: Path, progress: Progress
    ) -> Iterator[tuple[DataFile, bytes]]:
        """The wanted files this source has; `scratch` is a folder that vanishes afterwards."""


@dataclass(frozen=True)
class UserFiles:
    """Files the user points to: a folder, one of the files in it, or an archive of them."""

    path: Path
    archives: tuple[str, ...] = ()
    """Names of archives that are opened when they lie in the folder."""
    refused: tuple[str, ...] = ()
    """Names of the same data in Python's pickle format, which is never opened: it can run code."""

    @property
    def label(self) -> str:
        return str(self.path)

    def files(
        self, wanted: Collection[DataFile], scratch: Path, progress: Progress
    ) -> Iterator[tuple[DataFile, bytes]]:
        try:
            places = self.places(wanted)
        except UNREADABLE as error:
            raise Unavailable(reason(error)) from error
        for done, file in enumerate(wanted):
            progress(f"reading {file.name}", done, len(wanted))
            data = best(file, places)
            if data is not None:
                yield file, data

    def places(self, wanted: Collection[DataFile]) -> list[Path]:
        """The files worth opening: those with a wanted name, and archives."""
        names = {name for file in wanted for name in file.names}
        if self.path.is_dir():
            seen = list(_walk(self.path, _DEPTH))
        elif not self.path.exists():
            raise Unavailable("there is no such file or folder")
        elif is_archive(self.path):
            return [self.path]
        elif self.path.name in names:
            seen = list(_walk(self.path.parent, 0))
        else:
            seen = [self.path]
        places = [path for path in seen if path.name in names or path.name in self.archives]
        if not places:
            raise Unavailable(self._nothing(wanted, seen))
        return places

    def _nothing(self, wanted: Collection[DataFile], seen: Sequence[Path]) -> str:
        pickled = next((path.name for path in seen if path.name in self.refused), None)
        if pickled:
            return f"{pickled} is the pickled version, which could run code; take the binary version instead"
        expected = ", ".join([*(file.name for file in wanted), *self.archives])
        return f"nothing there is called {expected} (or the same with .gz)"


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    for here, folders, names in os.walk(folder):
        folders.sort()
        if len(Path(here).relative_to(folder).parts) >= depth:
            folders.clear()
        yield from (Path(here, name) for name in sorted(names))


def best(file: DataFile, places: Sequence[Path]) -> bytes | None:
    """The candidate with the right digest, else the first: MNIST and Fashion-MNIST share file names."""
    first: bytes | None = None
    trouble: Exception | None = None
    for path in places:
        try:
            for data in _contents(file, path):
                if digest(data) == file.md5:
                    return data
                first = data if first is None else first
        except UNREADABLE as error:
            trouble = trouble or Unavailable(f"{path.name}: {reason(error)}")
    if first is None and trouble is not None:
        raise trouble
    return first


def _contents(file: DataFile, path: Path) -> Iterator[bytes]:
    if path.name in file.names:
        with open(path, "rb") as stream:
            yield read_plain(stream, file.size)
    elif is_archive(path):
        for _, member in members(path, file.names):
            yield read_plain(member, file.size)


@dataclass(frozen=True)
class InstalledFiles:
    """A folder where an installed package of the operating system keeps the files."""

    folder: Path

    @property
    def label(self) -> str:
        return str(self.folder)

    def files(
        self, wanted: Collection[DataFile], scratch: Path, progress: Progress
    ) -> Iterator[tuple[DataFile, bytes]]:
        if not self.folder.is_dir():
            raise Unavailable("not installed")
        yield from UserFiles(self.folder).files(wanted, scratch, progress)


@dataclass(frozen=True)
class Mirror:
    """A web folder with the files one by one, gzipped."""

    url: str

    @property
    def label(self) -> str:
        return self.url

    def files(
        self, wanted: Collection[DataFile], scratch: Path, progress: Progress
    ) -> Iterator[tuple[DataFile, bytes]]:
        for file in wanted:
            name = f"{file.name}.gz"
            path = download(f"{self.url}/{name}", scratch / name, name, progress)
            try:
                with open(path, "rb") as stream:
                    data = read_plain(stream, file.size)
            except UNREADABLE as error:
                raise Unavailable(f"{name}: {reason(error)}") from error
            path.unlink()
            yield file, data


@dataclass(frozen=True)
class MirrorArchive:
    """A web address of one archive with all files."""

    url: str
    recipe: Recipe = plain_members

    @property
    def label(self) -> str:
        return self.url.rsplit("/", 1)[0]

    def files(
        self, wanted: Collection[DataFile], scratch: Path, progress: Progress
    ) -> Iterator[tuple[DataFile, bytes]]:
        name = self.url.rsplit("/", 1)[-1]
        path = download(self.url, scratch / name, name, progress)
        yield from unpacked(self.recipe, path, wanted, progress)


def unpacked(
    recipe: Recipe, archive: Path, wanted: Collection[DataFile], progress: Progress
) -> Iterator[tuple[DataFile, bytes]]:
    """What a recipe takes out of an archive; a damaged archive makes its source unavailable."""
    found = recipe(archive, wanted)
    done = 0
    while True:
        progress(f"unpacking {archive.name}", done, len(wanted))
        # Only the recipe's own errors count as a damaged archive, not those of the callback above.
        try:
            item = next(found, None)
        except UNREADABLE as error:
            raise Unavailable(f"{archive.name}: {reason(error)}") from error
        if item is None:
            return
        yield item
        done += 1


def download(url: str, target: Path, label: str, progress: Progress) -> Path:
    """Fetch `url` into `target`, giving up quickly on a server that does not answer."""
    done = 0
    with contextlib.closing(_answer(url, label)) as response, _writing(target) as out:
        length = response.headers.get("Content-Length")
        total = int(length) if length and length.isdigit() else None
        while True:
            progress(label, done, total)
            try:
                chunk = response.read(_CHUNK)
            except (OSError, HTTPException) as error:
                raise Unavailable(f"{label}: {reason(error)}") from error
            if not chunk:
                break
            out(chunk)
            done += len(chunk)
    if total is not None and done != total:
        raise Unavailable(f"{label}: the connection ended after {done:,} of {total:,} bytes")
    return target


@contextlib.contextmanager
def _writing(target: Path) -> Iterator[Callable[[bytes], None]]:
    """A function that appends to `target`; a full disk is told as such, not as a broken download."""
    action = f"write {target.name} to {target.parent.parent}"

    def append(chunk: bytes) -> None:
        view = memoryview(chunk)
        try:
            while view:
                view = view[os.write(handle, view) :]
        except OSError as error:
            raise disk_error(error, action) from error

    try:
        handle = os.open(target, os.O_CREAT | os.O_WRONLY | getattr(os, "O_BINARY", 0), 0o666)
    except OSError as error:
        raise disk_error(error, action) from error
    try:
        yield append
    finally:
        os.close(handle)


def _answer(url: str, label: str) -> HTTPResponse:
    """The opened response, or Unavailable after `ANSWER_SECONDS`.

    A socket's timeout counts for each address of a host, and a host may have eight; behind a firewall
    that swallows packets the wait would be minutes. So the whole attempt gets one deadline.
    """
    request = urllib.request.Request(url, headers={"User-Agent": "ibpwf"})
    box: queue.SimpleQueue[HTTPResponse | Exception] = queue.SimpleQueue()
    late = threading.Event()

    def attempt() -> None:
        try:
            response = urllib.request.urlopen(request, timeout=ANSWER_SECONDS)
        except Exception as error:  # handed to the caller's thread, which raises it
            box.put(error)
            return
        if late.is_set():
            response.close()
        box.put(response)

    threading.Thread(target=attempt, daemon=True).start()
    try:
        answer = box.get(timeout=ANSWER_SECONDS)
    except queue.Empty:
        late.set()
        raise Unavailable(f"{label}: no answer within {ANSWER_SECONDS:.0f} s") from None
    if isinstance(answer, Exception):
        raise Unavailable(f"{label}: {reason(answer)}") from answer
    return answer


def reason(error: BaseException) -> str:
    """An error as one short line."""
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answers {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        inner = error.reason
        return reason(inner) if isinstance(inner, BaseException) else str(inner)
    if isinstance(error, TimeoutError):
        return f"no answer within {ANSWER_SECONDS:.0f} s"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split())
    return text[:160] or type(error).__name__
