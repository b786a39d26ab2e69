"""A trained network to learn tasks with: it takes images as the user has them, and ends in a layer of its own."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ibpwf.backbones.backbone import PIXEL_LEVELS, Backbone, ImageInput, TextInput
from ibpwf.backbones.resizing import resized
from ibpwf.errors import InputError


class PixelInput(nn.Module):
    """Makes of images what a backbone takes, on the device where they are and batch by batch: small images are kept
    and only those of a batch are ever large.

    `mean` and `std` say how the images were made: (pixels from 0 to 1, less mean) / std, for all channels or for
    each. `size` is what they are resized to; None: what the backbone was trained on.
    """

    scale: Tensor
    shift: Tensor

    def __init__(
        self,
        takes: ImageInput,
        size: int | None = None,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
    ) -> None:
        super().__init__()
        self.size, self.resize = size or takes.size, takes.resize
        given_mean, given_std = (torch.tensor(values, dtype=torch.float32).expand(3) for values in (mean, std))
        taken_mean, taken_std = (
            torch.tensor(takes.mean, dtype=torch.float32),
            torch.tensor(takes.std, dtype=torch.float32),
        )
        # No state: what they are is said when the network is built.
        self.register_buffer("scale", (PIXEL_LEVELS * given_std / taken_std).view(3, 1, 1), persistent=False)
        shift = (PIXEL_LEVELS * given_mean - taken_mean) / taken_std
        self.register_buffer("shift", shift.view(3, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        images = x * self.scale + self.shift  # before they are large; gray ones get three channels by it
        return resized(images, self.size, self.resize)


def image_classifier(
    backbone: Backbone,
    classes: int,
    *,
    size: int | None = None,
    image_mean: Sequence[float] = (0.0,),
    image_std: Sequence[float] = (1.0,),
) -> nn.Sequential:
    """`pixels`, `backbone` and a dense `head`: a network for `Learner` or `factorize` that takes images of any size,
    one channel or three, whose numbers are (pixels from 0 to 1, less `image_mean`) / `image_std`.

    The backbone is taken as it is, not copied.
    """
    if not isinstance(backbone.input, ImageInput):
        raise InputError(f"backbone '{backbone.name}' reads texts; give one that reads images.")
    pixels = PixelInput(backbone.input, size, image_mean, image_std)
    return nn.Sequential(
        OrderedDict(pixels=pixels, backbone=backbone, head=nn.Linear(backbone.width, classes, dtype=torch.float32))
    )


class UnitSpread(nn.Module):
    """Features of length 1 as numbers of about 1, as a dense layer wants them."""

    def forward(self, x: Tensor) -> Tensor:
        return x * math.sqrt(x.shape[1])


def text_classifier(encoder: Backbone, classes: int) -> nn.Sequential:
    """`backbone`, `scale` and a dense `head`: a network for `Learner` or `factorize` that takes texts as rows of word
    pieces, which `encoder.input(texts, length=...)` makes.

    The encoder is taken as it is, not copied.
    """
    if not isinstance(encoder.input, TextInput):
        raise InputError(f"backbone '{encoder.name}' reads images; give one that reads texts.")
    return nn.Sequential(
        OrderedDict(backbone=encoder, scale=UnitSpread(), head=nn.Linear(encoder.width, classes, dtype=torch.float32))
    )
