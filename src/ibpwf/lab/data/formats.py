"""Byte layouts: the idx files of the MNIST family and the binary batches of CIFAR-10."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from ibpwf.errors import DataError

Bytes8 = npt.NDArray[np.uint8]

CIFAR_RECORD = 1 + 3 * 32 * 32
"""One CIFAR-10 record: a label byte, then 1,024 red, 1,024 green and 1,024 blue bytes."""


def parse_idx(data: bytes | bytearray, name: str) -> Bytes8:
    """The array in an idx file of unsigned bytes; it shares memory with `data`.

    Layout: two zero bytes, the type (0x08), the number of dimensions, each dimension as a
    big-endian uint32, then the values.
    """
    if len(data) < 4 or data[0] != 0 or data[1] != 0 or data[2] != 0x08:
        start = bytes(data[:4]).hex(" ") or "nothing"
        raise DataError(f"{name} is no idx file of bytes: it starts with {start}, expected 00 00 08.")
    rank = data[3]
    values = 4 + 4 * rank
    if rank == 0 or len(data) < values:
        raise DataError(f"{name} is no idx file: it ends inside its header ({len(data)} bytes).")
    shape = struct.unpack(f">{rank}I", data[4:values])
    # Python's integers, not numpy's: a forged header may ask for more than 64 bits.
    count = 1
    for extent in shape:
        count *= extent
    if len(data) - values != count:
        raise DataError(
            f"{name} announces {'×'.join(map(str, shape))} values but holds {len(data) - values:,}; "
            "it is cut short or not an idx file."
        )
    return np.frombuffer(data, dtype=np.uint8, offset=values).reshape(shape)


def to_idx(array: Bytes8) -> bytes:
    """The idx file of an array of bytes."""
    header = bytes([0, 0, 0x08, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + np.ascontiguousarray(array).tobytes()


def parse_cifar(data: bytes | bytearray, name: str) -> tuple[Bytes8, Bytes8]:
    """Images `(N, 3, 32, 32)` and labels `(N,)` of a CIFAR-10 binary batch."""
    if len(data) == 0 or len(data) % CIFAR_RECORD:
        raise DataError(
            f"{name} is no CIFAR-10 binary batch: {len(data):,} bytes is no multiple of {CIFAR_RECORD:,}."
        )
    records = np.frombuffer(data, dtype=np.uint8).reshape(-1, CIFAR_RECORD)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].copy()


def to_cifar(images: Bytes8, labels: Bytes8) -> bytes:
    """The CIFAR-10 binary batch of images `(N, 3, 32, 32)` and labels `(N,)`."""
    records = np.empty((len(images), CIFAR_RECORD), dtype=np.uint8)
    records[:, 0] = labels
    records[:, 1:] = images.reshape(len(images), -1)
    return records.tobytes()
