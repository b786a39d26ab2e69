"""Random changes to the images of a mini-batch that leave their class alone, made on the images' own device."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ibpwf.errors import InputError

PADDING = 4


class CropAndFlip:
    """Each image is moved by up to four pixels either way, what it leaves is filled with zeros (the mean, where
    images are normalised), and half of them are mirrored: He et al. (2016), section 4.2.

    All random numbers come from `generator`, all images of a batch are gathered at once, and nothing waits for the
    device, so that a recorded step can contain it.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def __call__(self, x: Tensor) -> Tensor:
        count, _, height, width = x.shape
        move = torch.randint(0, 2 * PADDING + 1, (2, count, 1), generator=self.generator, device=x.device)
        mirrored = torch.rand(count, 1, generator=self.generator, device=x.device, dtype=torch.float32) < 0.5
        rows = torch.arange(height, device=x.device) + move[0]
        columns = torch.arange(width, device=x.device)
        columns = torch.where(mirrored, width - 1 - columns, columns) + move[1]
        padded = F.pad(x, (PADDING,) * 4)
        image = torch.arange(count, device=x.device).view(-1, 1, 1)
        # With the two indexed axes apart the channels come last, as in channels-last images.
        return padded[image, :, rows.unsqueeze(2), columns.unsqueeze(1)].permute(0, 3, 1, 2)


def check_images(augment: str, shape: tuple[int, ...]) -> None:
    """Refuse to crop what is no image."""
    if augment != "none" and len(shape) != 3:
        raise InputError(
            f"augment is {augment}, which needs images (channels, height, width), but examples have shape {shape}; "
            "set augment=none, or do not flatten the images."
        )
