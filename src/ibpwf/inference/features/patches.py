"""φ(x) of images: how much each part of an image looks like patches of the first task's images.

    h_k(p) = cos(f_k, A p),   φ = (mean over a cell of relu(±h_k − b)), standardized

p is every patch of the image, A takes away its mean and whitens it, and f_k are K random patches of the first task,
so nothing is trained (after Coates and Ng, "Learning feature representations with k-means", 2012). There is one
feature for each sign, each cell of a g×g grid and each filter: D = 2g²K. Whatever is affine in all pixels alike, such
as 0 to 1 or 0 to 255, gives the same φ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from ibpwf.errors import InputError, unknown
from ibpwf.inference.base import Batch, Features, State
from ibpwf.storage.tensor_checks import Expected, NotWhole, check_part

Size = Literal["small", "medium", "large", "best"]

SIZES: dict[str, int] = {"small": 1_600, "medium": 6_400, "large": 16_000, "best": 48_000}
"""About how many features each size has. A router on them keeps D(D + 1)/2 numbers: 10 MB, 164 MB, 1 GB, 9 GB."""

LEVELS = 255.0
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


@dataclass(frozen=True)
class _Fitted:
    """What the first task has fixed. `whitening` n×n and `filters` K×n are of the patches, `mean` and `deviation` of
    the features."""

    whitening: Tensor
    filters: Tensor
    mean: Tensor
    deviation: Tensor


class PatchFeatures(Features):
    """`filters` is their number K, or a size. `grid` is g; "auto": 4 for images of one channel (digits, clothes:
    where a stroke is tells much), 2 for color, and never more than there are patches in a row. `epsilon` is added to
    the patches' variances, relative to their mean, before whitening. With `mirror` an image and its mirror image are
    two rows to learn from, and an answer is about both: for photographs, not for digits. `shape` says of rows that
    come flat what images they are: channels, height, width."""

    def __init__(
        self,
        filters: int | Size = "small",
        *,
        patch: int = 6,
        grid: int | Literal["auto"] = "auto",
        threshold: float = 0.05,
        epsilon: float = 0.1,
        mirror: bool = False,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        if isinstance(filters, str) and filters not in SIZES:
            raise unknown("size of patch features", filters, SIZES)
        self.filters, self.patch, self.grid = filters, patch, grid
        self.threshold, self.epsilon, self.mirror = threshold, epsilon, mirror
        self.shape = shape
        self.image: tuple[int, ...] = ()
        self._fitted: _Fitted | None = None

    def fit(self, batches: Iterable[Batch], rows: int, generator: torch.Generator) -> None:
        """`generator` is one of the CPU's, so that filters do not depend on the device. A random part of the images
        is used where all would be more than 268 MB."""
        self.image = ()
        images = self._kept(batches, rows, generator)
        self.image = tuple(images.shape[1:])
        patches = self._random_patches(images, generator)
        spread = float(images.max() - images.min())
        whitening = whitening_of(patches * (LEVELS / spread if spread else 1.0), self.epsilon)
        whitening = (whitening * (LEVELS / spread if spread else 1.0)).to(images)
        directions = patches @ whitening
        length = torch.linalg.vector_norm(directions, dim=1)
        usable = torch.nonzero(length > BLANK).flatten().cpu()
        if not len(usable):
            raise InputError("features is 'patches', but the first task's images are blank; set features='random'.")
        chosen = usable[torch.randperm(len(usable), generator=generator)[: self._count()]].to(images.device)
        filters = directions[chosen] / length[chosen].unsqueeze(1)
        self._fitted = _Fitted(whitening, filters, torch.zeros(()), torch.ones(()))
        self._standardize(images)

    def __call__(self, x: Tensor) -> Tensor:
        """φ in float32; with `mirror`, the mean of an image's and of its mirror image's. Scores linear in φ are then
        the mean of both."""
        views = list(self.views(x))
        return views[0] if len(views) == 1 else (views[0] + views[1]) / 2

    def views(self, x: Tensor) -> Iterator[Tensor]:
        """φ of all rows, once for each way an image is looked at."""
        x = self._images(x)
        for images in (x, x.flip(-1)) if self.mirror else (x,):
            yield self._standardized(images)

    def check(self, x: Tensor) -> None:
        self._images(x)

    def _images(self, x: Tensor) -> Tensor:
        """Rows as images, once it is known that they fit."""
        if x.ndim == 2 and self.shape is not None and x.shape[1] == math.prod(self.shape):
            x = x.reshape(-1, *self.shape)
        given = " × ".join(str(size) for size in x.shape[1:]) or "one number"
        if x.ndim != 4:
            raise InputError(
                "features is 'patches', which reads images (rows × channels × height × width), but a row is "
                f"{given}; give images, say in image_shape what images such rows are, or set features='random'."
            )
        if min(x.shape[2:]) < self.patch:
            raise InputError(
                f"features is 'patches' of {self.patch} × {self.patch} pixels, but an image is {given}; give larger "
                "images or smaller patches, or set features='random'."
            )
        if self.image and tuple(x.shape[1:]) != self.image:
            learnt = " × ".join(str(size) for size in self.image)
            raise InputError(f"an image is {given}, but the first task's were {learnt}; give images of that size.")
        return x

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.state()[1].values())

    def state(self) -> State:
        if self._fitted is None:
            return {}, {}
        content = {"image": list(self.image), "patch": self.patch, "grid": self.grid, "mirror": self.mirror}
        tensors = {field.name: getattr(self._fitted, field.name) for field in fields(_Fitted)}
        content |= {"threshold": self.threshold, "filters": len(self._fitted.filters), "shape": self.shape}
        return content, tensors

    def load_state(self, content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        if content:
            self.image = tuple(content["image"])
            self.patch, self.grid, self.filters = content["patch"], content["grid"], content["filters"]
            self.threshold, self.mirror = content["threshold"], content["mirror"]
            self.shape = None if content["shape"] is None else tuple(content["shape"])
            self._check_stored(tensors)
            self._fitted = _Fitted(**tensors)

    def _check_stored(self, tensors: Mapping[str, Tensor]) -> None:
        """Refuse what does not have a number for each of its products, or would divide by 0."""
        size, filters = self.image[0] * self.patch**2, len(tensors["filters"])
        width = 2 * self._cells() ** 2 * filters
        shapes = {"whitening": (size, size), "filters": (filters, size), "mean": (width,), "deviation": (width,)}
        check_part("features", tensors, {name: Expected(shape) for name, shape in shapes.items()})
        if not float(tensors["deviation"].min()) >= 1e-6:
            raise NotWhole("tensor 'deviation' of part 'features' is not above 0")
        if type(self.mirror) is not bool or not 0 <= self.threshold < 1:
            raise NotWhole(f"patch features have mirror={self.mirror!r} and threshold={self.threshold!r}")

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

    def _random_patches(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Patches from anywhere, a row each; all of them where they are few."""
        windows = images.unfold(2, self.patch, 1).unfold(3, self.patch, 1).movedim(1, 3)
        places = windows.shape[:3]
        every = places.numel()
        drawn = torch.arange(every) if every <= PATCHES else torch.randint(every, (PATCHES,), generator=generator)
        which = torch.unravel_index(drawn.to(images.device), places)
        return windows[which].flatten(1)

    def _cells(self) -> int:
        """g for images of this size."""
        wanted = (4 if self.image[0] == 1 else 2) if self.grid == "auto" else self.grid
        return min(wanted, *(size - self.patch + 1 for size in self.image[1:]))

    def _count(self) -> int:
        """K for images of this size."""
        if isinstance(self.filters, str):
            return SIZES[self.filters] // (2 * self._cells() ** 2)
        return self.filters

    def _standardize(self, images: Tensor) -> None:
        assert self._fitted is not None
        count, total, squares = 0, torch.zeros(()), torch.zeros(())
        for rows in torch.split(images, 1024):
            for phi in self.views(rows):
                count += len(phi)
                phi = phi.double()
                total, squares = phi.sum(0) + total.to(phi), phi.square().sum(0) + squares.to(phi)
        mean = total / count
        variance = (squares / count - mean.square()).clamp(min=0)
        # A feature that never moves gives the rounding errors of its constant: they must not be made large.
        deviation = (variance + 1e-10).sqrt()
        self._fitted = _Fitted(self._fitted.whitening, self._fitted.filters, mean.float(), deviation.float())

    def _standardized(self, x: Tensor) -> Tensor:
        fitted = self._fitted
        assert fitted is not None
        height, width = (size - self.patch + 1 for size in x.shape[2:])
        pooling = pooling_matrix(height, width, self._cells()).to(fitted.filters)
        count, filters = len(fitted.filters), fitted.filters.T.contiguous()
        at_once = max(1, NUMBERS_AT_ONCE.get(x.device.type, 2**21) // (height * width * count))
        phi = filters.new_empty(len(x), 2, len(pooling), count)
        for start in range(0, len(x), at_once):
            images = x[start : start + at_once].float()
            windows = images.unfold(2, self.patch, 1).unfold(3, self.patch, 1).movedim(1, 3)
            directions = windows.reshape(-1, len(filters)) @ fitted.whitening
            directions /= torch.linalg.vector_norm(directions, dim=1, keepdim=True).clamp_(min=BLANK)
            response = F.softshrink(directions @ filters, self.threshold).view(len(images), -1, count)
            both = pooling @ response  # of which the one sign is less the other
            phi[start : start + at_once, 0] = pooling @ response.clamp_(min=0)
            phi[start : start + at_once, 1] = phi[start : start + at_once, 0] - both
        return phi.flatten(1).sub_(fitted.mean).div_(fitted.deviation)


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
    down, across = (F.adaptive_avg_pool1d(torch.eye(size).unsqueeze(0), cells)[0].T for size in (height, width))
    matrix: Tensor = torch.kron(down.contiguous(), across.contiguous())
    return matrix
