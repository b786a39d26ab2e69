"""Models of several tasks, and beside them a plain ledger of what each task's network held when it ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special
from torch import Tensor, nn

from ibpwf import factorize
from ibpwf.factors.model import FactorModel
from ibpwf.factors.task_network import TaskNetwork

KAPPA = 0.5


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def mlp(outputs: int = 5) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, outputs))


class ConvNet(nn.Module):
    def __init__(self, outputs: int = 5) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.conv = nn.Conv2d(4, 6, (3, 2), stride=2, groups=2)
        self.norm2 = nn.BatchNorm2d(6)
        self.head = nn.Linear(6, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm2(self.conv(self.norm(self.stem(x)).relu())).relu()
        out: Tensor = self.head(h.mean((2, 3)))
        return out


def shaken(network: TaskNetwork, seed: int) -> TaskNetwork:
    """Every parameter and running statistic moved at random, as if training had happened."""
    generator = seeded(seed + 100)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
        network.posterior.logit.copy_(torch.randn(network.posterior.logit.shape, generator=generator) * 2)
        for name, buffer in network.network.named_buffers():
            if "running" in name:
                buffer.add_(torch.rand(buffer.shape, generator=generator))
    return network


@dataclass
class Ledger:
    """Every factor ever locked and every task's strengths, copied from the networks as numpy arrays."""

    factors: dict[str, dict[int, tuple[np.ndarray, np.ndarray]]] = field(default_factory=dict)
    strengths: list[dict[str, dict[int, float]]] = field(default_factory=list)
    probabilities: list[dict[str, dict[int, float]]] = field(default_factory=list)
    own: list[dict[str, Tensor]] = field(default_factory=list)

    def note(self, network: TaskNetwork, kappa: float = KAPPA) -> None:
        strengths: dict[str, dict[int, float]] = {}
        chances: dict[str, dict[int, float]] = {}
        for row, (name, layer) in enumerate(network.factor_layers.items()):
            known = self.factors.setdefault(name, {})
            logit = network.posterior.logit[row].tolist()[: network.posterior.widths[row]]
            r = network.posterior.strength[row].tolist()
            chosen = [k for k, value in enumerate(logit) if special.expit(value) >= kappa] or [int(np.argmax(logit))]
            for column, k in enumerate(layer.free_at.tolist()):
                if k in chosen:
                    assert k not in known
                    parts = layer.free_a[column], layer.free_b[column]
                    known[k] = tuple(p.detach().double().numpy().copy() for p in parts)  # type: ignore[assignment]
            strengths[name] = {k: r[k] for k in chosen}
            chances[name] = {k: special.expit(logit[k]) for k in chosen}
        self.strengths.append(strengths)
        self.probabilities.append(chances)
        self.own.append({name: value.clone() for name, value in network.own_state().items()})

    def matrix(self, task: int, name: str) -> np.ndarray:
        """Σ_k r_k w_a,k ⊗ w_b,k over the task's factors."""
        return sum(r * np.outer(*self.factors[name][k]) for k, r in self.strengths[task][name].items())


def learn(model: FactorModel, ledger: Ledger, outputs: int, seed: int) -> None:
    network = shaken(model.start_task(outputs, seeded(seed)), seed)
    ledger.note(network)
    model.finish_task(network)


def several(
    build: Callable[[], nn.Module], outputs: tuple[int, ...] = (3, 5, 2), **options: Any
) -> tuple[Any, Ledger]:
    model, ledger = factorize(build(), **{"alpha": 4, **options}), Ledger()
    for task, count in enumerate(outputs):
        learn(model, ledger, count, task)
    return model, ledger


NETS = [
    pytest.param(mlp, "shared", (6, 7), id="mlp, shared head"),
    pytest.param(mlp, "per-task", (6, 7), id="mlp, dense heads"),
    pytest.param(ConvNet, "shared", (6, 2, 7, 6), id="convolutions, shared head"),
    pytest.param(ConvNet, "per-task", (6, 2, 7, 6), id="convolutions, dense heads"),
]
