"""A stretch of training and the optimizer it asks for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ibpwf.dispatch import reference

TIMES = "times"
"""Where an optimizer's group of parameters says how many times the phase's learning rate is theirs."""


@dataclass(frozen=True)
class Phase:
    """A stretch of training: how long, how fast, with what."""

    name: str
    epochs: int
    batch_size: int
    learning_rate: float = 1e-3
    optimizer: str = "adam"
    weight_decay: float = 0.0
    clip: float | None = None
    schedule: str = "constant"
    augment: str = "none"
    patience: int = 0  # epochs without gain on held-out rows after which it ends; 0: it goes on to its last


@reference
def make_optimizer(phase: Phase, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    """The phase's optimizer: torch's own of that name."""
    kinds: dict[str, Any] = {"adam": torch.optim.Adam, "adagrad": torch.optim.Adagrad, "sgd": torch.optim.SGD}
    optimizer: torch.optim.Optimizer = kinds[phase.optimizer](
        parameters, lr=phase.learning_rate, weight_decay=phase.weight_decay
    )
    return optimizer


def learn_faster(optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], times: float) -> None:
    """Let an optimizer move some of its parameters with so many times the learning rate of the others."""
    chosen = {id(parameter) for parameter in parameters}
    (group,) = optimizer.param_groups
    group["params"] = [parameter for parameter in group["params"] if id(parameter) not in chosen]
    rate = group["lr"] * times  # a tensor of its own where a recorded step reads it
    optimizer.add_param_group({"params": list(parameters), "lr": rate, TIMES: times})


def learning_rate_at(phase: Phase, epoch: int) -> float:
    """Constant, or half a cosine from the full rate to nearly none over the phase."""
    if phase.schedule == "cosine":
        return phase.learning_rate * 0.5 * (1 + math.cos(math.pi * epoch / max(phase.epochs, 1)))
    return phase.learning_rate
