"""Batch normalization by the rows of all processes, while each of them has its part of a mini-batch.

Every process gives the number, mean and variance of its values of a channel. From these all of them find the same
mean and variance of the whole, centered, so that nothing cancels. Going back, the two sums that the gradient of a
mean and a variance needs are added up in the same way. torch's own SyncBatchNorm does this on GPUs alone, for parts
of equal weight.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from ibpwf.distributed import Group


def norms_of(networks: Iterable[nn.Module]) -> list[_BatchNorm]:
    """The batch normalizations that can look at all rows: those that calculate as torch's own do."""
    modules = (module for network in networks for module in network.modules())
    return [m for m in modules if isinstance(m, _BatchNorm) and type(m).forward is _BatchNorm.forward]


@contextlib.contextmanager
def by_all_rows(norms: Sequence[_BatchNorm], group: Group, weight: float) -> Iterator[None]:
    """Let them normalize by the rows of all processes inside, forward and back. `weight` is that of this process's
    loss in the loss of all (see `Group.part`)."""
    kinds: list[Any] = [type(norm) for norm in norms]
    try:
        for norm, kind in zip(norms, kinds, strict=True):
            norm._together = (group, weight)  # type: ignore[assignment]
            norm.__class__ = _together(kind)
        yield
    finally:
        for norm, kind in zip(norms, kinds, strict=True):
            norm.__class__ = kind
            norm.__dict__.pop("_together", None)


@cache
def _together(kind: Any) -> type[_BatchNorm]:
    """A class derived from a normalization's own."""
    forward = torch.compiler.disable(_forward)  # type: ignore[no-untyped-call]
    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


def _forward(self: Any, input: Tensor) -> Tensor:
    """As `_BatchNorm.forward`, by all rows where that takes those of the batch."""
    if not self.training and self.running_mean is not None:
        y: Tensor = _BatchNorm.forward(self, input)
        return y
    self._check_input_dim(input)
    group, weight = self._together
    given = input, self.weight, self.bias, self.eps, group, weight
    y, mean, variance, count = _ByAllRows.apply(*given)  # type: ignore[no-untyped-call]
    if self.training and self.track_running_stats and self.running_mean is not None:
        self.num_batches_tracked.add_(1)
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        with torch.no_grad():
            unbiased = variance * (count / (count - 1))
            for kept, now in ((self.running_mean, mean), (self.running_var, unbiased)):
                kept.mul_(1 - share).add_(now.to(kept.dtype), alpha=share)
    return y


class _ByAllRows(torch.autograd.Function):
    """Normalized values, and the mean, variance and number of all that they were normalized by."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: Tensor | None, shift: Tensor | None, eps: float, group: Group, weight: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        mean, variance, count = _statistics(x, group)
        ctx.save_for_backward(x, scale, mean, variance, count)
        ctx.eps, ctx.group, ctx.weight = eps, group, weight
        ctx.mark_non_differentiable(mean, variance, count)
        return F.batch_norm(x, mean, variance, scale, shift, False, 0.0, eps), mean, variance, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """dx = γ/σ (dy − Σ dy / N − x̂ Σ dy x̂ / N). Sums are of all processes, each weighted as its loss is; this
        process's own gradients are weighted later on, so they are divided by its weight here."""
        x, scale, mean, variance, count = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last) if _channels_last(x) else dy.contiguous()
        inverse = (variance + ctx.eps).rsqrt()  # CPUs read the variance, GPUs this
        ones = torch.ones_like(mean) if scale is None else scale  # a GPU gives no sums without
        sums = torch.ops.aten.native_batch_norm_backward(
            dy, x, ones, mean, variance, mean, inverse, False, ctx.eps, [False, True, True]
        )
        of_products, of_gradients = sums[1], sums[2]
        dx = None
        if ctx.needs_input_grad[0]:
            both = torch.stack([of_products, of_gradients]).to(mean.dtype).mul_(ctx.weight)
            both = ctx.group.gathered(both).sum(0)
            slope = inverse if scale is None else inverse * scale
            both.mul_(slope / (-ctx.weight * count))
            dx = F.batch_norm(x, mean, variance, both[0], both[1], False, 0.0, ctx.eps)
            dx.addcmul_(dy, slope.to(dy.dtype).view(-1, *[1] * (x.ndim - 2)))
        wanted = ctx.needs_input_grad
        return dx, of_products if wanted[1] else None, of_gradients if wanted[2] else None, None, None, None


def _channels_last(x: Tensor) -> bool:
    return x.ndim == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)


def _statistics(x: Tensor, group: Group) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance and number of the values of each channel in all processes: the same bits in each of them."""
    mean, variance = torch.batch_norm_update_stats(x, None, None, 0.0)
    each = group.gathered(torch.cat([mean, variance, mean.new_full((1,), x.numel() / x.shape[1])]))
    counts = each[:, -1:]
    means, variances = each[:, :-1].chunk(2, 1)
    count = counts.sum()
    shares = counts / count
    mean = (shares * means).sum(0)
    return mean, (shares * (variances + (means - mean) ** 2)).sum(0), count
