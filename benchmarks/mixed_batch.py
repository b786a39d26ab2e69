"""A batch of rows of many tasks beside a batch of one task, in one run: beside a frozen base both are one pass.

    python benchmarks/mixed_batch.py [--device cuda] [--threads 1 --clock cpu] [--out FILE]

A perceptron and a vision transformer get 32 tasks of random numbers each, some twenty factors a layer in all. What is
measured are the class scores of 256 rows: of one task, of all 32 in one batch, and of all 32 one after the other. The
median of the ratios of neighboring calls counts. On a machine that others use too, one thread and the time that this
process had (`--clock cpu`) tell more than the time that passed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import ibpwf.accel.standins  # noqa: F401 (as a learner does)
from ibpwf import factorize
from ibpwf.core.model import FactorModel
from ibpwf.lab.experiments.result import commit, environment, shown_command
from ibpwf.models import mlp, vit_tiny
from ibpwf.storage.files import write_json

TASKS, ROWS, ROUNDS = 32, 256, 15
FEW_ROUNDS = 3
"""Of what takes many times as long."""
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def networks() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    torch.manual_seed(0)
    vit = vit_tiny(image=32, patch=8, width=192, depth=4, heads=3, classes=10)
    for name, parameter in vit.named_parameters():
        parameter.requires_grad_("token" not in name and "positions" not in name)
    return {"perceptron, 3 layers of 768": (mlp(768, [768, 768], 10), (768,)), "vit_tiny": (vit, (3, 32, 32))}


def taught(net: nn.Module, device: str) -> FactorModel:
    """A model of tasks that nobody learned: what they compute costs the same."""
    model = factorize(net, base="frozen", heads="per-task").to(device)
    for task in range(TASKS):
        generator = torch.Generator().manual_seed(task)
        begun = model.start_task(4, generator)
        with torch.no_grad():
            for parameter in begun.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn(parameter.shape, generator=generator).to(device) * 0.1)
            begun.posterior.logit.copy_(torch.randn(begun.posterior.logit.shape, generator=generator) - 1)
        model.finish_task(begun, 0.5)
    return model


def seconds(call: Callable[[], object], x: Tensor, clock: Callable[[], float]) -> float:
    if x.is_cuda:
        torch.cuda.synchronize()
    started = clock()
    call()
    if x.is_cuda:
        torch.cuda.synchronize()
    return clock() - started


def measured(model: FactorModel, shape: tuple[int, ...], clock: Callable[[], float]) -> dict[str, Any]:
    x = torch.randn(ROWS, *shape, generator=torch.Generator().manual_seed(99)).to(model.device)
    tasks = (torch.arange(ROWS) % TASKS).to(model.device)
    groups = [(x[tasks == task], task) for task in range(TASKS)]
    calls: dict[str, Callable[[], object]] = {
        "one": lambda: model.logits(x, 3),
        "mixed": lambda: model.mixed_logits(x, tasks),
        "each": lambda: [model.logits(rows, task) for rows, task in groups],
    }
    for call in calls.values():
        if call() is None:
            raise SystemExit("this network cannot be mixed")
    times = [{name: seconds(calls[name], x, clock) for name in ("one", "mixed")} for _ in range(ROUNDS)]
    slow = [{name: seconds(calls[name], x, clock) for name in ("one", "each")} for _ in range(FEW_ROUNDS)]
    return {
        "mixed / one": statistics.median(each["mixed"] / each["one"] for each in times),
        "one after the other / one": statistics.median(each["each"] / each["one"] for each in slow),
        "milliseconds of one": 1000 * statistics.median(each["one"] for each in times),
        "factors": {name: dictionary.locked for name, dictionary in model.layers.items()},
        "a task's": {name: use.active for name, use in model.use(3).items()},
    }


def main(given: list[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, help="of torch on a CPU; all by default")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args(given)
    if asked.threads is not None:
        torch.set_num_threads(asked.threads)
    clock = CLOCKS[asked.clock]
    found = {name: measured(taught(net, asked.device), shape, clock) for name, (net, shape) in networks().items()}
    record = {
        "command": shown_command("python benchmarks/mixed_batch.py " + " ".join(given)),
        "commit": commit(),
        "environment": environment(asked.device),
        "clock": asked.clock,
        "tasks": TASKS,
        "rows": ROWS,
        "measured": found,
    }
    if asked.out is not None:
        write_json(asked.out, record)
    for name, numbers in found.items():
        print(name, {key: value if isinstance(value, dict) else round(value, 2) for key, value in numbers.items()})


if __name__ == "__main__":
    main(sys.argv[1:])
