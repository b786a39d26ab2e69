"""The PNG reader against pictures encoded here, pixel by pixel, from the specification."""

from __future__ import annotations

import itertools
import struct
import time
import zlib

import numpy as np
import pytest

from ibpwf.lab.data.png import decode_png


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def paeth(a: int, b: int, c: int) -> int:
    p = a + b - c
    pa, pb, pc = abs(p - a), abs(p - b), abs(p - c)
    if pa <= pb and pa <= pc:
        return a
    return b if pb <= pc else c


def filtered(image: np.ndarray, filters: list[int]) -> bytes:
    """The filter step of PNG (RFC 2083, section 6), byte by byte."""
    height, width, channels = image.shape
    rows = image.reshape(height, width * channels).astype(int)
    out = bytearray()
    for y, kind in enumerate(filters):
        out.append(kind)
        for i in range(width * channels):
            a = rows[y, i - channels] if i >= channels else 0
            b = rows[y - 1, i] if y else 0
            c = rows[y - 1, i - channels] if y and i >= channels else 0
            prediction = (0, a, b, (a + b) // 2, paeth(a, b, c))[kind]
            out.append((rows[y, i] - prediction) % 256)
    return bytes(out)


def encode(
    image: np.ndarray, filters: list[int], *, pieces: int = 3, header: tuple[int, ...] = (8, 2, 0, 0, 0)
) -> bytes:
    packed = zlib.compress(filtered(image, filters))
    cuts = np.linspace(0, len(packed), pieces + 1).astype(int)
    data = b"".join(chunk(b"IDAT", packed[start:stop]) for start, stop in itertools.pairwise(cuts))
    ihdr = struct.pack(">IIBBBBB", image.shape[1], image.shape[0], *header)
    comment = chunk(b"tEXt", b"Comment\0passed over")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", ihdr) + comment + data + chunk(b"IEND", b"")


def picture(height: int, width: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    noise = rng.integers(0, 256, (height, width, 3))
    # Half noise, half a ramp: ties and wrap-arounds both happen.
    ramp = np.add.outer(np.arange(height), np.arange(width))[:, :, None] * np.array([1, 3, 7]) % 256
    return np.where(rng.random((height, width, 1)) < 0.5, noise, ramp).astype(np.uint8)


@pytest.mark.parametrize("kind", range(5))
def test_each_filter_is_undone(kind: int) -> None:
    image = picture(9, 13, kind)
    np.testing.assert_array_equal(decode_png(encode(image, [kind] * 9)), image)


@pytest.mark.parametrize("kind", range(5))
def test_greyscale_is_read_on_request_alone(kind: int) -> None:
    image = picture(9, 13, kind)[:, :, :1]
    data = encode(image, [kind] * 9, header=(8, 0, 0, 0, 0))
    np.testing.assert_array_equal(decode_png(data, greyscale=True), image)
    with pytest.raises(ValueError, match="only 8-bit RGB without"):
        decode_png(data)


@pytest.mark.parametrize("seed", range(6))
def test_filters_mixed_row_by_row_are_undone(seed: int) -> None:
    image = picture(24, 11, seed)
    filters = np.random.default_rng(seed).integers(0, 5, 24).tolist()
    np.testing.assert_array_equal(decode_png(encode(image, filters)), image)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 30), (30, 1)])
def test_narrow_pictures_are_read(height: int, width: int) -> None:
    image = picture(height, width, 3)
    filters = [(4, 3, 2, 1, 0)[y % 5] for y in range(height)]
    np.testing.assert_array_equal(decode_png(encode(image, filters)), image)


def test_a_large_picture_takes_well_under_a_second() -> None:
    raw = np.zeros((2000, 1 + 3 * 1024), dtype=np.uint8)
    raw[:, 0] = 1
    ihdr = struct.pack(">IIBBBBB", 1024, 2000, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", ihdr) + chunk(b"IDAT", zlib.compress(raw.tobytes())) + chunk(b"IEND", b"")
    start = time.perf_counter()
    decode_png(b"\x89PNG\r\n\x1a\n" + body)
    assert time.perf_counter() - start < 1.0


def test_a_flipped_bit_is_noticed() -> None:
    data = bytearray(encode(picture(5, 5, 0), [1] * 5))
    data[-30] ^= 1
    with pytest.raises(ValueError, match="checksum"):
        decode_png(bytes(data))


@pytest.mark.parametrize("keep", [0, 7, 20, 60, -1])
def test_a_picture_cut_short_is_refused(keep: int) -> None:
    with pytest.raises(ValueError, match="PNG"):
        decode_png(encode(picture(8, 8, 0), [4] * 8)[:keep])


def test_pixels_that_do_not_fill_the_announced_size_are_refused() -> None:
    image = picture(4, 4, 0)
    ihdr = struct.pack(">IIBBBBB", 4, 5, 8, 2, 0, 0, 0)
    data = chunk(b"IHDR", ihdr) + chunk(b"IDAT", zlib.compress(filtered(image, [0] * 4))) + chunk(b"IEND", b"")
    with pytest.raises(ValueError, match="announces"):
        decode_png(b"\x89PNG\r\n\x1a\n" + data)


@pytest.mark.parametrize("header", [(16, 2, 0, 0, 0), (8, 3, 0, 0, 0), (8, 6, 0, 0, 0), (8, 2, 0, 0, 1)])
def test_other_kinds_of_png_are_refused_by_name(header: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="only 8-bit RGB"):
        decode_png(encode(picture(3, 3, 0), [0] * 3, header=header))


def test_an_unknown_filter_is_refused() -> None:
    raw = bytes([9]) + bytes(3 * 2)
    ihdr = struct.pack(">IIBBBBB", 2, 1, 8, 2, 0, 0, 0)
    data = chunk(b"IHDR", ihdr) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")
    with pytest.raises(ValueError, match="filter 9"):
        decode_png(b"\x89PNG\r\n\x1a\n" + data)
