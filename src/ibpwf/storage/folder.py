"""A folder of tensors with a manifest: how a model, or a task in progress, survives a crash at any moment.

It holds `manifest.json` and one safetensors file per part. Part `task-0003` lies in
`task-0003.<first 12 hex digits of its SHA-256>.safetensors`, so a changed part gets a new file name and
no file is ever overwritten with other content. A save writes the new parts, then renames the manifest
into place, then removes what nobody names any more: killed at any moment, it leaves the old content
or the new one. Nothing here unpickles anything.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import torch
from filelock import FileLock, SoftFileLock, Timeout
from pydantic import Field, model_validator
from torch import Tensor

from ibpwf.errors import StoreError
from ibpwf.storage.files import (
    RESTORE,
    StrPath,
    decode_tensors,
    encode_json,
    encode_lines,
    encode_tensors,
    plain_errors,
    read_bytes,
    read_json,
    sync_folder,
    write_bytes,
)
from ibpwf.storage.records import Record, read_record

SCHEMA = 3  # the newest layout of a folder that this version writes and reads
MANIFEST = "manifest.json"
LOCK = ".lock"

# Lower case only: on a file system that ignores case, two parts must not fall on one file.
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
# What a save may delete: only names that this module itself gives, never a user's own file.
_OURS = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}\.[0-9a-f]{12}\.safetensors")
_LEFTOVER = re.compile(r".*\.tmp-[0-9a-f]{16}")
# What a disk that cannot lock answers.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)


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

    def tensors(self, name: str, device: str | torch.device = "cpu") -> dict[str, Tensor]:
        """The tensors of one part, after its size and digest have been checked."""
        if name not in self.files:
            known = ", ".join(self.files) or "none"
            raise StoreError(f"{str(self.path)!r} has no part '{name}'. It has: {known}.")
        entry = self.files[name]
        path = self.path / entry.file
        if not os.path.lexists(path):
            hint = "If the folder was saved anew meanwhile, open it again; if not, restore it from a copy."
            raise StoreError(f"{str(path)!r} is missing. {hint}")
        data = read_bytes(path)
        if len(data) != entry.bytes:
            raise StoreError(f"{str(path)!r} has {len(data)} bytes instead of {entry.bytes}. {RESTORE}")
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise StoreError(f"{str(path)!r} is damaged: its SHA-256 is not the manifest's. {RESTORE}")
        return decode_tensors(data, path, device)


@contextlib.contextmanager
def lock_folder(path: StrPath) -> Iterator[None]:
    """Holds the folder (made if need be) for one writer; a second one gets a `StoreError` at once.

    The same thread may take it again, so a long training can hold it around its saves. The system drops
    the lock when the process ends, however it ends.
    """
    with plain_errors("make the folder", path):
        if not os.path.isdir(path):
            os.makedirs(path, exist_ok=True)
            sync_folder(Path(path).parent)
    # One object per folder, which counts for each thread how often it has taken the lock.
    lock = FileLock(os.path.join(os.path.realpath(path), LOCK), is_singleton=True)
    with plain_errors("lock", path):
        taken = _taken(lock, path)
    try:
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
            remedy = "Wait for it, or save to another folder."
            raise StoreError(f"{os.fspath(path)!r} is being written by another process. {remedy}") from error
        # filelock found that the disk has no locks and took the file's presence for one; ours is always there.
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    warnings.warn(f"{os.fspath(path)!r}: this disk has no locks; run one writer only", stacklevel=4)
    return False


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
    schema: int = SCHEMA,
    unchanged: Mapping[str, FileEntry] | None = None,
) -> OpenedFolder:
    """Saves `content` and the parts in `files`, and returns the folder as opened.

    Parts named nowhere are dropped. A part whose content is already there is not written again. What the caller
    knows to be `unchanged` since it was stored as that entry is not even encoded, so that a save costs what is new
    and not what there is; should its file be lost or cut, it is put back from `files`.
    """
    folder = Path(path)
    with lock_folder(folder):
        there = os.path.lexists(folder / MANIFEST)
        old = open_folder(folder, kind=kind, newest=schema).files if there else {}
        plain = json.loads(encode_json(content, "content"))  # refused before anything is written
        entries: dict[str, FileEntry] = {}
        for name, tensors in sorted(files.items()):
            known = (unchanged or {}).get(name)
            if known is not None and old.get(name) == known and _is_there(folder, known):
                entries[name] = known
            else:
                entries[name] = _store_part(folder, name, tensors, old.get(name))
        listed = {name: entry.model_dump() for name, entry in entries.items()}
        manifest = {"schema": schema, "kind": kind, "files": listed, "content": plain}
        write_bytes(folder / MANIFEST, encode_lines({**manifest, "sha256": _seal(manifest)}, MANIFEST))
        _sweep(folder, {entry.file for entry in entries.values()})
    return OpenedFolder(folder, kind, schema, plain, entries)


def _store_part(folder: Path, name: str, tensors: Mapping[str, Tensor], old: FileEntry | None) -> FileEntry:
    if not _NAME.fullmatch(name):
        remedy = "Use a-z, 0-9, '.', '_', '-', at most 100 of them."
        raise StoreError(f"{name!r} cannot name a part of {str(folder)!r}. {remedy}")
    data = encode_tensors(tensors, name)
    entry = _entry(name, hashlib.sha256(data).hexdigest(), len(data))
    if entry != old or not _is_there(folder, entry):  # a part that was lost or cut is put back
        write_bytes(folder / entry.file, data)
    return entry


def _is_there(folder: Path, entry: FileEntry) -> bool:
    """Whether the file of a part is there and as long as it should be; its content is not read."""
    path = folder / entry.file
    try:
        return path.is_file() and path.stat().st_size == entry.bytes
    except OSError:
        return False


def _sweep(folder: Path, wanted: set[str]) -> None:
    """Removes our files that the manifest no longer names, and what crashed saves left behind."""
    with contextlib.suppress(OSError):  # the save is done; what stays behind goes next time
        for name in os.listdir(folder):
            if (_OURS.fullmatch(name) and name not in wanted) or _LEFTOVER.fullmatch(name):
                with contextlib.suppress(OSError):
                    os.unlink(folder / name)


def open_folder(path: StrPath, *, kind: str | None = None, newest: int = SCHEMA) -> OpenedFolder:
    """Reads and checks the manifest of a folder; `kind=None` accepts any kind."""
    folder = Path(path)
    where = str(folder / MANIFEST)
    with plain_errors("open", folder):
        os.listdir(folder)
    if not os.path.lexists(where):
        raise StoreError(f"{str(folder)!r} is not a model folder: it has no {MANIFEST}. Check the path.")
    found = read_json(where)
    schema = found.get("schema") if isinstance(found, dict) else None
    if type(schema) is int and schema > newest:  # before anything else: a newer layout may differ everywhere
        versions = f"schema version {schema}, and this ibpwf reads up to {newest}"
        raise StoreError(f"{where!r} has {versions}: written by a newer ibpwf; upgrade ibpwf to read it.")
    manifest = read_record(Manifest, found, where)
    if manifest.sha256 != _seal(found):
        what = "its content does not match its own SHA-256"
        raise StoreError(f"{where!r}: {what}. It was not written by ibpwf, or was damaged. {RESTORE}")
    if kind is not None and manifest.kind != kind:
        remedy = f"Give the path of a '{kind}'."
        raise StoreError(f"{where!r} holds a '{manifest.kind}', not a '{kind}'. {remedy}")
    return OpenedFolder(folder, manifest.kind, manifest.version, manifest.content, manifest.files)


def is_ours(name: str) -> bool:
    """Whether a file is called as those of a folder are, and those that a killed save leaves behind."""
    return name in (MANIFEST, LOCK) or bool(_OURS.fullmatch(name) or _LEFTOVER.fullmatch(name))


def foreign_files(path: StrPath) -> list[str]:
    """What lies in a folder and is not part of the model: a user's own files, and what a killed save has left
    (the next save removes that). None of it is ever read."""
    opened = open_folder(path)
    ours = {MANIFEST, LOCK, *(entry.file for entry in opened.files.values())}
    return sorted(name for name in os.listdir(opened.path) if name not in ours)


def verify_folder(path: StrPath, *, newest: int = SCHEMA) -> list[Problem]:
    """Everything that is wrong with a folder; an empty list says that it is whole."""
    try:
        opened = open_folder(path, newest=newest)
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
    return problems
