"""How a classifier's rows become what its learner takes: on one scale, smaller images, a trained network's features.

All of it is fixed by the first task. Rows are flat: an image is a row of its pixels, channel after channel.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import validate_data
from torch import Tensor
from torch.nn import functional as F

from ibpwf.backbones.backbone import PIXEL_LEVELS, ImageInput
from ibpwf.backbones.catalog import known_network
from ibpwf.backbones.resizing import Resize, stored_resize
from ibpwf.data.arrays import array_numbers
from ibpwf.device import choose_device
from ibpwf.errors import InputError, StoreError
from ibpwf.labels import before_scikit_learn
from ibpwf.plain_arrays import as_array, check_finite, check_numbers, column_names
from ibpwf.preprocessing import PIXEL_MEAN, PIXEL_STD, Standardizer
from ibpwf.storage.scratch import ScratchFile

if TYPE_CHECKING:
    from ibpwf.backbones.backbone import Backbone

Floats = NDArray[np.float32]
Image = tuple[int, int, int]
"""Channels, height and width."""

USUAL_SIDE = 40
"""Pixels across that a small network learns from; larger images are averaged down to about that many."""

NUMBERS_AT_ONCE = 1 << 24
IMAGES_AT_ONCE = 32
IMAGES_KEPT = 20_000
"""Images whose features are remembered while a process lasts, 100 MB: learning and measuring read them once."""


class Preparation(Protocol):
    """What is done to rows before the learner gets them."""

    def __call__(self, x: Any) -> Floats:
        """Inputs of the learner, one a row, of whatever shape it takes."""

    def in_parts(self, x: ScratchFile) -> Iterator[Floats]:
        """The same, some rows at a time, of rows that are not in memory."""
        return map(self, x.parts())

    def to_json(self) -> dict[str, Any]:
        """What `read_preparation` makes it of again; `kind` says which it is, of none a `Standardizer`."""


def as_rows(x: Any, name: str = "X") -> tuple[Any, Image | None]:
    """Images N×H×W, N×H×W×channels or N×channels×H×W as flat rows, channels first and bytes as 0 to 1, and what they
    are; other arrays and tables as they are, if they hold numbers. Errors call them `name`."""
    if isinstance(x, (np.ndarray, Tensor, list, tuple)):
        x = as_array(name, x)
    check_numbers(name, x)
    if not (isinstance(x, np.ndarray) and x.ndim in (3, 4)):
        return x, None
    numbers = array_numbers(x)
    channels, height, width = numbers.shape[1:]
    return numbers.reshape(len(numbers), -1), (channels, height, width)


def checked_rows(
    seen: Any, X: Any, y: Any = "no_validation", *, reset: bool = False, like: Image | None = None
) -> tuple[Any, Any, Image | None]:
    """Rows of finite numbers, dense or sparse, with their labels as scikit-learn checks them, and what images they
    are. `seen` is told what columns there are if `reset`, and must have the same otherwise; images must be `like` the
    first task's."""
    rows, image = as_rows(X)
    if image is not None and like is not None and image != like:
        here, had = ("×".join(map(str, one)) for one in (image, like))
        raise InputError(f"X holds images of {here} (channels×height×width), what was learnt was {had}; resize X.")
    how = {"accept_sparse": "csr", "dtype": [np.float64, np.float32], "reset": reset, "ensure_all_finite": False}
    if isinstance(y, str):
        x = validate_data(seen, rows, **how)
    else:
        x, y = validate_data(seen, rows, before_scikit_learn(y), **how)
    check_finite("X", x, column_names(rows))
    return x, y, image


@dataclass(frozen=True)
class PixelPreparation(Preparation):
    """Images as images: pixels on one scale, and large images averaged down to `size`."""

    image: Image
    size: tuple[int, int]
    mean: float
    scale: float
    low: float
    high: float

    @classmethod
    def fit(cls, x: Any, image: Image) -> Self:
        """Pixels from 0 to 1 or from 0 to 255 by one rule, less `PIXEL_MEAN` and divided by `PIXEL_STD`; any other
        numbers by their range."""
        low, high = float(x.min()), float(x.max())
        start, reach = (0.0, PIXEL_LEVELS if high > 1 else 1.0)
        if low < 0 or high > PIXEL_LEVELS:
            start, reach = low, (high - low) or 1.0
        return cls(image, smaller(image), start + PIXEL_MEAN * reach, PIXEL_STD * reach, low, high)

    @property
    def columns(self) -> Standardizer:
        """The same of flat rows, number by number."""
        each = np.ones(math.prod(self.image))
        return Standardizer(self.mean * each, self.scale * each, self.low, self.high)

    def __call__(self, x: Any) -> Floats:
        down, across = averaging(self.image, self.size)
        standardizer = self.columns
        out = np.empty((x.shape[0], self.image[0], *self.size), dtype=np.float32)
        for rows, part in _parts(x, math.prod(self.image)):
            pixels = torch.from_numpy(standardizer(part)).view(-1, *self.image)
            out[rows] = (down @ pixels @ across.T if self.size != self.image[1:] else pixels).numpy()
        return out

    def to_json(self) -> dict[str, Any]:
        numbers = {"mean": self.mean, "scale": self.scale, "low": self.low, "high": self.high}
        return {"kind": "pixels", "image": list(self.image), "size": list(self.size), **numbers}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        numbers = {name: float(values[name]) for name in ("mean", "scale", "low", "high")}
        return cls(_image(values["image"]), (int(values["size"][0]), int(values["size"][1])), **numbers)


@dataclass(frozen=True)
class BackbonePreparation(Preparation):
    """Images as the features of a trained network, on the first task's scale. Its weights are not stored, but their
    digest is."""

    image: Image
    name: str
    digest: str
    size: int
    levels: float
    standardizer: Standardizer
    resize: Resize = "bilinear"
    _known: OrderedDict[bytes, Floats] = field(default_factory=OrderedDict, repr=False, compare=False)

    @classmethod
    def fit(cls, x: Any, image: Image, name: str, size: int | None) -> Self:
        low, high = float(x.min()), float(x.max())
        if image[0] not in (1, 3) or low < 0 or high > PIXEL_LEVELS:
            raise InputError(
                f"X holds images of {image[0]} channels with numbers from {low:.4g} to {high:.4g}, but recipe "
                "'backbone' reads pixels, from 0 to 1 or from 0 to 255, in 1 or 3 channels; choose recipe 'images'."
            )
        known = known_network(name)
        if known.kind != "images":
            raise InputError(f"backbone is '{name}', which reads texts, but X holds images; choose another.")
        side = size or 224
        nothing = Standardizer(np.zeros(1), np.ones(1))
        takes = loaded(name, known.digest).input
        assert isinstance(takes, ImageInput)
        levels = PIXEL_LEVELS if high > 1 else 1.0
        bare = cls(image, name, known.digest, side, levels, nothing, takes.resize)
        return replace(bare, standardizer=Standardizer.fit(bare.features(x)))

    @property
    def columns(self) -> Standardizer:
        """What pixels are like, number by number."""
        each = np.full(math.prod(self.image), self.levels)
        return Standardizer(PIXEL_MEAN * each, PIXEL_STD * each, 0.0, self.levels)

    def __call__(self, x: Any) -> Floats:
        return self.standardizer(self.features(x))

    def features(self, x: Any) -> Floats:
        """What the network makes of images, each looked at once."""
        out = np.empty((x.shape[0], known_network(self.name).widths[-1]), dtype=np.float32)
        for rows, part in _parts(x, math.prod(self.image)):
            pixels = np.ascontiguousarray(part, dtype=np.float32)
            keys = [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in pixels]
            new = [at for at, key in enumerate(keys) if key not in self._known]
            found = self._looked_at(torch.from_numpy(pixels[new]).view(-1, *self.image)) if new else out[:0]
            fresh = {keys[at]: one for at, one in zip(new, found, strict=True)}
            out[rows] = [fresh[key] if key in fresh else self._known[key] for key in keys]
            self._known.update(fresh)
            while len(self._known) > IMAGES_KEPT:
                self._known.popitem(last=False)
        return out

    @torch.no_grad()
    def _looked_at(self, images: Tensor) -> Floats:
        net = loaded(self.name, self.digest)
        device = next(net.parameters()).device
        parts = []
        for some in torch.split(images, IMAGES_AT_ONCE):
            pixels = some.to(device) * (PIXEL_LEVELS / self.levels)
            assert isinstance(net.input, ImageInput)
            parts.append(net.features(net.input(pixels, self.size, self.resize)).cpu())
        found: Floats = torch.cat(parts).numpy()
        return found

    def to_json(self) -> dict[str, Any]:
        named = {"image": list(self.image), "name": self.name, "digest": self.digest, "size": self.size}
        how = {"levels": self.levels, "resize": self.resize}
        return {"kind": "backbone", **named, **how, "features": self.standardizer.to_json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        name, digest = values["name"], values["digest"]
        if known_network(name).digest != digest:
            raise StoreError(
                f"the model was learnt with a backbone '{name}' of digest {digest[:12]}…, but this version knows "
                f"another ({known_network(name).digest[:12]}…); use the version it was learnt with."
            )
        inner = Standardizer.from_json(values["features"])
        resize = stored_resize(values)
        size, levels = int(values["size"]), float(values["levels"])
        return cls(_image(values["image"]), name, digest, size, levels, inner, resize)


def read_preparation(values: Mapping[str, Any]) -> Preparation:
    """What `to_json` gave."""
    kinds: dict[str, Any] = {"pixels": PixelPreparation, "backbone": BackbonePreparation}
    found: Preparation = kinds.get(values.get("kind", ""), Standardizer).from_json(values)
    return found


def smaller(image: Image) -> tuple[int, int]:
    """What images are averaged down to: about `USUAL_SIDE` pixels across, in whole blocks."""
    block = max(1, round(min(image[1:]) / USUAL_SIDE))
    return image[1] // block, image[2] // block


@lru_cache(maxsize=8)
def averaging(image: Image, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The matrices D and A with which D x Aᵀ is an image averaged down to `size`."""
    sides = zip(image[1:], size, strict=True)
    down, across = (
        F.adaptive_avg_pool1d(torch.eye(old, dtype=torch.float32).unsqueeze(0), new)[0].T.contiguous()
        for old, new in sides
    )
    return down, across


@lru_cache(maxsize=2)
def loaded(name: str, digest: str) -> Backbone:
    """One for all who ask: nobody changes it."""
    from ibpwf.backbones.loading import load

    found = load(name).to(choose_device("auto")).requires_grad_(False)
    assert found.digest == digest
    return found


def _image(values: Any) -> Image:
    channels, height, width = (int(value) for value in values)
    return channels, height, width


def _parts(x: Any, inputs: int) -> Iterator[tuple[slice, Any]]:
    """Some rows at a time, so that many large images are never copied whole."""
    step = max(1, NUMBERS_AT_ONCE // inputs)
    for start in range(0, x.shape[0], step):
        rows = slice(start, start + step)
        yield rows, x[rows]
