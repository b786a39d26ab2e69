"""One image file as bytes of pixels: Pillow where it is installed, our own reader for plain PNG where not.

The size is looked up before a pixel is decoded, so that a small file cannot fill the memory.
"""

from __future__ import annotations

import io
import struct
import warnings
from typing import Any

import numpy as np

from ibpwf.errors import DataError, InputError
from ibpwf.files.opening import quoted
from ibpwf.lab.data.png import Bytes8, decode_png

MOST_PIXELS = 1 << 26
"""8,192 × 8,192. A larger picture is a scan or a bomb."""

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")

_PNG = b"\x89PNG\r\n\x1a\n"
_MAGIC = (_PNG, b"\xff\xd8\xff", b"GIF8", b"BM", b"II*\x00", b"MM\x00*")
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
_STILL = ("JPEG", "MPO")  # phones put a preview beside the picture; it is no second frame


def read_image(data: bytes, file: str, size: tuple[int, int] | None = None) -> Bytes8:
    """The pixels `(channels, height, width)`, one channel for greyscale and three for colour.

    With `size`, an image of another height and width is resized. `file` names it in errors.
    """
    if not data:
        raise DataError(f"{file} is empty; remove it.")
    if not data.startswith(_MAGIC) and data[8:12] != b"WEBP":
        raise DataError(f"{file} is no image: it starts with {quoted(repr(data[:12])[2:-1])}; remove or replace it.")
    simple = _check_png(data, file) if data.startswith(_PNG) else False
    try:
        import PIL.Image
    except ImportError:
        if simple:
            pixels = _own(data, file)
            if size is None or pixels.shape[1:] == size:
                return pixels
        what = "resizing it" if simple else "reading it"
        raise InputError(
            f"{file}: {what} needs Pillow; run pip install 'ibpwf[images]', or convert the images to plain 8-bit PNG "
            "of one size."
        ) from None
    return _pillow(PIL.Image, data, file, size)


def check_pixels(width: int, height: int, file: str) -> None:
    if not width or not height:
        raise DataError(f"{file} has no pixels ({width}×{height}); remove or replace it.")
    if width * height > MOST_PIXELS:
        raise DataError(
            f"{file} announces {width:,}×{height:,} pixels, more than {MOST_PIXELS:,}; make it smaller before "
            "reading it."
        )


def _check_png(data: bytes, file: str) -> bool:
    """Checks the header of a PNG image; whether our own reader can decode it."""
    if len(data) < 33 or data[12:16] != b"IHDR":
        raise DataError(f"{file} is cut short or damaged: it has no PNG header; replace it.")
    width, height, depth, colour, _, _, interlace = struct.unpack(">IIBBBBB", data[16:29])
    check_pixels(width, height, file)
    if depth == 16:
        raise DataError(f"{file} has 16 bits a channel, and images are read with 8; convert it to 8 bits.")
    transparent = b"tRNS" in data[: data.find(b"IDAT")]
    return (depth, interlace) == (8, 0) and colour in (0, 2) and not transparent


def _own(data: bytes, file: str) -> Bytes8:
    try:
        return decode_png(data, greyscale=True).transpose(2, 0, 1)
    except ValueError as error:
        raise DataError(f"{file} cannot be decoded ({error}); replace it.") from None


def _pillow(pillow: Any, data: bytes, file: str, size: tuple[int, int] | None) -> Bytes8:
    from PIL import ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = pillow.open(io.BytesIO(data), formats=_FORMATS)
            check_pixels(image.width, image.height, file)
            frames = 1 if image.format in _STILL else getattr(image, "n_frames", 1)
            if frames > 1:
                raise DataError(f"{file} has {frames} frames; give single images.")
            image.load()
            image = ImageOps.exif_transpose(image)
            image = _flat(image, file)
            if size is not None and image.size != size[::-1]:
                image = image.resize(size[::-1], pillow.Resampling.BILINEAR)
            pixels = np.asarray(image)
    except (DataError, MemoryError):
        raise
    except pillow.DecompressionBombError:
        raise DataError(
            f"{file} announces more than {MOST_PIXELS:,} pixels; make it smaller before reading it."
        ) from None
    except Exception as error:  # Pillow raises many kinds on damaged files
        reason = " ".join(str(error).split())[:100] or type(error).__name__
        reason = "it is no image that can be read" if "BytesIO" in reason else reason
        raise DataError(f"{file} is cut short or damaged ({reason}); replace it.") from None
    return np.ascontiguousarray(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))


def _flat(image: Any, file: str) -> Any:
    """The image as greyscale or colour with 8 bits; transparency must not hide anything."""
    if image.mode.startswith(("I", "F")):
        raise DataError(f"{file} has more than 8 bits a pixel (mode {image.mode}); convert it to 8 bits.")
    if "transparency" in image.info or image.mode in ("LA", "La", "PA", "RGBA", "RGBa"):
        grey = image.mode in ("L", "LA", "La", "1")
        image = image.convert("LA" if grey else "RGBA")
        if image.getchannel("A").getextrema()[0] < 255:
            raise DataError(
                f"{file} has transparent pixels; lay it on a background and save it without transparency."
            )
        return image.convert("L" if grey else "RGB")
    if image.mode == "1":
        return image.convert("L")
    return image if image.mode in ("L", "RGB") else image.convert("RGB")


def with_channels(pixels: Bytes8, channels: int) -> Bytes8:
    """Greyscale repeated for three channels, or the brightness of colours for one (ITU-R 601)."""
    if len(pixels) == channels:
        return pixels
    if channels == 3:
        return np.repeat(pixels, 3, axis=0)
    weights = np.array([19595, 38470, 7471], dtype=np.uint32)[:, None, None]
    brightness = ((pixels * weights).sum(axis=0, keepdims=True) + 0x8000) >> 16
    return np.asarray(brightness, dtype=np.uint8)
