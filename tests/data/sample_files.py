"""Writes the files that the tests of the readers read: tables, pictures made from the PNG specification, IDX, NPZ."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np

SIGNATURE = b"\x89PNG\r\n\x1a\n"
IRIS = "length,width,colour,species\n5.1,3.5,red,setosa\n6.2,2.9,blue,virginica\n4.9,3.0,red,setosa\n"


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(
    pixels: np.ndarray, *, color: int | None = None, depth: int = 8, between: bytes = b"", interlace: int = 0
) -> bytes:
    """A PNG image of pixels `(height, width, samples)` without row filters; `between` goes before the pixels."""
    height, width, samples = pixels.shape
    color = {1: 0, 2: 4, 3: 2, 4: 6}[samples] if color is None else color
    raw = b"".join(b"\0" + row.astype(">u2" if depth == 16 else np.uint8).tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlace)
    return SIGNATURE + chunk(b"IHDR", header) + between + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")


def picture(channels: int = 3, height: int = 4, width: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels)).astype(np.uint8)


def pictures(folder: Path, **classes: list[bytes]) -> Path:
    """A folder per class, with these images in it as 0.png, 1.png, …"""
    for name, images in classes.items():
        (folder / name).mkdir(parents=True)
        for number, data in enumerate(images):
            (folder / name / f"{number}.png").write_bytes(data)
    return folder


def two_classes(folder: Path, channels: int = 3) -> Path:
    made = [png(picture(channels, seed=seed)) for seed in range(4)]
    return pictures(folder, cat=made[:2], dog=made[2:])


def idx(array: np.ndarray, kind: int = 8) -> bytes:
    return bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def idx_pair(folder: Path, n: int = 6, labels: int | None = None) -> Path:
    """A pair of IDX files called as MNIST's are; the path of the images."""
    folder.mkdir(parents=True, exist_ok=True)
    images = np.random.default_rng(0).integers(0, 256, (n, 4, 5)).astype(np.uint8)
    (folder / "train-images-idx3-ubyte").write_bytes(idx(images))
    (folder / "train-labels-idx1-ubyte").write_bytes(idx((np.arange(labels or n) % 3).astype(np.uint8)))
    return folder / "train-images-idx3-ubyte"
