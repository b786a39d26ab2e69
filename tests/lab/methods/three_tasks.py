"""Three small tasks of two classes for methods with a penalty, and plain loops to compare them with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ibpwf.lab.methods.dense import DenseMethod, Problem
from ibpwf.lab.methods.penalties import L2
from ibpwf.training.loop import Training
from ibpwf.training.method import TaskData

SETTINGS = ["task", "class"]
SMALL: dict[str, Any] = {"hidden": (5,), "epochs": 3, "batch_size": 8, "learning_rate": 0.01}


def make(kind: type[L2], setting: str = "task", seed: int = 0, **changes: Any) -> L2:
    settings = kind.settings_type(**{**SMALL, **changes})
    return kind(Problem((6,), 6, setting), settings, seed=seed)


def task(index: int, examples: int = 40, seed: int = 0) -> TaskData:
    """Two classes of six values, around centers of their own."""
    generator = torch.Generator().manual_seed(100 + index)
    y = torch.arange(examples) % 2
    centers = 2 * torch.randn(2, 6, generator=generator)
    x = centers[y] + torch.randn(examples, 6, generator=generator)
    return TaskData(f"task {index}", index, (2 * index, 2 * index + 1), x, y, seed)


def learn(method: DenseMethod, *tasks: TaskData) -> None:
    for data in tasks:
        for _ in Training(method, data).run():
            pass


def parameters(net: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten().double() for p in net.parameters()])


def columns(setting: str, index: int) -> slice:
    """Which outputs compete while task `index` of two classes is learned."""
    return slice(0 if setting == "class" else 2 * index, 2 * index + 2)


def own_gradient(net: nn.Module, x: Tensor, value: Callable[[Tensor], Tensor]) -> Tensor:
    """∂ value(f(x)) / ∂θ for one example, by torch's plain backward pass in double precision."""
    net = double(net)
    grads = torch.autograd.grad(value(net(x.double().unsqueeze(0))[0]), list(net.parameters()))
    return torch.cat([g.flatten() for g in grads])


def double(net: nn.Module) -> nn.Module:
    twin = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 6)).double()
    for own, other in zip(twin.parameters(), net.parameters(), strict=True):
        own.data.copy_(other.data)
    return twin


def fisher_by_loops(net: nn.Module, x: Tensor, head: slice) -> Tensor:
    """Σ_y p(y|x) (∂ log p(y|x) / ∂θ)² averaged over x: one example and one label at a time."""
    total = torch.zeros_like(parameters(net))
    for row in x:
        for label in range(head.stop - head.start):
            log_p = own_gradient(net, row, lambda out, label=label: out[head].log_softmax(0)[label])
            p = double(net)(row.double().unsqueeze(0))[0, head].softmax(0)[label].detach()
            total += p * log_p.square() / len(x)
    return total
