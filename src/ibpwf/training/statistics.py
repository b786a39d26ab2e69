"""What batch normalization keeps of a task's rows, estimated again once weights are what they will stay."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ibpwf.training.rows import Rows


def has_batch_norm(network: nn.Module) -> bool:
    return any(isinstance(module, _BatchNorm) for module in network.modules())


@torch.no_grad()
def estimate_statistics(
    network: nn.Module, rows: Rows, batch_size: int, given: Callable[[Tensor], Tensor] = lambda x: x
) -> None:
    """Give batch normalization the statistics of the weights as they are now, averaged over all rows: those it kept
    while weights were sampled belong to other weights, and a network that answered with them would fail."""
    norms = [m for m in network.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean over batches
    for x, _ in rows.in_order(batch_size):
        if len(x) > 1:
            network(given(x))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
