"""Single files on disk: bytes, text, JSON, JSON lines and tensors, each written aside and renamed into place.

Every failure of the system is a `StoreError` that names the file and says what to do. Tensors go through
safetensors: nothing here unpickles anything.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import safetensors.torch
import torch
from torch import Tensor

from ibpwf.errors import IBPWFError, StoreError
from ibpwf.storage.leftovers import aside_of, hold

StrPath = str | os.PathLike[str]

RESTORE = "Restore it from a copy, or train and save again."
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
def plain_errors(doing: str, path: StrPath) -> Iterator[None]:
    """Turns the system's errors into a `StoreError` that names the path, the reason and the remedy."""
    try:
        yield
    except IBPWFError:  # some are ValueErrors too
        raise
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, f"{error.strerror or error}. Check the disk and the path.")
        raise StoreError(f"cannot {doing} {os.fspath(path)!r}: {reason}") from error
    except ValueError as error:  # a NUL character in the path
        raise StoreError(f"cannot {doing} {os.fspath(path)!r}: {error}. Check the path.") from error


def sync_folder(folder: Path) -> None:
    """Makes a rename survive a power cut; Windows and some network disks offer no such call."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        sync_handle(handle)
    finally:
        os.close(handle)


def sync_handle(folder: int) -> None:
    """`sync_folder` of one that is open."""
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


@contextlib.contextmanager
def replacing(path: StrPath) -> Iterator[BinaryIO]:
    """A file to write to that takes its place whole when the block ends, or not at all; an old file of that name
    stays until the new one is on disk."""
    target = Path(path)
    aside = aside_of(target)
    with plain_errors("write", target):
        if os.path.lexists(target) and not _may_be_replaced(os.lstat(target).st_mode):
            raise StoreError(f"cannot write {os.fspath(path)!r}: it is a pipe or a device. Give the path of a file.")
        try:
            handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
            with os.fdopen(handle, "wb") as file:
                hold(handle)
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, target)
        except BaseException:
            with contextlib.suppress(OSError, ValueError):
                os.unlink(aside)
            raise
        sync_folder(target.parent)


def _may_be_replaced(mode: int) -> bool:
    """Whether a new file may take its place: that of /dev/null would be the end of more than one program."""
    return stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode)


def check_writable(path: StrPath) -> None:
    """Refuse a file that could not be written later, before the work whose result it is for."""
    target = Path(path)
    with plain_errors("write", target):
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not target.absolute().parent.is_dir():
            raise StoreError(f"cannot write {os.fspath(path)!r}: folder '{target.parent}' does not exist. Create it.")
        if not os.access(target.absolute().parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def write_bytes(path: StrPath, data: bytes) -> None:
    """Writes a file whole or not at all."""
    with replacing(path) as file:
        file.write(data)


def write_text(path: StrPath, text: str) -> None:
    """Writes UTF-8 text whole or not at all."""
    write_bytes(path, text.encode("utf-8"))


def read_bytes(path: StrPath) -> bytes:
    """A whole file. A pipe or a device is refused, since reading one may never end."""
    with plain_errors("read", path):
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, "it is not a plain file")
        with open(path, "rb") as file:
            return file.read()


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


def encode_json(obj: object, where: str, indent: int | None = None) -> bytes:
    try:
        plain = _plain_json(obj, where)
        # Without an indent it is the canonical form, over which digests are taken.
        separators = (",", ":") if indent is None else None
        text = json.dumps(plain, indent=indent, separators=separators, sort_keys=indent is None)
    except (RecursionError, ValueError) as error:
        raise StoreError(f"{where} is too deep or too large for JSON ({error}). Give less.") from error
    return text.encode("ascii")


LINE = 180
"""Columns up to which a list or an object stays on one line of a file that people may read."""


def encode_lines(obj: object, where: str) -> bytes:
    """JSON with as much on a line as fits: short to store, and a line for each thing that is listed."""
    encode_json(obj, where)  # refuses what JSON cannot hold
    return (_spread(_plain_json(obj, where), "\n") + "\n").encode("ascii")


def _spread(value: Any, newline: str) -> str:
    compact = json.dumps(value, separators=(", ", ": "))
    if len(compact) <= LINE or not isinstance(value, (dict, list)):
        return compact
    inner = newline + " "
    if isinstance(value, dict):
        items, ends = [f"{json.dumps(key)}: {_spread(item, inner)}" for key, item in value.items()], "{}"
    else:
        items, ends = [_spread(item, inner) for item in value], "[]"
    return ends[0] + inner + f",{inner}".join(items) + newline + ends[1]


def _decode(data: bytes) -> Any:
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_no_number)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def write_json(path: StrPath, obj: object) -> None:
    """Writes a JSON file whole or not at all."""
    write_bytes(path, encode_json(obj, Path(path).name, 2) + b"\n")


def read_json(path: StrPath) -> Any:
    """The content of a JSON file; a damaged or cut file is a `StoreError`."""
    return decode_json(read_bytes(path), path)


def decode_json(data: bytes, path: StrPath) -> Any:
    """The content of a JSON file that has been read."""
    try:
        return _decode(data)
    except ValueError as error:
        what = "is empty" if not data.strip() else f"is not whole JSON ({error})"
        raise StoreError(f"{os.fspath(path)!r} {what}. It was cut short or damaged. {RESTORE}") from error


def _is_whole(line: bytes) -> bool:
    try:
        return isinstance(_decode(line), dict)
    except ValueError:
        return False


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def append_jsonl(path: StrPath, obj: Mapping[str, Any]) -> None:
    """Adds one object as a line; first mends a last line that a crash cut short."""
    if not isinstance(obj, Mapping):
        # Objects only: a cut `{...` is never whole JSON, while a cut `123` would read as `12`.
        raise StoreError(f"a line of {os.fspath(path)!r} must be a dict, not {type(obj).__name__}.")
    line = encode_json(obj, Path(path).name) + b"\n"
    with plain_errors("write", path):
        if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
            raise OSError(errno.EINVAL, "it is a link or no plain file, and is not written to")
        new = not os.path.lexists(path)
        # No buffer: closing must not write what failed before.
        with open(path, "ab+", buffering=0, opener=_no_link) as file:
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
            sync_folder(Path(path).parent)


def read_jsonl(path: StrPath) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file; a last line that a crash cut short is left out."""
    *lines, last = read_bytes(path).split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not _is_whole(line):
            raise StoreError(f"line {number} of {os.fspath(path)!r} is damaged. Remove that line to go on.")
    return [_decode(line) for line in ([*lines, last] if _is_whole(last) else lines)]


def encode_tensors(tensors: Mapping[str, Tensor], where: str, metadata: dict[str, str] | None = None) -> bytes:
    plain: dict[str, Tensor] = {}
    places: set[int] = set()
    for name, tensor in tensors.items():
        if not isinstance(name, str) or name == "__metadata__":
            raise StoreError(f"{where}: {name!r} cannot name a tensor. Use other text as its name.")
        if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided or tensor.is_meta:
            kind = getattr(tensor, "layout", type(tensor).__name__)
            raise StoreError(f"{where}: '{name}' ({kind}) is not a dense tensor with values. Give one.")
        here = tensor.detach().to("cpu")
        alone = here.is_contiguous() and here.untyped_storage().nbytes() == here.nbytes
        if not alone or here.data_ptr() in places:  # safetensors refuses what shares memory or is not contiguous
            here = here.clone(memory_format=torch.contiguous_format)
        places.add(here.data_ptr())
        plain[name] = here
    try:
        return safetensors.torch.save(plain, metadata)
    except Exception as error:
        raise StoreError(f"{where}: these tensors cannot be stored ({error}). Use a common dtype.") from error


def decode_tensors(data: bytes, path: StrPath) -> dict[str, Tensor]:
    try:
        tensors = safetensors.torch.load(data)
    except Exception as error:  # its parser raises several kinds on a damaged file
        what = f"is not a whole safetensors file ({error})"
        raise StoreError(f"{os.fspath(path)!r} {what}. {RESTORE}") from error
    return {name: tensors[name] for name in sorted(tensors)}
