"""Layers whose weight is a task-specific sum of rank-1 factors (paper, eq. W_fac_sum).

A factor layer exists only while a task is being learnt. It holds the locked factors as constants (no
gradient, no optimiser state) and the task's free factors as parameters, and reads the factor scores
λ = r ⊙ b from `scores`, which the task network fills in before each forward pass. A layer's weight
`(out, in, …)` is seen as the matrix `W (J×M)` with `J = in·…` and `M = out`; for a convolution that is the
paper's `(H·W·C_in) × C_out`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd

from ibpwf.accel import products
from ibpwf.core.dictionary import FactorBlock


def block_on(device: torch.device) -> int:
    """To a multiple of how many factors are filled up: a GPU multiplies faster where rows begin at whole 16 bytes."""
    return 8 if device.type == "cuda" else 1


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


class Joined(NamedTuple):
    """All factors of a layer, one row each of W_aᵀ and W_b: locked, then free ones (rows `free`), in one piece of
    memory each, of which the parameters are a part. `places` are their sticks. Blocks are filled up with zeros
    (stick -1) where products are faster for it."""

    a: Tensor
    b: Tensor
    free: slice
    places: Tensor


class FactorLayer(nn.Module):
    """Locked and free factors of one layer, and the two ways to apply them.

    A factor is a row of `..._a` (W_aᵀ) and of `..._b` (W_b); `scores` has its λ, in the order of `places`.
    """

    locked_a: Tensor
    locked_b: Tensor
    locked_at: Tensor
    free_at: Tensor
    scores: Tensor

    def __init__(self, original: nn.Module, locked: FactorBlock, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.shape = tuple(weight.shape)
        self.scores = locked.a.new_empty(0)
        self.register_buffer("locked_a", locked.a.t(), persistent=False)
        self.register_buffer("locked_b", locked.b, persistent=False)
        self.register_buffer("locked_at", locked.positions, persistent=False)
        self.register_buffer("free_at", locked.positions.new_empty(0), persistent=False)
        self.free_a = nn.Parameter(locked.a.new_empty(0, self.inputs))
        self.free_b = nn.Parameter(locked.b.new_empty(0, self.outputs))
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), bias.requires_grad)
        # Kept in a tuple so that the original's own weight is not registered as a parameter of ours.
        self._original = (original,)
        self._join()

    def __getattr__(self, name: str) -> Any:
        """What else a network asks its layer for (`in_features`, `stride`, ...) is the original's."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "_original" not in self.__dict__:
                raise
            return getattr(self._original[0], name)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Another device or type: parameters and locked factors were moved one by one."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._join()
        return self

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

    @property
    def places(self) -> Tensor:
        """The stick of every score."""
        return self._joined.places

    def set_free(self, a: Tensor, b: Tensor, positions: Tensor) -> None:
        """Replace the free factors (when the dictionary grows or a selection is fixed), a row each."""
        self.free_a, self.free_b = nn.Parameter(a.detach()), nn.Parameter(b.detach())
        self.free_at = positions
        self._join()

    def set_locked(self, a: Tensor, b: Tensor, positions: Tensor) -> None:
        """Keep only some of the locked factors in the computation."""
        self.locked_a, self.locked_b, self.locked_at = a, b, positions
        self._join()

    @torch.no_grad()
    def _join(self) -> None:
        """Put all factors side by side, and let parameters and locked factors be parts of that."""
        block = block_on(self.free_a.device)
        locked, free = len(self.locked_at), len(self.free_at)
        start = -(-locked // block) * block
        stop = start - (-free // block) * block
        a, b = self.free_a.new_zeros(stop, self.inputs), self.free_b.new_zeros(stop, self.outputs)
        places = self.free_at.new_full((stop,), -1)
        for whole, first, second in ((a, self.locked_a, self.free_a), (b, self.locked_b, self.free_b)):
            whole[:locked], whole[start : start + free] = first, second
        places[:locked], places[start : start + free] = self.locked_at, self.free_at
        self.locked_a, self.locked_b = a[:locked], b[:locked]
        self.free_a.data, self.free_b.data = a[start : start + free], b[start : start + free]
        self._joined = Joined(a, b, slice(start, stop), places)

    def _factors(self) -> Joined:
        """All factors as they are now. Parameters may have been replaced for one call (`functional_call`)."""
        joined = self._joined
        start = joined.free.start
        for whole, part in ((joined.a, self.free_a), (joined.b, self.free_b)):
            if part.numel() and part.data_ptr() != whole.data_ptr() + start * whole.stride(0) * whole.element_size():
                break
        else:
            return joined
        a, b = joined.a.clone(), joined.b.clone()
        a[start : start + len(self.free_a)], b[start : start + len(self.free_b)] = (
            self.free_a.detach(),
            self.free_b.detach(),
        )
        return joined._replace(a=a, b=b)

    def compose(self) -> Tensor:
        """`W_t = Σ_k λ_k w_a,k ⊗ w_b,k` over locked and free factors, as `J×M` (eq. W_fac_sum).

        Multiplied as `Wᵀ = W_bᵀ W_aᵀ`, the shape torch keeps a layer's weight in: the result needs no copy, and a
        head of ten outputs is ten long rows, where products and gradients with ten columns take five times as long.
        """
        device = self.free_a.device.type
        if torch.is_autocast_enabled(device):  # a sum of many products needs all its bits
            with torch.autocast(device, enabled=False):
                return self.compose()
        a, b, free, _ = self._factors()
        return products.weight(self.scores, self.free_a, self.free_b, a, b, free).t()

    def through(self, x: Tensor) -> Tensor:
        """`((x W_a) λ) W_b` and the bias, without ever forming W."""
        a, b, free, _ = self._factors()
        return products.through(x, self.scores, self.free_a, self.free_b, self.bias, a, b, free)

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
