"""φ(x) of images or texts: what a trained network makes of them, which no task changes.

It is read at one depth or several, side by side, and put on one scale (`scaled`). At a depth there is one number for
each channel, its mean over the image, or one for each cell of a grid, which also tells where something is. What is
stored is the network's name and digest, μ and σ.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Self

import torch
from pydantic import AfterValidator, Field, PrivateAttr
from torch import Tensor

from ibpwf.backbones.backbone import Backbone as Network
from ibpwf.backbones.backbone import TextInput, checked_depths, checked_grid
from ibpwf.backbones.catalog import known_network
from ibpwf.backbones.loading import load
from ibpwf.backbones.resizing import Resize, stored_resize
from ibpwf.errors import InputError, StoreError
from ibpwf.images import PIXEL_LEVELS, PixelScale, as_images
from ibpwf.inference.base import Batch, Context, Features, State
from ibpwf.inference.features.scaled import Scale
from ibpwf.limits import MOST_SUMS, MOST_WEIGHTS, check_image_sizes
from ibpwf.parts import Auto, Count, register
from ibpwf.storage.tensor_checks import CorruptModelError

ROWS_FITTED = 4096
KEPT_NUMBERS = 2**26
"""So many rows of the first task give μ and σ, and so many numbers of them are kept while that is done, 268 MB."""

ROWS_AT_ONCE = {"cpu": 32, "cuda": 512}

LEAST_HIGHEST = 64.0
"""Some pixel of a task is at least as bright as this where they go to 255; what ends between 1 and this does not."""


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


Cells = Annotated[int, Field(ge=1, le=16)]
ImageSize = Annotated[int, Field(ge=32, le=1024)]
ImageSizes = Annotated[ImageSize | tuple[ImageSize, ...] | Auto, AfterValidator(check_image_sizes)]


@dataclass(frozen=True)
class _Plan:
    """What is read of a network, as the settings say it."""

    digest: str
    text: bool
    depths: tuple[int, ...]
    grid: tuple[int, ...]
    sizes: tuple[int | None, ...]
    inner_width: int
    """How many features there are before a projection."""


@register
class Backbone(Features):
    """What a pretrained network makes of images or texts.

    A network for text takes rows of numbers of word pieces, as its `input` makes them. `Backbone.of` takes a network
    that you have loaded.
    """

    kind: ClassVar[str] = "backbone"
    fixed: ClassVar[frozenset[str]] = frozenset({"name", "depths", "grid", "size", "projection", "mirror"})

    name: str = Field(
        "efficientnet-lite0",
        description="the pretrained network, by a name of `ibpwf backbones`; it stays as it is, and its digest is "
        "stored, not its weights",
    )
    depths: Auto | Count | tuple[Count, ...] = Field(
        "auto",
        description="at which depth the network is read, or at which depths, such as [6, 8]; 'auto': at the deepest",
    )
    grid: Cells | tuple[Cells, ...] = Field(
        1,
        description="features are averaged over the cells of a grid of so many rows and columns, the same at all "
        "depths or one for each, such as [3, 3, 1], and so also tell where in an image something is; 1: over the "
        "whole image",
    )
    size: ImageSizes = Field(
        "auto",
        description="pixels across to which images are resized, or several such sizes, whose features come side by "
        "side, such as [224, 288]; 'auto': as the network was trained",
    )
    projection: Annotated[int, Field(ge=0, le=MOST_SUMS)] = Field(
        0,
        description="so many random sums of the features, of which only what is above 0 counts, take their place, "
        "such as 10000; 0: the features as they are; a router on 10,000 of them stores 400 MB, on 30,000 nine times "
        "as much",
    )
    mirror: bool = Field(
        False,
        description="an image and its mirror image are two rows to learn from, and an answer is about both; for "
        "photographs, not for digits",
    )
    _given: Network | None = PrivateAttr(None)
    _plan: _Plan | None = PrivateAttr(None)
    _shape: tuple[int, ...] | None = PrivateAttr(None)
    _scale: PixelScale | None = PrivateAttr(None)
    _fitted: _Fitted | None = PrivateAttr(None)

    @classmethod
    def of(cls, network: Network, **settings: Any) -> Self:
        """Features of a network that has been loaded already."""
        made = cls(name=network.name, **settings)
        made._given = network
        return made

    def bound(self, context: Context) -> Self:
        other = super().bound(context)
        other._shape, other._scale = context.images.flat_shape, context.images.scale
        other.plan  # noqa: B018 (unknown names and depths are rejected now)
        return other

    @property
    def plan(self) -> _Plan:
        found = self._plan
        if found is None:
            found = self._plan = self._planned()
        return found

    def _planned(self) -> _Plan:
        if self._given is None:
            known = known_network(self.name)
            digest, widths, text = known.digest, known.widths, known.kind == "text"
        else:
            digest, widths = self._given.digest, self._given.widths
            text = isinstance(self._given.input, TextInput)
        wanted = (self.depths,) if isinstance(self.depths, int) else self.depths
        depths = checked_depths(self.name, len(widths), None if wanted == "auto" else wanted)
        grid = checked_grid(depths, self.grid)
        several = self.size if isinstance(self.size, tuple) else (None if self.size == "auto" else self.size,)
        cells = zip(depths, grid, strict=True)
        width = len(several) * sum(widths[depth - 1] * across**2 for depth, across in cells)
        if (self.projection or width) > MOST_SUMS or width * self.projection > MOST_WEIGHTS:
            sums = f", and {self.projection:,} random sums of them" if self.projection else ""
            raise InputError(
                f"backbone '{self.name}' would give {width:,} features{sums}, which is more than fit in memory; give "
                "fewer depths, a smaller grid, or " + ("fewer sums." if sums else "a projection such as 10000.")
            )
        return _Plan(digest, text, depths, grid, several, width)

    @property
    def width(self) -> int:
        """How many features φ has."""
        return self.projection or self.plan.inner_width

    @property
    def reads_pixels(self) -> bool:
        return True

    @property
    def digest(self) -> str:
        return self.plan.digest

    @property
    def text(self) -> bool:
        return self.plan.text

    def fit(self, batches: Iterable[Batch], rows: int, generator: torch.Generator) -> None:
        """μ and σ of some thousand rows of the first task, chosen at random."""
        x = _some_rows((self._rows(x) for x, _ in batches), rows, generator)
        pixels = self._scale or (UNIT_PIXELS if self.text else _pixel_scale(x))
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
        self._network(x.device).check_places(self.plan.grid)
        if not self.text and self._scale is None and self._fitted is None and float(rows.min()) < 0:
            raise _no_pixels(rows)

    def width_for(self, shape: tuple[int, ...]) -> int:
        """Needs no network."""
        self._rows(torch.zeros(1, *shape, dtype=torch.float32))
        return self.width

    def state(self) -> State:
        if self._fitted is None:
            return {}, {}
        sizes = self.plan.sizes
        content: dict[str, Any] = {
            "backbone": self.name,
            "digest": self.digest,
            "depths": list(self.plan.depths),
            "grid": list(self.plan.grid),
            "size": sizes[0] if len(sizes) == 1 else list(sizes),
            "projection": self.projection,
            "mirror": self._both,
            "shape": None if self._shape is None else list(self._shape),
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
        plan = self.plan
        if stored != (plan.depths, plan.grid, plan.sizes, self.projection, self._both):
            raise CorruptModelError(f"backbone features were {stored}, which the settings do not say")
        self._shape = None if content["shape"] is None else tuple(content["shape"])
        features = Scale.restored(tensors, plan.inner_width)
        scale = PixelScale(tuple(map(float, content["image_mean"])), tuple(map(float, content["image_std"])))
        numbers = [*scale.mean, *scale.std]
        if not all(map(math.isfinite, numbers)) or len(scale.mean) != len(scale.std) or len(scale.std) not in (1, 3):
            raise CorruptModelError(f"backbone features have image_mean={scale.mean} and image_std={scale.std}")
        self._fitted = _Fitted(ImageRecipe(scale, stored_resize(content)), features)

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
        x = as_images(x, self._shape)
        if x.ndim != 4 or x.shape[1] not in (1, 3):
            raise InputError(
                f"features is 'backbone', and '{self.name}' reads images (rows × 1 or 3 channels × height × width), "
                f"but a row is {given}; give images, say in input.shape what images such rows are, or set "
                "features='random'."
            )
        return x

    @property
    def _both(self) -> bool:
        """Whether a row and its mirror image are looked at; a text has none."""
        return self.mirror and not self.plan.text

    def _views(self, rows: Tensor) -> tuple[Tensor, ...]:
        return (rows, rows.flip(-1)) if self._both else (rows,)

    @torch.no_grad()
    def _raw(self, rows: Tensor, recipe: ImageRecipe) -> Tensor:
        """What the network makes of rows, N×D."""
        net = self._network(rows.device)
        found = rows.new_empty(len(rows), self.plan.inner_width, dtype=torch.float32)
        at_once = ROWS_AT_ONCE.get(rows.device.type, 32)
        for start in range(0, len(rows), at_once):
            part, made = rows[start : start + at_once], []
            for size in self.plan.sizes:
                given = part
                if not isinstance(net.input, TextInput):
                    given = net.input(recipe.scale.pixels(part.float()), size, recipe.resize)
                    if given.is_cuda:
                        given = given.contiguous(memory_format=torch.channels_last)
                made.append(net.features(given, self.plan.depths, self.plan.grid))
            found[start : start + at_once] = torch.cat(made, 1)
        return found

    def _network(self, device: torch.device) -> Network:
        if self._given is None:
            return _loaded(self.name, self.digest, device)
        if next(self._given.parameters()).device != device:
            self._given = copy.deepcopy(self._given).to(device)
        return self._given


@lru_cache(maxsize=2)
def _loaded(name: str, digest: str, device: torch.device) -> Network:
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
        "255; say in input.mean and input.std how they were made from pixels, such as input.mean=[0.5] and "
        "input.std=[0.25]."
    )
