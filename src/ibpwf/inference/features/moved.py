"""φ(x) of images that are also looked at when moved a little: more rows to learn from, and answers about all of them.

    φ(x) = mean over moves m of φ'(m(x)),   m: as it is; by so many pixels along a diagonal, either way; and nearer

What an image leaves is filled by its mirror image; nearer, it has lost as many pixels at each side. A regression that
has seen moved images minds less where in the image something is, and how large.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from ibpwf.errors import InputError
from ibpwf.factors.model import FactorModel
from ibpwf.inference.base import Batch, Features, State
from ibpwf.inference.features.images import as_images
from ibpwf.storage.tensor_checks import NotWhole


class MovedFeatures(Features):
    """`inner` features of images as they are and moved by `pixels`; `shape` says of rows that come flat what images
    they are."""

    def __init__(self, inner: Features, pixels: int, *, shape: tuple[int, ...] | None = None) -> None:
        if pixels < 1:
            raise InputError(f"moved_by is {pixels}; give 1 or more pixels, or do without moved features.")
        self.inner, self.pixels, self.shape = inner, pixels, shape

    def parts_to_fit(self) -> tuple[Features, ...]:
        return self.inner.parts_to_fit()

    def fit(self, batches: Iterable[Batch], rows: int, generator: torch.Generator) -> None:
        """By images as they are."""
        self.inner.fit(batches, rows, generator)

    def __call__(self, x: Tensor) -> Tensor:
        return self.mean_of_views(x)

    def views(self, x: Tensor) -> Iterator[Tensor]:
        for moved in self._moved(x):
            yield from self.inner.views(moved)

    def check(self, x: Tensor) -> None:
        self._images(x)
        self.inner.check(x)

    def unread(self) -> tuple[str, ...]:
        return self.inner.unread()

    def fork(self, model: FactorModel) -> Self:
        other = copy.copy(self)
        other.inner = self.inner.fork(model)
        return other

    def state(self) -> State:
        content, tensors = self.inner.state()
        return ({"moved_by": self.pixels, "inner": content}, tensors) if content or tensors else ({}, {})

    def load_state(self, content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        if not content:
            return
        if content["moved_by"] != self.pixels:
            raise NotWhole(f"features have moved_by={content['moved_by']!r}, and the settings say {self.pixels}")
        self.inner.load_state(content["inner"], tensors)

    def _images(self, x: Tensor) -> Tensor:
        """Rows as images, which can be moved so far."""
        images = as_images(x, self.shape)
        given = " × ".join(map(str, x.shape[1:])) or "one number"
        if images.ndim != 4:
            raise InputError(
                f"moved_by is {self.pixels}, and a row is {given}, which is no image; set moved_by=0, or say in "
                "image_shape what images such rows are."
            )
        if 2 * self.pixels >= min(images.shape[2:]):
            raise InputError(
                f"moved_by is {self.pixels}, and an image is {given}; give less than half of what it has across."
            )
        return images

    def _moved(self, x: Tensor) -> Iterator[Tensor]:
        images, by = self._images(x), self.pixels
        height, width = images.shape[2:]
        padded = F.pad(images, (by,) * 4, mode="reflect")
        yield x
        for start in (0, 2 * by):
            yield padded[:, :, start : start + height, start : start + width].reshape(x.shape)
        inside = images[:, :, by:-by, by:-by]
        yield F.interpolate(inside, (height, width), mode="bicubic", align_corners=False).reshape(x.shape)
