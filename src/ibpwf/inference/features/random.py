"""φ(x) from a fixed random layer: wide, nonlinear, and the same for every task.

    φ(x) = ReLU((x − μ)/s · W + b),   W ~ N(0, 1/d),   b ~ N(0, ¼)

The paper's φ is linear in x, and of the first task's making. Where classes of different tasks lie close together
(shirts and coats), Gaussians on a thousand random nonlinear features tell them apart far better. μ and s, the first
task's mean and overall spread, put any input into the range where the ReLU bends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor, nn

from ibpwf.inference.base import Batch, Features, State
from ibpwf.limits import MOST_FEATURES
from ibpwf.parts import Auto, register
from ibpwf.storage.tensor_checks import CorruptModelError

BIAS_STD = 0.5
"""Spread of b beside inputs that give W's products a spread of 1. Measured best of 0.25 to 1.5 on digits, wine, iris,
MNIST and Fashion-MNIST, where it hardly matters."""

MANY_ROWS = 1000


def automatic_width(rows: int) -> int:
    """How many features are drawn after a first task of so many rows.

    With more rows a wider layer tells classes apart better (Fashion-MNIST: 1.3 points of accuracy with the task
    inferred), and its covariances are known well enough. A task then stores 32 MB of statistics instead of 8.
    """
    return 2000 if rows >= MANY_ROWS else 1000


def _empty(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32)


@register
class Random(Features):
    """A fixed random layer, with μ and s folded into its weight and bias."""

    kind: ClassVar[str] = "random"
    fixed: ClassVar[frozenset[str]] = frozenset({"width"})

    width: Annotated[int, Field(ge=1, le=MOST_FEATURES)] | Auto = Field(
        "auto",
        description="units of the random layer, at most 20,000; 'auto': 2,000 where the first task has 1,000 rows or "
        "more, else 1,000; a task stores 8 bytes times the square",
    )
    _weight: Tensor = PrivateAttr(default_factory=lambda: _empty(0, 0))
    _bias: Tensor = PrivateAttr(default_factory=lambda: _empty(0))

    @property
    def weight(self) -> Tensor:
        return self._weight

    @property
    def bias(self) -> Tensor:
        return self._bias

    def fit(self, batches: Iterable[Batch], rows: int, generator: torch.Generator) -> None:
        """Draw the layer for inputs like these; `generator` is one of the CPU's, so that it does not depend on the
        device."""
        total, squares = torch.zeros((), dtype=torch.float32), torch.zeros((), dtype=torch.float32)
        for x, _ in batches:
            flat = x.flatten(1).double()
            total, squares = flat.sum(0) + total.to(flat), flat.square().sum() + squares.to(flat)
        mean, size = total / rows, len(total)
        spread = math.sqrt(max(float(squares / (rows * size) - mean.square().mean()), 0.0))
        width = automatic_width(rows) if self.width == "auto" else self.width
        weight = torch.randn(size, width, generator=generator, dtype=torch.float64)
        bias = torch.randn(width, generator=generator, dtype=torch.float64) * BIAS_STD
        weight = weight.to(mean.device) / (math.sqrt(size) * (spread or 1.0))
        self._weight, self._bias = weight.float(), (bias.to(mean.device) - mean @ weight).float()

    def __call__(self, x: Tensor) -> Tensor:
        """φ in float64: the Gaussians on it magnify float32's rounding, which differs from machine to machine."""
        return torch.addmm(self.bias.double(), x.flatten(1).double(), self.weight.double()).relu()

    @property
    def inputs(self) -> int:
        """How many numbers an input has."""
        return len(self.weight)

    def width_for(self, shape: tuple[int, ...]) -> int:
        if self.inputs != math.prod(shape):
            raise CorruptModelError(f"random features take {self.inputs} numbers, inputs have shape {list(shape)}")
        return len(self.bias)

    def export_module(self) -> nn.Module:
        return RandomLayer(self.weight, self.bias)

    def state(self) -> State:
        return {}, {"weight": self.weight, "bias": self.bias} if len(self.bias) else {}

    def load_state(self, content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        if not tensors:
            return
        weight, bias = tensors["weight"], tensors["bias"]
        whole = weight.dtype == bias.dtype == torch.float32 and bias.ndim == 1 and len(bias) > 0
        if not whole or weight.ndim != 2 or weight.shape[1] != len(bias) or len(tensors) > 2:
            raise ValueError(f"random features have a weight {list(weight.shape)} and a bias {list(bias.shape)}")
        self._weight, self._bias = weight, bias


class RandomLayer(nn.Module):
    """The layer, to be traced."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight.cpu())
        self.register_buffer("bias", bias.cpu())

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.get_buffer("weight").double(), self.get_buffer("bias").double()
        return torch.addmm(bias, x.flatten(1).double(), weight).relu()
