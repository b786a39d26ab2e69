"""Layers whose weight is a task-specific sum of rank-1 factors (paper, eq. W_fac_sum).

A factor layer exists only while a task is being learnt. It holds the locked factors as constants (no
gradient, no optimiser state) and the task's free factors as parameters, and reads the factor scores
λ = r ⊙ b from `scores`, which the task network fills in before each forward pass. A layer's weight
`(out, in, …)` is seen as the matrix `W (J×M)` with `J = in·…` and `M = out`; for a convolution that is the
paper's `(H·W·C_in) × C_out`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd

from ibpwf.factors.dictionary import FactorBlock


def as_matrix(weight: Tensor) -> Tensor:
    """A layer's weight `(out, in, …)` as the paper's matrix `J×M`."""
    return weight.flatten(1).t()


def as_weight(matrix: Tensor, shape: torch.Size | tuple[int, ...]) -> Tensor:
    """The inverse of `as_matrix`: `J×M` back to `(M, …)`."""
    return matrix.t().reshape(matrix.shape[1], *shape[1:])


def xavier(inputs: int, outputs: int, count: int, width: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """`count` fresh factors of a dictionary of `width`, Xavier-uniform: |w_a| ≤ √(6/(J+F)), |w_b| ≤ √(6/(F+M))."""
    a = (torch.rand(inputs, count, generator=generator) * 2 - 1) * math.sqrt(6.0 / (inputs + width))
    b = (torch.rand(count, outputs, generator=generator) * 2 - 1) * math.sqrt(6.0 / (outputs + width))
    return a, b


class FactorLayer(nn.Module):
    """Locked and free factors of one layer, and the two ways to apply them."""

    locked_a: Tensor
    locked_b: Tensor
    locked_at: Tensor
    free_at: Tensor
    scores: Tensor

    def __init__(self, original: nn.Module, locked: FactorBlock, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.shape = tuple(weight.shape)
        self.scores = locked.a.new_empty(0)
        self.register_buffer("locked_a", locked.a, persistent=False)
        self.register_buffer("locked_b", locked.b, persistent=False)
        self.register_buffer("locked_at", locked.positions, persistent=False)
        self.register_buffer("free_at", torch.empty(0, dtype=torch.long), persistent=False)
        self.free_a = nn.Parameter(locked.a.new_empty(self.inputs, 0))
        self.free_b = nn.Parameter(locked.b.new_empty(0, self.outputs))
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), bias.requires_grad)
        # Kept in a tuple so that the original's own weight is not registered as a parameter of ours.
        self._original = (original,)

    def __getattr__(self, name: str) -> Any:
        """What else a network asks its layer for (`in_features`, `stride`, ...) is the original's."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "_original" not in self.__dict__:
                raise
            return getattr(self._original[0], name)

    @property
    def weight(self) -> Tensor:
        """The weight as the original's, for a network that reads it itself."""
        return as_weight(self.compose(), self.shape)

    @property
    def inputs(self) -> int:
        return math.prod(self.shape[1:])

    @property
    def outputs(self) -> int:
        return self.shape[0]

    def set_free(self, a: Tensor, b: Tensor, positions: Tensor) -> None:
        """Replace the free factors (when the dictionary grows or a selection is fixed)."""
        self.free_a = nn.Parameter(a.detach().clone().contiguous())
        self.free_b = nn.Parameter(b.detach().clone().contiguous())
        self.free_at = positions

    def set_locked(self, a: Tensor, b: Tensor, positions: Tensor) -> None:
        """Keep only some of the locked factors in the computation."""
        self.locked_a, self.locked_b, self.locked_at = a.contiguous(), b.contiguous(), positions

    def _parts(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """W_a, W_b and λ of the locked and of the free factors, where there are any. Positions ascend, so as many as
        there are scores are all of them."""
        blocks = ((self.locked_a, self.locked_b, self.locked_at), (self.free_a, self.free_b, self.free_at))
        every = self.scores.shape[-1]
        chosen = [(a, b, at) for a, b, at in blocks if len(at)]
        return [(a, b, self.scores if len(at) == every else self.scores.index_select(-1, at)) for a, b, at in chosen]

    def compose(self) -> Tensor:
        """`W_t = Σ_k λ_k w_a,k ⊗ w_b,k` over locked and free factors, as `J×M` (eq. W_fac_sum).

        Multiplied as `Wᵀ = W_bᵀ W_aᵀ`, the shape torch keeps a layer's weight in: the result needs no copy, and a
        head of ten outputs is ten long rows, where products and gradients with ten columns take five times as long.
        """
        device = self.free_a.device.type
        if torch.is_autocast_enabled(device):  # a sum of many products needs all its bits
            with torch.autocast(device, enabled=False):
                return self.compose()
        narrow = self.outputs < self.inputs  # λ goes to the side with fewer numbers
        parts = []
        for a, b, scores in self._parts():
            # On a CPU a small copy: torch lays out W_b's gradient as it finds this.
            rows = b.t() if b.is_cuda else b.t().contiguous()
            parts.append((rows * scores) @ a.t() if narrow else rows @ (a * scores).t())
        if not parts:
            return self.free_a @ self.free_b
        return (parts[0] if len(parts) == 1 else parts[0] + parts[1]).t()

    def through(self, x: Tensor) -> Tensor:
        """`((x W_a) λ) W_b` and the bias, without ever forming W."""
        out: Tensor | None = None
        for a, b, scores in self._parts():
            bias = self.bias if out is None else None
            part = F.linear(F.linear(x, a.t()) * scores, b.t(), bias)
            out = part if out is None else out + part
        return F.linear(x, self.compose().t(), self.bias) if out is None else out

    def extra_repr(self) -> str:
        return f"{self.inputs}×{self.outputs}, locked={len(self.locked_at)}, free={len(self.free_at)}"


class FactorLinear(FactorLayer):
    """`nn.Linear` with a factorised weight; takes the cheaper order of multiplication."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.numel() // max(x.shape[-1], 1)
        factors = len(self.locked_at) + len(self.free_at)
        through = rows * factors * (self.inputs + self.outputs)
        composed = self.inputs * self.outputs * (factors + rows)
        return self.through(x) if through <= composed else F.linear(x, self.compose().t(), self.bias)


class FactorConv(FactorLayer):
    """`nn.Conv1d/2d/3d` with a factorised kernel; stride, padding, dilation and groups are the original's."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self._conv_forward(x, self.weight, self.bias)
        return y


class FactorWeight(FactorLayer):
    """The factorised weight of a module that runs as it is: a projection that an attention module reads, or a layer
    with a forward pass of its own. It is composed before every pass and lent to the module; a bias stays there."""


def factor_layer(original: nn.Module, locked: FactorBlock) -> FactorLayer:
    """The factor layer that stands in for `original`."""
    if isinstance(original, nn.Linear):
        return FactorLinear(original, locked, original.weight, original.bias)
    if isinstance(original, _ConvNd) and not original.transposed:
        return FactorConv(original, locked, original.weight, original.bias)
    raise TypeError(f"no factor layer for {type(original).__name__}")


__all__ = [
    "FactorConv",
    "FactorLayer",
    "FactorLinear",
    "FactorWeight",
    "as_matrix",
    "as_weight",
    "factor_layer",
    "xavier",
]
