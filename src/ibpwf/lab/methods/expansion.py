"""Methods that add a module with every task and never touch the earlier ones: nothing is forgotten, memory grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from ibpwf.data.rows import ROWS_PER_PASS
from ibpwf.lab.methods.dense import DenseMethod, DenseSettings, Widths, seeded
from ibpwf.models import mlp
from ibpwf.parts import Count
from ibpwf.training.method import TaskData


class Separate(DenseMethod):
    """One network per task, with nothing shared: a bound.

    `net` is a list with a module per task. A new task appends one and freezes those before it, so what a child
    (a column with lateral connections, a side network) makes of the earlier ones cannot change them.
    """

    networks: ClassVar[tuple[str, ...]] = ("mlp",)
    name: ClassVar[str] = "separate"
    summary: ClassVar[str] = "a network of its own for every task"
    stores: ClassVar[str] = "one network per task"
    answers: ClassVar[tuple[str, ...]] = ("task",)
    net: nn.ModuleList

    def build(self) -> nn.ModuleList:
        return nn.ModuleList()

    @property
    def template(self) -> nn.Module:
        """The first task's network, without numbers in it: there may be none yet."""
        with torch.device("meta"):
            return self.module(0, 1)

    def module(self, task: int, outputs: int) -> nn.Module:
        """What task `task` adds; called with torch's random numbers seeded."""
        return mlp(self.problem.inputs, self.settings.hidden, outputs)

    def append(self, task: int, outputs: int, seed: int) -> None:
        with seeded(seed):
            self.net.append(self.module(task, outputs).to(self.device))

    def prepare(self, data: TaskData) -> None:
        self.net.requires_grad_(False)
        self.append(data.index, len(data.classes), data.generator("module").initial_seed())

    def forward(self, x: Tensor, task: int) -> Tensor:
        """The outputs of a task's own classes."""
        out: Tensor = self.net[task](x)
        return out

    def outputs(self, x: Tensor) -> Tensor:
        return self.forward(x, self.task.index)

    def competing(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return outputs, y

    def logits(self, x: Tensor, task: int) -> Tensor:
        self.net.eval()
        with torch.no_grad():
            return torch.cat([self.forward(rows, task) for rows in torch.split(x, ROWS_PER_PASS)])

    def load_state(self, content: Mapping[str, Any], files: Mapping[str, Mapping[str, Tensor]]) -> None:
        for task, classes in enumerate(content["classes"]):
            self.append(task, len(classes), self.seed)  # values to be replaced
        super().load_state(content, files)


class PNNSettings(DenseSettings):
    adapter: Count = Field(50, description="width of the layer between the earlier columns and the new one")


class Column(nn.Module):
    """h_i = σ(W_i h_{i−1} + U_i σ(V_i · a_i · [h_{i−1} of all earlier columns])), without the second term in the
    first column and the first layer (their eq. 2)."""

    def __init__(self, widths: Sequence[int], earlier: int, adapter: int) -> None:
        super().__init__()
        self.own = nn.ModuleList(nn.Linear(before, after, dtype=torch.float32) for before, after in pairwise(widths))
        lateral = [(earlier * before, after) for before, after in pairwise(widths[1:])] if earlier else []
        self.scale = nn.Parameter(torch.full((len(lateral),), 0.1, dtype=torch.float32))
        self.down = nn.ModuleList(nn.Linear(before, adapter, dtype=torch.float32) for before, _ in lateral)
        self.up = nn.ModuleList(nn.Linear(adapter, after, bias=False, dtype=torch.float32) for _, after in lateral)

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
    """Progressive networks: separate networks whose layers also read what the earlier networks' layers give (Rusu et
    al., 2016)."""

    name: ClassVar[str] = "pnn"
    summary: ClassVar[str] = "progressive networks: a column per task, reading the frozen earlier ones"
    stores: ClassVar[str] = "one column per task, lateral connections"
    settings_type: ClassVar[type[DenseSettings]] = PNNSettings
    settings: PNNSettings

    def module(self, task: int, outputs: int) -> nn.Module:
        return Column([self.problem.inputs, *self.settings.hidden, outputs], task, self.settings.adapter)

    def forward(self, x: Tensor, task: int) -> Tensor:
        given: list[list[Tensor]] = []
        for column in self.net[: task + 1]:
            given.append(column(x, given))
        return given[task][-1]


class SideTuningSettings(DenseSettings):
    hidden: Widths = Field((400, 400), description="widths of the base network's hidden layers")
    side_hidden: Widths = Field(
        (50,), description="widths of a side network's layers before it gives as many features as the base"
    )


class Branch(nn.Module):
    """Features and a head; a side branch also learns how much the base counts, α = sigmoid(blend)."""

    def __init__(self, inputs: int, hidden: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        whole = mlp(inputs, hidden, outputs)
        self.features, self.head = whole[:-1], whole[-1]
        self.blend = nn.Parameter(torch.zeros((), dtype=torch.float32))

    def forward(self, x: Tensor, base: nn.Module | None) -> Tensor:
        features = self.features(x)
        if base is not None:
            share = self.blend.sigmoid()
            features = share * base(x) + (1 - share) * features
        out: Tensor = self.head(features)
        return out


class SideTuning(Separate):
    """R(x) = α B(x) + (1 − α) S_t(x), then the task's head: B is what the first task learned, S_t a small network of
    the task's own (Zhang et al., 2020)."""

    name: ClassVar[str] = "side-tuning"
    summary: ClassVar[str] = "the first task's network, frozen, blended with a small network per task"
    stores: ClassVar[str] = "a base network, one side network per task"
    settings_type: ClassVar[type[DenseSettings]] = SideTuningSettings
    settings: SideTuningSettings

    def module(self, task: int, outputs: int) -> nn.Module:
        base = self.settings.hidden
        return Branch(self.problem.inputs, (*self.settings.side_hidden, base[-1]) if task else base, outputs)

    def forward(self, x: Tensor, task: int) -> Tensor:
        out: Tensor = self.net[task](x, self.net[0].get_submodule("features") if task else None)
        return out
