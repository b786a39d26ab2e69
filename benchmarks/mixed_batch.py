"""A batch of rows of many tasks beside a batch of one task, in one run: beside a frozen base both are one pass.

    python benchmarks/mixed_batch.py [--device cuda] [--alpha 1] [--threads 1 --clock cpu] [--out FILE]

A perceptron and a vision transformer learn 32 tasks of random numbers each. What is measured is `Learner.predict` of
256 rows, whose tasks are given as a list of names: of one task, of all 32 in one batch, and of all 32 one after the
other. The median of the ratios of neighboring
calls counts. Beside one product with the base there is one with all factors of these tasks, so their number counts:
the smaller α, the fewer. On a machine that others use too, one thread and the time that this process had
(`--clock cpu`) tell more than the time that passed.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from record import made_by, options, write
from torch import Tensor, nn

from ibpwf import Learner, Settings
from ibpwf.models import mlp, vit_tiny

TASKS, ROWS, ROUNDS = 32, 256, 45
FEW_ROUNDS = 3
"""Of what takes many times as long."""
WARM = 4
"""A GPU records a pass when it has seen its shape for the third time."""
SETTINGS = Settings(
    base="frozen",
    heads="per-task",
    epochs=1,
    finetune_epochs=1,
    batch_size=16,
    learning_rate=0.01,
    **{"inference.features": "random", "inference.features.width": 16},
)
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def networks() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    torch.manual_seed(0)
    vit = vit_tiny(image=32, patch=8, width=192, depth=4, heads=3, classes=10)
    for name, parameter in vit.named_parameters():
        parameter.requires_grad_("token" not in name and "positions" not in name)
    return {"perceptron, 3 layers of 768": (mlp(768, [768, 768], 10), (768,)), "vit_tiny": (vit, (3, 32, 32))}


def taught(net: nn.Module, shape: tuple[int, ...], device: str, alpha: float | None) -> Learner:
    """A learner of tasks in which there is nothing to learn: what they compute costs the same."""
    settings = SETTINGS if alpha is None else SETTINGS.replace(alpha=alpha)
    learner = Learner(net, settings, seed=0, device=device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that they were hardly learned
        for task in range(TASKS):
            x = torch.randn(16, *shape, generator=torch.Generator().manual_seed(task))
            learner.learn(x, torch.arange(16) % 4, task=str(task))
    return learner


def seconds(call: Callable[[], object], x: Tensor, clock: Callable[[], float]) -> float:
    if x.is_cuda:
        torch.cuda.synchronize()
    started = clock()
    call()
    if x.is_cuda:
        torch.cuda.synchronize()
    return clock() - started


def measured(learner: Learner, shape: tuple[int, ...], clock: Callable[[], float]) -> dict[str, Any]:
    model = learner.model
    x = torch.randn(ROWS, *shape, generator=torch.Generator().manual_seed(99)).to(model.device)
    tasks = torch.arange(ROWS) % TASKS
    names = [str(task) for task in tasks.tolist()]
    groups = [(x[(tasks == task).to(x.device)], str(task)) for task in range(TASKS)]
    calls: dict[str, Callable[[], object]] = {
        "one": lambda: learner.predict(x, task="3"),
        "mixed": lambda: learner.predict(x, task=names),
        "each": lambda: [learner.predict(rows, task=task) for rows, task in groups],
    }
    for call in [*calls.values()] * WARM:
        call()

    def rounds(count: int, *named: str) -> list[dict[str, float]]:
        return [{name: seconds(calls[name], x, clock) for name in named} for _ in range(count)]

    times, slow = rounds(ROUNDS, "one", "mixed"), rounds(FEW_ROUNDS, "one", "each")
    return {
        "mixed / one": statistics.median(each["mixed"] / each["one"] for each in times),
        "one after the other / one": statistics.median(each["each"] / each["one"] for each in slow),
        "milliseconds of one": 1000 * statistics.median(each["one"] for each in times),
        "factors": {name: dictionary.locked for name, dictionary in model.layers.items()},
        "a task's": {name: use.active for name, use in model.use(3).items()},
    }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--alpha", type=float, help="of the prior; as beside any frozen base by default")
    parser.add_argument("--threads", type=int, help="of torch on a CPU; all by default")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    asked = parser.parse_args()
    if asked.threads is not None:
        torch.set_num_threads(asked.threads)
    found = {
        name: measured(taught(net, shape, asked.device, asked.alpha), shape, CLOCKS[asked.clock])
        for name, (net, shape) in networks().items()
    }
    about = {"clock": asked.clock, "tasks": TASKS, "rows": ROWS}
    write(asked.out, {**made_by(asked.device), **about, "measured": found})
    for name, numbers in found.items():
        print(name, {key: value if isinstance(value, dict) else round(value, 2) for key, value in numbers.items()})


if __name__ == "__main__":
    main()
