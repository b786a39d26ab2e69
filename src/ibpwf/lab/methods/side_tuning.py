"""Side-tuning: a frozen base network and a small network beside it for every task (Zhang et al., 2020)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from ibpwf.lab.methods.bounds import Separate
from ibpwf.lab.methods.dense import DenseSettings
from ibpwf.models import mlp
from ibpwf.settings import require


class SideTuningSettings(DenseSettings):
    """`hidden` are the base network's layers, `side_hidden` those of a side network before it gives as many
    features as the base."""

    side_hidden: tuple[int, ...] = (50,)

    def check(self) -> None:
        super().check()
        require(
            min(self.side_hidden, default=1) >= 1,
            "side_hidden",
            list(self.side_hidden),
            "give widths of at least 1, such as [50]",
        )


class Branch(nn.Module):
    """Features and a head; a side branch also learns how much the base counts, α = sigmoid(blend)."""

    def __init__(self, inputs: int, hidden: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        whole = mlp(inputs, hidden, outputs)
        self.features, self.head = whole[:-1], whole[-1]
        self.blend = nn.Parameter(torch.zeros(()))


class SideTuning(Separate):
    """R(x) = α B(x) + (1 − α) S_t(x), then the task's head. The base B is what the first task learnt."""

    name: ClassVar[str] = "side-tuning"
    summary: ClassVar[str] = "the first task's network, frozen, blended with a small network per task"
    stores: ClassVar[str] = "a base network, one side network per task"
    settings_type: ClassVar[type[DenseSettings]] = SideTuningSettings
    settings: SideTuningSettings

    def module(self, task: int, outputs: int) -> nn.Module:
        base = self.settings.hidden
        hidden = (*self.settings.side_hidden, base[-1]) if task else base
        return Branch(self.problem.inputs, hidden, outputs)

    def branch(self, task: int) -> Branch:
        branch = self.net[task]
        assert isinstance(branch, Branch)
        return branch

    def forward(self, x: Tensor, task: int) -> Tensor:
        branch = self.branch(task)
        features = branch.features(x)
        if task:
            share = branch.blend.sigmoid()
            features = share * self.branch(0).features(x) + (1 - share) * features
        out: Tensor = branch.head(features)
        return out
