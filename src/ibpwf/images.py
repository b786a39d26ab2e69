"""What is known of images as such: their shape where they come as flat rows, and how they were made from pixels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from ibpwf.parts import Auto, Count, Part, Positive, register, require

PIXEL_LEVELS = 255.0


@dataclass(frozen=True)
class PixelScale:
    """How inputs were made from pixels: (pixels from 0 to 1, less `mean`) / `std`, for all channels or for each."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def pixels(self, x: Tensor) -> Tensor:
        """The pixels, from 0 to 255."""
        mean, std = (x.new_tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        return (x * std + mean) * PIXEL_LEVELS


@register
class Images(Part):
    """What inputs that are images are like; without effect on others."""

    group: ClassVar[str] = "input"
    kind: ClassVar[str] = "images"
    fixed: ClassVar[frozenset[str]] = frozenset({"shape", "mean", "std"})

    shape: Auto | tuple[Count, Count, Count] = Field(
        "auto",
        description="channels, height and width of images that come as flat rows, such as [1, 28, 28]; 'auto': "
        "images come as images",
    )
    mean: Auto | tuple[float, ...] = Field(
        "auto",
        description="how images were converted to numbers, for a backbone to undo: (pixels from 0 to 1, less mean) / "
        "std, for all channels or for each; 'auto': they are pixels from 0 to 1 or from 0 to 255",
    )
    std: Auto | tuple[Positive, ...] = Field("auto", description="see mean")

    def check_settings(self) -> None:
        mean, std = self.mean, self.std
        alike = mean == std == "auto" if "auto" in (mean, std) else len(mean) == len(std) in (1, 3)
        require(alike, "mean", mean, f"std is {std}: give both, one number or three each, or neither")

    @property
    def flat_shape(self) -> tuple[int, int, int] | None:
        """Of images that come as flat rows."""
        return None if self.shape == "auto" else self.shape

    @property
    def scale(self) -> PixelScale | None:
        return None if self.mean == "auto" or self.std == "auto" else PixelScale(self.mean, self.std)


@register
class BackboneImages(Images):
    """Images that a pretrained network looks at once, when they come in; what it makes of them is the input."""

    kind: ClassVar[str] = "backbone"
    fixed: ClassVar[frozenset[str]] = Images.fixed | {"name", "size"}

    name: str = Field("efficientnet-lite0", description="the pretrained network, by a name of `ibpwf backbones`")
    size: Annotated[int, Field(ge=32, le=1024)] | Auto = Field(
        "auto", description="pixels across to which images are resized; 'auto': as the network was trained"
    )


def as_images(x: Tensor, shape: tuple[int, ...] | None) -> Tensor:
    """Flat rows as images of this shape, where they have as many numbers; any other rows as they are."""
    flat = x.ndim == 2 and shape is not None and x.shape[1] == math.prod(shape)
    return x.reshape(-1, *(shape or ())) if flat else x
