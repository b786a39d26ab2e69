"""Progressive networks: a column per task that reads the frozen columns before it (Rusu et al., 2016)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from ibpwf.lab.methods.bounds import Separate
from ibpwf.lab.methods.dense import DenseSettings
from ibpwf.settings import require


class PNNSettings(DenseSettings):
    """`adapter` is the width of the layer between the earlier columns and the new one."""

    adapter: int = 50

    def check(self) -> None:
        super().check()
        require(self.adapter >= 1, "adapter", self.adapter, "give at least 1")


class Column(nn.Module):
    """h_i = σ(W_i h_{i−1} + U_i σ(V_i · a_i · [h_{i−1} of all earlier columns])), without the second term in the
    first column and the first layer (their eq. 2)."""

    def __init__(self, widths: Sequence[int], earlier: int, adapter: int) -> None:
        super().__init__()
        self.own = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(widths))
        lateral = [(earlier * before, after) for before, after in pairwise(widths[1:])] if earlier else []
        self.scale = nn.Parameter(torch.full((len(lateral),), 0.1))
        self.down = nn.ModuleList(nn.Linear(before, adapter) for before, _ in lateral)
        self.up = nn.ModuleList(nn.Linear(adapter, after, bias=False) for _, after in lateral)

    def forward(self, x: Tensor, earlier: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """What every layer gives, the outputs last; `earlier` holds the same of the columns before."""
        given: list[Tensor] = []
        for number, layer in enumerate(self.own):
            z = layer(given[-1] if given else x)
            if given and earlier:
                below = torch.cat([column[number - 1] for column in earlier], 1) * self.scale[number - 1]
                z = z + self.up[number - 1](self.down[number - 1](below).relu())
            given.append(z if number == len(self.own) - 1 else z.relu())
        return given


class PNN(Separate):
    """Separate networks whose layers also read what the earlier networks' layers give."""

    name: ClassVar[str] = "pnn"
    summary: ClassVar[str] = "progressive networks: a column per task, reading the frozen earlier ones"
    stores: ClassVar[str] = "one column per task, lateral connections"
    settings_type: ClassVar[type[DenseSettings]] = PNNSettings
    settings: PNNSettings

    def module(self, task: int, outputs: int) -> nn.Module:
        return Column([self.problem.inputs, *self.settings.hidden, outputs], task, self.settings.adapter)

    def forward(self, x: Tensor, task: int) -> Tensor:
        given: list[list[Tensor]] = []
        for number in range(task + 1):
            given.append(self.net[number](x, given))
        return given[task][-1]
