"""Bytes: what a task adds to the model, what the optimiser holds, what training takes at its peak."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import torch
from torch import Tensor

from ibpwf.lab.bench.measure import Row, Setup
from ibpwf.lab.bench.steps import STEPS, elbo_step, examples, method_of, repeat
from ibpwf.method import IBPWF
from ibpwf.models import mlp
from ibpwf.training.method import TaskData

MB = 1e6


def size_of(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def bytes_of_task(method: IBPWF, task: int) -> dict[str, int]:
    """What one learnt task added, by kind: factors it locked, its vectors, its own parameters, its statistics."""
    learned = method.model.tasks[task]
    blocks = [dictionary.blocks[task] for dictionary in method.model.layers.values()]
    vectors = [part for v in learned.vectors.values() for part in vars(v).values()]
    statistics = method.inference.task_state(task)[1].values()
    return {
        "factors": size_of(part for block in blocks for part in (block.a, block.b, block.positions)),
        "vectors": size_of([*vectors, *learned.selected.values()]),
        "own parameters": size_of(learned.own.values()),
        "feature statistics": size_of(statistics),
    }


def optimizer_bytes(optimizer: torch.optim.Optimizer) -> int:
    """The optimiser's running averages; a locked factor has none."""
    return size_of(v for state in optimizer.state.values() for v in state.values() if isinstance(v, Tensor))


def peak_bytes(device: torch.device) -> int:
    """The most memory this process (on a GPU: torch) has held so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource  # not on Windows

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def memory(setup: Setup) -> list[Row]:
    """Split MNIST's network, two tasks of random examples."""
    x, y = examples(32 * STEPS, 784, 2, setup.device)
    data = TaskData("task", 0, (0, 1), x, y, 0)
    method = method_of("split-mnist", mlp(784, [400], 10), setup.device)
    step = elbo_step(method, data, 1)
    repeat(step, 2)()
    kinds = bytes_of_task(method, 0)
    words = ", ".join(f"{kind} {number / MB:.2f} MB" for kind, number in kinds.items())
    numbers = {
        "bytes that task 1 added": (sum(kinds.values()), words),
        "bytes of the optimiser, task 2": (optimizer_bytes(step.optimizer), "locked factors have none"),
        "bytes at the peak so far": (peak_bytes(setup.device), "of the whole process, all measurements so far"),
    }
    return [
        Row(
            "memory", f"784-400-10, 400 factors: {what}", value / MB, value / MB, value / MB, unit="MB", detail=detail
        )
        for what, (value, detail) in numbers.items()
    ]
