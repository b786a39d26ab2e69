"""Rows of numbers in a file without a name: more of them than memory holds, and gone when nobody needs them.

They are read by the row, so that nothing of the file counts as this process's memory; what the system keeps of it in
its cache it gives back when asked.
"""

from __future__ import annotations

import copy
import errno
import hashlib
import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ibpwf.errors import StoreError

Array = NDArray[Any]

NUMBERS_AT_ONCE = 1 << 22
ROWS_AT_ONCE = 8192
PIXEL_LEVELS = np.float32(255)


def scratch_folder() -> Path:
    """Where such files are: in TMPDIR, else in a folder that is on a disk even where /tmp is in memory."""
    usual = Path("/var/tmp")
    if "TMPDIR" not in os.environ and usual.is_dir() and os.access(usual, os.W_OK):
        return usual
    return Path(tempfile.gettempdir())


class ScratchFile:
    """N examples of one shape, float32, or bytes that are read as float32 from 0 to 1.

    Like an array, it has `shape`, `size`, `min` and `max`, and gives rows by a slice or by their numbers, as copies.
    `rows` chooses some of them without reading any.
    """

    def __init__(self, shape: tuple[int, ...], *, as_bytes: bool = False) -> None:
        self.example, self.dtype = tuple(shape), np.dtype(np.uint8 if as_bytes else np.float32)
        self.rows_at_once = max(1, min(ROWS_AT_ONCE, NUMBERS_AT_ONCE // max(math.prod(shape), 1)))
        self._width = math.prod(shape) * self.dtype.itemsize
        self._rows, self._folder = 0, scratch_folder()
        self._places: Array | None = None  # the rows of the file that these are; None for all of them
        self._digest = hashlib.sha256(repr((self.example, self.dtype.str)).encode())
        try:
            self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115 (lives as long as this)
        except OSError as error:
            raise self._refused(error) from error

    def __len__(self) -> int:
        return self._rows

    @property
    def shape(self) -> tuple[int, ...]:
        return (self._rows, *self.example)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def digest(self) -> bytes:
        """Tells what was appended, in its order, from anything else."""
        digest = self._digest.copy()
        digest.update(b"" if self._places is None else self._places.tobytes())
        return digest.digest()

    def rows(self, chosen: Array) -> ScratchFile:
        """Those with these numbers, in the same file, to be read only."""
        part = copy.copy(self)
        part._places = np.asarray(chosen if self._places is None else self._places[chosen])
        if part._places.dtype == np.int64 and self._rows < 1 << 31:
            part._places = part._places.astype(np.int32)
        part._rows = len(chosen)
        return part

    def flat(self) -> ScratchFile:
        """The same rows, each as one row of numbers."""
        part = copy.copy(self)
        part.example = (math.prod(self.example),)
        return part

    def append(self, rows: Array) -> None:
        """More rows; of bytes, as numbers from 0 to 1."""
        assert rows.shape[1:] == self.example
        assert self._places is None
        data = self._as_stored(rows)
        self._digest.update(data)
        self._write(data, self._rows * self._width)
        self._rows += len(rows)

    def put(self, start: int, rows: Array) -> None:
        """Other numbers in the place of the rows from `start`."""
        self._write(self._as_stored(rows), start * self._width)

    def _as_stored(self, rows: Array) -> bytes:
        if self.dtype == np.uint8:
            rows = np.rint(rows * PIXEL_LEVELS)
        return np.ascontiguousarray(rows, self.dtype).tobytes()

    def _write(self, data: bytes, at: int) -> None:
        try:
            self._file.seek(at)
            rest = memoryview(data)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> StoreError:
        reason = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or str(error)
        return StoreError(
            f"cannot keep rows aside in '{self._folder}' after {self._rows:,} of them: {reason}. Set TMPDIR to a "
            "folder on a disk with more room."
        )

    def __getitem__(self, rows: slice | Array) -> Array:
        rows = rows if self._places is None else self._places[rows]
        if isinstance(rows, slice):
            start, stop, step = rows.indices(self._rows)
            assert step == 1
            data = self._read(max(stop - start, 0) * self._width, start * self._width)
        else:
            width, read = self._width, self._read
            data = b"".join([read(width, at) for at in (rows.astype(np.int64) * width).tolist()])
        found = np.frombuffer(bytearray(data), self.dtype).reshape(-1, *self.example)
        return found if self.dtype == np.float32 else np.divide(found, PIXEL_LEVELS, dtype=np.float32)

    def _read(self, count: int, at: int) -> bytes:
        if not hasattr(os, "pread"):
            self._file.seek(at)
            return self._file.read(count)
        data = os.pread(self._file.fileno(), count, at)
        while len(data) < count:  # a system reads no more than 2 GiB at once
            data += os.pread(self._file.fileno(), count - len(data), at + len(data))
        return data

    def parts(self) -> Iterator[Array]:
        """All rows in their order, some at a time."""
        for start in range(0, self._rows, self.rows_at_once):
            yield self[start : start + self.rows_at_once]

    def min(self) -> float:
        return min(float(part.min()) for part in self.parts())

    def max(self) -> float:
        return max(float(part.max()) for part in self.parts())
