"""Naive rehearsal: a few examples of earlier tasks are kept and shown again beside the new ones.

    loss = CE(mini-batch of the new task) + CE(mini-batch of stored examples)

The oldest remedy against forgetting (Ratcliff 1990; Robins 1995), 'Naive rehearsal' in the paper and in Hsu et al.
(2018), 'Re-evaluating Continual Learning Scenarios: A Categorization and Case for Strong Baselines'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ibpwf.lab.methods.buffer import ExampleMemory, check_size, remember
from ibpwf.lab.methods.dense import DenseMethod, DenseSettings
from ibpwf.settings import require
from ibpwf.training.method import TaskData


class MemorySettings(DenseSettings):
    """`memory_size` examples are kept in all, whatever the number of tasks (Permuted MNIST: 1,100)."""

    memory_size: int = 400

    def check(self) -> None:
        super().check()
        require(self.memory_size >= 1, "memory_size", self.memory_size, "keep at least one example a task")


class MemoryMethod(DenseMethod):
    """A method that keeps examples, and can tell how well the network still answers them."""

    stores: ClassVar[str] = "examples"
    settings_type: ClassVar[type[DenseSettings]] = MemorySettings
    examples: ExampleMemory | None = None

    @property
    def memory_size(self) -> int:
        assert isinstance(self.settings, MemorySettings)
        return self.settings.memory_size

    def prepare(self, data: TaskData) -> None:
        check_size("memory_size", self.memory_size, data)
        tasks = range(data.index)
        self._first = torch.tensor([self.first_column(task) for task in tasks], device=self.device)
        self._silent = torch.ones(len(tasks), self.problem.outputs, dtype=torch.bool, device=self.device)
        for task in tasks:
            self._silent[task, self.columns(task)] = False

    def stored_loss(self, x: Tensor, y: Tensor, task: Tensor) -> Tensor:
        """Cross-entropy of stored examples, each among the outputs that compete in its own task: those of its own
        head in the task setting, those of all classes seen in the class setting."""
        return self.stored_losses(self.net(x), y, task).mean()

    def stored_losses(self, outputs: Tensor, y: Tensor, task: Tensor) -> Tensor:
        """The same for each stored example, from the network's outputs."""
        logits = outputs.masked_fill(self._silent[task], -torch.inf)
        return F.cross_entropy(logits, self._first[task] + y, reduction="none")

    def consolidate(self, data: TaskData) -> None:
        self.examples = remember(self.examples, data, self.memory_size)

    def kept(self) -> dict[str, Tensor]:
        return {} if self.examples is None else self.examples.tensors()

    def load_kept(self, tensors: Mapping[str, Tensor]) -> None:
        self.examples = ExampleMemory.load(tensors)

    def memory(self) -> dict[str, int]:
        sizes = super().memory()
        return {"network": sizes["network"], "examples": sizes.get("kept", 0)}


class Rehearsal(MemoryMethod):
    name: ClassVar[str] = "rehearsal"
    summary: ClassVar[str] = "trains on stored examples of earlier tasks beside the new ones"

    def prepare(self, data: TaskData) -> None:
        super().prepare(data)
        self._draws = data.generator("rehearsal", self.device)

    def generators(self) -> Sequence[torch.Generator]:
        return [self._draws]

    def penalty(self, x: Tensor) -> Tensor:
        """The loss on as many stored examples as the mini-batch has new ones."""
        if self.examples is None:
            return super().penalty(x)
        return self.stored_loss(*self.examples.draw(len(x), self._draws))
