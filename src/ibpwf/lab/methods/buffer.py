"""A memory of raw examples of earlier tasks, for the methods that rehearse them.

However many tasks have been learnt, the memory never holds more than its size. Tasks share it equally, to within
one example, and so do the classes of a task as far as each has enough. Each task's examples lie in the order in
which they would be kept if fewer could be: class by class in turn, at random within a class. To make room for a
new task is then to cut off the ends, and what is left is still balanced and still a random choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from ibpwf.errors import InputError
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

    def of(self, task: int) -> tuple[Tensor, Tensor, Tensor]:
        """The examples of one task: x, y, task."""
        rows = self.task == task
        return self.x[rows], self.y[rows], self.task[rows]

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """`count` examples at random, with replacement: x, y, task."""
        rows = torch.randint(len(self), (count,), generator=generator, device=self.y.device)
        return self.x[rows], self.y[rows], self.task[rows]


def shares(size: int, tasks: int) -> list[int]:
    """How many of `size` examples each task may keep; earlier tasks get what is left over."""
    return [size // tasks + (task < size % tasks) for task in range(tasks)]


def check_size(field: str, size: int, data: TaskData) -> None:
    """Refuse, before a task is learnt, a memory that this task cannot fill or that has no place for it."""
    tasks = data.index + 1
    if size < tasks:
        raise InputError(f"{field} is {size}, too small for {tasks} tasks; give at least one example a task.")
    share = shares(size, tasks)[-1]
    if share > len(data.y):
        raise InputError(
            f"{field} is {size}, of which task '{data.name}' would keep {share}, but it has only {len(data.y)} "
            f"examples; give at most {len(data.y) * tasks}."
        )


def remember(memory: ExampleMemory | None, data: TaskData, size: int) -> ExampleMemory:
    """The memory after a task: earlier tasks cut to their new share, the new task's share chosen by its seed."""
    *before, share = shares(size, data.index + 1)
    rows = balanced_order(data.y.cpu(), data.generator("memory"))[:share].to(data.y.device)
    parts = [(data.x[rows], data.y[rows], torch.full_like(rows, data.index))]
    if memory is not None:
        earlier = [memory.of(task) for task in range(data.index)]
        parts = [*((x[:n], y[:n], task[:n]) for (x, y, task), n in zip(earlier, before, strict=True)), *parts]
    x, y, task = zip(*parts, strict=True)
    return ExampleMemory(torch.cat(x), torch.cat(y), torch.cat(task))


def balanced_order(y: Tensor, generator: torch.Generator) -> Tensor:
    """All rows, one of each class in turn while it lasts, in random order within a class."""
    shuffled = torch.randperm(len(y), generator=generator)
    turn = torch.empty_like(shuffled)
    for label in torch.unique(y):
        mine = y[shuffled] == label
        turn[mine] = torch.arange(int(mine.sum()))
    # Rows of the same turn come in the order of the shuffle, so that no class is always the first.
    return shuffled[torch.sort(turn, stable=True).indices]
