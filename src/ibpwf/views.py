"""Images that are turned and mirrored: an expert that must also tell by how much learns what is not its own.

With `turns=4` a task of C classes is learned as one of 4C: every image is given in all four quarter turns, and output
kC + c stands for class c turned k times (after Hendrycks et al., "Using self-supervised learning can improve model
robustness and uncertainty", 2019). An image unlike the task's fits none of them well, whichever way it is turned, so
its largest logit is small: raw logits of several experts can be compared.

    e_c(x) = mean over turns k, and mirrorings m, of o_{kC+c}(turn_k(m(x)))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ibpwf.errors import InputError

Shape = tuple[int, int, int] | None
"""Channels, height and width of images that come as flat rows; None for those that come as images."""


def check_square(x: Tensor, turns: int, shape: Shape = None) -> None:
    """Refuse to turn what are no square images; flat rows would even be turned into one another."""
    if turns == 1:
        return
    if shape is not None and math.prod(shape) != math.prod(x.shape[1:]):
        raise InputError(
            f"image_shape is {list(shape)}, but examples have shape {tuple(x.shape[1:])}; give channels, height and "
            "width of the images that these are."
        )
    if (x.ndim != 4 or x.shape[-1] != x.shape[-2]) if shape is None else shape[1] != shape[2]:
        raise InputError(
            f"turns is {turns}, which needs square images (channels, height, width), but examples have shape "
            f"{tuple(x.shape[1:]) if shape is None else shape}; set turns=1, give square images, or say in "
            "image_shape what images flat rows are."
        )


def _turned(x: Tensor, turn: int, shape: Shape, *, mirror: bool = False) -> Tensor:
    """Rows mirrored, and then turned so many times; flat where they came so."""
    if not turn and not mirror:
        return x
    image = x if shape is None else x.view(len(x), *shape)
    image = torch.rot90(image.flip(-1) if mirror else image, turn, (-2, -1))
    return image if shape is None else image.reshape(x.shape)


def turned(x: Tensor, turns: int, shape: Shape = None) -> Tensor:
    """All rows unturned, then all rows turned once, and so on: turns·N×…, with their channels side by side in memory
    where they came so."""
    check_square(x, turns, shape)
    if turns == 1:
        return x
    images = torch.cat([_turned(x, turn, shape) for turn in range(turns)])
    side_by_side = x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return images.contiguous(memory_format=torch.channels_last) if side_by_side else images


def turned_labels(y: Tensor, turns: int, classes: int) -> Tensor:
    """The outputs that stand for the rows of `turned`."""
    return torch.cat([y + turn * classes for turn in range(turns)]) if turns > 1 else y


@dataclass(frozen=True)
class Views:
    """In how many turns images are looked at, and whether mirrored too."""

    turns: int = 1
    mirror: bool = False
    shape: Shape = None

    def __call__(self, x: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Every way in which rows are looked at, and how often they are turned in it."""
        check_square(x, self.turns, self.shape)
        for mirror in (False, True) if self.mirror else (False,):
            for turn in range(self.turns):
                yield turn, _turned(x, turn, self.shape, mirror=mirror)


def class_logits(outputs_of: Callable[[Tensor], Tensor], x: Tensor, classes: int, views: Views) -> Tensor:
    """e_c(x): the mean of the outputs that match, over all turns and mirrorings, N×C."""
    total, count = torch.zeros((), dtype=torch.float32), 0
    for turn, image in views(x):
        matching = outputs_of(image)[:, turn * classes : (turn + 1) * classes]
        total, count = (matching if not count else total + matching), count + 1
    return total / count if count > 1 else total
