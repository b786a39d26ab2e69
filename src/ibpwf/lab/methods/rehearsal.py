"""Naive rehearsal: a few examples of earlier tasks are kept and shown again beside the new ones.

    loss = CE(mini-batch of the new task) + CE(mini-batch of stored examples)

The oldest remedy against forgetting (Ratcliff 1990; Robins 1995), 'Naive rehearsal' in the paper and in Hsu et al.
(2018), 'Re-evaluating Continual Learning Scenarios: A Categorization and Case for Strong Baselines'.

However many tasks have been learned, the memory never holds more than its size. Tasks share it equally, to within
one example, and so do the classes of a task as far as each has enough. Each task's examples lie in the order in
which they would be kept if fewer could be: class by class in turn, at random within a class. To make room for a
new task is then to cut off the ends, and what is left is still balanced and still a random choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from ibpwf.errors import InputError
from ibpwf.lab.methods.dense import DenseMethod, DenseSettings, total_bytes
from ibpwf.parts import Count
from ibpwf.training.method import TaskData


@dataclass(frozen=True)
class ExampleMemory:
    """Examples `x`, their labels `y` counted within their own task, and which `task` each is of, in the order of
    tasks. It is never changed: a new task makes a new memory."""

    x: Tensor
    y: Tensor
    task: Tensor

    @classmethod
    def load(cls, tensors: Mapping[str, Tensor]) -> Self | None:
        """The inverse of `tensors`; None where nothing was stored."""
        return cls(tensors["memory.x"], tensors["memory.y"], tensors["memory.task"]) if tensors else None

    def tensors(self) -> dict[str, Tensor]:
        """What to store, by name."""
        return {"memory.x": self.x, "memory.y": self.y, "memory.task": self.task}

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.x[rows], self.y[rows], self.task[rows]

    def of(self, task: int) -> tuple[Tensor, Tensor, Tensor]:
        """The examples of one task: x, y, task."""
        return self[self.task == task]

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """`count` examples at random, with replacement: x, y, task."""
        return self[torch.randint(len(self), (count,), generator=generator, device=self.y.device)]


def shares(size: int, tasks: int) -> list[int]:
    """How many of `size` examples each task may keep; earlier tasks get what is left over."""
    return [size // tasks + (task < size % tasks) for task in range(tasks)]


def check_size(size: int, data: TaskData) -> None:
    """Refuse, before a task is learned, a memory that this task cannot fill or that has no place for it."""
    tasks, rows = data.index + 1, len(data.rows)
    if size < tasks:
        raise InputError(f"memory_size is {size}, too small for {tasks} tasks; give at least one example a task.")
    share = shares(size, tasks)[-1]
    if share > rows:
        raise InputError(
            f"memory_size is {size}, of which task '{data.name}' would keep {share}, but it has only {rows} "
            f"examples; give at most {rows * tasks}."
        )


def remember(memory: ExampleMemory | None, data: TaskData, size: int) -> ExampleMemory:
    """The memory after a task: earlier tasks cut to their new share, the new task's share chosen by its seed."""
    (x, y), sizes = data.rows.tensors(), shares(size, data.index + 1)
    rows = balanced_order(y.cpu(), data.generator("memory"))[: sizes[-1]].to(y.device)
    parts = [] if memory is None else [memory.of(task) for task in range(data.index)]
    parts.append((x[rows], y[rows], torch.full_like(rows, data.index)))
    cut = [[tensor[:count] for tensor in part] for part, count in zip(parts, sizes, strict=True)]
    return ExampleMemory(*(torch.cat(tensors) for tensors in zip(*cut, strict=True)))


def balanced_order(y: Tensor, generator: torch.Generator) -> Tensor:
    """All rows, one of each class in turn while it lasts, in random order within a class."""
    shuffled = torch.randperm(len(y), generator=generator)
    turn = torch.empty_like(shuffled)
    for label in torch.unique(y):
        mine = y[shuffled] == label
        turn[mine] = torch.arange(int(mine.sum()))
    # Rows of the same turn come in the order of the shuffle, so that no class is always the first.
    return shuffled[torch.sort(turn, stable=True).indices]


class MemorySettings(DenseSettings):
    memory_size: Count = Field(
        400, description="examples kept in all, whatever the number of tasks (Permuted MNIST: 1,100)"
    )


class MemoryMethod(DenseMethod):
    """A method that keeps examples, and can tell how well the network still answers them."""

    stores: ClassVar[str] = "examples"
    settings_type: ClassVar[type[DenseSettings]] = MemorySettings
    settings: MemorySettings
    examples: ExampleMemory | None = None

    def prepare(self, data: TaskData) -> None:
        check_size(self.settings.memory_size, data)
        self._first = torch.tensor([self.own_columns(task).start for task in range(data.index)], device=self.device)
        self._silent = self.silent(self.problem.outputs)

    def stored_loss(self, x: Tensor, y: Tensor, task: Tensor) -> Tensor:
        """Cross-entropy of stored examples, each among the outputs that compete in its own task: those of its own
        head in the task setting, those of all classes seen in the class setting."""
        return self.stored_losses(self.net(x), y, task).mean()

    def stored_losses(self, outputs: Tensor, y: Tensor, task: Tensor) -> Tensor:
        """The same for each stored example, from the network's outputs."""
        column = self._first[task] + y
        return F.cross_entropy(outputs.masked_fill(self._silent[column], -torch.inf), column, reduction="none")

    def consolidate(self, data: TaskData) -> None:
        self.examples = remember(self.examples, data, self.settings.memory_size)

    def kept(self) -> dict[str, Tensor]:
        return {} if self.examples is None else self.examples.tensors()

    def load_kept(self, tensors: Mapping[str, Tensor]) -> None:
        self.examples = ExampleMemory.load(tensors)

    def memory(self) -> dict[str, int]:
        return {"network": super().memory()["network"], "examples": total_bytes(self.kept().values())}


class Rehearsal(MemoryMethod):
    name: ClassVar[str] = "rehearsal"
    summary: ClassVar[str] = "trains on stored examples of earlier tasks beside the new ones"

    def prepare(self, data: TaskData) -> None:
        super().prepare(data)
        self._draws = data.generator("rehearsal", self.device)

    def generators(self) -> Sequence[torch.Generator]:
        return [self._draws]

    def penalty(self, x: Tensor, outputs: Tensor) -> Tensor:
        """The loss on as many stored examples as the mini-batch has new ones."""
        if self.examples is None:
            return super().penalty(x, outputs)
        return self.stored_loss(*self.examples.draw(len(x), self._draws))
