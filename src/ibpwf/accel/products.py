"""Products with a factorised weight, forward and back, each as one operation (paper, eq. W_fac).

    W = W_a diag(λ) W_b,      y = x W  =  ((x W_a) λ) W_b

A factor is a row of `a` = W_aᵀ (F×J) and of `b` = W_b (F×M). Rows in `free` are being trained; the others are locked
and come first. One product takes both kinds, where autograd would need two and a sum, and gradients are taken of the
free rows alone: locked factors cost nothing in the backward pass but their part of λ's slope and of the input's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


class _Through(torch.autograd.Function):
    """`((x aᵀ) λ) b + bias`, rows of x."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        scores: Tensor,
        free_a: Tensor,
        free_b: Tensor,
        bias: Tensor | None,
        a: Tensor,
        b: Tensor,
        free: slice,
    ) -> Tensor:
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
        needs_x, _, needs_a, needs_b, needs_bias, *_ = ctx.needs_input_grad
        return (
            by_h @ a if needs_x else None,
            by_scores,
            (by_h[:, free].t() @ x)[:n] if needs_a else None,
            (scaled[:, free].t() @ grad)[:n] if needs_b else None,
            grad.sum(0) if needs_bias else None,
            None,
            None,
            None,
        )


class _Weight(torch.autograd.Function):
    """`bᵀ diag(λ) a`: W as torch keeps a layer's weight, M×J. λ goes to the side with fewer numbers."""

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, free_a: Tensor, free_b: Tensor, a: Tensor, b: Tensor, free: slice
    ) -> Tensor:
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
        # What `scaled` is multiplied with gives its slope, and that of λ and of the side it is made of. (As a product
        # with few rows, which is faster than one with few columns.)
        by_scaled, side = ((grad @ a.t()).t(), b) if ctx.narrow else (b @ grad, a)
        by_scores = (by_scaled * side).sum(1)
        by_side = by_scaled[free] * scores[free].unsqueeze(1)
        by_other = scaled[free] @ (grad if ctx.narrow else grad.t())
        by_a, by_b = (by_other, by_side) if ctx.narrow else (by_side, by_other)
        return by_scores, by_a, by_b, None, None, None


def through(
    x: Tensor, scores: Tensor, free_a: Tensor, free_b: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, free: slice
) -> Tensor:
    """`((x W_a) λ) W_b` and the bias, without ever forming W. `free_a` and `free_b` get the gradients of the rows
    `free` of `a` and `b`, which hold the same numbers."""
    if len(free_a) == len(a):  # the same by autograd, which then has nothing to leave out
        return F.linear(F.linear(x, free_a) * scores, free_b.t(), bias)
    rows = x.reshape(-1, x.shape[-1])
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        rows, free_a, free_b, a, b = (part.to(dtype) for part in (rows, free_a, free_b, a, b))
        bias = None if bias is None else bias.to(dtype)
    y: Tensor = _Through.apply(rows, scores, free_a, free_b, bias, a, b, free)  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], y.shape[-1])


def weight(scores: Tensor, free_a: Tensor, free_b: Tensor, a: Tensor, b: Tensor, free: slice) -> Tensor:
    """`W = Σ_k λ_k w_b,k ⊗ w_a,k` (eq. W_fac_sum), M×J as torch keeps it, with gradients as in `through`."""
    if len(free_a) == len(a):
        column = scores.unsqueeze(1)
        narrow = free_b.shape[1] < free_a.shape[1]
        return (free_b * column).t() @ free_a if narrow else free_b.t() @ (free_a * column)
    result: Tensor = _Weight.apply(scores, free_a, free_b, a, b, free)  # type: ignore[no-untyped-call]
    return result


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


class Deal:
    """Where each number of a matrix (rows are layers, columns sticks) goes: a vector per layer, as its factors are.

    `places` has the stick of every factor of a layer; -1 for one that only fills a block up, and is zero.
    """

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
