"""What a factorised model keeps of the tasks it has learnt: tensors, and nothing that could still be trained."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ibpwf.core.posterior import LayerVectors


@dataclass(frozen=True)
class LearntTask:
    """What one finished task keeps, besides the factors it locked.

    `vectors` are r, logit π̄, c, d per layer; `selected` the factors it reads; `own` the parameters and
    buffers that belong to the task alone (biases, normalisation, a dense head), named as in the network.
    """

    outputs: int
    vectors: dict[str, LayerVectors]
    selected: dict[str, Tensor]
    own: dict[str, Tensor]

    def to(self, device: torch.device) -> LearntTask:
        return LearntTask(
            self.outputs,
            {name: vectors.to(device) for name, vectors in self.vectors.items()},
            {name: chosen.to(device) for name, chosen in self.selected.items()},
            {name: tensor.to(device) for name, tensor in self.own.items()},
        )


@dataclass(frozen=True)
class Reference:
    """The first task's weights as far as φ reads them, for when that task itself is forgotten."""

    strength: dict[str, Tensor]
    selected: dict[str, Tensor]
    own: dict[str, Tensor]

    def to(self, device: torch.device) -> Reference:
        parts = (self.strength, self.selected, self.own)
        return Reference(*({name: tensor.to(device) for name, tensor in part.items()} for part in parts))


@dataclass(frozen=True)
class FactorUse:
    """Factors of one layer for one task."""

    active: int
    new: int
    reused: int
    total: int
