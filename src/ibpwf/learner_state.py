"""What a learner knows between two tasks, and how it is asked: one object that never changes."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ibpwf.core.packing import packing_of
from ibpwf.errors import InputError, unknown
from ibpwf.inputs import check_inputs
from ibpwf.training.linear import HeldOut
from ibpwf.training.method import Method

Data = Tensor | np.ndarray[Any, Any] | Sequence[Any] | Mapping[str, Any]
TaskChoice = int | str | Sequence[int] | Sequence[str] | Tensor | None


@dataclass(frozen=True)
class TaskInfo:
    """A task that has been learnt."""

    name: str
    number: int
    classes: tuple[int, ...]
    examples: int
    accuracy: float | None = None  # per cent, as measured when it was learned (see `note_accuracy`)
    training_accuracy: float | None = None  # per cent of its own rows, over the last pass of its training
    held_out: HeldOut | None = None  # how well rows that nothing was learned from are answered


@dataclass(frozen=True)
class Learned:
    """What a learner knows: one object that never changes. A task is learned on a fork of the method, and counts from
    the moment a `Learned` that has it takes the place of the one before; whoever was answering goes on with that."""

    method: Method
    tasks: tuple[TaskInfo, ...] = ()
    history: tuple[dict[str, Any], ...] = ()
    input_shape: tuple[int, ...] | None = None
    guessing: float = 0.0  # per cent that always giving the largest class of the last task would be right for

    def task_number(self, task: int | str) -> int:
        """A task's number from its name or number."""
        if isinstance(task, str):
            names = [known.name for known in self.tasks]
            if task not in names:
                raise unknown("task", task, names)
            return names.index(task)
        try:
            number = operator.index(task)
        except TypeError:
            raise InputError(f"task is {task!r}; give a task's name or number.") from None
        if not -len(self.tasks) <= number < len(self.tasks):
            raise InputError(
                f"task is {number}, but {len(self.tasks)} tasks have been learnt; "
                f"give a number from 0 to {len(self.tasks) - 1}, or a name."
            )
        return number % len(self.tasks)

    def task_rows(self, task: TaskChoice, rows: int) -> Tensor | None:
        """The number of every row's task; None where tasks are to be inferred."""
        if task is None:
            return None
        given: Any = task.tolist() if isinstance(task, (Tensor, np.ndarray)) else task
        device = self.method.device
        if isinstance(given, str) or not isinstance(given, Iterable):
            return torch.full((rows,), self.task_number(given), device=device)
        given = list(given)
        if len(given) != rows:
            raise InputError(f"task has {len(given)} entries for {rows} inputs; give one, or one per input.")
        return torch.tensor([self.task_number(t) for t in given], dtype=torch.long, device=device)

    def inputs(self, x: Data) -> Tensor:
        """Examples to answer, on the device."""
        if not self.tasks:
            raise InputError("nothing has been learnt yet; call learn(x, y) first.")
        packing = packing_of(self.method.template)
        return check_inputs(x, self.input_shape, empty_ok=True, packing=packing).to(self.method.device)
