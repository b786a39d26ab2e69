"""What batch normalization keeps of a task's rows, estimated again once weights are what they will stay."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def has_batch_norm(network: nn.Module) -> bool:
    return any(isinstance(module, _BatchNorm) for module in network.modules())


ROWS_ASKED = 65_536
"""A mean over so many rows is as good as one over all of a long table."""


@torch.no_grad()
def estimate_statistics(network: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Give batch normalization the statistics of the weights as they are now, a plain mean over batches: those it
    kept in training belong to weights that have moved on since. Batches should be as in training, of rows from all
    over: the variance within a batch of a single class is not that of the task. A normalization that was not in
    training, or that no batch of two rows or more came to, keeps what it has."""
    norms = [m for m in network.modules() if isinstance(m, _BatchNorm) and m.track_running_stats and m.training]
    if not norms:
        return
    before = [(norm.momentum, {name: kept.clone() for name, kept in norm.named_buffers()}) for norm in norms]
    in_training = [module for module in network.modules() if module.training]
    try:
        network.eval()
        for norm in norms:
            norm.train()
            norm.reset_running_stats()
            norm.momentum = None  # a plain mean
        _look_at(network, batches)
    finally:
        for norm, (momentum, kept) in zip(norms, before, strict=True):
            norm.momentum = momentum
            if not norm.num_batches_tracked:
                norm.load_state_dict(kept, strict=False)
        for module in in_training:
            module.training = True


def _look_at(network: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
    rows = 0
    with torch.compiler.set_stance("force_eager"):  # not worth compiling once more
        for x, y in batches:
            if len(x) > 1:
                network(x)
            rows += len(y)
            if rows >= ROWS_ASKED:
                break
