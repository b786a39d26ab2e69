"""φ(x) of images: how much each part of an image looks like patches of the first task's images.

    h_k(p) = cos(f_k, A p),   φ = (mean over a cell of relu(±h_k − b)), standardized

p is every patch of the image, A takes away its mean and whitens it, and f_k are K random patches of the first task,
so nothing is trained (after Coates and Ng, "Learning feature representations with k-means", 2012). There is one
feature for each sign, each cell of a g×g grid and each filter: D = 2g²K. Whatever is affine in all pixels alike, such
as 0 to 1 or 0 to 255, gives the same φ. Patches of several sizes have an A, filters and features for each size, and φ
is all of them in a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import AfterValidator, Field, PrivateAttr
from torch import Tensor, nn
from torch.nn import functional as F

from ibpwf.errors import InputError
from ibpwf.images import as_images
from ibpwf.inference.base import Batch, Context, Features, State
from ibpwf.inference.features.joined import SideBySide
from ibpwf.limits import check_patch_sizes
from ibpwf.parts import Auto, Count, Positive, register, require
from ibpwf.storage.tensor_checks import CorruptModelError, TensorReader

Size = Literal["small", "medium", "large", "best"]

SIZES: dict[str, int] = {"small": 1_600, "medium": 6_400, "large": 16_000, "best": 48_000}
"""About how many features each size has. A router on them keeps D(D + 1)/2 numbers: 10 MB, 164 MB, 1 GB, 9 GB."""

LEVELS = 255.0
THRESHOLD = 0.05
CONTRAST = 10.0
"""Added to a patch's variance, in units of pixels from 0 to 255, before it counts for the whitening."""

BLANK = 0.05
"""A whitened patch shorter than this has no direction but rounding errors. One pixel that differs by one level of 255
is six times as long."""

PATCHES = 400_000
KEPT_NUMBERS = 2**26
"""So many pixels of the first task's images are kept while fitting, 268 MB."""

NUMBERS_AT_ONCE = {"cpu": 2**21, "cuda": 2**28}
"""How many responses are held at a time: what fits a processor's cache, and 1 GB of a GPU."""


RESPONSES = 2**18
"""Of patches to filters, of one image, that are held at a time while a graph is traced: 1 MB."""

TENSORS = ("whitening", "filters", "mean", "deviation")


@dataclass(frozen=True)
class _Fitted:
    """What the first task has fixed of patches of one size. `whitening` n×n and `filters` K×n are of the patches,
    `mean` and `deviation` of the features, which are averaged over g×g `cells`."""

    patch: int
    cells: int
    whitening: Tensor
    filters: Tensor
    mean: Tensor
    deviation: Tensor

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in TENSORS}

    def standardized(self, x: Tensor, threshold: float) -> Tensor:
        """φ of images, of this size of patches alone."""
        height, width = (size - self.patch + 1 for size in x.shape[2:])
        pooling = pooling_matrix(height, width, self.cells).to(self.filters)
        count, filters = len(self.filters), self.filters.T.contiguous()
        at_once = max(1, NUMBERS_AT_ONCE.get(x.device.type, 2**21) // (height * width * count))
        phi = filters.new_empty(len(x), 2, len(pooling), count)
        for start in range(0, len(x), at_once):
            images = x[start : start + at_once].float()
            directions = _windows(images, self.patch).reshape(-1, len(filters)) @ self.whitening
            directions /= torch.linalg.vector_norm(directions, dim=1, keepdim=True).clamp_(min=BLANK)
            response = F.softshrink(directions @ filters, threshold).view(len(images), -1, count)
            both = pooling @ response  # of which the one sign is less the other
            phi[start : start + at_once, 0] = pooling @ response.clamp_(min=0)
            phi[start : start + at_once, 1] = phi[start : start + at_once, 0] - both
        return phi.flatten(1).sub_(self.mean).div_(self.deviation)


PatchSizes = Annotated[tuple[Annotated[int, Field(ge=2, le=32)], ...], AfterValidator(check_patch_sizes)]


@register
class Patches(Features):
    """How much each part of an image looks like patches of the first task's images."""

    kind: ClassVar[str] = "patches"
    fixed: ClassVar[frozenset[str]] = frozenset({"filters", "sizes", "grid", "epsilon", "mirror"})

    filters: Annotated[int, Field(ge=1, le=20_000)] | Size = Field(
        "small",
        description="how many patches images are compared with: a number, or a size by features, about 1,600, 6,400, "
        "16,000 or 48,000 of them; a router then stores 10 MB, 164 MB, 1 GB or 9 GB, and half of it with "
        "precision=float32",
    )
    sizes: PatchSizes = Field(
        (6,),
        description="pixels across the patches, one to four sizes such as [5, 8], each with its even share of the "
        "filters and a whitening of its own",
    )
    grid: Count | Auto = Field(
        "auto",
        description="features are averaged over the cells of a grid of so many rows and columns, and never more than "
        "there are patches in a row; 'auto': 4 for images of one channel, 2 for color",
    )
    epsilon: Positive = Field(
        0.1, description="added to the variances of patches before they are whitened, relative to their mean"
    )
    mirror: bool = Field(
        False,
        description="an image and its mirror image are two rows to learn from, and an answer is about both; for "
        "photographs, not for digits",
    )
    _shape: tuple[int, ...] | None = PrivateAttr(None)
    _image: tuple[int, ...] = PrivateAttr(())
    _threshold: float = PrivateAttr(THRESHOLD)
    _fitted: tuple[_Fitted, ...] = PrivateAttr(())

    def check_settings(self) -> None:
        enough = isinstance(self.filters, str) or self.filters >= len(self.sizes)
        require(enough, "filters", self.filters, f"patches have {len(self.sizes)} sizes; give at least one to each")

    def bound(self, context: Context) -> Self:
        other = super().bound(context)
        other._shape = context.images.flat_shape
        return other

    def fit(self, batches: Iterable[Batch], rows: int, generator: torch.Generator) -> None:
        """`generator` is one of the CPU's, so that filters do not depend on the device. A random part of the images
        is used where all would be more than 268 MB. Each size of patches has the filters it would have alone."""
        self._image = ()
        images = self._kept(batches, rows, generator)
        self._image = tuple(images.shape[1:])
        drawn = generator.get_state()
        fitted = []
        for patch, count in zip(self.sizes, self._counts(), strict=True):
            generator.set_state(drawn)
            fitted.append(self._fitted_to(images, patch, count, generator))
        self._fitted = tuple(fitted)

    def _fitted_to(self, images: Tensor, patch: int, count: int, generator: torch.Generator) -> _Fitted:
        patches = _random_patches(images, patch, generator)
        spread = float(images.max() - images.min())
        whitening = whitening_of(patches * (LEVELS / spread if spread else 1.0), self.epsilon)
        whitening = (whitening * (LEVELS / spread if spread else 1.0)).to(images)
        directions = patches @ whitening
        length = torch.linalg.vector_norm(directions, dim=1)
        usable = torch.nonzero(length > BLANK).flatten().cpu()
        if not len(usable):
            raise InputError("features is 'patches', but the first task's images are blank; set features='random'.")
        chosen = usable[torch.randperm(len(usable), generator=generator)[:count]].to(images.device)
        filters = directions[chosen] / length[chosen].unsqueeze(1)
        found = _Fitted(
            patch,
            self._cells(patch),
            whitening,
            filters,
            torch.zeros((), dtype=torch.float32),
            torch.ones((), dtype=torch.float32),
        )
        return self._with_moments(found, images)

    def __call__(self, x: Tensor) -> Tensor:
        """φ in float32; with `mirror`, the mean of an image's and of its mirror image's."""
        return self.mean_of_views(x)

    def views(self, x: Tensor) -> Iterator[Tensor]:
        """φ of all rows, once for each way an image is looked at."""
        for images in self._looks(self._images(x)):
            parts = [fitted.standardized(images, self._threshold) for fitted in self._fitted]
            yield parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def width_for(self, shape: tuple[int, ...]) -> int:
        device = self._fitted[0].filters.device
        return self(torch.zeros(1, *shape, device=device, dtype=torch.float32)).shape[1]

    def export_module(self) -> nn.Module:
        sizes = [_TracedPatches(one) for one in self.alone()]
        return sizes[0] if len(sizes) == 1 else SideBySide(sizes)

    def alone(self) -> list[Self]:
        """The features of each size of patches by itself; φ is all of theirs in a row."""
        parts = []
        for fitted in self._fitted:
            one = self.model_copy(update={"sizes": (fitted.patch,), "filters": len(fitted.filters)})
            one._fitted = (fitted,)
            parts.append(one)
        return parts

    def check(self, x: Tensor) -> None:
        self._images(x)

    def _images(self, x: Tensor) -> Tensor:
        """Rows as images, once it is known that they fit."""
        x = as_images(x, self._shape)
        given = " × ".join(str(size) for size in x.shape[1:]) or "one number"
        if x.ndim != 4:
            raise InputError(
                "features is 'patches', which reads images (rows × channels × height × width), but a row is "
                f"{given}; give images, say in input.shape what images such rows are, or set features='random'."
            )
        if min(x.shape[2:]) < (largest := max(self.sizes)):
            raise InputError(
                f"features is 'patches' of {largest} × {largest} pixels, but an image is {given}; give larger images "
                "or smaller patches, or set features='random'."
            )
        if self._image and tuple(x.shape[1:]) != self._image:
            learnt = " × ".join(str(size) for size in self._image)
            raise InputError(f"an image is {given}, but the first task's were {learnt}; give images of that size.")
        return x

    def _looks(self, images: Tensor) -> tuple[Tensor, ...]:
        return (images, images.flip(-1)) if self.mirror else (images,)

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.state()[1].values())

    def state(self) -> State:
        """Tensors of one size have their plain names, those of several the size before it, such as `8.filters`."""
        if not self._fitted:
            return {}, {}
        several = len(self._fitted) > 1
        content: dict[str, Any] = {
            "image": list(self._image),
            "patch": list(self.sizes) if several else self.sizes[0],
            "grid": self.grid,
            "mirror": self.mirror,
            "threshold": self._threshold,
            "filters": sum(len(fitted.filters) for fitted in self._fitted),
            "shape": self._shape,
        }
        tensors = {
            (f"{fitted.patch}.{name}" if several else name): tensor
            for fitted in self._fitted
            for name, tensor in fitted.tensors.items()
        }
        return content, tensors

    def load_state(self, content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        if content:
            self._image = tuple(content["image"])
            stored = (_stored_sizes(content["patch"]), content["grid"], content["mirror"])
            if stored != (self.sizes, self.grid, self.mirror):
                raise CorruptModelError(f"patch features were {stored}, which the settings do not say")
            self._threshold = content["threshold"]
            self._shape = None if content["shape"] is None else tuple(content["shape"])
            prefixes = {patch: f"{patch}." if len(self.sizes) > 1 else "" for patch in self.sizes}
            if not 0 <= self._threshold < 1:
                raise CorruptModelError(f"patch features have threshold={self._threshold!r}")
            with TensorReader("features", tensors) as reader:
                self._fitted = tuple(self._taken(reader, patch, prefix) for patch, prefix in prefixes.items())

    def _taken(self, reader: TensorReader, patch: int, prefix: str) -> _Fitted:
        """What was fitted for patches of a size: a number for each product, and none to divide by that is 0."""
        size, filters = self._image[0] * patch**2, reader.length(f"{prefix}filters")
        width = 2 * self._cells(patch) ** 2 * filters
        shapes = {"whitening": (size, size), "filters": (filters, size), "mean": (width,), "deviation": (width,)}
        found = {name: reader.take(prefix + name, shape) for name, shape in shapes.items()}
        if not width or not float(found["deviation"].min()) >= 1e-6:
            raise CorruptModelError(f"tensor '{prefix}deviation' of part 'features' is not above 0")
        return _Fitted(patch, self._cells(patch), **found)

    def _kept(self, batches: Iterable[Batch], rows: int, generator: torch.Generator) -> Tensor:
        """The first task's images, or as many of them at random as may be kept."""
        kept: list[Tensor] = []
        chosen: Tensor | None = None
        start = 0
        for x, _ in batches:
            x = self._images(x)
            if chosen is None:
                most = max(1, KEPT_NUMBERS // x[0].numel())
                chosen = torch.zeros(rows, dtype=torch.bool)
                chosen[torch.randperm(rows, generator=generator)[:most]] = True
            kept.append(x[chosen[start : start + len(x)].to(x.device)].float())
            start += len(x)
        if not kept:
            raise InputError("no images to take patches from.")
        return torch.cat(kept)

    def _cells(self, patch: int) -> int:
        """g for images of this size and patches of that."""
        wanted = (4 if self._image[0] == 1 else 2) if self.grid == "auto" else self.grid
        return min(wanted, *(size - patch + 1 for size in self._image[1:]))

    def _counts(self) -> list[int]:
        """How many of the K filters are of each size of patches, for images of this size. The first sizes have one
        more where it does not come out even."""
        sizes, filters = len(self.sizes), self.filters
        if isinstance(filters, str):
            filters = sizes * SIZES[filters] // sum(2 * self._cells(patch) ** 2 for patch in self.sizes)
        return [filters // sizes + (number < filters % sizes) for number in range(sizes)]

    def _with_moments(self, fitted: _Fitted, images: Tensor) -> _Fitted:
        count, total, squares = 0, torch.zeros((), dtype=torch.float32), torch.zeros((), dtype=torch.float32)
        for rows in torch.split(images, 1024):
            for look in self._looks(rows):
                phi = fitted.standardized(look, self._threshold)
                count += len(phi)
                phi = phi.double()
                total, squares = phi.sum(0) + total.to(phi), phi.square().sum(0) + squares.to(phi)
        mean = total / count
        variance = (squares / count - mean.square()).clamp(min=0)
        # A feature that never moves gives the rounding errors of its constant: they must not be made large.
        deviation = (variance + 1e-10).sqrt()
        return replace(fitted, mean=mean.float(), deviation=deviation.float())


def _stored_sizes(patch: Any) -> tuple[int, ...]:
    sizes = tuple(patch) if isinstance(patch, list) and len(patch) > 1 else (patch,)
    if any(type(size) is not int or size < 1 for size in sizes) or len({*sizes}) < len(sizes):
        raise CorruptModelError(f"patch features are of patches of {patch!r} pixels")
    return sizes


def _windows(images: Tensor, patch: int) -> Tensor:
    """Every patch: images × rows × columns × channels × its rows × its columns."""
    return images.unfold(2, patch, 1).unfold(3, patch, 1).movedim(1, 3)


def _random_patches(images: Tensor, patch: int, generator: torch.Generator) -> Tensor:
    """Patches from anywhere, a row each; all of them where they are few."""
    windows = _windows(images, patch)
    places = windows.shape[:3]
    every = places.numel()
    drawn = torch.arange(every) if every <= PATCHES else torch.randint(every, (PATCHES,), generator=generator)
    which = torch.unravel_index(drawn.to(images.device), places)
    return windows[which].flatten(1)


def whitening_of(patches: Tensor, epsilon: float) -> Tensor:
    """The symmetric matrix that takes away a patch's mean and whitens it, by patches with pixels from 0 to 255.

    Each counts with its mean taken away and divided by its contrast. A cosine does not mind that division, so the
    matrix leaves it out.
    """
    size = patches.shape[1]
    covariance = torch.zeros(size, size, dtype=torch.float64)
    for part in torch.split(patches, 50_000):
        part = part.double()
        part = part - part.mean(1, keepdim=True)
        part = part / (part.square().mean(1, keepdim=True) + CONTRAST).sqrt()
        covariance += (part.T @ part).cpu()
    values, vectors = torch.linalg.eigh(covariance / len(patches))
    values = values.clamp(min=0)
    centered = vectors - vectors.mean(0)
    scale = (values + epsilon * (float(values.mean()) or 1.0)).sqrt()
    whitening: Tensor = (centered / scale) @ centered.T
    return whitening


def pooling_matrix(height: int, width: int, cells: int) -> Tensor:
    """Means over the cells of a grid, g² × places, as torch's adaptive pooling divides them."""
    down, across = (
        F.adaptive_avg_pool1d(torch.eye(size, dtype=torch.float32).unsqueeze(0), cells)[0].T
        for size in (height, width)
    )
    matrix: Tensor = torch.kron(down.contiguous(), across.contiguous())
    return matrix


class _TracedPatches(nn.Module):
    """Patches of one size, to be traced. Whitened they are a convolution, their cosines with the filters a product.
    Of large images and many filters, responses are made and averaged for some lines of places after others."""

    def __init__(self, features: Patches) -> None:
        super().__init__()
        content, tensors = features.state()
        fitted = {name: tensor.cpu() for name, tensor in tensors.items()}
        channels, height, width = self.image = tuple(content["image"])
        patch, filters = content["patch"], fitted["filters"]
        self.threshold, self.mirror = float(content["threshold"]), bool(content["mirror"])
        lines, across = height - patch + 1, width - patch + 1
        self.at_once = across * max(1, RESPONSES // (across * len(filters)))
        cells = math.isqrt(len(fitted["mean"]) // (2 * len(filters)))
        self.register_buffer("whitening", fitted["whitening"].T.reshape(-1, channels, patch, patch).contiguous())
        self.register_buffer("filters", filters.T.contiguous())
        self.register_buffer("pooling", pooling_matrix(lines, across, cells).to(filters))
        self.register_buffer("mean", fitted["mean"])
        self.register_buffer("deviation", fitted["deviation"])

    def forward(self, x: Tensor) -> Tensor:
        images = x.float().reshape(-1, *self.image)
        if not self.mirror:
            return self._standardized(images)
        both = self._standardized(torch.cat([images, images.flip(-1)]))
        return both.reshape(2, -1, both.shape[1]).mean(0)

    def _standardized(self, images: Tensor) -> Tensor:
        directions = F.conv2d(images, self.get_buffer("whitening")).flatten(2).transpose(1, 2)
        directions = directions / torch.linalg.vector_norm(directions, dim=2, keepdim=True).clamp(min=BLANK)
        filters, total = self.get_buffer("filters"), torch.zeros((), dtype=torch.float32)
        for start in range(0, directions.shape[1], self.at_once):
            places = slice(start, start + self.at_once)
            pooling, response = self.get_buffer("pooling")[:, places], directions[:, places] @ filters
            beyond = F.softshrink(response, self.threshold)  # relu(h − b) − relu(−h − b)
            total = total + torch.stack([pooling @ beyond.relu(), pooling @ (-beyond).relu()], 1)
        # The mean is that of relu(h − b) + b.
        return (total.flatten(1) - self.get_buffer("mean")) / self.get_buffer("deviation")
