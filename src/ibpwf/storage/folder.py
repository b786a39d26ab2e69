"""A folder of tensors with a manifest: how a model, or a task in progress, survives a crash at any moment.

It holds `manifest.json` and one safetensors file per part. Part `task-0003` lies in
`task-0003.<first 12 hex digits of its SHA-256>.safetensors`, so a changed part gets a new file name and
no file is ever overwritten with other content. A save writes the new parts and the new manifest aside, renames the
parts into place, then the manifest, then removes what the old manifest names and the new one does not: killed at any
moment, it leaves the old content or the new one. Manifests that lie aside (`manifest.json.tmp-...`) say what a killed
save has left; whoever takes the folder's lock next removes that first. No other file is ever removed. Nothing here
unpickles anything.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

from filelock import FileLock, SoftFileLock, Timeout
from pydantic import Field, model_validator
from torch import Tensor

from ibpwf.errors import StoreError
from ibpwf.storage.directory import FILE, Directory
from ibpwf.storage.files import (
    RESTORE,
    StrPath,
    decode_json,
    decode_tensors,
    encode_json,
    encode_lines,
    encode_tensors,
    plain_errors,
    sync_folder,
)
from ibpwf.storage.records import Record, read_record

SCHEMA = 3  # the layout of a folder; no other is read
MANIFEST = "manifest.json"
LOCK = ".lock"

LARGE = 1 << 23  # bytes that are worth threads
MOST_ENTRIES = 100_000  # tasks, and lines of the history
LARGEST_MANIFEST = 1 << 28  # bytes; a larger one is neither written nor read

# Lower case only: on a file system that ignores case, two parts must not fall on one file.
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_PART = re.compile(rf"{_NAME.pattern}\.([0-9a-f]{{12}})\.safetensors")
# What lies aside until it is renamed: parts, and manifests.
_ASIDE = re.compile(rf"(?:{_NAME.pattern}\.safetensors|manifest\.json)\.tmp-[0-9a-f]{{16}}")
_MANIFEST_ASIDE = re.compile(r"manifest\.json\.tmp-[0-9a-f]{16}")
# What a disk that cannot lock answers.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)


class Problem(NamedTuple):
    """One thing wrong with a folder: the file, a sentence, and whether the file is there."""

    file: str
    message: str
    kind: str = "damaged"


class FileEntry(Record):
    """What the manifest says of one part."""

    file: str
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    bytes: Annotated[int, Field(ge=0)]


def _entry(name: str, digest: str, size: int) -> FileEntry:
    return FileEntry(file=f"{name}.{digest[:12]}.safetensors", sha256=digest, bytes=size)


class Manifest(Record):
    """`manifest.json`: what a folder holds."""

    version: Annotated[int, Field(alias="schema", ge=1)]
    kind: str
    files: dict[str, FileEntry]
    content: dict[str, Any]
    sha256: str

    @model_validator(mode="after")
    def _files_are_its_own(self) -> Self:
        # The name follows from the digest, so a manifest cannot point outside its folder.
        for name, entry in self.files.items():
            if not _NAME.fullmatch(name) or entry != _entry(name, entry.sha256, entry.bytes):
                refused = f"{entry.file!r}, which is not a file name of this folder; it is refused"
                raise ValueError(f"field 'files.{name}.file' is {refused}")
        return self


@dataclass(frozen=True)
class OpenedFolder:
    """A folder whose manifest has been read and checked; the tensors are read when asked for."""

    path: Path
    kind: str
    schema: int
    content: dict[str, Any]
    files: dict[str, FileEntry]
    sha256: str  # the manifest's own
    within: Path | None = None  # the folder of the user's that this one lies in

    def tensors(self, name: str) -> dict[str, Tensor]:
        """The tensors of one part, after its size and digest have been checked."""
        if name not in self.files:
            known = ", ".join(self.files) or "none"
            raise StoreError(f"{str(self.path)!r} has no part '{name}'. It has: {known}.")
        entry = self.files[name]
        path = self.path / entry.file
        with Directory.opened(self.path, self.within) as folder:
            self._check_size(folder, entry)
            data = folder.read(entry.file)
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise StoreError(f"{str(path)!r} is damaged: its SHA-256 is not the manifest's. {RESTORE}")
        return decode_tensors(data, path)

    def check_sizes(self) -> None:
        """That every part is there, and as long as it should be; their content is not read."""
        with Directory.opened(self.path, self.within) as folder:
            for entry in self.files.values():
                self._check_size(folder, entry)

    def _check_size(self, folder: Directory, entry: FileEntry) -> None:
        path = self.path / entry.file
        if folder.kind(entry.file) is None:
            hint = "If the folder was saved anew meanwhile, open it again; if not, restore it from a copy."
            raise StoreError(f"{str(path)!r} is missing. {hint}")
        size = folder.size(entry.file)
        if size is not None and size != entry.bytes:
            raise StoreError(f"{str(path)!r} has {size} bytes instead of {entry.bytes}. {RESTORE}")

    def all_tensors(self) -> dict[str, dict[str, Tensor]]:
        """Every part; large ones a few at a time, since a digest takes longer than reading."""
        if sum(entry.bytes for entry in self.files.values()) < LARGE:
            return {name: self.tensors(name) for name in self.files}
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            return dict(zip(self.files, pool.map(self.tensors, self.files), strict=True))


@contextlib.contextmanager
def lock_folder(path: StrPath) -> Iterator[None]:
    """Holds the folder (made if need be) for one writer; a second one gets a `StoreError` at once.

    What a killed save has left is removed first. The same thread may take the lock again, so a long training can hold
    it around its saves. The system drops the lock when the process ends, however it ends.
    """
    with plain_errors("make the folder", path):
        if not os.path.isdir(path):
            os.makedirs(path, exist_ok=True)
            sync_folder(Path(path).parent)
    with Directory.opened(path) as folder:
        folder.require(LOCK, FILE)
    # One object per folder, which counts for each thread how often it has taken the lock.
    lock = FileLock(os.path.join(os.path.realpath(path), LOCK), is_singleton=True)
    with plain_errors("lock", path):
        taken = _taken(lock, path)
    try:
        if taken and lock.lock_counter == 1:
            with Directory.opened(path) as folder:
                sweep(folder)
        yield
    finally:
        if taken:
            with contextlib.suppress(OSError):  # the system drops it with the process
                lock.release()


def _taken(lock: FileLock, path: StrPath) -> bool:
    """Takes the lock; False on a disk that has none, of which one is warned."""
    try:
        lock.acquire(blocking=False)
        return True
    except Timeout as error:
        if not isinstance(lock, SoftFileLock):
            _ask_system(lock.lock_file)
            remedy = "Wait for it, or save to another folder."
            raise StoreError(f"{os.fspath(path)!r} is being written by another process. {remedy}") from error
        # filelock found that the disk has no locks and took the file's presence for one; ours is always there.
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    warnings.warn(f"{os.fspath(path)!r}: this disk has no locks; run one writer only", stacklevel=4)
    return False


def _ask_system(path: str) -> None:
    """Some versions of filelock take any error of the system for another process; the error itself is raised here."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # some disks say the latter
        pass
    finally:
        os.close(handle)


def _seal(manifest: Mapping[str, Any]) -> str:
    """A digest over the manifest itself: without it, one flipped digit in the content would pass."""
    body = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(encode_json(body, MANIFEST)).hexdigest()


def save_folder(
    path: StrPath,
    *,
    kind: str,
    content: Mapping[str, Any],
    files: Mapping[str, Mapping[str, Tensor]],
    unchanged: Mapping[str, FileEntry] | None = None,
    announce: Callable[[str], None] | None = None,
) -> OpenedFolder:
    """Saves `content` and the parts in `files`, and returns the folder as opened. `announce` is told the manifest's
    digest just before it takes its place, so that whoever is interrupted then knows the folder for its own.

    Parts named nowhere are dropped. A part whose content is already there is not written again. What the caller
    knows to be `unchanged` since it was stored as that entry is not even encoded, so that a save costs what is new
    and not what there is; should its file be lost or cut, it is put back from `files`.
    """
    with lock_folder(path), Directory.opened(path) as folder:
        return write_folder(folder, kind=kind, content=content, files=files, unchanged=unchanged, announce=announce)


def write_folder(
    folder: Directory,
    *,
    kind: str,
    content: Mapping[str, Any],
    files: Mapping[str, Mapping[str, Tensor]],
    unchanged: Mapping[str, FileEntry] | None = None,
    announce: Callable[[str], None] | None = None,
) -> OpenedFolder:
    """`save_folder` into a folder that is held open, and locked, by the caller."""
    there = folder.kind(MANIFEST) is not None
    old = read_folder(folder, kind=kind).files if there else {}
    plain = json.loads(encode_json(content, "content"))  # refused before anything is written
    if (what := _too_long(plain)) is not None:
        remedy = "What was saved before is untouched; learn further tasks in another folder."
        raise StoreError(f"cannot save to {str(folder.path)!r}: {what}. {remedy}")
    entries: dict[str, FileEntry] = {}
    aside: dict[str, str] = {}  # what lies aside, by the name it is to have
    try:
        for name, tensors in sorted(files.items()):
            known = (unchanged or {}).get(name)
            if known is not None and old.get(name) == known and _is_there(folder, known):
                entries[name] = known
                continue
            data, entry = _encoded(folder, name, tensors)
            entries[name] = entry
            if entry != old.get(name) or not _is_there(folder, entry):  # a part that was lost or cut is put back
                aside[entry.file] = folder.stage(f"{name}.safetensors", data)
        listed = {name: entry.model_dump() for name, entry in entries.items()}
        manifest: dict[str, Any] = {"schema": SCHEMA, "kind": kind, "files": listed, "content": plain}
        manifest["sha256"] = _seal(manifest)
        encoded = encode_lines(manifest, MANIFEST)
        if len(encoded) > LARGEST_MANIFEST:
            raise StoreError(f"{str(folder.path / MANIFEST)!r} would have {len(encoded)} bytes. {_TOO_LARGE}")
        superseded = {entry.file for entry in old.values()} - {entry.file for entry in entries.values()}
        if superseded:
            folder.stage(MANIFEST, folder.read(MANIFEST))
        aside[MANIFEST] = folder.stage(MANIFEST, encoded)
        for name in [*aside][:-1]:
            folder.put(aside[name], name)
        folder.sync()
        if announce is not None:
            announce(manifest["sha256"])
        folder.put(aside[MANIFEST], MANIFEST)
    except BaseException:
        sweep(folder)  # by what the manifest says now: an interrupt may come right after its rename
        raise
    folder.sync()
    sweep(folder, {entry.file for entry in entries.values()})
    return OpenedFolder(folder.path, kind, SCHEMA, plain, entries, manifest["sha256"])


_TOO_LARGE = f"A manifest may have {LARGEST_MANIFEST} bytes. Keep less in extra, or use fewer features."


def _encoded(folder: Directory, name: str, tensors: Mapping[str, Tensor]) -> tuple[bytes, FileEntry]:
    if not _NAME.fullmatch(name):
        remedy = "Use a-z, 0-9, '.', '_', '-', at most 100 of them."
        raise StoreError(f"{name!r} cannot name a part of {str(folder.path)!r}. {remedy}")
    data = encode_tensors(tensors, name)
    return data, _entry(name, hashlib.sha256(data).hexdigest(), len(data))


def _is_there(folder: Directory, entry: FileEntry) -> bool:
    """Whether the file of a part is there and as long as it should be; its content is not read."""
    return folder.size(entry.file) == entry.bytes


class Leftovers(NamedTuple):
    """What killed saves have left in a folder: parts that only a manifest which lies aside names, and what lies
    aside, which goes last."""

    parts: list[str]
    aside: list[str]


def find_leftovers(folder: Directory, wanted: set[str] | None = None) -> Leftovers:
    """What killed saves have left. `wanted` are the parts that the manifest names, where the caller knows them."""
    aside = [name for name in folder.names() if _ASIDE.fullmatch(name) and folder.kind(name) == FILE]
    manifests = [name for name in aside if _MANIFEST_ASIDE.fullmatch(name)]
    if wanted is None:
        wanted = _named(folder, MANIFEST) if manifests and folder.kind(MANIFEST) is not None else set()
    superseded: set[str] = set()
    for name in manifests:
        with contextlib.suppress(StoreError):  # cut short: it was never followed by a rename
            superseded |= _named(folder, name)
    parts = [name for name in sorted(superseded - wanted) if folder.kind(name) == FILE]
    return Leftovers(parts, aside)


def parts_at(path: StrPath) -> set[str]:
    """The names of the parts that a folder has; none where there is no manifest yet."""
    return set(open_folder(path).files) if os.path.lexists(Path(path) / MANIFEST) else set()


def _named(folder: Directory, manifest: str) -> set[str]:
    """The files of the parts that a manifest names."""
    return {entry.file for entry in read_folder(folder, manifest=manifest).files.values()}


def sweep(folder: Directory, wanted: set[str] | None = None) -> None:
    """Removes what the manifest before this one named, and what killed saves have left. The caller holds the lock;
    who gives `wanted` has synced the manifest."""
    with contextlib.suppress(OSError, StoreError):  # what stays behind goes next time
        left = find_leftovers(folder, wanted)
        if left.parts and wanted is None:
            folder.sync()  # the rename that made them superfluous may not be on the disk yet
        if not left.parts or folder.discard(left.parts):  # for good, before that which names them goes
            folder.discard(left.aside)


def open_folder(path: StrPath, *, kind: str | None = None, within: StrPath | None = None) -> OpenedFolder:
    """Reads and checks the manifest of a folder; `kind=None` accepts any kind. `within` is the user's folder that it
    must lie in itself, not by a link."""
    with Directory.opened(path, within) as folder:
        opened = read_folder(folder, kind=kind)
    return opened if within is None else replace(opened, within=Path(within))


def read_folder(folder: Directory, *, kind: str | None = None, manifest: str = MANIFEST) -> OpenedFolder:
    """`open_folder` of one that is held open; `manifest` may be another file of its kind."""
    where = str(folder.path / manifest)
    if folder.kind(manifest) is None:
        raise StoreError(f"{str(folder.path)!r} is not a model folder: it has no {MANIFEST}. Check the path.")
    if (folder.size(manifest) or 0) > LARGEST_MANIFEST:
        raise StoreError(f"{where!r} has {folder.size(manifest)} bytes. {_TOO_LARGE}")
    found = decode_json(folder.read(manifest), where)
    schema = found.get("schema") if isinstance(found, dict) else None
    if type(schema) is int and schema != SCHEMA and schema > 0:  # first: another layout may differ everywhere
        versions = f"schema version {schema}, and this ibpwf reads {SCHEMA}"
        newer = "written by a newer ibpwf; upgrade ibpwf to read it"
        older = "written by an older ibpwf; read it with that, or learn its tasks again in another folder"
        raise StoreError(f"{where!r} has {versions}: {newer if schema > SCHEMA else older}.")
    _check_lengths(found, where)
    record = read_record(Manifest, found, where)
    if record.sha256 != _seal(found):
        what = "its content does not match its own SHA-256"
        raise StoreError(f"{where!r}: {what}. It was not written by ibpwf, or was damaged. {RESTORE}")
    if kind is not None and record.kind != kind:
        remedy = f"Give the path of a '{kind}'."
        raise StoreError(f"{where!r} holds a '{record.kind}', not a '{kind}'. {remedy}")
    return OpenedFolder(folder.path, record.kind, record.version, record.content, record.files, record.sha256)


def _check_lengths(found: object, where: str) -> None:
    """Refuse lists that are too long before each of their entries is looked at."""
    if (what := _too_long(found.get("content") if isinstance(found, dict) else None)) is not None:
        raise StoreError(f"{where!r}: {what}. It was not written by ibpwf, or was damaged. {RESTORE}")


def _too_long(content: object) -> str | None:
    """What is said of a list that has more entries than are read; None where none has."""
    for holder in (content, content.get("state") if isinstance(content, dict) else None):
        for field, value in holder.items() if isinstance(holder, dict) else ():
            if field in ("tasks", "history") and isinstance(value, list) and len(value) > MOST_ENTRIES:
                return f"field '{field}' has {len(value)} entries; at most {MOST_ENTRIES} are read"
    return None


def is_ours(name: str) -> bool:
    """Whether a file is called as those of a folder are, and those that a killed save leaves behind."""
    return name in (MANIFEST, LOCK) or bool(_PART.fullmatch(name) or _ASIDE.fullmatch(name))


def own_files(folder: Directory) -> list[str]:
    """The files in an open folder that are certainly ours, the manifest first: those it names, what lies aside, and
    parts whose names are right by their content."""
    named: set[str] = {MANIFEST, LOCK}
    with contextlib.suppress(StoreError):
        named |= {entry.file for entry in read_folder(folder).files.values()}

    def ours(name: str) -> bool:
        if folder.kind(name) != FILE:
            return False
        if name in named or _ASIDE.fullmatch(name):
            return True
        part = _PART.fullmatch(name)
        return part is not None and hashlib.sha256(folder.read(name)).hexdigest().startswith(part[1])

    return sorted(filter(ours, folder.names()), key=lambda name: name != MANIFEST)


def foreign_files(path: StrPath) -> list[str]:
    """What lies in a folder and is not part of the model: a user's own files, and what a killed save has left
    (the next save removes that). None of it is ever read."""
    with Directory.opened(path) as folder:
        ours = {MANIFEST, LOCK, *(entry.file for entry in read_folder(folder).files.values())}
        return [name for name in folder.names() if name not in ours]


def verify_folder(path: StrPath, *, within: StrPath | None = None) -> list[Problem]:
    """Everything that is wrong with a folder; an empty list says that it is whole."""
    try:
        opened = open_folder(path, within=within)
    except StoreError as error:
        kind = "damaged" if os.path.lexists(Path(path) / MANIFEST) else "missing"
        return [Problem(MANIFEST, str(error), kind)]
    problems = []
    for name, entry in opened.files.items():
        try:
            opened.tensors(name)
        except StoreError as error:
            kind = "damaged" if os.path.lexists(opened.path / entry.file) else "missing"
            problems.append(Problem(entry.file, str(error), kind))
    with Directory.opened(path, within) as folder:
        return problems + standing_in_the_way(folder, LOCK, FILE)


def standing_in_the_way(folder: Directory, name: str, wanted: str) -> list[Problem]:
    """A problem, if something else stands where a file or folder of ours should."""
    try:
        folder.require(name, wanted)
    except StoreError as error:
        return [Problem(name, str(error))]
    return []
