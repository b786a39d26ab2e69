"""Batch normalization, ReLU and pooling in few passes over the images while a GPU trains.

Stands for `models.normalized`. Between two convolutions in bfloat16 hardly anything is calculated, but numbers are
read and written: each of the three operations, forward and back, goes over all of them several times, and together
they took longer than the convolutions. torch's compiler puts what it can of them into one pass. It compiles once for
every shape of images, which takes some seconds.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ibpwf.dispatch import stands_for
from ibpwf.models import normalized

SHAPES = 256
"""Shapes for which it is compiled before torch's compiler gives up."""


@cache
def compiles() -> bool:
    """Whether torch brings what its compiler needs on a GPU."""
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


def trains_in_bfloat16(x: Tensor, norm: nn.BatchNorm2d) -> bool:
    """Statistics of the mini-batch, averaged over steps in the usual way, and nobody who listens to the module."""
    usual = type(norm) is nn.BatchNorm2d and not norm._forward_hooks and not norm._forward_pre_hooks
    averaged = norm.training and norm.track_running_stats and isinstance(norm.momentum, float) and norm.affine
    return x.is_cuda and x.dtype == torch.bfloat16 and usual and averaged and compiles()


def _trains_on_a_gpu(x: Tensor, norm: nn.BatchNorm2d, halve: bool) -> bool:
    return trains_in_bfloat16(x, norm)


def in_one(
    x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor, momentum: float, eps: float, halve: bool
) -> Tensor:
    x = F.relu(F.batch_norm(x, mean, variance, weight, bias, True, momentum, eps))
    return F.max_pool2d(x, 2) if halve else x


@cache
def _compiled() -> Any:
    return torch.compile(in_one, dynamic=False)


@stands_for(normalized, when=_trains_on_a_gpu)
def fused_normalized(x: Tensor, norm: nn.BatchNorm2d, halve: bool) -> Tensor:
    import torch._dynamo.config as compiler

    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    given = norm.running_mean, norm.running_var, norm.weight, norm.bias, norm.momentum, norm.eps
    with compiler.patch(recompile_limit=SHAPES, accumulated_recompile_limit=SHAPES):
        y: Tensor = _compiled()(x, *given, halve)
    return y
