"""Features on one scale, fixed by the first task: old data are never seen again, so it cannot be fitted anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

ROWS_AT_ONCE = 8192
SHARE_OF_RANGE = 0.25
LINEAR_TO = 5.0


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

    @classmethod
    def fit(cls, x: Any) -> Self:
        """From the first task's examples, an array or a sparse matrix, one example per row."""
        rows, features = x.shape
        total = np.zeros(features)
        for part in _parts(x):
            total += part.sum(0)
        mean = total / rows
        squares, largest = np.zeros(features), np.zeros(features)
        for part in _parts(x):
            apart = np.abs(part - mean)
            largest = np.maximum(largest, apart.max(0))
            squares += np.square(apart).sum(0)
        scale = np.sqrt(squares / rows + np.square(SHARE_OF_RANGE * largest))
        varies = scale > 1e-10 * np.maximum(np.abs(mean), 1e-290)  # more than the mean's own rounding
        scale[~varies] = np.median(scale[varies]) if varies.any() else 1.0
        return cls(mean, scale)

    def __call__(self, x: Any) -> NDArray[np.float32]:
        """The examples on the first task's scale; a sparse matrix becomes dense."""
        out = np.empty(x.shape, dtype=np.float32)
        start = 0
        for part in _parts(x):
            z = (part - self.mean) / self.scale
            far = np.abs(z) > LINEAR_TO
            z[far] = np.sign(z[far]) * LINEAR_TO * (1 + np.log(np.abs(z[far]) / LINEAR_TO))
            out[start : start + len(part)] = z
            start += len(part)
        return out

    def to_json(self) -> dict[str, list[float]]:
        return {"mean": self.mean.tolist(), "scale": self.scale.tolist()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        return cls(np.asarray(values["mean"], dtype=np.float64), np.asarray(values["scale"], dtype=np.float64))


def _parts(x: Any) -> Iterator[Numbers]:
    """Some rows at a time, dense and in float64, so that a large or sparse x is never copied whole."""
    for start in range(0, x.shape[0], ROWS_AT_ONCE):
        part = x[start : start + ROWS_AT_ONCE]
        dense = part.toarray() if hasattr(part, "toarray") else part
        yield np.asarray(dense, dtype=np.float64)
