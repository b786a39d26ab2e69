"""Images of another size: the two ways that makers of networks resize what they train on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from ibpwf.storage.tensor_checks import CorruptModelError

Resize = Literal["bilinear", "bicubic"]


def stored_resize(content: Mapping[str, Any]) -> Resize:
    """How a model that was stored resizes its images."""
    found: Resize = content["resize"]
    if found not in get_args(Resize):
        raise CorruptModelError(f"images are resized by {found!r}, which is none of {', '.join(get_args(Resize))}")
    return found


def resized(images: Tensor, size: int, resize: Resize) -> Tensor:
    """Images N×C×H×W as N×C×size×size; where a side shrinks they are smoothed."""
    sides = (int(images.shape[2]), int(images.shape[3]))
    return images if sides == (size, size) else _interpolated(images, (size, size), resize, shrinks(sides, size))


def shrinks(sides: tuple[int, int], size: int) -> bool:
    return max(sides) > size


def resizing(old: int, new: int, resize: Resize, smooth: bool) -> Tensor:
    """The matrix that resizes one side, new×old."""
    return _interpolated(torch.eye(old, dtype=torch.float32).view(1, 1, old, old), (new, old), resize, smooth)[0, 0]


def _interpolated(images: Tensor, sides: tuple[int, int], resize: Resize, smooth: bool) -> Tensor:
    return F.interpolate(images, sides, mode=resize, antialias=smooth, align_corners=False)
