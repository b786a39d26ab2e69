"""What processes started by `torch.distributed.run` do in `test_learning_together`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from ibpwf import Gaussian, Learner, Random, Router, Settings, SharedGaussian
from ibpwf.distributed import Distributed
from ibpwf.training.callbacks import Callback, StepEnd

STEPS = 8
"""Of batch normalization, in parts of 7 and of 8 rows, after which processes are compared with one."""

KINDS: dict[str, Any] = {
    "gaussian": Gaussian(),
    "class-gaussian": Gaussian(per="class"),
    "shared-gaussian": SharedGaussian(),
    "router": Router(features=Random(width=40)),
}


class Rows(NamedTuple):
    x: Tensor
    y: Tensor

    def task(self, number: int) -> Rows:
        chosen = self.y // 2 == number
        return Rows(self.x[chosen], self.y[chosen])


def rows(seed: int = 0) -> Rows:
    """Four classes, two to a task, 90 rows each."""
    chance = torch.Generator().manual_seed(seed)
    y = torch.arange(360) % 4
    centers = 2.0 * torch.randn(4, 6, generator=chance)
    return Rows(centers[y] + torch.randn(360, 6, generator=chance), y)


DATA = rows()


def table(path: Path, seed: int) -> Path:
    x, y = rows(seed)
    lines = [",".join([*(f"{value:.4f}" for value in row), f"k{label}"]) for row, label in zip(x, y, strict=True)]
    path.write_text("\n".join([",".join([*(f"c{column}" for column in range(6)), "kind"]), *lines]) + "\n")
    return path


def network(norm: bool = False) -> nn.Module:
    """Drawn from torch's own random numbers, which processes do not share."""
    first = [nn.Linear(6, 16, bias=False), nn.BatchNorm1d(16)] if norm else [nn.Linear(6, 16)]
    return nn.Sequential(*first, nn.ReLU(), nn.Linear(16, 2))


def learner(kind: str, distributed: Distributed, *, norm: bool = False, epochs: int = 6) -> Learner:
    held = 0.1 if kind == "router" else 0.0
    settings = Settings(
        epochs=epochs, batch_size=15, learning_rate=0.01, inference=KINDS[kind], validation_fraction=held
    )
    return Learner(network(norm), settings, distributed=distributed, device="cpu")


class FirstSteps(Callback):
    """The parameters, and what else training changes, after the first step of all, or after some."""

    def __init__(self, steps: int = 1) -> None:
        self.steps, self.seen, self.beside = steps, torch.empty(0), torch.empty(0)

    def step_end(self, step: StepEnd) -> None:
        self.steps -= 1
        if self.steps == 0:
            objective = step.training.step.objective
            self.seen = torch.cat([parameter.detach().flatten() for parameter in step.training.step.parameters])
            self.beside = torch.cat([buffer.double().flatten() for buffer in objective.buffers()])


def learn_all(distributed: Distributed) -> dict[str, Tensor]:
    """Sums that every kind of inference keeps, and answers."""
    found = {}
    for kind in KINDS:
        torch.manual_seed(0 if distributed == "off" else int(os.environ["RANK"]))
        one, first = learner(kind, distributed), FirstSteps()
        for number in range(2):
            one.learn(*DATA.task(number), callbacks=[first])
            # φ is the first task's network, which rounding makes another one: sums of the inputs themselves
        fresh = KINDS[kind].fork()
        fresh.join(one.method.group)
        for number in range(2):
            x, y = DATA.task(number)
            batches = zip(x.split(64), (y % 2).split(64), strict=True)
            fresh.learn(number, one.method.group.shares(batches), 2)
            tensors = fresh.task_state(number)[1]
            found |= {f"sums/{kind}/{number}/{name}": tensor for name, tensor in tensors.items()}
        found |= {f"sums/{kind}/{name}": tensor for name, tensor in fresh.state()[1].items()}
        found[f"labels/{kind}"] = one.predict(DATA.x).labels
        found["first step"] = first.seen
    torch.manual_seed(0 if distributed == "off" else int(os.environ["RANK"]))
    one, first = learner("gaussian", distributed, norm=True), FirstSteps(STEPS)
    for number in range(2):
        one.learn(*DATA.task(number), callbacks=[first])
        found[f"batch-norm/logits {number}"] = one.logits(DATA.x, number)
    found |= {"batch-norm/parameters": first.seen, "batch-norm/statistics": first.beside}
    found["labels/batch-norm"] = one.predict(DATA.x).labels
    return {name: tensor.clone().contiguous() for name, tensor in found.items()}


class Dies(Callback):
    def step_end(self, step: StepEnd) -> None:
        if step.step == 3:
            os._exit(9)


def main() -> None:
    torch.set_num_threads(1)
    what, rank = sys.argv[1], int(os.environ["RANK"])
    if what == "die":
        learner("gaussian", "auto", norm=True, epochs=200).learn(*DATA.task(0), callbacks=[Dies()] if rank else [])
    elif what == "other data":
        x, y = DATA.task(0)
        learner("router", "auto").learn(x * (1 + rank), y)  # features are fitted to all rows by everybody
    else:
        found = learn_all("auto")
        if rank == 0:
            save_file(found, what)
        torch.distributed.destroy_process_group()
        names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
        sys.stdout.write(f"threads of the group that are left: {sum('gloo' in name for name in names)}\n")


if __name__ == "__main__":
    main()
