"""Layers whose weight is a task-specific sum of rank-1 factors (paper, eq. W_fac_sum).

A factor layer exists only while a task is being learned. It holds the locked factors as constants (no gradient, no
optimizer state) and the task's free factors as parameters, and reads the factor scores λ = r ⊙ b from `scores`, which
the task network fills in before each forward pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd

from ibpwf.dispatch import reference
from ibpwf.factors.compose import as_weight, compose, product
from ibpwf.factors.dictionary import FactorBlock
from ibpwf.factors.weights import transposed_linear


def xavier(inputs: int, outputs: int, count: int, width: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """`count` fresh factors of a dictionary of `width`, Xavier-uniform: |w_a| ≤ √(6/(J+F)), |w_b| ≤ √(6/(F+M))."""
    a = (torch.rand(inputs, count, generator=generator, dtype=torch.float32) * 2 - 1) * math.sqrt(
        6.0 / (inputs + width)
    )
    b = (torch.rand(count, outputs, generator=generator, dtype=torch.float32) * 2 - 1) * math.sqrt(
        6.0 / (outputs + width)
    )
    return a, b


class FactorLayer(nn.Module):
    """Locked and free factors of one layer, and the two ways to apply them.

    A factor is a row of `..._a` (W_aᵀ) and of `..._b` (W_b), and `..._at` is its stick. `scores` has λ in the order
    of `places`, the sticks of all factors: locked ones, then free ones (-1 where an accelerated layout fills up).
    `base` is W_0, to which the factors are added, as the original's weight has it; None where they are all there is.
    """

    base: Tensor | None

    locked_a: Tensor
    locked_b: Tensor
    locked_at: Tensor
    free_at: Tensor
    scores: Tensor
    places: Tensor

    def __init__(
        self,
        original: nn.Module,
        locked: FactorBlock,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        keeps_base: bool = False,
    ) -> None:
        super().__init__()
        self.shape = tuple(weight.shape)
        self.register_buffer("base", weight.detach() if keeps_base else None, persistent=False)
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
        self.layout: Any = None  # what an accelerated product keeps with the layer
        self._arrange()

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
        self._arrange()
        return self

    def _arrange(self) -> None:
        arrange(self)
        counted = (self.places >= 0).nonzero().flatten()
        self._counted = None if len(counted) == len(self.places) else counted

    @property
    def inputs(self) -> int:
        return math.prod(self.shape[1:])

    @property
    def outputs(self) -> int:
        return self.shape[0]

    @property
    def weight(self) -> Tensor:
        """The weight as the original's, for a network that reads it itself. A sum of many products needs all its
        bits, also where products may be rounded."""
        device = self.free_a.device.type
        if torch.is_autocast_enabled(device):
            with torch.autocast(device, enabled=False):
                return self.weight
        weight = as_weight(layer_weight(self), self.shape)
        return weight if self.base is None else self.base + weight

    def set_free(self, a: Tensor, b: Tensor, positions: Tensor) -> None:
        """Replace the free factors (when the dictionary grows or a selection is fixed), a row each."""
        self.free_a, self.free_b = nn.Parameter(a.detach()), nn.Parameter(b.detach())
        self.free_at = positions
        self._arrange()

    def set_locked(self, a: Tensor, b: Tensor, positions: Tensor) -> None:
        """Keep only some of the locked factors in the computation."""
        self.locked_a, self.locked_b, self.locked_at = a, b, positions
        self._arrange()

    def factors(self) -> tuple[Tensor, Tensor, Tensor]:
        """W_a (J×F), λ (F) and W_b (F×M) of all factors, locked ones first."""
        w_a, w_b = torch.cat([self.locked_a, self.free_a]).t(), torch.cat([self.locked_b, self.free_b])
        scores = self.scores
        if self._counted is not None and len(scores) != len(w_b):
            scores = scores.index_select(0, self._counted)
        return w_a, scores, w_b

    def extra_repr(self) -> str:
        return f"{self.inputs}×{self.outputs}, locked={len(self.locked_at)}, free={len(self.free_at)}"


@reference
def arrange(layer: FactorLayer) -> None:
    """Called whenever a layer's factors have been replaced or moved: says in which order `scores` must come."""
    layer.layout = None
    layer.places = torch.cat([layer.locked_at, layer.free_at])


@reference
def layer_weight(layer: FactorLayer) -> Tensor:
    """The layer's weight as the paper's J×M matrix (eq. W_fac)."""
    return compose(*layer.factors())


@reference
def layer_product(layer: FactorLayer, x: Tensor) -> Tensor:
    """x times the layer's weight, and the bias, without ever forming the weight (eq. W_fac)."""
    y = product(x, *layer.factors())
    return y if layer.bias is None else y + layer.bias


@reference
def assign_scores(scores: Tensor, layers: Sequence[FactorLayer]) -> None:
    """Give every layer (a row of λ) the scores of its factors, in their order."""
    for row, layer in zip(scores, layers, strict=True):
        layer.scores = row[layer.places]


class FactorLinear(FactorLayer):
    """`nn.Linear`, or one whose weight lies the other way round, with a factorized weight; takes the cheaper order of
    multiplication."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.numel() // max(x.shape[-1], 1)
        factors = len(self.locked_at) + len(self.free_at)
        by_factors = rows * factors * (self.inputs + self.outputs)
        composed = self.inputs * self.outputs * (factors + (rows if self.base is None else 0))
        if by_factors > composed:
            return F.linear(x, self.weight, self.bias)
        return layer_product(self, x) if self.base is None else F.linear(x, self.base) + layer_product(self, x)


class FactorConv(FactorLayer):
    """`nn.Conv1d/2d/3d` with a factorized kernel; stride, padding, dilation and groups are the original's."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        if x.is_cuda and x.dim() == 4:
            weight = channels_last(weight)
        y: Tensor = self._conv_forward(x, weight, self.bias)
        return y


def channels_last(weight: Tensor) -> Tensor:
    """The same numbers, channels side by side in memory. A GPU's convolution then gives its images so too, whichever
    way they came in, and batch normalization and pooling after it are the faster for it. (A plain `contiguous`
    leaves the strides of a single channel as they are, which say nothing.)"""
    return weight.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format).permute(0, 3, 1, 2)


class FactorWeight(FactorLayer):
    """The factorized weight of a module that runs as it is: a projection that an attention module reads, or a layer
    with a forward pass of its own. It is composed before every pass and lent to the module; a bias stays there."""


def factor_layer(original: nn.Module, locked: FactorBlock, *, keeps_base: bool = False) -> FactorLayer:
    """The factor layer that stands in for `original`."""
    if isinstance(original, nn.Linear):
        return FactorLinear(original, locked, original.weight, original.bias, keeps_base=keeps_base)
    if transposed_linear(original):
        weight, bias = original.get_parameter("weight").t(), original.get_parameter("bias")
        return FactorLinear(original, locked, weight, bias, keeps_base=keeps_base)
    if isinstance(original, _ConvNd) and not original.transposed:
        return FactorConv(original, locked, original.weight, original.bias, keeps_base=keeps_base)
    raise TypeError(f"no factor layer for {type(original).__name__}")
