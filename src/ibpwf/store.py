"""What goes to disk and comes back: JSON, JSON lines, tensors, and the model folder.

A model folder holds `manifest.json` and one safetensors file per part. Part `task-0003` lies in
`task-0003.<first 12 hex digits of its SHA-256>.safetensors`, so a changed part gets a new file name and
no file is ever overwritten with other content. A save writes the new parts, then renames the manifest
into place, then removes what nobody names any more: killed at any moment, it leaves the old model or the
new one. Nothing here unpickles anything.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import secrets
import stat
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from torch import Tensor

from ibpwf.errors import StoreError

SCHEMA = 1  # the newest layout of a folder that this version writes and reads
MANIFEST = "manifest.json"
LOCK = ".lock"
StrPath = str | os.PathLike[str]

# Lower case only: on a file system that ignores case, two parts must not fall on one file.
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
# What a save may delete: only names that this module itself gives, never a user's own file.
_OURS = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}\.[0-9a-f]{12}\.safetensors")
_LEFTOVER = re.compile(r".*\.tmp-[0-9a-f]{16}")
_HEX64 = re.compile(r"[0-9a-f]{64}")
_RESTORE = "Restore it from a copy, or train and save again."

_DENIED = "permission denied. Check who owns it and its access rights."
_REASONS: dict[int, str] = {
    errno.ENOENT: "there is no such file or folder. Check the path.",
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.ENOSPC: "the disk is full. Free some space and try again; what was saved before is untouched.",
    errno.EISDIR: "it is a folder, not a file. Give the path of a file.",
    errno.ENOTDIR: "part of the path is a file, not a folder. Check the path.",
    errno.EEXIST: "a file of that name is in the way. Choose another name.",
    errno.ENAMETOOLONG: "the name is too long for this file system. Choose a shorter one.",
}


@contextlib.contextmanager
def _plain(doing: str, path: StrPath) -> Iterator[None]:
    """Turns the system's errors into a `StoreError` that names the path, the reason and the remedy."""
    try:
        yield
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, f"{error.strerror or error}. Check the disk and the path.")
        raise StoreError(f"cannot {doing} {os.fspath(path)!r}: {reason}") from error
    except ValueError as error:  # a NUL character in the path
        raise StoreError(f"cannot {doing} {os.fspath(path)!r}: {error}. Check the path.") from error


# ------------------------------------------------------------------------------------------ plain files


def _sync_folder(folder: Path) -> None:
    """Makes a rename survive a power cut; Windows and some network disks offer no such call."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def write_bytes(path: StrPath, data: bytes) -> None:
    """Writes a file whole or not at all; an old file of that name stays until the new one is on disk."""
    target = Path(path)
    # The start of the name only, so that a name which just fits does not fail because of the suffix.
    aside = target.parent / f"{target.name[:40]}.tmp-{secrets.token_hex(8)}"
    with _plain("write", target):
        try:
            handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, target)
        except BaseException:
            with contextlib.suppress(OSError, ValueError):
                os.unlink(aside)
            raise
        _sync_folder(target.parent)


def write_text(path: StrPath, text: str) -> None:
    """Writes UTF-8 text whole or not at all."""
    write_bytes(path, text.encode("utf-8"))


def read_bytes(path: StrPath) -> bytes:
    """A whole file. A pipe or a device is refused, since reading one may never end."""
    with _plain("read", path):
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, "it is not a plain file")
        with open(path, "rb") as file:
            return file.read()


# ------------------------------------------------------------------------------------------------- JSON


def _plain_json(value: object, where: str) -> Any:
    """The value as JSON will give it back, or a `StoreError` that names the field JSON cannot hold."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise StoreError(f"{where} has the key {key!r}; JSON keys must be text. Use str(...) of it.")
        return {key: _plain_json(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_json(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise StoreError(f"{where} is {value}, which JSON cannot hold. Give a finite number or None.")
    if value is None or isinstance(value, str | bool | int | float):
        return value
    remedy = "Give text, numbers, True/False, None, and lists and dicts of those."
    raise StoreError(f"{where} is a {type(value).__name__}, which JSON cannot hold. {remedy}")


def _encode(obj: object, where: str, indent: int | None = None) -> bytes:
    try:
        plain = _plain_json(obj, where)
        # Without an indent it is the canonical form, over which digests are taken.
        separators = (",", ":") if indent is None else None
        text = json.dumps(plain, indent=indent, separators=separators, sort_keys=indent is None)
    except (RecursionError, ValueError) as error:
        raise StoreError(f"{where} is too deep or too large for JSON ({error}). Give less.") from error
    return text.encode("ascii")


def _decode(data: bytes) -> Any:
    try:
        return json.loads(data.decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def write_json(path: StrPath, obj: object) -> None:
    """Writes a JSON file whole or not at all."""
    write_bytes(path, _encode(obj, Path(path).name, 2) + b"\n")


def read_json(path: StrPath) -> Any:
    """The content of a JSON file; a damaged or cut file is a `StoreError`."""
    data = read_bytes(path)
    try:
        return _decode(data)
    except ValueError as error:
        what = "is empty" if not data.strip() else f"is not whole JSON ({error})"
        raise StoreError(f"{os.fspath(path)!r} {what}. It was cut short or damaged; {_RESTORE}") from error


def _is_whole(line: bytes) -> bool:
    try:
        return isinstance(_decode(line), dict)
    except ValueError:
        return False


def append_jsonl(path: StrPath, obj: Mapping[str, Any]) -> None:
    """Adds one object as a line; first mends a last line that a crash cut short."""
    if not isinstance(obj, Mapping):
        # Objects only: a cut `{...` is never whole JSON, while a cut `123` would read as `12`.
        raise StoreError(f"a line of {os.fspath(path)!r} must be a dict, not {type(obj).__name__}.")
    line = _encode(obj, Path(path).name) + b"\n"
    with _plain("write", path):
        new = not os.path.exists(path)
        with open(path, "ab+", buffering=0) as file:  # no buffer: closing must not write what failed before
            end = file.seek(0, os.SEEK_END)
            file.seek(max(end - 1, 0))
            if file.read(1) not in (b"", b"\n"):
                file.seek(0)
                last = file.read().rpartition(b"\n")[2]
                if _is_whole(last):
                    line = b"\n" + line
                else:
                    end = file.truncate(end - len(last))
            try:
                if file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, "only part of the line was written")
                os.fsync(file.fileno())
            except BaseException:
                with contextlib.suppress(OSError):  # half a line would be mended later; better none
                    os.truncate(path, end)
                raise
        if new:
            _sync_folder(Path(path).parent)


def read_jsonl(path: StrPath) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file; a last line that a crash cut short is left out."""
    *lines, last = read_bytes(path).split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not _is_whole(line):
            raise StoreError(f"line {number} of {os.fspath(path)!r} is damaged. Remove that line to go on.")
    return [_decode(line) for line in ([*lines, last] if _is_whole(last) else lines)]


# ---------------------------------------------------------------------------------------------- tensors


def _encode_tensors(tensors: Mapping[str, Tensor], where: str) -> bytes:
    copies: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if not isinstance(name, str) or name == "__metadata__":
            raise StoreError(f"{where}: {name!r} cannot name a tensor. Use other text as its name.")
        if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided or tensor.is_meta:
            kind = getattr(tensor, "layout", type(tensor).__name__)
            raise StoreError(f"{where}: '{name}' ({kind}) is not a dense tensor with values. Give one.")
        # A copy each: safetensors refuses tensors that share memory or are not contiguous.
        copies[name] = tensor.detach().to("cpu").clone(memory_format=torch.contiguous_format)
    try:
        return safetensors.torch.save(copies)
    except Exception as error:
        raise StoreError(f"{where}: these tensors cannot be stored ({error}). Use a common dtype.") from error


def _decode_tensors(data: bytes, path: StrPath, device: str | torch.device) -> dict[str, Tensor]:
    try:
        tensors = safetensors.torch.load(data)
    except Exception as error:  # its parser raises several kinds on a damaged file
        what = f"is not a whole safetensors file ({error})"
        raise StoreError(f"{os.fspath(path)!r} {what}. {_RESTORE}") from error
    return {name: tensors[name].to(device) for name in sorted(tensors)}


def write_tensors(path: StrPath, tensors: Mapping[str, Tensor]) -> None:
    """Writes tensors as safetensors, whole or not at all; the same tensors give the same bytes."""
    write_bytes(path, _encode_tensors(tensors, Path(path).name))


def read_tensors(path: StrPath, device: str | torch.device = "cpu") -> dict[str, Tensor]:
    """The tensors of a safetensors file, bit for bit as they were written."""
    return _decode_tensors(read_bytes(path), path, device)


# ----------------------------------------------------------------------------------------- model folders


class Problem(NamedTuple):
    """One thing wrong with a folder: the file, and a sentence."""

    file: str
    message: str


class Entry(NamedTuple):
    """What the manifest says of one part."""

    file: str
    sha256: str
    bytes: int


@dataclass(frozen=True)
class Opened:
    """A folder whose manifest has been read and checked; the tensors are read when asked for."""

    path: Path
    kind: str
    schema: int
    content: dict[str, Any]
    files: dict[str, Entry]

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
            raise StoreError(f"{str(path)!r} has {len(data)} bytes instead of {entry.bytes}. {_RESTORE}")
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise StoreError(f"{str(path)!r} is damaged: its SHA-256 is not the manifest's. {_RESTORE}")
        return _decode_tensors(data, path, device)


_held: dict[str, tuple[int, int]] = {}  # folders locked by this process: which process and thread holds each


@contextlib.contextmanager
def lock_folder(path: StrPath) -> Iterator[None]:
    """Holds the folder (made if need be) for one writer; a second one gets a `StoreError` at once.

    The same thread may take it again, so a long training can hold it around its saves. The system drops
    the lock when the process ends, however it ends.
    """
    me = (os.getpid(), threading.get_ident())
    with _plain("lock", path):
        key = os.path.realpath(path)
    if _held.get(key) == me:
        yield
        return
    with _plain("make the folder", path):
        if not os.path.isdir(path):
            os.makedirs(path, exist_ok=True)
            _sync_folder(Path(path).parent)
    with _plain("lock", path):
        handle = os.open(os.path.join(path, LOCK), os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _lock(handle, path)
        _held[key] = me
        yield
    finally:
        if _held.get(key) == me:
            del _held[key]
            _lock(handle, path, take=False)
        os.close(handle)


def _lock(handle: int, path: StrPath, take: bool = True) -> None:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK if take else msvcrt.LK_UNLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB if take else fcntl.LOCK_UN)
    except OSError as error:
        if not take:
            return  # closing the file drops the lock as well
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):
            remedy = "Wait for it, or save to another folder."
            raise StoreError(f"{os.fspath(path)!r} is being written by another process. {remedy}") from error
        warnings.warn(f"{os.fspath(path)!r}: this disk has no locks; run one writer only", stacklevel=4)


def _seal(manifest: Mapping[str, Any]) -> str:
    """A digest over the manifest itself: without it, one flipped digit in the content would pass."""
    body = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(_encode(body, MANIFEST)).hexdigest()


def save_folder(
    path: StrPath,
    *,
    kind: str,
    content: Mapping[str, Any],
    files: Mapping[str, Mapping[str, Tensor]],
    schema: int = SCHEMA,
    keep: Iterable[str] = (),
) -> Opened:
    """Saves `content` and the parts in `files`, and returns the folder as opened.

    Parts named in `keep` stay as the folder has them, unread; parts named nowhere are dropped. A part
    whose content is already there is not written again.
    """
    folder = Path(path)
    with lock_folder(folder):
        old = open_folder(folder, kind=kind, newest=schema) if os.path.lexists(folder / MANIFEST) else None
        entries: dict[str, Entry] = {}
        for name in keep:
            if old is None or name not in old.files:
                raise StoreError(f"{str(folder)!r} has no part '{name}' to keep. Pass its tensors in files.")
            entries[name] = old.files[name]
        plain = json.loads(_encode(content, "content"))  # refused before anything is written
        for name, tensors in files.items():
            if not _NAME.fullmatch(name):
                remedy = "Use a-z, 0-9, '.', '_', '-', at most 100 of them."
                raise StoreError(f"{name!r} cannot name a part of {str(folder)!r}. {remedy}")
            data = _encode_tensors(tensors, name)
            digest = hashlib.sha256(data).hexdigest()
            entry = Entry(f"{name}.{digest[:12]}.safetensors", digest, len(data))
            there = folder / entry.file
            same = old is not None and old.files.get(name) == entry and there.is_file()
            if not same or there.stat().st_size != entry.bytes:  # a part that was lost or cut is put back
                write_bytes(there, data)
            entries[name] = entry
        listed = {name: entries[name]._asdict() for name in sorted(entries)}
        manifest = {"schema": schema, "kind": kind, "files": listed, "content": plain}
        write_json(folder / MANIFEST, {**manifest, "sha256": _seal(manifest)})
        _sweep(folder, {entry.file for entry in entries.values()})
    return Opened(folder, kind, schema, plain, {name: entries[name] for name in listed})


def _sweep(folder: Path, wanted: set[str]) -> None:
    """Removes our files that the manifest no longer names, and what crashed saves left behind."""
    with contextlib.suppress(OSError):  # the save is done; what stays behind goes next time
        for name in os.listdir(folder):
            if (_OURS.fullmatch(name) and name not in wanted) or _LEFTOVER.fullmatch(name):
                with contextlib.suppress(OSError):
                    os.unlink(folder / name)


def open_folder(path: StrPath, *, kind: str | None = None, newest: int = SCHEMA) -> Opened:
    """Reads and checks the manifest of a folder; `kind=None` accepts any kind."""
    folder = Path(path)
    where = str(folder / MANIFEST)
    with _plain("open", folder):
        os.listdir(folder)
    if not os.path.lexists(where):
        raise StoreError(f"{str(folder)!r} is not a model folder: it has no {MANIFEST}. Check the path.")
    manifest = read_json(where)

    def need(holds: bool, what: str) -> None:
        if not holds:
            raise StoreError(f"{where!r}: {what}. It was not written by ibpwf, or was damaged; {_RESTORE}")

    need(isinstance(manifest, dict), f"it holds a {type(manifest).__name__} instead of an object")
    schema = manifest.get("schema")
    need(type(schema) is int and schema >= 1, f"field 'schema' is {schema!r} instead of a version number")
    if schema > newest:  # said before anything else is looked at: a newer layout may differ everywhere
        versions = f"schema version {schema}, and this ibpwf reads up to {newest}"
        raise StoreError(f"{where!r} has {versions}: written by a newer ibpwf; upgrade ibpwf to read it.")
    expected = {"schema", "kind", "files", "content", "sha256"}
    need(expected <= set(manifest), f"missing fields: {', '.join(sorted(expected - set(manifest)))}")
    need(set(manifest) <= expected, f"unknown fields: {', '.join(sorted(set(manifest) - expected))}")
    for key, type_ in (("kind", str), ("content", dict), ("files", dict)):
        need(isinstance(manifest[key], type_), f"field '{key}' is not a {type_.__name__}")
    entries: dict[str, Entry] = {}
    for name, item in manifest["files"].items():
        place = f"field 'files.{name}'"
        need(isinstance(item, dict) and set(item) == {"file", "sha256", "bytes"}, f"{place} is malformed")
        file, digest, size = item["file"], item["sha256"], item["bytes"]
        need(isinstance(digest, str) and bool(_HEX64.fullmatch(digest)), f"{place}.sha256 is no digest")
        need(type(size) is int and size >= 0, f"{place}.bytes is not a size")
        # The name follows from the digest, so a manifest cannot point outside its folder.
        fits = bool(_NAME.fullmatch(name)) and file == f"{name}.{digest[:12]}.safetensors"
        need(fits, f"{place}.file is {file!r}, which is not a file name of this folder; it is refused")
        entries[name] = Entry(file, digest, size)
    need(manifest["sha256"] == _seal(manifest), "its content does not match its own SHA-256")
    if kind is not None and manifest["kind"] != kind:
        remedy = f"Give the path of a '{kind}'."
        raise StoreError(f"{where!r} holds a '{manifest['kind']}', not a '{kind}'. {remedy}")
    return Opened(folder, manifest["kind"], schema, manifest["content"], entries)


def verify_folder(path: StrPath, *, newest: int = SCHEMA) -> list[Problem]:
    """Everything that is wrong with a folder; an empty list says that it is whole."""
    try:
        opened = open_folder(path, newest=newest)
    except StoreError as error:
        return [Problem(MANIFEST, str(error))]
    problems = []
    for name, entry in opened.files.items():
        try:
            opened.tensors(name)
        except StoreError as error:
            problems.append(Problem(entry.file, str(error)))
    return problems
