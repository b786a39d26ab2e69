"""Batch normalization and ReLU6 in few passes over the images while a GPU trains beside a trained network.

Stands for `backbones.inverted_residuals.clipped_norm`. In networks of inverted residuals, whose convolutions are
small, both took about half the time of a step in bfloat16.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ibpwf.backbones.inverted_residuals import CLIPPED_AT, clipped_norm
from ibpwf.dispatch import stands_for
from ibpwf.fast.fused import trains_in_bfloat16

MOST_NUMBERS = 2**31
"""Of images, by which kernels count in 32 bits."""


def _trains_on_a_gpu(x: Tensor, norm: nn.Module, linear: bool) -> bool:
    """Also, the channels of an image lie side by side, and a kernel can count its numbers."""
    return (
        x.is_cuda
        and isinstance(norm, nn.BatchNorm2d)
        and trains_in_bfloat16(x, norm)
        and x.is_contiguous(memory_format=torch.channels_last)
        and x.shape[1] < x.numel() < MOST_NUMBERS
    )


@stands_for(clipped_norm, when=_trains_on_a_gpu)
def fused_clipped_norm(x: Tensor, norm: nn.Module, linear: bool) -> Tensor:
    from ibpwf.fast.norm_kernels import Normalized

    assert isinstance(norm, nn.BatchNorm2d)
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    kept = norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.momentum, norm.eps
    y: Tensor = Normalized.apply(x, *kept, None if linear else CLIPPED_AT)  # type: ignore[no-untyped-call]
    return y
