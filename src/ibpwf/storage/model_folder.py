"""The model folder as a learner sees it: what it has stored there already, and whether that is still so.

The format itself is described in docs/model-format.md, its files are written by `ibpwf.storage.folder`.
"""

from __future__ import annotations

import contextlib
import os
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ibpwf.errors import IBPWFError, StoreError
from ibpwf.storage.checkpoint_folder import IN_PROGRESS
from ibpwf.storage.directory import FOLDER, Directory
from ibpwf.storage.files import RESTORE
from ibpwf.storage.folder import (
    MANIFEST,
    FileEntry,
    OpenedFolder,
    Problem,
    find_leftovers,
    foreign_files,
    open_folder,
    own_files,
    standing_in_the_way,
    verify_folder,
)
from ibpwf.storage.tensor_checks import CorruptModelError

KIND = "ibpwf-model"


def face_of(content: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a folder's learner stands inside of."""
    found = content.get("face")
    if found is not None and not isinstance(found, dict):
        raise StoreError(f"field 'face' of {MANIFEST} is {reprlib.repr(found)}; it should be an object. {RESTORE}")
    return found


@dataclass(frozen=True)
class Checked:
    """What `verify_model` found. `foreign` files are no part of the model; they are left alone and never read.
    `leftovers` are what a killed save, or one that is running, has left; they may hold what was deleted, and whoever
    takes the folder's lock next removes them."""

    problems: list[Problem]
    foreign: list[str]
    leftovers: list[str]
    files: int
    bytes: int


def verify_model(path: str | Path) -> Checked:
    """Compare every file of a model folder with its digest, those of a task in progress too, and name what stands
    there and does not belong."""
    problems, foreign, leftovers = verify_folder(path), list[str](), list[str]()
    with Directory.opened(path) as folder:
        in_the_way = standing_in_the_way(folder, IN_PROGRESS, FOLDER)
        unfinished = not in_the_way and folder.kind(IN_PROGRESS) is not None
    problems += in_the_way
    if unfinished:
        inner = Path(path) / IN_PROGRESS
        with Directory.opened(inner, path) as folder:
            ours = own_files(folder)
            foreign = [f"{IN_PROGRESS}/{name}" for name in folder.names() if name not in ours]
            left = _left_in(folder) if MANIFEST in ours else ours
            leftovers = [f"{IN_PROGRESS}/{name}" for name in left]
        if MANIFEST in ours:
            found = verify_folder(inner, within=path)
            problems += [problem._replace(file=f"{IN_PROGRESS}/{problem.file}") for problem in found]
    try:
        opened = open_folder(path, kind=KIND)
    except StoreError as error:
        return Checked(problems or [Problem(MANIFEST, str(error))], foreign, leftovers, 0, 0)
    with Directory.opened(path) as folder:
        left = _left_in(folder)
    foreign = [name for name in foreign_files(path) if name != IN_PROGRESS and name not in left] + foreign
    sizes = [entry.bytes for entry in opened.files.values()]
    size = sum(sizes) + (opened.path / MANIFEST).stat().st_size
    return Checked(problems, foreign, left + leftovers, len(sizes) + 1, size)


def _left_in(folder: Directory) -> list[str]:
    with contextlib.suppress(StoreError):  # of a damaged manifest, which is a problem of its own
        return sorted(name for names in find_leftovers(folder) for name in names)
    return []


@dataclass(frozen=True)
class LastSave:
    """A folder as it was read or saved last, with the tensors that lie in its files. The tensors themselves are held
    so that their memory is not reused."""

    opened: OpenedFolder
    tensors: Mapping[str, Mapping[str, tuple[Tensor, object]]]
    unread: Mapping[str, Mapping[str, Tensor]]

    def has(self, name: str, part: Mapping[str, Tensor]) -> bool:
        """Whether a part is in the folder's file of that name, as far as its memory tells."""
        if name not in self.opened.files:
            return False
        if self.unread.get(name) is part:
            return True
        known = self.tensors.get(name)
        if known is None or known.keys() != part.keys():
            return False
        return all(known[key][1] == _identity(tensor) is not None for key, tensor in part.items())


class SavedParts:
    """Which folders a learner was read from or saved to, and which tensors lie in which file of the last.

    A part whose tensors are still the very same ones (not equal ones: the same memory, never written to since) need
    not be encoded or hashed to know that its file is right. Only for methods that lock what they have stored. Forks
    share it, and may save to different folders in different threads.
    """

    def __init__(self) -> None:
        self._seals: dict[str, str] = {}  # the manifest's digest in every folder, by its real path
        self._announced: dict[str, str] = {}  # that of a manifest about to be written, which an interrupt may follow
        self._last: LastSave | None = None

    def announce(self, path: str | Path, sha256: str) -> None:
        """This manifest is about to take its place in a folder."""
        self._announced[os.path.realpath(path)] = sha256

    def remember(self, opened: OpenedFolder, files: Mapping[str, Mapping[str, Tensor]]) -> None:
        self._seals[os.path.realpath(opened.path)] = opened.sha256
        unread = {name: part for name, part in files.items() if not isinstance(part, dict)}
        tensors = {
            name: {key: (tensor, _identity(tensor)) for key, tensor in part.items()}
            for name, part in files.items()
            if name not in unread
        }
        self._last = LastSave(opened, tensors, unread)

    def unchanged(self, path: str | Path, files: Mapping[str, Mapping[str, Tensor]]) -> dict[str, FileEntry]:
        """The entries of those parts that need not be looked at again when saving to `path`."""
        last = self._last
        if last is None or os.path.realpath(path) != os.path.realpath(last.opened.path):
            return {}
        return {name: last.opened.files[name] for name, part in files.items() if last.has(name, part)}

    def check_own(self, path: str | Path) -> None:
        """Refuse to save over a model that this learner has neither read nor written: its tasks would be lost."""
        if not os.path.lexists(Path(path) / MANIFEST):
            return  # none, or removed by its owner: saved anew
        place = os.path.realpath(path)
        there, known = open_folder(path, kind=KIND).sha256, self._seals.get(place)
        if there == self._announced.get(place):
            return
        if known is None and there not in self._seals.values():  # a folder that was moved or copied is still its own
            raise StoreError(
                f"{str(path)!r} holds a model that this learner was not loaded from; nothing was written. Save to "
                "another folder, or give overwrite=True to replace that model."
            )
        if known is not None and known != there:
            raise StoreError(
                f"{str(path)!r} was saved by another process since this learner read or saved it; nothing was "
                "written. Load it again and learn the task there, or save to another folder."
            )


def _identity(tensor: Tensor) -> object:
    """The same memory, read the same way, not written to since; None where torch does not count writes."""
    if tensor.is_inference():
        return None
    return tensor.data_ptr(), tensor._version, tensor.shape, tensor.stride(), tensor.dtype, tensor.device


DAMAGE: tuple[type[Exception], ...] = (
    IBPWFError,
    *(LookupError, TypeError, AttributeError, ValueError, RuntimeError),
    *(ArithmeticError, AssertionError, MemoryError),
)
"""What content of the right form but of a wrong kind runs into."""


@contextlib.contextmanager
def whole_folder(path: str | Path) -> Iterator[None]:
    """What a manifest of the right form but wrong content runs into, as one clear error."""
    try:
        yield
    except StoreError:
        raise
    except DAMAGE as error:
        what = str(error) if isinstance(error, CorruptModelError) else f"{type(error).__name__}: {error}"
        what = " ".join(what.split())
        raise StoreError(f"{path} is not a whole model folder ({what}); restore it from a copy.") from None


@contextlib.contextmanager
def storable(path: str | Path) -> Iterator[None]:
    """What would not be read again, found before it is written, as one clear error."""
    try:
        yield
    except CorruptModelError as error:
        remedy = "Forget the last task, put its inputs on one scale, and learn it anew with a lower learning_rate"
        raise StoreError(f"cannot save to {str(path)!r}: {error}. {remedy}; nothing was written.") from None
