"""NPZ files: two arrays by name, their sizes known before they are read, never unpickled."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO

import numpy as np

from ibpwf.data.arrays import Array, array_examples
from ibpwf.data.examples import Examples
from ibpwf.data.opening import check_room, listed, open_plain, quoted, short_reason, shown, spelled
from ibpwf.data.options import ReadOptions
from ibpwf.errors import DataError, InputError

PAIRS = (("x", "y"), ("X", "y"), ("X", "Y"), ("images", "labels"), ("data", "labels"), ("data", "target"))
"""Names that inputs and labels go by, in the order they are looked for."""

LONGEST_HEADER = 10_000
"""Bytes, as NumPy itself takes."""


def read_npz(path: Path, options: ReadOptions) -> Examples:
    """The examples in an .npz file."""
    with open_plain(path) as file:
        try:
            with zipfile.ZipFile(file) as bundle:
                return _read(path, bundle, options)
        except InputError:  # a ValueError too
            raise
        except (DataError, MemoryError):
            raise
        except Exception as error:  # whatever a damaged archive makes of its readers
            raise DataError(
                f"{shown(path)} is no .npz file, or cut short or damaged ({short_reason(error)}); write it with "
                "numpy.savez."
            ) from error


def _read(path: Path, bundle: zipfile.ZipFile, options: ReadOptions) -> Examples:
    members = {entry.filename.removesuffix(".npy"): entry for entry in bundle.infolist() if not entry.is_dir()}
    inputs, labels = _names(list(members), shown(path), options)
    x = _array(bundle, members[inputs], inputs, path)
    y = _array(bundle, members[labels], labels, path) if labels is not None and options.wants_labels else None
    return array_examples(path, x, y, options, inputs, labels)


def _names(names: list[str], file: str, options: ReadOptions) -> tuple[str, str | None]:
    """The arrays with the inputs and the labels; a pair of known names, or the one named and the only other."""
    if not names:
        raise DataError(f"{file} holds no arrays; write x and y into it with numpy.savez(path, x=x, y=y).")
    label = options.label
    if label is None:
        pair = next((pair for pair in PAIRS if set(pair) <= set(names)), None)
        if pair is not None:
            return pair
    elif label not in names and options.needs_labels:
        raise InputError(f"{file} has no array {quoted(label)} for the labels; it has {listed(names)}.")
    known = {name for pair in PAIRS for name in pair[:1]}
    others = [name for name in names if name != label]
    found = [name for name in others if name in known] or others
    if len(found) != 1 or (label is None and options.needs_labels):
        raise InputError(f"{file} holds {listed(names)}; call the inputs x and the labels y.")
    return found[0], label if label in names else None


def _array(bundle: zipfile.ZipFile, entry: zipfile.ZipInfo, name: str, path: Path) -> Array:
    with bundle.open(entry) as stream:
        shape, dtype, length = header_of(stream, name, shown(path))
    check_room(path, shape if dtype.itemsize <= 8 else (*shape, dtype.itemsize // 8), max(4, min(dtype.itemsize, 8)))
    if entry.file_size != length + math.prod(shape) * dtype.itemsize:
        raise DataError(
            f"{shown(path)}: array {quoted(name)} does not hold the {spelled(shape)} values it announces; it is "
            "damaged. Write it again."
        )
    with bundle.open(entry) as stream:
        array: Array = np.lib.format.read_array(stream, allow_pickle=False)
    return array


def header_of(stream: IO[bytes], name: str, file: str) -> tuple[tuple[int, ...], np.dtype[np.generic], int]:
    """Shape, type and length of the header, from the header alone, which must be of a sane length itself."""
    start = stream.read(12)
    length = int.from_bytes(start[8:10] if start[6:7] == b"\1" else start[8:12], "little")
    if length > LONGEST_HEADER:
        raise DataError(
            f"{file}: array {quoted(name)} has a header of {length:,} bytes, more than {LONGEST_HEADER:,}; it is "
            "damaged. Write it again."
        )
    stream.seek(0)
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, _, dtype = np.lib.format.read_array_header_2_0(stream)
    else:
        raise DataError(f"{file}: array {quoted(name)} has field names that cannot be read; give plain arrays.")
    if dtype.hasobject:
        raise DataError(
            f"{file}: array {quoted(name)} holds Python objects, which would have to be unpickled and could "
            "run code; save it as numbers or text (array.astype(str))."
        )
    return shape, dtype, stream.tell()
