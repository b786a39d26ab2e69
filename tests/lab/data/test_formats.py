"""idx files and CIFAR-10 batches against bytes laid out by hand."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from ibpwf.errors import DataError
from ibpwf.lab.data.formats import parse_cifar, parse_idx, to_cifar, to_idx

HEADER = bytes.fromhex("00000803 00000002 00000002 00000003")


def test_idx_values_stand_in_row_major_order() -> None:
    array = parse_idx(HEADER + bytes(range(12)), "f")
    assert array.shape == (2, 2, 3)
    assert array[1, 0].tolist() == [6, 7, 8]


def test_idx_is_written_as_the_format_says() -> None:
    assert to_idx(np.arange(12, dtype=np.uint8).reshape(2, 2, 3)) == HEADER + bytes(range(12))


def test_idx_written_from_a_view_has_the_views_values() -> None:
    view = np.arange(12, dtype=np.uint8).reshape(3, 4)[:, ::2]
    np.testing.assert_array_equal(parse_idx(to_idx(view), "f"), view)


@pytest.mark.parametrize("start", [b"", b"\0\0", b"\x1f\x8b\x08\x00", b"<html>", b"\0\0\x0d\x03" + bytes(12)])
def test_a_file_without_the_magic_number_is_refused(start: bytes) -> None:
    with pytest.raises(DataError, match=r"some-file.*no idx file.*expected 00 00 08"):
        parse_idx(start, "some-file")


def test_a_header_cut_short_is_refused() -> None:
    with pytest.raises(DataError, match="ends inside its header"):
        parse_idx(HEADER[:10], "f")


@pytest.mark.parametrize("body", [11, 13])
def test_too_few_or_too_many_values_are_refused(body: int) -> None:
    with pytest.raises(DataError, match=f"2×2×3 values but holds {body}"):
        parse_idx(HEADER + bytes(body), "f")


def test_a_header_announcing_astronomic_sizes_is_refused() -> None:
    huge = bytes([0, 0, 8, 4]) + struct.pack(">4I", *[2**32 - 1] * 4)
    with pytest.raises(DataError, match="cut short"):
        parse_idx(huge + bytes(16), "f")


def test_cifar_records_are_a_label_and_three_planes() -> None:
    record = bytes([7]) + bytes([1]) * 1024 + bytes([2]) * 1024 + bytes([3]) * 1024
    images, labels = parse_cifar(record * 2, "b")
    assert labels.tolist() == [7, 7]
    assert images.shape == (2, 3, 32, 32)
    assert [int(images[1, c].min()) for c in range(3)] == [1, 2, 3]
    assert to_cifar(images, labels) == record * 2


@pytest.mark.parametrize("length", [0, 3072, 3074])
def test_a_cifar_batch_of_broken_records_is_refused(length: int) -> None:
    with pytest.raises(DataError, match="no CIFAR-10 binary batch"):
        parse_cifar(bytes(length), "b")
