"""The two ends of the scale: a network of its own for every task, and one network on all data at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ibpwf.lab.methods.dense import ROWS_AT_ONCE, DenseMethod, DenseSettings, Problem, seeded
from ibpwf.models import mlp
from ibpwf.training.method import TaskData
from ibpwf.training.rows import Rows, TensorRows


class Separate(DenseMethod):
    """One network per task: nothing is forgotten, nothing is shared, and memory grows with every task.

    `net` is a list with a module per task. A new task appends one and freezes those before it, so what a child
    (a column with lateral connections, a side network) makes of the earlier ones cannot change them.
    """

    networks: ClassVar[tuple[str, ...]] = ("mlp",)
    name: ClassVar[str] = "separate"
    summary: ClassVar[str] = "a network of its own for every task"
    stores: ClassVar[str] = "one network per task"
    answers: ClassVar[tuple[str, ...]] = ("task",)
    net: nn.ModuleList

    def __init__(
        self,
        problem: Problem,
        settings: DenseSettings | None = None,
        *,
        seed: int = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        self._device = torch.empty(0, device=device).device  # an empty list has no parameter to ask
        super().__init__(problem, settings, seed=seed, device=device)

    @property
    def device(self) -> torch.device:
        return self._device

    def build(self) -> nn.ModuleList:
        return nn.ModuleList()

    def module(self, task: int, outputs: int) -> nn.Module:
        """What task `task` adds; called with torch's random numbers seeded."""
        return mlp(self.problem.inputs, self.settings.hidden, outputs)

    def forward(self, x: Tensor, task: int) -> Tensor:
        """The outputs of a task's own classes."""
        out: Tensor = self.net[task](x)
        return out

    def prepare(self, data: TaskData) -> None:
        self.net.requires_grad_(False)
        with seeded(data.generator("module").initial_seed()):
            self.net.append(self.module(data.index, len(data.classes)).to(self.device))

    def fit(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.forward(x, self.task.index), y)

    def abandon_task(self) -> None:
        del self.net[len(self.classes) :]
        super().abandon_task()

    def logits(self, x: Tensor, task: int) -> Tensor:
        self.net.eval()
        with torch.no_grad():
            return torch.cat([self.forward(rows, task) for rows in torch.split(x, ROWS_AT_ONCE)])

    def parameters_after(self, task: int) -> int:
        """Numbers learnt by the end of task `task`, all earlier ones included."""
        return sum(p.numel() for module in self.net[: task + 1] for p in module.parameters())

    def load_state(self, content: Mapping[str, Any], files: Mapping[str, Mapping[str, Tensor]]) -> None:
        with seeded(self.seed):  # values to be replaced; the caller's random numbers stay where they are
            for task, classes in enumerate(content["classes"]):
                self.net.append(self.module(task, len(classes)).to(self.device))
        super().load_state(content, files)


class Joint(DenseMethod):
    """One network trained from scratch on the data of all tasks so far, `epochs` passes over their union.

    It keeps every example, so it is no continual learner but the mark to reach.
    """

    name: ClassVar[str] = "joint"
    summary: ClassVar[str] = "trained anew on the data of all tasks so far: the upper bound"
    stores: ClassVar[str] = "all examples"

    def __init__(
        self,
        problem: Problem,
        settings: DenseSettings | None = None,
        *,
        seed: int = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__(problem, settings, seed=seed, device=device)
        self.examples: list[tuple[Tensor, Tensor]] = []  # a task each: x, and the output of each row's class

    def prepare(self, data: TaskData) -> None:
        with seeded(self.seed):
            self.net.load_state_dict(self.build().state_dict())
        tasks = torch.arange(len(self.known)).repeat_interleave(torch.tensor([len(c) for c in self.known]))
        self._owner = tasks.to(self.device)

    def rows_to_train(self, data: TaskData) -> Rows:
        x, y = zip(*self.examples, (data.x, data.y + self.first_column(data.index)), strict=True)
        return TensorRows(torch.cat(x), torch.cat(y))

    def fit(self, x: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy among the classes that compete with a row's own."""
        logits = self.net(x)[:, : len(self._owner)]
        if self.problem.setting == "task":
            logits = logits.masked_fill(self._owner != self._owner[y].unsqueeze(1), -torch.inf)
        return F.cross_entropy(logits, y)

    def consolidate(self, data: TaskData) -> None:
        self.examples.append((data.x, data.y + self.first_column(data.index)))

    def state(self) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
        """A file of examples per task, so that a new task writes no old one again."""
        content, files = super().state()
        stored = {f"examples-{task}": {"x": x, "column": column} for task, (x, column) in enumerate(self.examples)}
        return content, files | stored

    def load_state(self, content: Mapping[str, Any], files: Mapping[str, Mapping[str, Tensor]]) -> None:
        super().load_state(content, files)
        parts = [files[f"examples-{task}"] for task in range(len(self.classes))]
        self.examples = [(part["x"].to(self.device), part["column"].to(self.device)) for part in parts]

    def memory(self) -> dict[str, int]:
        return super().memory() | {"examples": sum(x.nbytes + column.nbytes for x, column in self.examples)}
