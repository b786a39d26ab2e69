"""Rows in a file without a name: they come back as they were, and leave nothing behind."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from ibpwf.errors import StoreError
from ibpwf.storage.scratch import ScratchFile, scratch_folder

X = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)


def filled(x: np.ndarray, *, as_bytes: bool = False) -> ScratchFile:
    file = ScratchFile(x.shape[1:], as_bytes=as_bytes)
    for part in np.array_split(x, 4):
        file.append(part)
    return file


def test_rows_come_back_by_slice_and_by_number() -> None:
    file = filled(X)
    assert (len(file), file.shape, file.size) == (50, (50, 3), 150)
    rows = np.array([49, 0, 7, 7])
    assert np.array_equal(file[10:20], X[10:20])
    assert np.array_equal(file[rows], X[rows])
    assert np.array_equal(np.concatenate(list(file.parts())), X)
    assert (file.min(), file.max()) == (X.min(), X.max())
    assert file[50:60].shape == (0, 3)


def test_bytes_take_a_byte_and_come_back_as_the_same_floats() -> None:
    levels = np.arange(256, dtype=np.uint8).reshape(4, 1, 8, 8)
    x = np.divide(levels, np.float32(255), dtype=np.float32)
    file = filled(x, as_bytes=True)
    assert np.array_equal(file[0:4], x)
    assert os.fstat(file._file.fileno()).st_size == 256


def test_some_rows_can_be_put_in_the_place_of_others() -> None:
    file = filled(X)
    file.put(5, X[:2])
    assert np.array_equal(file[4:8], X[[4, 0, 1, 7]])


def test_a_digest_tells_rows_and_their_order_from_others() -> None:
    assert filled(X).digest() == filled(X).digest()
    assert len({filled(x).digest() for x in (X, X[::-1], X[:, ::-1], X[:-1])}) == 4


def test_the_file_is_where_temporary_files_are_asked_for_and_has_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert scratch_folder() == tmp_path
    file = filled(X)
    assert np.array_equal(file[:], X)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_said_to_be_so(monkeypatch: pytest.MonkeyPatch) -> None:
    file = filled(X)

    class Full:
        def seek(self, at: int) -> None:
            pass

        def write(self, data: memoryview) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(file, "_file", Full())
    with pytest.raises(StoreError, match=r"rows aside in '.*' after 50 of them: the disk is full\. Set TMPDIR"):
        file.append(X)
