"""Features on one scale, fixed by the first task: old data are never seen again, so it cannot be fitted anew."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ibpwf.errors import InputError

Numbers = NDArray[np.float64]

ROWS_AT_ONCE = 8192
SHARE_OF_RANGE = 0.25
LINEAR_TO = 5.0
SQUARES_FIT = 1e150
"""Features up to here, and down to its inverse, can be squared and summed in float64."""
LARGEST = float(np.finfo(np.float64).max)
FAR_BEYOND, FAR_BELOW = 16.0, 64.0
"""How many times larger or smaller than the first task's numbers they look like another unit: bytes are 255 times
the floats from 0 to 1."""
FEW_ROWS = 8

PIXEL_LEVELS, PIXEL_MEAN, PIXEL_STD = 255.0, 0.5, 0.25


@dataclass(frozen=True)
class Standardizer:
    """(x − mean) / scale, feature by feature, linear up to ±5 and logarithmic beyond.

    The scale is √(σ² + (R/4)²), with R the first task's largest deviation from its mean. Near a plain standard
    deviation for most features, it keeps one that is nearly always the same (a pixel at the border) from being blown
    up: no value of the first task leaves ±4. A feature that does not vary at all in the first task takes the median
    scale of those that do, since later tasks may well use it.

    Later tasks may have other scales. What lies beyond ±5 is compressed, sign(z)·5·(1 + log(|z|/5)): no value is lost
    and none drowns the others.
    """

    mean: Numbers
    scale: Numbers
    low: float = -math.inf  # the least and the largest number of the first task; without bounds where not known
    high: float = math.inf

    @classmethod
    def fit(cls, x: Any) -> Self:
        """From the first task's examples, an array or a sparse matrix, one example per row."""
        rows, features = x.shape
        lowest, highest = np.full(features, np.inf), np.full(features, -np.inf)
        for part in _parts(x):
            lowest, highest = np.minimum(lowest, part.min(0)), np.maximum(highest, part.max(0))
        unit = _units(np.maximum(np.abs(lowest), np.abs(highest)))
        total = np.zeros(features)
        for part in _parts(x):
            total += (part / unit).sum(0)
        mean = total / rows
        squares, largest = np.zeros(features), np.zeros(features)
        for part in _parts(x):
            apart = np.abs(part / unit - mean)
            largest = np.maximum(largest, apart.max(0))
            squares += np.square(apart).sum(0)
        scale = np.sqrt(squares / rows + np.square(SHARE_OF_RANGE * largest))
        varies = scale > 1e-10 * np.maximum(np.abs(mean), 1e-290)  # more than the mean's own rounding
        scale *= unit
        scale[~varies] = np.median(scale[varies]) if varies.any() else 1.0
        return cls(mean * unit, scale, float(lowest.min()), float(highest.max()))

    @classmethod
    def of_pixels(cls, x: Any) -> Self:
        """For images that something reads which knows what pixels are: all by one rule, (pixels from 0 to 1 less
        `PIXEL_MEAN`) / `PIXEL_STD`. Whether they go to 1 or to 255 is seen by the first task's."""
        low, high = float(x.min()), float(x.max())
        if low < 0 or high > PIXEL_LEVELS:
            raise InputError(
                f"X goes from {low:.4g} to {high:.4g}, but features is 'backbone', which reads images; give pixels "
                "from 0 to 255, or from 0 to 1."
            )
        levels = PIXEL_LEVELS if high > 1 else 1.0
        return cls(np.full(x.shape[1], PIXEL_MEAN * levels), np.full(x.shape[1], PIXEL_STD * levels), low, high)

    def __call__(self, x: Any) -> NDArray[np.float32]:
        """The examples on the first task's scale; a sparse matrix becomes dense."""
        self.warn_of_another_scale(x)
        return self.scaled(x)

    def in_parts(self, x: Any) -> Iterator[NDArray[np.float32]]:
        """The same, some rows at a time, of rows that are not in memory."""
        self.warn_of_another_scale(x)
        yield from map(self.scaled, x.parts())

    def scaled(self, x: Any) -> NDArray[np.float32]:
        """The same without a word about the scale."""
        out = np.empty(x.shape, dtype=np.float32)
        start = 0
        for part in _parts(x):
            with np.errstate(over="ignore"):
                z = (part - self.mean) / self.scale
                if not np.isfinite(z).all():  # of very large numbers
                    z = np.clip(part / self.scale - self.mean / self.scale, -LARGEST, LARGEST)
            far = np.abs(z) > LINEAR_TO
            z[far] = np.sign(z[far]) * LINEAR_TO * (1 + np.log(np.abs(z[far]) / LINEAR_TO))
            out[start : start + len(part)] = z
            start += len(part)
        return out

    def warn_of_another_scale(self, x: Any) -> None:
        """Says so if the examples look as if they came in another unit: bytes after floats from 0 to 1, or the
        reverse."""
        reach = max(abs(self.low), abs(self.high))
        if not math.isfinite(reach) or not reach or not x.size:
            return
        largest, beyond = 0.0, 0
        for part in _parts(x):
            sizes = np.abs(part)
            largest = max(largest, float(sizes.max()))
            beyond += int(np.count_nonzero(sizes > FAR_BEYOND * reach))
        if beyond > 0.01 * x.shape[0] * x.shape[1]:
            found = f"they go to {largest:.0e}, far beyond"
        elif 0 < largest < reach / FAR_BELOW and x.shape[0] >= FEW_ROWS:
            found = f"none is above {largest:.0e}, far below"
        else:
            return
        warnings.warn(
            f"the inputs look as if they were on another scale than what was learnt: {found} the first task's, which "
            f"lay from {self.low:.4g} to {self.high:.4g}; convert them first, or the answers will be wrong.",
            stacklevel=5,
        )

    def to_json(self) -> dict[str, Any]:
        known = {"low": self.low, "high": self.high} if math.isfinite(self.low) and math.isfinite(self.high) else {}
        return {"mean": self.mean.tolist(), "scale": self.scale.tolist(), **known}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        mean, scale = (np.asarray(values[name], dtype=np.float64) for name in ("mean", "scale"))
        return cls(mean, scale, float(values.get("low", -math.inf)), float(values.get("high", math.inf)))


def _units(largest: Numbers) -> Numbers:
    """What to divide features by so that their squares neither overflow nor vanish: a power of two, which changes no
    digit, and 1 for ordinary ones."""
    extreme = (largest > SQUARES_FIT) | ((largest > 0) & (largest < 1 / SQUARES_FIT))
    return np.where(extreme, np.exp2(np.floor(np.log2(np.where(extreme, largest, 1.0)))), 1.0)


def _parts(x: Any) -> Iterator[Numbers]:
    """Some rows at a time, dense and in float64, so that a large or sparse x is never copied whole."""
    step = min(ROWS_AT_ONCE, getattr(x, "rows_at_once", ROWS_AT_ONCE))
    for start in range(0, x.shape[0], step):
        part = x[start : start + step]
        dense = part.toarray() if hasattr(part, "toarray") else part
        yield np.asarray(dense, dtype=np.float64)
