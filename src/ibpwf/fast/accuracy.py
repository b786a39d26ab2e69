"""The accuracy of a mini-batch as one kernel on a GPU: stands for `training.objective.share_right`.

Written in torch it is four kernels of a recorded step's hundred.
"""

from __future__ import annotations

from torch import Tensor

from ibpwf.dispatch import stands_for
from ibpwf.fast.kl import kernels
from ibpwf.training.objective import share_right

MOST = 1 << 14
"""Outputs that one program looks at."""


def _few_on_a_gpu(logits: Tensor, y: Tensor) -> bool:
    return logits.is_cuda and logits.numel() <= MOST and logits.stride(1) == 1 and kernels() is not None


@stands_for(share_right, when=_few_on_a_gpu)
def fast_share_right(logits: Tensor, y: Tensor) -> Tensor:
    found = kernels()
    assert found is not None
    share: Tensor = found.share_right(logits.detach(), y)
    return share
