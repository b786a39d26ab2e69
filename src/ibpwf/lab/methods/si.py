"""Synaptic intelligence: importance is what a parameter did for the loss on its way (Zenke et al., ICML 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from ibpwf.lab.methods.dense import DenseSettings
from ibpwf.lab.methods.penalties import ImportancePenalty, PenaltySettings
from ibpwf.settings import require
from ibpwf.training.method import TaskData


class SISettings(PenaltySettings):
    """`damping` is ξ, which bounds the importance of parameters that hardly moved."""

    coefficient: float = 300.0
    damping: float = 0.1

    def check(self) -> None:
        super().check()
        require(self.damping > 0, "damping", self.damping, "it must be above 0")


class SI(ImportancePenalty):
    """Ω_t = max(0, ω) / (Δ² + ξ), where Δ is how far a parameter moved in the task and

        ω = − Σ_steps g · (step of θ)

    how much of the fall of the task's loss is its doing; g is that loss's gradient, without the penalty's.
    """

    name: ClassVar[str] = "si"
    summary: ClassVar[str] = "holds parameters by what they did for the loss along the path"
    settings_type: ClassVar[type[DenseSettings]] = SISettings
    settings: SISettings

    def prepare(self, data: TaskData) -> None:
        self.start = self.position().detach()
        self.before, self.gradient = self.start.clone(), torch.zeros_like(self.start)
        self.path = torch.zeros_like(self.start)  # ω

    def buffers(self) -> Sequence[Tensor]:
        return *super().buffers(), self.before, self.gradient, self.path

    @torch.no_grad()
    def after_backward(self) -> None:
        moving = self.moving().values()
        torch.cat([p.flatten() for p in moving], out=self.before)
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in moving]
        torch.cat([part.flatten() for part in parts], out=self.gradient)
        if self.importance is not None and self.anchor is not None:
            away = self.before - self.anchor
            self.gradient.addcmul_(self.importance, away, value=-2 * self.settings.coefficient)

    @torch.no_grad()
    def after_step(self) -> None:
        self.path.addcmul_(self.gradient, self.position().sub_(self.before), value=-1)

    def importance_of(self, data: TaskData) -> Tensor:
        moved = self.position().detach() - self.start
        return self.path.clamp(min=0) / (moved.square() + self.settings.damping)
