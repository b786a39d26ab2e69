"""One image file as bytes of pixels, through Pillow.

The size is looked up before a pixel is decoded, so that a small file cannot fill the memory.
"""

from __future__ import annotations

import io
import struct
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from ibpwf.data.opening import quoted, short_reason
from ibpwf.errors import DataError, InputError

Bytes8 = npt.NDArray[np.uint8]

MOST_PIXELS = 1 << 26
"""8,192 × 8,192. A larger picture is a scan or a bomb."""

MOST_BYTES = 1 << 28
"""Of an image file: more than so many pixels take, whatever the format."""

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")

_PNG = b"\x89PNG\r\n\x1a\n"
_MAGIC = (_PNG, b"\xff\xd8\xff", b"GIF8", b"BM", b"II*\x00", b"MM\x00*")
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
_STILL = ("JPEG", "MPO")  # phones put a preview beside the picture; it is no second frame
_MODES = {1: "L", 3: "RGB"}


def read_image(data: bytes, file: str, size: tuple[int, int] | None = None, channels: int | None = None) -> Bytes8:
    """The pixels `(channels, height, width)`, one channel for greyscale and three for colour.

    With `size`, an image of another height and width is resized; with `channels`, it is made gray or coloured. `file`
    names it in errors.
    """
    if not data:
        raise DataError(f"{file} is empty; remove it.")
    if not data.startswith(_MAGIC) and data[8:12] != b"WEBP":
        raise DataError(f"{file} is no image: it starts with {quoted(repr(data[:12])[2:-1])}; remove or replace it.")
    if data.startswith(_PNG):
        _check_png(data, file)
    try:
        import PIL.Image
    except ImportError:
        raise InputError(f"{file}: reading images needs Pillow; run pip install 'ibpwf[images]'.") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pixels = np.asarray(_opened(PIL.Image, data, file, size, channels))
    except (DataError, MemoryError):
        raise
    except PIL.Image.DecompressionBombError:
        raise DataError(
            f"{file} announces more than {MOST_PIXELS:,} pixels; make it smaller before reading it."
        ) from None
    except Exception as error:  # Pillow raises many kinds on damaged files
        reason = "it is no image that can be read" if "BytesIO" in str(error) else short_reason(error)
        raise DataError(f"{file} is cut short or damaged ({reason}); replace it.") from None
    return np.ascontiguousarray(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))


def _check_pixels(width: int, height: int, file: str) -> None:
    if not width or not height:
        raise DataError(f"{file} has no pixels ({width}×{height}); remove or replace it.")
    if width * height > MOST_PIXELS:
        raise DataError(
            f"{file} announces {width:,}×{height:,} pixels, more than {MOST_PIXELS:,}; make it smaller before "
            "reading it."
        )


def _check_png(data: bytes, file: str) -> None:
    """Checks the header of a PNG image, of which Pillow would make 8 bits of 16 without a word."""
    if len(data) < 33 or data[12:16] != b"IHDR":
        raise DataError(f"{file} is cut short or damaged: it has no PNG header; replace it.")
    width, height, depth = struct.unpack(">IIB", data[16:25])
    _check_pixels(width, height, file)
    if depth == 16:
        raise DataError(f"{file} has 16 bits a channel, and images are read with 8; convert it to 8 bits.")


def _opened(pillow: Any, data: bytes, file: str, size: tuple[int, int] | None, channels: int | None) -> Any:
    """The image upright, as greyscale or colour with 8 bits, of the size and the channels asked for."""
    from PIL import ImageOps

    image = pillow.open(io.BytesIO(data), formats=_FORMATS)
    _check_pixels(image.width, image.height, file)
    frames = 1 if image.format in _STILL else getattr(image, "n_frames", 1)
    if frames > 1:
        raise DataError(f"{file} has {frames} frames; give single images.")
    image.load()
    image = _flat(ImageOps.exif_transpose(image), file)
    if size is not None and image.size != size[::-1]:
        image = image.resize(size[::-1], pillow.Resampling.BILINEAR)
    return image if channels is None else image.convert(_MODES[channels])


def _flat(image: Any, file: str) -> Any:
    """The image as greyscale or colour with 8 bits; transparency must not hide anything."""
    if image.mode.startswith(("I", "F")):
        raise DataError(f"{file} has more than 8 bits a pixel (mode {image.mode}); convert it to 8 bits.")
    if "transparency" in image.info or image.mode in ("LA", "La", "PA", "RGBA", "RGBa"):
        gray = image.mode in ("L", "LA", "La", "1")
        image = image.convert("LA" if gray else "RGBA")
        if image.getchannel("A").getextrema()[0] < 255:
            raise DataError(
                f"{file} has transparent pixels; lay it on a background and save it without transparency."
            )
        return image.convert("L" if gray else "RGB")
    if image.mode == "1":
        return image.convert("L")
    return image if image.mode in ("L", "RGB") else image.convert("RGB")
