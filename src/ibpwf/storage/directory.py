"""A folder held open by its handle: whatever is named in it is read, written and removed there and nowhere else.

Links inside are never followed, and pipes, devices and folders that stand where a file should are refused. The path
to the folder itself is the user's, and may be a link. Where the system has no handles of folders (Windows), names are
looked at before they are used.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from ibpwf.errors import StoreError
from ibpwf.storage.files import StrPath, plain_errors, sync_handle

_HANDLES = os.open in os.supports_dir_fd and os.listdir in os.supports_fd and hasattr(os, "O_NOFOLLOW")
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)

FILE, FOLDER, LINK = "a file", "a folder", "a symbolic link"
_KINDS = ((stat.S_ISREG, FILE), (stat.S_ISDIR, FOLDER), (stat.S_ISLNK, LINK), (stat.S_ISFIFO, "a pipe"))


class Directory:
    """An open folder. Names are those of its own entries; errors are `StoreError`s that name the whole path."""

    def __init__(self, path: Path, handle: int | None) -> None:
        self.path, self._handle = path, handle

    @classmethod
    @contextlib.contextmanager
    def opened(cls, path: StrPath, within: StrPath | None = None) -> Iterator[Self]:
        """The folder at a path of the user's; with `within`, the one of that name inside a folder of the user's,
        which must not be a link."""
        if within is not None:
            with cls.opened(within) as outer, outer.inside(Path(path).name) as inner:
                yield inner
            return
        with plain_errors("open", path):
            handle = os.open(path, _FOLDER) if _HANDLES else None
        with cls(Path(path), handle)._closing() as folder:
            folder.names()  # says now if it cannot be looked into
            yield folder

    @contextlib.contextmanager
    def inside(self, name: str, *, make: bool = False) -> Iterator[Self]:
        """A folder in this one."""
        with plain_errors("make the folder", self.path / name):
            if make and self.kind(name) is None:
                os.mkdir(self._name(name), **self._at())
                self.sync()
        self.require(name, FOLDER)
        with plain_errors("open", self.path / name):
            handle = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=self._handle) if _HANDLES else None
        with type(self)(self.path / name, handle)._closing() as folder:
            yield folder

    @contextlib.contextmanager
    def _closing(self) -> Iterator[Self]:
        try:
            yield self
        finally:
            if self._handle is not None:
                os.close(self._handle)

    def _name(self, name: str) -> str:
        return name if self._handle is not None else os.fspath(self.path / name)

    def _at(self) -> dict[str, Any]:
        return {} if self._handle is None else {"dir_fd": self._handle}

    def names(self) -> list[str]:
        with plain_errors("open", self.path):
            return sorted(os.listdir(self.path if self._handle is None else self._handle))

    def _status(self, name: str) -> os.stat_result | None:
        with plain_errors("look at", self.path / name):
            try:
                return os.stat(self._name(name), follow_symlinks=False, **self._at())
            except FileNotFoundError:
                return None

    def kind(self, name: str) -> str | None:
        """What stands under a name, in words; None for nothing."""
        found = self._status(name)
        if found is None:
            return None
        return next((words for test, words in _KINDS if test(found.st_mode)), "a device")

    def size(self, name: str) -> int | None:
        """Of a plain file; None for anything else, and for nothing."""
        found = self._status(name)
        return found.st_size if found is not None and stat.S_ISREG(found.st_mode) else None

    def require(self, name: str, wanted: str) -> None:
        """Refuse what stands where a file or folder of ours should."""
        found = self.kind(name)
        if found not in (None, wanted):
            also = ", and no link in a model folder is followed" if found == LINK else ""
            remedy = "It was not put there by ibpwf: move it elsewhere, or restore the folder from a copy."
            raise StoreError(f"{str(self.path / name)!r} is {found} instead of {wanted}{also}. {remedy}")

    def read(self, name: str) -> bytes:
        """A whole file."""
        self.require(name, FILE)
        with plain_errors("read", self.path / name):
            handle = os.open(self._name(name), _READ, **self._at())
            with os.fdopen(handle, "rb") as file:
                if not stat.S_ISREG(os.fstat(handle).st_mode):
                    raise OSError("it is not a plain file")
                return file.read()

    def stage(self, name: str, data: bytes) -> str:
        """Write what is to become the file `name` aside and on disk; gives its name until then."""
        # The start of the name only, so that a name which just fits does not fail because of the suffix.
        aside = f"{name[:120]}.tmp-{secrets.token_hex(8)}"
        with plain_errors("write", self.path / name):
            try:
                with os.fdopen(os.open(self._name(aside), _WRITE, 0o666, **self._at()), "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
            except BaseException:
                self.discard([aside])
                raise
        return aside

    def put(self, aside: str, name: str) -> None:
        """Rename into place; `sync` makes it last."""
        ends = {} if self._handle is None else {"src_dir_fd": self._handle, "dst_dir_fd": self._handle}
        with plain_errors("write", self.path / name):
            os.replace(self._name(aside), self._name(name), **ends)

    def sync(self) -> None:
        """Make renames survive a power cut."""
        with plain_errors("write", self.path):
            if self._handle is not None:
                sync_handle(self._handle)

    def remove(self, name: str) -> None:
        with plain_errors("remove", self.path / name):
            os.unlink(self._name(name), **self._at())

    def discard(self, names: Sequence[str]) -> bool:
        """Remove plain files as far as possible, and sync if any were given; whether all are gone for good."""
        gone = True
        for name in names:
            try:
                if self.size(name) is not None:
                    os.unlink(self._name(name), **self._at())
            except (OSError, StoreError, ValueError):
                gone = False
        if names:
            try:
                self.sync()
            except StoreError:
                gone = False
        return gone

    def remove_folder(self, name: str) -> None:
        """Remove an empty folder in this one."""
        with plain_errors("remove", self.path / name):
            os.rmdir(self._name(name), **self._at())
