"""φ(x) of images or texts: what a trained network makes of them, which no task changes.

It is read at one depth or several, side by side, and put on one scale (`scaled`). At a depth there is one number for
each channel, its mean over the image, or one for each cell of a grid, which also tells where something is. What is
stored is the network's name and digest, μ and σ.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ibpwf.backbones.backbone import PIXEL_LEVELS, Backbone, TextInput, checked_depths, checked_grid
from ibpwf.backbones.catalog import known_network
from ibpwf.backbones.loading import load
from ibpwf.backbones.resizing import Resize, stored_resize
from ibpwf.errors import InputError, StoreError
from ibpwf.inference.base import Batch, Features, State
from ibpwf.inference.features.images import as_images
from ibpwf.inference.features.scaled import Scale
from ibpwf.limits import MOST_SUMS, MOST_WEIGHTS
from ibpwf.storage.tensor_checks import CorruptModelError, Expected, check_part

ROWS_FITTED = 4096
KEPT_NUMBERS = 2**26
"""So many rows of the first task give μ and σ, and so many numbers of them are kept while that is done, 268 MB."""

ROWS_AT_ONCE = {"cpu": 32, "cuda": 512}

LEAST_HIGHEST = 64.0
"""Some pixel of a task is at least as bright as this where they go to 255; what ends between 1 and this does not."""


@dataclass(frozen=True)
class PixelScale:
    """How inputs were made from pixels: (pixels from 0 to 1, less `mean`) / `std`, for all channels or for each."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def pixels(self, x: Tensor) -> Tensor:
        """The pixels, from 0 to 255."""
        mean, std = (x.new_tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        return (x * std + mean) * PIXEL_LEVELS


@dataclass(frozen=True)
class ImageRecipe:
    """How inputs become the images that a network takes; for texts it says nothing."""

    scale: PixelScale
    resize: Resize


UNIT_PIXELS = PixelScale((0.0,), (1.0,))
BYTE_PIXELS = PixelScale((0.0,), (1 / PIXEL_LEVELS,))


@dataclass(frozen=True)
class _Fitted:
    """What the first task has fixed: how its inputs were made and are resized, and the scale of the features."""

    recipe: ImageRecipe
    scale: Scale


class BackboneFeatures(Features):
    """`backbone` is a name of the catalog, or one that you have loaded. `depths` count from 1; None: the deepest.
    `grid` is over how many rows and columns of cells channels are averaged, at all depths or at each; 1: over the
    whole image. `sizes` is what images are resized to, one size or several, whose features come side by side; None:
    what the network was trained on. `projection` is how many random sums take the features' place; 0: none. With
    `mirror` an image and its mirror image are two rows to learn from, and an answer is about both. `shape` says of
    rows that come flat what images they are. `scale` says how inputs were made from pixels; None: they are pixels,
    from 0 to 1 or from 0 to 255, as the first task shows.

    A network for text takes rows of numbers of word pieces, as its `input` makes them.
    """

    def __init__(
        self,
        backbone: str | Backbone = "efficientnet-lite0",
        *,
        depths: Sequence[int] | None = None,
        grid: int | Sequence[int] = 1,
        sizes: int | Sequence[int] | None = None,
        projection: int = 0,
        mirror: bool = False,
        shape: tuple[int, ...] | None = None,
        scale: PixelScale | None = None,
    ) -> None:
        self._given = backbone if isinstance(backbone, Backbone) else None
        if isinstance(backbone, Backbone):
            self.name, self.digest, widths = backbone.name, backbone.digest, backbone.widths
            self.text = isinstance(backbone.input, TextInput)
        else:
            known = known_network(backbone)
            self.name, self.digest, widths = known.name, known.digest, known.widths
            self.text = known.kind == "text"
        self.depths = checked_depths(self.name, len(widths), depths)
        self.grid = checked_grid(self.depths, grid)
        self.sizes: tuple[int | None, ...] = (sizes,) if sizes is None or isinstance(sizes, int) else tuple(sizes)
        if not self.sizes or len({*self.sizes}) < len(self.sizes):
            raise InputError(f"backbone_size is {sizes}; give one size or several different ones.")
        cells = zip(self.depths, self.grid, strict=True)
        self.inner_width = len(self.sizes) * sum(widths[depth - 1] * across**2 for depth, across in cells)
        self.projection, self.mirror = projection, mirror and not self.text
        self._check_size()
        self.shape, self.scale = shape, scale
        self._fitted: _Fitted | None = None

    def _check_size(self) -> None:
        """Refuse more features, or a larger random layer, than there is memory for."""
        if self.width > MOST_SUMS or self.inner_width * self.projection > MOST_WEIGHTS:
            sums = f", and {self.projection:,} random sums of them" if self.projection else ""
            raise InputError(
                f"backbone '{self.name}' would give {self.inner_width:,} features{sums}, which is more than can be "
                "kept; give fewer backbone_depths, a smaller backbone_grid, or "
                + ("fewer sums." if sums else "a backbone_projection such as 10000.")
            )

    @property
    def width(self) -> int:
        """How many features φ has."""
        return self.projection or self.inner_width

    def fit(self, batches: Iterable[Batch], rows: int, generator: torch.Generator) -> None:
        """μ and σ of some thousand rows of the first task, chosen at random."""
        x = _some_rows((self._rows(x) for x, _ in batches), rows, generator)
        pixels = self.scale or (UNIT_PIXELS if self.text else _pixel_scale(x))
        takes = self._network(x.device).input
        recipe = ImageRecipe(pixels, "bilinear" if isinstance(takes, TextInput) else takes.resize)
        self._fitted = _Fitted(recipe, Scale.of(self._raw(rows_of_view, recipe) for rows_of_view in self._views(x)))

    def __call__(self, x: Tensor) -> Tensor:
        """φ in float32; with `mirror`, the mean of an image's and of its mirror image's."""
        return self.mean_of_views(x)

    def views(self, x: Tensor) -> Iterator[Tensor]:
        """φ of all rows, once for each way they are looked at."""
        fitted = self._fitted
        assert fitted is not None
        for rows in self._views(self._rows(x)):
            yield fitted.scale(self._raw(rows, fitted.recipe), self.projection)

    def check(self, x: Tensor) -> None:
        """Also fetches the network, so that it is there before anything is learned."""
        rows = self._rows(x)
        self._network(x.device).check_places(self.grid)
        if not self.text and self.scale is None and self._fitted is None and float(rows.min()) < 0:
            raise _no_pixels(rows)

    def width_for(self, shape: tuple[int, ...]) -> int:
        """Needs no network."""
        self._rows(torch.zeros(1, *shape, dtype=torch.float32))
        return self.width

    def state(self) -> State:
        if self._fitted is None:
            return {}, {}
        content: dict[str, Any] = {
            "backbone": self.name,
            "digest": self.digest,
            "depths": list(self.depths),
            "grid": list(self.grid),
            "size": self.sizes[0] if len(self.sizes) == 1 else list(self.sizes),
            "projection": self.projection,
            "mirror": self.mirror,
            "shape": None if self.shape is None else list(self.shape),
            "image_mean": list(self._fitted.recipe.scale.mean),
            "image_std": list(self._fitted.recipe.scale.std),
            "resize": self._fitted.recipe.resize,
        }
        return content, {"mean": self._fitted.scale.mean, "deviation": self._fitted.scale.deviation}

    def load_state(self, content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        if not content:
            return
        if (content["backbone"], content["digest"]) != (self.name, self.digest):
            raise StoreError(
                f"this model was learned with backbone '{content['backbone']}' of sha256 {content['digest']}, and "
                f"'{self.name}' here has {self.digest}; give the one it was learned with."
            )
        sizes = tuple(content["size"]) if isinstance(content["size"], list) else (content["size"],)
        stored = (tuple(content["depths"]), tuple(content["grid"]), sizes, content["projection"], content["mirror"])
        if stored != (self.depths, self.grid, self.sizes, self.projection, self.mirror):
            raise CorruptModelError(f"backbone features were {stored}, which the settings do not say")
        self.shape = None if content["shape"] is None else tuple(content["shape"])
        width = (self.inner_width,)
        check_part("features", tensors, {"mean": Expected(width), "deviation": Expected(width)})
        scale = PixelScale(tuple(map(float, content["image_mean"])), tuple(map(float, content["image_std"])))
        numbers = [*scale.mean, *scale.std]
        if not all(map(math.isfinite, numbers)) or len(scale.mean) != len(scale.std) or len(scale.std) not in (1, 3):
            raise CorruptModelError(f"backbone features have image_mean={scale.mean} and image_std={scale.std}")
        if not float(tensors["deviation"].min()) >= 1e-6:
            raise CorruptModelError("tensor 'deviation' of part 'features' is not above 0")
        self._fitted = _Fitted(
            ImageRecipe(scale, stored_resize(content)), Scale(tensors["mean"], tensors["deviation"])
        )

    def _rows(self, x: Tensor) -> Tensor:
        """Rows as images, or as texts, once it is known that they can be."""
        given = " × ".join(str(size) for size in x.shape[1:]) or "one number"
        if self.text:
            if x.ndim != 2:
                raise InputError(
                    f"backbone '{self.name}' reads texts as numbers of word pieces, N × length, but a row is "
                    f"{given}; make them with the backbone's input."
                )
            return x
        x = as_images(x, self.shape)
        if x.ndim != 4 or x.shape[1] not in (1, 3):
            raise InputError(
                f"features is 'backbone', and '{self.name}' reads images (rows × 1 or 3 channels × height × width), "
                f"but a row is {given}; give images, say in image_shape what images such rows are, or set "
                "features='random'."
            )
        return x

    def _views(self, rows: Tensor) -> tuple[Tensor, ...]:
        return (rows, rows.flip(-1)) if self.mirror else (rows,)

    @torch.no_grad()
    def _raw(self, rows: Tensor, recipe: ImageRecipe) -> Tensor:
        """What the network makes of rows, N×D."""
        net = self._network(rows.device)
        found = rows.new_empty(len(rows), self.inner_width, dtype=torch.float32)
        at_once = ROWS_AT_ONCE.get(rows.device.type, 32)
        for start in range(0, len(rows), at_once):
            part, made = rows[start : start + at_once], []
            for size in self.sizes:
                given = part
                if not isinstance(net.input, TextInput):
                    given = net.input(recipe.scale.pixels(part.float()), size, recipe.resize)
                    if given.is_cuda:
                        given = given.contiguous(memory_format=torch.channels_last)
                made.append(net.features(given, self.depths, self.grid))
            found[start : start + at_once] = torch.cat(made, 1)
        return found

    def _network(self, device: torch.device) -> Backbone:
        if self._given is None:
            return _loaded(self.name, self.digest, device)
        if next(self._given.parameters()).device != device:
            self._given = copy.deepcopy(self._given).to(device)
        return self._given


@lru_cache(maxsize=2)
def _loaded(name: str, digest: str, device: torch.device) -> Backbone:
    """One for all who ask: nobody changes it."""
    found = load(name).to(device).requires_grad_(False)
    assert found.digest == digest
    return found


def _some_rows(batches: Iterable[Tensor], rows: int, generator: torch.Generator) -> Tensor:
    """Some thousand of all rows at random, or as many as may be kept. `generator` is one of the CPU's, so that they
    do not depend on the device."""
    kept: list[Tensor] = []
    chosen: Tensor | None = None
    start = 0
    for x in batches:
        if chosen is None:
            most = max(1, min(ROWS_FITTED, KEPT_NUMBERS // max(1, x[0].numel())))
            chosen = torch.zeros(rows, dtype=torch.bool)
            chosen[torch.randperm(rows, generator=generator)[:most]] = True
        kept.append(x[chosen[start : start + len(x)].to(x.device)])
        start += len(x)
    if not kept:
        raise InputError("no rows to fit features to.")
    return torch.cat(kept)


def _pixel_scale(x: Tensor) -> PixelScale:
    """Of inputs that are pixels, by their range."""
    low, high = (float(end) for end in torch.aminmax(x))
    if low >= 0 and high <= 1:
        return UNIT_PIXELS
    if low >= 0 and LEAST_HIGHEST <= high <= PIXEL_LEVELS:
        return BYTE_PIXELS
    raise _no_pixels(x)


def _no_pixels(x: Tensor) -> InputError:
    low, high = (float(end) for end in torch.aminmax(x))
    return InputError(
        f"the images' numbers go from {low:.4g} to {high:.4g}, which are pixels neither from 0 to 1 nor from 0 to "
        "255; say in image_mean and image_std how they were made from pixels, such as image_mean=[0.5] and "
        "image_std=[0.25]."
    )
