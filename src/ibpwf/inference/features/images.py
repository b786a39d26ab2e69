"""Rows as the images that they are."""

from __future__ import annotations

import math

from torch import Tensor


def as_images(x: Tensor, shape: tuple[int, ...] | None) -> Tensor:
    """Flat rows as images of this shape, where they have as many numbers; any other rows as they are."""
    flat = x.ndim == 2 and shape is not None and x.shape[1] == math.prod(shape)
    return x.reshape(-1, *(shape or ())) if flat else x
