"""NPZ files: two arrays by name, their sizes known before they are read, never unpickled."""

from __future__ import annotations

import math
import zipfile
from typing import IO

import numpy as np
import numpy.typing as npt

from ibpwf.errors import DataError, InputError
from ibpwf.files.arrays import array_examples
from ibpwf.files.examples import Examples
from ibpwf.files.opening import check_room, listed, open_plain, quoted
from ibpwf.files.request import Request
from ibpwf.lab.data.unpack import UNREADABLE

Array = npt.NDArray[np.generic]

PAIRS = (("x", "y"), ("X", "y"), ("X", "Y"), ("images", "labels"), ("data", "labels"), ("data", "target"))
"""Names that inputs and labels go by, in the order they are looked for."""


def read_npz(request: Request) -> Examples:
    """The examples in an .npz file."""
    with open_plain(request.path) as file:
        try:
            with zipfile.ZipFile(file) as bundle:
                return _read(bundle, request)
        except UNREADABLE as error:
            if isinstance(error, InputError):  # ours, and a ValueError too
                raise
            reason = " ".join(str(error).split())[:120]
            raise DataError(
                f"{request.file} is no .npz file, or cut short or damaged ({reason}); write it with numpy.savez."
            ) from error


def _read(bundle: zipfile.ZipFile, request: Request) -> Examples:
    members = {entry.filename.removesuffix(".npy"): entry for entry in bundle.infolist() if not entry.is_dir()}
    inputs, labels = _names(list(members), request)
    x = _array(bundle, members[inputs], inputs, request)
    y = _array(bundle, members[labels], labels, request) if labels is not None and request.wants_labels else None
    return array_examples(x, y, request, inputs, labels)


def _names(names: list[str], request: Request) -> tuple[str, str | None]:
    """The arrays with the inputs and the labels; a pair of known names, or the one named and the only other."""
    if not names:
        raise DataError(f"{request.file} holds no arrays; write x and y into it with numpy.savez(path, x=x, y=y).")
    label = request.label
    if label is None:
        pair = next((pair for pair in PAIRS if set(pair) <= set(names)), None)
        if pair is not None:
            return pair
    elif label not in names and request.needs_labels:
        raise InputError(f"{request.file} has no array {quoted(label)} for the labels; it has {listed(names)}.")
    known = {name for pair in PAIRS for name in pair[:1]}
    others = [name for name in names if name != label]
    found = [name for name in others if name in known] or others
    if len(found) != 1 or (label is None and request.needs_labels):
        raise InputError(f"{request.file} holds {listed(names)}; call the inputs x and the labels y.")
    return found[0], label if label in names else None


def _array(bundle: zipfile.ZipFile, entry: zipfile.ZipInfo, name: str, request: Request) -> Array:
    with bundle.open(entry) as stream:
        shape, dtype, length = _header(stream, name, request)
    check_room(request.path, shape if dtype.itemsize <= 8 else (*shape, dtype.itemsize // 8))  # a text may be long
    if entry.file_size != length + math.prod(shape) * dtype.itemsize:
        raise DataError(
            f"{request.file}: array {quoted(name)} does not hold the {'×'.join(map(str, shape))} values it "
            "announces; it is damaged. Write it again."
        )
    with bundle.open(entry) as stream:
        array: Array = np.lib.format.read_array(stream, allow_pickle=False)
    return array


def _header(stream: IO[bytes], name: str, request: Request) -> tuple[tuple[int, ...], np.dtype[np.generic], int]:
    """Shape, type and length of the header, from the header alone."""
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, _, dtype = np.lib.format.read_array_header_2_0(stream)
    else:
        raise DataError(
            f"{request.file}: array {quoted(name)} has field names that cannot be read; give plain arrays."
        )
    if dtype.hasobject:
        raise DataError(
            f"{request.file}: array {quoted(name)} holds Python objects, which would have to be unpickled and could "
            "run code; save it as numbers or text (array.astype(str))."
        )
    return shape, dtype, stream.tell()
