"""How a CPU trains fastest: one thread for small networks, and no denormal numbers.

A step of a small network is some two hundred operations of microseconds: a second thread inside them gains little,
and loses much where the cores are busy. Adam's moments fall to denormal numbers in a long run, which halve its speed.
Both are the caller's again afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

NARROW = 512
"""Units of a layer up to which one thread is as good as more."""


def is_small(net: nn.Module) -> bool:
    """Whether a network is a perceptron so narrow that more than one thread hardly speeds a step up."""
    if any(isinstance(module, nn.MultiheadAttention) for module in net.modules()):
        return False
    return all(p.ndim < 2 or (p.ndim == 2 and min(p.shape) <= NARROW) for p in net.parameters())


@contextlib.contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Let torch use so many threads inside; None: as many as before."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def flushes_denormals() -> bool:
    """Whether this thread takes denormal numbers for 0 now."""
    tiny = torch.full((1,), 1e-310, dtype=torch.float64)
    return float(tiny * 1.0) == 0.0


@contextlib.contextmanager
def prepared_to_train(net: nn.Module, device: torch.device) -> Iterator[None]:
    """One thread for a small network on a CPU, denormal numbers flushed; restored in the end."""
    if device.type != "cpu":
        yield
        return
    before = flushes_denormals()
    torch.set_flush_denormal(True)
    try:
        with threads(1 if is_small(net) else None):
            yield
    finally:
        torch.set_flush_denormal(before)
