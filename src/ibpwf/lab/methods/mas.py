"""Memory aware synapses: importance is how much the outputs change with a parameter (Aljundi et al., ECCV 2018)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ibpwf.lab.methods.dense import DenseSettings
from ibpwf.lab.methods.penalties import ImportancePenalty, PenaltySettings
from ibpwf.settings import require
from ibpwf.training.method import TaskData


class MASSettings(PenaltySettings):
    """`output_samples`: on how many training examples, at most, the outputs are looked at."""

    coefficient: float = 1.0
    output_samples: int = 1024

    def check(self) -> None:
        super().check()
        require(self.output_samples >= 1, "output_samples", self.output_samples, "give at least 1 example")


class MAS(ImportancePenalty):
    """Ω_t = E_x |∂ ‖f(x)‖² / ∂θ|, f the outputs of the task at hand; the tasks' importances add up."""

    name: ClassVar[str] = "mas"
    summary: ClassVar[str] = "holds parameters by how much the outputs change with them"
    settings_type: ClassVar[type[DenseSettings]] = MASSettings
    settings: MASSettings

    def importance_of(self, data: TaskData) -> Tensor:
        x = self.some_examples(data, self.settings.output_samples)
        return self.gradient_sum(squared_norm, torch.abs, x) / len(x)


def squared_norm(outputs: Tensor) -> Tensor:
    return outputs.square().sum()
