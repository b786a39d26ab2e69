"""Products with locked and free factors, forward and back, each as one operation.

Stands for `factors.layers.arrange`, `layer_weight`, `layer_product` and `assign_scores`.

A layer keeps all its factors side by side in memory, locked ones first, a row each of W_aᵀ and W_b; the free ones'
parameters are a part of it, so that an optimizer moves the very numbers that are multiplied. One product then takes
both kinds, where autograd would need two and a sum, and gradients are taken of the free rows alone: locked factors
cost nothing in the backward pass but their part of λ's gradient and of the input's. A later task's step takes as few
operations as the first's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from ibpwf.dispatch import stands_for
from ibpwf.factors.layers import FactorLayer, arrange, assign_scores, layer_product, layer_weight


class Joined(NamedTuple):
    """All factors of a layer, one row each of W_aᵀ and W_b: locked, then free ones (rows `free`), in one piece of
    memory each, of which the parameters are a part. On a GPU blocks are filled up with zeros to a multiple of eight:
    it multiplies faster where rows begin at whole 16 bytes."""

    a: Tensor
    b: Tensor
    free: slice


def _always(layer: FactorLayer) -> bool:
    return True


@stands_for(arrange, when=_always)
@torch.no_grad()
def joined_layout(layer: FactorLayer) -> None:
    """Put all factors side by side, and let parameters and locked factors be parts of that."""
    block = 8 if layer.free_a.is_cuda else 1
    locked, free = len(layer.locked_at), len(layer.free_at)
    start = -(-locked // block) * block
    stop = start - (-free // block) * block
    a, b = layer.free_a.new_zeros(stop, layer.inputs), layer.free_b.new_zeros(stop, layer.outputs)
    places = layer.free_at.new_full((stop,), -1)
    for whole, first, second in ((a, layer.locked_a, layer.free_a), (b, layer.locked_b, layer.free_b)):
        whole[:locked], whole[start : start + free] = first, second
    places[:locked], places[start : start + free] = layer.locked_at, layer.free_at
    layer.locked_a, layer.locked_b = a[:locked], b[:locked]
    layer.free_a.data, layer.free_b.data = a[start : start + free], b[start : start + free]
    layer.layout, layer.places = Joined(a, b, slice(start, stop)), places


def _factors(layer: FactorLayer) -> Joined:
    """All factors as they are now. Parameters may have been replaced for one call (`functional_call`)."""
    joined: Joined = layer.layout
    start = joined.free.start
    for whole, part in ((joined.a, layer.free_a), (joined.b, layer.free_b)):
        if part.numel() and part.data_ptr() != whole.data_ptr() + start * whole.stride(0) * whole.element_size():
            break
    else:
        return joined
    a, b = joined.a.clone(), joined.b.clone()
    a[start : start + len(layer.free_a)], b[start : start + len(layer.free_b)] = (
        layer.free_a.detach(),
        layer.free_b.detach(),
    )
    return joined._replace(a=a, b=b)


class _Product(torch.autograd.Function):
    """`((x aᵀ) λ) b + bias`, rows of x."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scores: Tensor, free_a: Tensor, free_b: Tensor, bias: Tensor | None, joined: Joined
    ) -> Tensor:
        a, b, free = joined
        h = x @ a.t()
        scaled = (h * scores).to(h.dtype)
        ctx.free, ctx.count = free, len(free_a)
        ctx.save_for_backward(x, scores, a, b, h, scaled)
        return scaled @ b if bias is None else torch.addmm(bias, scaled, b)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, scores, a, b, h, scaled = ctx.saved_tensors
        free, n = ctx.free, ctx.count
        by_scaled = grad @ b.t()
        by_scores = (by_scaled * h).sum(0, dtype=scores.dtype)
        by_h = (by_scaled * scores).to(h.dtype)
        needs_x, _, needs_a, needs_b, needs_bias, _ = ctx.needs_input_grad
        return (
            by_h @ a if needs_x else None,
            by_scores,
            (by_h[:, free].t() @ x)[:n] if needs_a else None,
            (scaled[:, free].t() @ grad)[:n] if needs_b else None,
            grad.sum(0) if needs_bias else None,
            None,
        )


class _Weight(torch.autograd.Function):
    """`bᵀ diag(λ) a`: W as torch keeps a layer's weight, M×J. λ goes to the side with fewer numbers."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, free_a: Tensor, free_b: Tensor, joined: Joined) -> Tensor:
        a, b, free = joined
        narrow = b.shape[1] < a.shape[1]
        scaled = (b if narrow else a) * scores.unsqueeze(1)
        ctx.free, ctx.count, ctx.narrow = free, len(free_a), narrow
        ctx.save_for_backward(scores, a, b, scaled)
        return scaled.t() @ a if narrow else b.t() @ scaled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        scores, a, b, scaled = ctx.saved_tensors
        free = slice(ctx.free.start, ctx.free.start + ctx.count)
        # What `scaled` is multiplied with gives its gradient, and that of λ and of the side it is made of. (As a
        # product with few rows, which is faster than one with few columns.)
        by_scaled, side = ((grad @ a.t()).t(), b) if ctx.narrow else (b @ grad, a)
        by_scores = (by_scaled * side).sum(1)
        by_side = by_scaled[free] * scores[free].unsqueeze(1)
        by_other = scaled[free] @ (grad if ctx.narrow else grad.t())
        by_a, by_b = (by_other, by_side) if ctx.narrow else (by_side, by_other)
        return by_scores, by_a, by_b, None


def _is_joined(layer: FactorLayer, x: Tensor | None = None) -> bool:
    return layer.layout is not None


@stands_for(layer_product, when=_is_joined)
def joined_product(layer: FactorLayer, x: Tensor) -> Tensor:
    """`((x W_a) λ) W_b` and the bias. Where all factors are free, by autograd, which then has nothing to leave
    out."""
    joined, bias, scores = _factors(layer), layer.bias, layer.scores
    free_a: Tensor
    free_b: Tensor
    free_a, free_b = layer.free_a, layer.free_b
    if len(free_a) == len(joined.a):
        return F.linear(F.linear(x, free_a) * scores, free_b.t(), bias)
    rows = x.reshape(-1, x.shape[-1])
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        rows, free_a, free_b = (part.to(dtype) for part in (rows, free_a, free_b))
        joined = joined._replace(a=joined.a.to(dtype), b=joined.b.to(dtype))
        bias = None if bias is None else bias.to(dtype)  # type: ignore[assignment]
    y: Tensor = _Product.apply(rows, scores, free_a, free_b, bias, joined)  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], y.shape[-1])


@stands_for(layer_weight, when=_is_joined)
def joined_weight(layer: FactorLayer) -> Tensor:
    """`W = Σ_k λ_k w_a,k ⊗ w_b,k`, multiplied as `Wᵀ`, the shape torch keeps a layer's weight in: the result needs no
    copy, and a head of ten outputs is ten long rows, where products and gradients with ten columns take five times as
    long."""
    joined = _factors(layer)
    if len(layer.free_a) == len(joined.a):
        column = layer.scores.unsqueeze(1)
        narrow = layer.outputs < layer.inputs
        whole = (layer.free_b * column).t() @ layer.free_a if narrow else layer.free_b.t() @ (layer.free_a * column)
        return whole.t()
    result: Tensor = _Weight.apply(layer.scores, layer.free_a, layer.free_b, joined)  # type: ignore[no-untyped-call]
    return result.t()


class _Dealt(torch.autograd.Function):
    """Numbers of a matrix in another order, cut into pieces; each goes to one place at most."""

    @staticmethod
    def forward(ctx: Any, numbers: Tensor, order: Tensor, back: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
        ctx.shape = numbers.shape
        ctx.save_for_backward(back)
        return torch.split(numbers.reshape(-1).index_select(0, order), list(sizes))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (back,) = ctx.saved_tensors
        joined = torch.cat([*grads, grads[0].new_zeros(1)])  # what went nowhere finds its zero at the end
        return joined.index_select(0, back).view(ctx.shape), None, None, None


class ScoreOrder:
    """Where each number of a matrix (rows are layers, columns sticks) goes: a vector per layer, as its factors
    are."""

    def __init__(self, places: Sequence[Tensor], width: int) -> None:
        self.places, self.width = list(places), width
        self.sizes = [len(stick) for stick in places]
        at = torch.cat([row * width + stick.clamp(min=0) for row, stick in enumerate(places)])
        counts = torch.cat(self.places) >= 0
        self.order = at
        self.back = torch.full((len(places) * width,), len(at), device=at.device)
        self.back[at[counts]] = counts.nonzero().squeeze(1)
        self.straight = torch.equal(at, torch.arange(len(places) * width, device=at.device)) and bool(counts.all())

    def fits(self, places: Sequence[Tensor], width: int) -> bool:
        """Whether it was made for these."""
        return width == self.width and all(new is old for new, old in zip(places, self.places, strict=True))

    def __call__(self, numbers: Tensor) -> tuple[Tensor, ...]:
        if self.straight:
            return numbers.unbind()
        result: tuple[Tensor, ...] = _Dealt.apply(numbers, self.order, self.back, self.sizes)  # type: ignore[no-untyped-call]
        return result


_ORDER = "_score_order"


def _all_joined(scores: Tensor, layers: Sequence[FactorLayer]) -> bool:
    return all(layer.layout is not None for layer in layers)


@stands_for(assign_scores, when=_all_joined)
def ordered_scores(scores: Tensor, layers: Sequence[FactorLayer]) -> None:
    """All layers' scores by one gather. The order is kept with the first layer until the factors change."""
    places = [layer.places for layer in layers]
    order = layers[0].__dict__.get(_ORDER)
    if order is None or len(order.sizes) != len(places) or not order.fits(places, scores.shape[1]):
        order = layers[0].__dict__[_ORDER] = ScoreOrder(places, scores.shape[1])
    for layer, mine in zip(layers, order(scores), strict=True):
        layer.scores = mine
