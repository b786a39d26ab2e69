"""Label augmentation and test-time augmentation: the ways in which a task's network looks at an image.

With `Rotations` a task of C classes is learned as one of 4C: every image is given in all four quarter turns, and
output kC + c stands for class c turned k times (label augmentation by rotation, Lee et al., "Self-supervised label
augmentation via input transformations", 2020). An image unlike the task's fits none of them well, whichever way it is
turned, so its largest logit is small: raw logits of several experts can be compared.

    e_c(x) = mean over turns k, and mirrorings m, of o_{kC+c}(turn_k(m(x)))
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import ClassVar, Self

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor, nn

from ibpwf.errors import InputError
from ibpwf.parts import Part, register

Shape = tuple[int, int, int] | None
"""Channels, height and width of images that come as flat rows; None for those that come as images."""

TURNS = 4


class Views(Part, ABC):
    """The ways in which a task's network looks at an example, in training and in prediction.

    `copies` is how many outputs a class has.
    """

    group: ClassVar[str] = "views"
    copies: ClassVar[int] = 1

    _shape: Shape = PrivateAttr(None)

    def of_images(self, shape: Shape) -> Self:
        """The same for images that come as flat rows of this shape."""
        other = self.model_copy()
        other._shape = shape
        return other

    @property
    def shape(self) -> Shape:
        return self._shape

    @property
    def mirrors(self) -> bool:
        """Whether predictions look at mirror images too."""
        return False

    def check(self, x: Tensor) -> None:
        """Reject examples that cannot be looked at so."""

    def train(self, x: Tensor) -> Tensor:
        """All copies of the rows: first as they are."""
        return x

    def labels(self, y: Tensor, classes: int) -> Tensor:
        """The outputs that stand for the rows of `train`."""
        return y

    @abstractmethod
    def __call__(self, x: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Rows in every way in which a prediction looks at them, and for each which of the copies answers."""

    def scores(self, outputs_of: Callable[[Tensor], Tensor], x: Tensor, classes: int) -> Tensor:
        """e_c(x): the mean of the outputs that match, over all ways, N×C."""
        total, count = torch.zeros((), dtype=torch.float32), 0
        for copy, rows in self(x):
            matching = outputs_of(rows)[:, copy * classes : (copy + 1) * classes]
            total, count = (matching if not count else total + matching), count + 1
        return total / count if count > 1 else total

    def export_module(self, net: nn.Module, classes: int) -> nn.Module:
        """`scores` of a network as a module that can be traced into a graph; the network gets all in one batch."""
        return _Scores(net, classes, self)


@register
class Identity(Views):
    """An example as it is."""

    kind: ClassVar[str] = "identity"

    def __call__(self, x: Tensor) -> Iterator[tuple[int, Tensor]]:
        yield 0, x


@register
class Mirrored(Views):
    """An example as it is in training, and with its mirror image in predictions."""

    kind: ClassVar[str] = "mirrored"

    @property
    def mirrors(self) -> bool:
        return True

    def __call__(self, x: Tensor) -> Iterator[tuple[int, Tensor]]:
        yield 0, x
        yield 0, _turned(x, 0, self.shape, mirror=True)


@register
class Rotations(Views):
    """Square images in their four quarter turns: label augmentation in training, averaged in predictions."""

    kind: ClassVar[str] = "rotations"
    copies: ClassVar[int] = TURNS
    at_prediction: ClassVar[frozenset[str]] = frozenset({"mirror", "average"})

    mirror: bool = Field(False, description="predictions also look at mirror images; for photographs, not for digits")
    average: bool = Field(
        True, description="predictions average over all turns; false: the image as it is, up to eight times as fast"
    )

    @property
    def mirrors(self) -> bool:
        return self.mirror

    def check(self, x: Tensor) -> None:
        check_square(x, TURNS, self.shape)

    def train(self, x: Tensor) -> Tensor:
        """All rows unturned, then all rows turned once, and so on: 4·N×…, with their channels side by side in memory
        where they came so."""
        self.check(x)
        images = torch.cat([_turned(x, turn, self.shape) for turn in range(TURNS)])
        side_by_side = x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
        return images.contiguous(memory_format=torch.channels_last) if side_by_side else images

    def labels(self, y: Tensor, classes: int) -> Tensor:
        return torch.cat([y + turn * classes for turn in range(TURNS)])

    def __call__(self, x: Tensor) -> Iterator[tuple[int, Tensor]]:
        if not self.average:
            yield 0, x
            return
        self.check(x)
        for mirror in (False, True) if self.mirror else (False,):
            for turn in range(TURNS):
                yield turn, _turned(x, turn, self.shape, mirror=mirror)


class _Scores(nn.Module):
    def __init__(self, net: nn.Module, classes: int, views: Views) -> None:
        super().__init__()
        self.net, self.classes, self.shape, self.views = net, classes, views.shape, views.of_images(None)

    def forward(self, x: Tensor) -> Tensor:
        images = x if self.shape is None else x.reshape(-1, *self.shape)
        copies, views = zip(*self.views(images), strict=True)
        if len(views) == 1:
            plain: Tensor = self.net(x)[:, : self.classes]
            return plain
        rows = torch.cat(views)
        outputs = self.net(rows if self.shape is None else rows.flatten(1)).unflatten(0, (len(copies), -1))
        matching = [outputs[i, :, copy * self.classes :][:, : self.classes] for i, copy in enumerate(copies)]
        return torch.stack(matching).mean(0)


@lru_cache
def views_of(copies: int, *, mirror: bool = False, average: bool = True) -> Views:
    """The views of a task that has so many outputs for each class."""
    if copies == TURNS:
        return Rotations(mirror=mirror, average=average)
    return Mirrored() if mirror else Identity()


def check_square(x: Tensor, turns: int, shape: Shape = None) -> None:
    """Refuse to turn what are no square images; flat rows would even be turned into one another."""
    if turns == 1:
        return
    if shape is not None and math.prod(shape) != math.prod(x.shape[1:]):
        raise InputError(
            f"input.shape is {list(shape)}, but examples have shape {tuple(x.shape[1:])}; give channels, height and "
            "width of the images that these are."
        )
    if (x.ndim != 4 or x.shape[-1] != x.shape[-2]) if shape is None else shape[1] != shape[2]:
        raise InputError(
            f"turns is {turns}, which needs square images (channels, height, width), but examples have shape "
            f"{tuple(x.shape[1:]) if shape is None else shape}; set turns=1, give square images, or say in "
            "input.shape what images flat rows are."
        )


def _turned(x: Tensor, turn: int, shape: Shape, *, mirror: bool = False) -> Tensor:
    """Rows mirrored, and then turned so many times; flat where they came so."""
    if not turn and not mirror:
        return x
    image = x if shape is None else x.view(len(x), *shape)
    image = torch.rot90(image.flip(-1) if mirror else image, turn, (-2, -1))
    return image if shape is None else image.reshape(x.shape)
