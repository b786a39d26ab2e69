"""A reader for 8-bit RGB and greyscale PNG images: enough to take pictures out of a package without Pillow.

The CIFAR-10 package stores each batch as one picture, 1,024 pixels wide and 10,000 high. Rows are
unfiltered in runs of the same filter; a run is one cumulative sum where the filter allows it.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
import numpy.typing as npt

Bytes8 = npt.NDArray[np.uint8]

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3}  # by colour type
# Row filters 0 None, 1 Sub and 2 Up are cumulative sums at most; these two are not.
_AVERAGE, _PAETH = 3, 4


def decode_png(data: bytes, *, greyscale: bool = False) -> Bytes8:
    """The pixels `(height, width, 3)` of a PNG image. Raises ValueError on anything else.

    With `greyscale`, a greyscale image is read too, as `(height, width, 1)`.
    """
    width, height, channels, packed = _chunks(data, (0, 2) if greyscale else (2,))
    stride = 1 + width * channels
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(packed, height * stride + 1)
    except zlib.error as error:
        raise ValueError(f"damaged PNG: {error}") from None
    if len(raw) != height * stride or not inflater.eof:
        raise ValueError(f"damaged PNG: its pixels are not the {height * stride:,} bytes its header announces")
    rows = np.frombuffer(raw, dtype=np.uint8).reshape(height, stride)
    return _unfilter(rows[:, 0], rows[:, 1:].reshape(height, width, channels))


def _chunks(data: bytes, colours: tuple[int, ...]) -> tuple[int, int, int, bytes]:
    """Width, height, channels and the compressed pixels, after checking every chunk."""
    if not data.startswith(_SIGNATURE):
        raise ValueError("not a PNG image")
    position, size, packed = len(_SIGNATURE), None, bytearray()
    while True:
        if position + 12 > len(data):
            raise ValueError("damaged PNG: it is cut short")
        length, kind = struct.unpack_from(">I4s", data, position)
        body = data[position + 8 : position + 8 + length]
        position += 12 + length
        if position > len(data):
            raise ValueError("damaged PNG: it is cut short")
        if zlib.crc32(body, zlib.crc32(kind)) != struct.unpack_from(">I", data, position - 4)[0]:
            raise ValueError(f"damaged PNG: the checksum of chunk {kind!r} is wrong")
        if kind == b"IHDR":
            if length != 13:
                raise ValueError("damaged PNG: its header has the wrong length")
            width, height, depth, colour, _, _, interlace = struct.unpack(">IIBBBBB", body)
            if (depth, interlace) != (8, 0) or colour not in colours or not width or not height:
                raise ValueError(
                    f"unsupported PNG: depth {depth}, colour type {colour}, interlace {interlace}, "
                    f"{width}×{height}; only 8-bit RGB{' or greyscale' * (0 in colours)} without interlacing is read"
                )
            size = (width, height, _CHANNELS[colour])
        elif kind == b"IDAT":
            packed += body
        elif kind == b"IEND":
            break
    if size is None:
        raise ValueError("damaged PNG: it has no header")
    return (*size, bytes(packed))


def _unfilter(filters: Bytes8, residual: Bytes8) -> Bytes8:
    """Undo the row filters; all arithmetic is modulo 256, which uint8 does by itself."""
    if int(filters.max()) > _PAETH:
        raise ValueError(f"damaged PNG: unknown row filter {int(filters.max())}")
    # Average and Paeth rows are handled by the same code, so they make one run.
    family = np.where(filters == _PAETH, _AVERAGE, filters)
    edges = np.flatnonzero(np.diff(family)) + 1
    image = np.empty_like(residual)
    above = np.zeros_like(residual[0])
    for run in np.split(np.arange(len(filters)), edges):
        rows = slice(int(run[0]), int(run[-1]) + 1)
        match int(family[run[0]]):
            case 0:
                image[rows] = residual[rows]
            case 1:
                np.cumsum(residual[rows], axis=1, dtype=np.uint8, out=image[rows])
            case 2:
                np.cumsum(residual[rows], axis=0, dtype=np.uint8, out=image[rows])
                image[rows] += above
            case _:
                image[rows] = _wavefront(filters[rows], residual[rows], above)
        above = image[rows][-1]
    return image


def _wavefront(filters: Bytes8, residual: Bytes8, above: Bytes8) -> Bytes8:
    """Undo Average and Paeth rows, one anti-diagonal of pixels at a time.

    A pixel needs its left, upper and upper-left neighbours; pixels with the same x + y do not need
    each other, so a diagonal is one vector operation.
    """
    height, width, channels = residual.shape
    # One row above and one column to the left, so that every pixel has its neighbours.
    known = np.zeros((height + 1, width + 1, channels), dtype=np.int16)
    known[0, 1:] = above
    paeth = (filters == _PAETH)[:, None]
    for diagonal in range(height + width - 1):
        y = np.arange(max(0, diagonal - width + 1), min(height, diagonal + 1))
        x = diagonal - y
        left, up, corner = known[y + 1, x], known[y, x + 1], known[y, x]
        predicted = np.where(paeth[y], _nearest(left, up, corner), (left + up) >> 1)
        known[y + 1, x + 1] = (residual[y, x] + predicted) & 0xFF
    return known[1:, 1:].astype(np.uint8)


def _nearest(
    left: npt.NDArray[np.int16], up: npt.NDArray[np.int16], corner: npt.NDArray[np.int16]
) -> npt.NDArray[np.int16]:
    """Paeth's predictor: the neighbour nearest to left + up − corner, ties in that order."""
    to_left, to_up, to_corner = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
    return np.where((to_left <= to_up) & (to_left <= to_corner), left, np.where(to_up <= to_corner, up, corner))
