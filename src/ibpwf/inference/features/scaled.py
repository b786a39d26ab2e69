"""Features on one scale, and random sums of them.

    h = (f(x) − μ) / σ,     φ = h,     or with a projection     φ = relu(h R),   R = ±1/√D at random

μ and σ are of the first task; R is fixed by its size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ibpwf.inference.signs import random_signs
from ibpwf.storage.tensor_checks import CorruptModelError, TensorReader


@dataclass(frozen=True)
class Scale:
    """μ and σ, D each."""

    mean: Tensor
    deviation: Tensor

    @classmethod
    def of(cls, parts: Iterable[Tensor]) -> Scale:
        """Of all rows of some parts, N×D each."""
        count, total, squares = 0, torch.zeros((), dtype=torch.float32), torch.zeros((), dtype=torch.float32)
        for part in parts:
            raw = part.double()
            count += len(raw)
            total, squares = raw.sum(0) + total.to(raw), raw.square().sum(0) + squares.to(raw)
        mean = total / count
        # A feature that never moves gives the rounding errors of its constant: they must not be made large.
        deviation = ((squares / count - mean.square()).clamp(min=0) + 1e-8).sqrt()
        return cls(mean.float(), deviation.float())

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor], width: int | None = None) -> Scale:
        """The only tensors of features, of that many numbers if it is known how many."""
        with TensorReader("features", tensors) as reader:
            shape = (reader.length("mean") if width is None else width,)
            found = cls(reader.take("mean", shape), reader.take("deviation", shape))
        if not len(found.mean) or not float(found.deviation.min()) >= 1e-6:
            raise CorruptModelError("tensor 'deviation' of part 'features' is not above 0")
        return found

    def __call__(self, raw: Tensor, projection: int = 0) -> Tensor:
        """φ; a projection of 0 is none."""
        found = (raw - self.mean) / self.deviation
        return (found @ projection_matrix(len(self.mean), projection, raw.device)).relu_() if projection else found


@lru_cache(maxsize=4)
def projection_matrix(width: int, count: int, device: torch.device) -> Tensor:
    """R, D×count."""
    return (random_signs(width, count, seed=2026) / math.sqrt(width)).to(device)
