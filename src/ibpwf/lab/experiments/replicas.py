"""Several learners at once on one device: each takes a step in turn, on its own CUDA stream.

A small network leaves a GPU idle between its tiny kernels. Every learner's step is a captured graph of its own,
so replaying them on different streams lets the card overlap them, whatever the method or network, and each
learner computes exactly what it would compute alone. On a CPU the learners simply follow one another here; a run with
several seeds gives them to worker processes instead (`experiments/executors.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence

import torch


def take_turns(steps: Sequence[Generator[None, None, object]], device: torch.device) -> None:
    """Run all generators to their end; one that fails stops them all."""
    if device.type != "cuda":
        for generator in steps:
            for _ in generator:
                pass
        return
    torch.cuda.synchronize(device)
    here = torch.cuda.current_stream(device)
    waiting = [(generator, torch.cuda.Stream(device)) for generator in steps]  # type: ignore[no-untyped-call]
    try:
        while waiting:
            going = []
            for generator, stream in waiting:
                torch.cuda.set_stream(stream)
                with contextlib.suppress(StopIteration):
                    next(generator)
                    going.append((generator, stream))
            waiting = going
    finally:
        torch.cuda.set_stream(here)
        torch.cuda.synchronize(device)
