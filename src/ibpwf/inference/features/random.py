"""φ(x) from a fixed random layer: wide, nonlinear, and the same for every task.

    φ(x) = ReLU((x − μ)/s · W + b),   W ~ N(0, 1/d),   b ~ N(0, ¼)

The paper's φ is linear in x, and of the first task's making. Where classes of different tasks lie close together
(shirts and coats), Gaussians on a thousand random nonlinear features tell them apart far better. μ and s, the first
task's mean and overall spread, put any input into the range where the ReLU bends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

BIAS_STD = 0.5
"""Spread of b beside inputs that give W's products a spread of 1. Measured best of 0.25 to 1.5 on digits, wine, iris,
MNIST and Fashion-MNIST, where it hardly matters."""

MANY_ROWS = 1000


def automatic_width(rows: int) -> int:
    """How many features "auto" draws after a first task of so many rows.

    With more rows a wider layer tells classes apart better (Fashion-MNIST: 1.3 points of accuracy with the task
    inferred), and its covariances are known well enough. A task then stores 32 MB of statistics instead of 8.
    """
    return 2000 if rows >= MANY_ROWS else 1000


@dataclass(frozen=True)
class RandomFeatures:
    """The layer, with μ and s folded into its weight and bias; it never changes."""

    weight: Tensor
    bias: Tensor

    @classmethod
    def drawn(cls, x: Tensor, width: int, generator: torch.Generator) -> Self:
        """A layer of `width` features for inputs like the rows of `x`; `generator` is one of the CPU's, so that the
        layer does not depend on the device."""
        rows = x.flatten(1).double()
        mean = rows.mean(0)
        spread = float((rows - mean).square().mean().sqrt())
        size = rows.shape[1]
        weight = torch.randn(size, width, generator=generator, dtype=torch.float64)
        bias = torch.randn(width, generator=generator, dtype=torch.float64) * BIAS_STD
        weight = weight.to(x.device) / (math.sqrt(size) * (spread or 1.0))
        return cls(weight.float(), (bias.to(x.device) - mean @ weight).float())

    def __call__(self, x: Tensor) -> Tensor:
        """φ in float64: the Gaussians on it magnify float32's rounding, which differs from machine to machine."""
        return torch.addmm(self.bias.double(), x.flatten(1).double(), self.weight.double()).relu()

    def tensors(self) -> dict[str, Tensor]:
        return {"weight": self.weight, "bias": self.bias}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], device: torch.device) -> Self:
        return cls(tensors["weight"].to(device), tensors["bias"].to(device))
