"""What a learner knows between two tasks, and how it is asked: one object that never changes."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ibpwf import __version__
from ibpwf.backbones.backbone import word_pieces_of
from ibpwf.errors import InputError, unknown
from ibpwf.inputs import check_inputs
from ibpwf.linear import HeldOut
from ibpwf.packing import packing_of
from ibpwf.plain_arrays import plain
from ibpwf.storage.tensor_checks import CorruptModelError
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
    further_factors: dict[str, int] | None = None  # by layer, those with π̄ < κ that its accuracy needed
    version: int = 1
    version_of: str | None = None  # of an older version, the name of the task that has a newer one

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        held_out = None if fields.get("held_out") is None else HeldOut(**fields["held_out"])
        return cls(**{**fields, "number": 0, "classes": tuple(fields["classes"]), "held_out": held_out})

    def to_json(self) -> dict[str, Any]:
        fields = {name: value for name, value in asdict(self).items() if name != "number"}
        if self.version == 1 and self.version_of is None:  # as it was before there were versions
            del fields["version"], fields["version_of"]
        if self.further_factors is None:
            del fields["further_factors"]
        return {**fields, "classes": list(self.classes)}


@dataclass(frozen=True)
class LearnerState:
    """All that a learner has learned; it never changes. A task is learned on a fork of the method, and counts once a
    `LearnerState` with it replaces the one before; predictions under way go on with that."""

    method: Method
    tasks: tuple[TaskInfo, ...] = ()
    history: tuple[dict[str, Any], ...] = ()
    input_shape: tuple[int, ...] | None = None
    majority: float = 0.0  # accuracy in per cent of always predicting the last task's largest class
    comparison: HeldOut | None = None  # with a linear model, of a last task without a validation split
    older: tuple[TaskInfo, ...] = ()  # versions of tasks that have newer ones, numbered on after the tasks

    @cached_property
    def names(self) -> Mapping[str, int]:
        """By what names tasks and older versions can be asked for, and their numbers: `name` is a task's newest
        version, which is also `name@3` if it is the third; `name@1` its first."""
        names = {task.name: task.number for task in (*self.tasks, *self.older)}
        newest = {f"{task.name}@{task.version}": task.number for task in self.tasks}
        return newest | names

    def info(self, task: int | str) -> TaskInfo:
        """Of a task or an older version, by name or number."""
        return (*self.tasks, *self.older)[self.task_number(task)]

    def task_number(self, task: int | str) -> int:
        """A task's number from its name or number."""
        if isinstance(task, str):
            names = self.names
            if task not in names:
                raise unknown("task", task, [known.name for known in (*self.tasks, *self.older)])
            return names[task]
        try:
            number = operator.index(task)
        except TypeError:
            raise InputError(f"task is {task!r}; give a task's name or number.") from None
        if not -len(self.tasks) <= number < len(self.tasks) + len(self.older):
            raise InputError(
                f"task is {number}, but {len(self.tasks)} tasks have been learnt; "
                f"give a number from 0 to {len(self.tasks) - 1}, or a name."
            )
        return number if number >= 0 else number + len(self.tasks)

    def check_forgettable(self, task: int | str) -> None:
        """Refuse the newest of several versions: what its rows taught task inference cannot be taken out again."""
        found = self.info(task)
        if found.version_of is None and found.version > 1 and task == f"{found.name}@{found.version}":
            raise InputError(
                f"task is '{task}', the newest version, and what its rows are like cannot be forgotten alone; give "
                f"'{found.name}' to forget the whole task, or an older version of it."
            )

    def without(self, task: int) -> tuple[Self, list[int]]:
        """The tasks that are left without one, or without an older version, numbered anew; and the numbers that go: a
        task takes its older versions with it."""
        gone = self.info(task)
        numbers = [one.number for one in (*self.tasks, *self.older) if one is gone or one.version_of == gone.name]
        left = [one for one in (*self.tasks, *self.older) if one.number not in numbers]
        return self.numbered(left), numbers

    def numbered(self, infos: Iterable[TaskInfo]) -> Self:
        """The same with these tasks and older versions, in their order."""
        each = tuple(replace(one, number=number) for number, one in enumerate(infos))
        tasks = sum(one.version_of is None for one in each)
        return replace(self, tasks=each[:tasks], older=each[tasks:])

    def check_complete(self) -> None:
        """Refuse tasks that are not those that the method's state has."""
        known = self.method.classes
        if known is not None and [tuple(classes) for classes in known] != [task.classes for task in self.tasks]:
            raise CorruptModelError("the tasks' classes are not those of the method's state")
        for one in (*self.tasks, *self.older):
            owner = one.version_of or one.name
            if self.method.version(one.number) != (self.names.get(owner), one.version):
                raise CorruptModelError(
                    f"'{one.name}' is not the version of task '{owner}' that the method's state has"
                )

    def as_learned(self) -> list[TaskInfo]:
        """Tasks and older versions in the order in which they were learned."""
        return sorted((*self.tasks, *self.older), key=lambda one: self.method.serial(one.number))

    def warn_of_poor_fit(self) -> None:
        """Warn if the last task was learned hardly better than chance."""
        problem = poor_fit(self.tasks[-1], self.majority, self.comparison, frozen=self.method.has_frozen_base)
        if problem is not None:
            warnings.warn(problem, stacklevel=3)

    def task_rows(self, task: TaskChoice, rows: int) -> Tensor | None:
        """The number of every row's task, on the host; None where tasks are to be inferred."""
        if task is None:
            return None
        task = plain("task", task)
        given: Any = task.tolist() if isinstance(task, (Tensor, np.ndarray)) else task
        if isinstance(given, str) or not isinstance(given, Iterable):
            return torch.full((rows,), self.task_number(given))
        given = list(given)
        if len(given) != rows:
            raise InputError(f"task has {len(given)} entries for {rows} inputs; give one, or one per input.")
        names = self.names
        numbers = [names[t] if type(t) is str and t in names else self.task_number(t) for t in given]
        return torch.tensor(numbers, dtype=torch.long)

    def with_task(
        self,
        method: Method,
        info: TaskInfo,
        serial: int,
        input_shape: tuple[int, ...],
        majority: float,
        comparison: HeldOut | None = None,
    ) -> LearnerState:
        """The state once a method that has learned another task replaces this one's."""
        event = {"event": "learnt", "serial": serial, "version": __version__}
        now = LearnerState(method, (), (*self.history, event), input_shape, majority, comparison)
        return now.numbered([*self.tasks, info, *self.older])

    def check_learned(self) -> None:
        if not self.tasks:
            raise InputError("nothing has been learnt yet; call learn(x, y) first.")

    def inputs(self, x: Data) -> Tensor:
        """Examples to predict, on the device."""
        self.check_learned()
        packing = packing_of(self.method.template)
        pieces = word_pieces_of(self.method.template)
        found = check_inputs(x, self.input_shape, empty_ok=True, packing=packing, vocabulary=pieces)
        return found.to(self.method.device)


NEAR_CHANCE = 0.1
"""How much of the way from the largest class alone to 100 % must have been gone not to be warned."""

FEWEST_OTHERS = 10
"""Held-out rows of other classes than the largest, below which these say nothing of guessing."""


def near_chance(accuracy: float | None, majority: float) -> bool:
    """Whether accuracy is hardly above that of always predicting the largest class."""
    only = majority == 100  # one class: there is nothing to guess
    return accuracy is not None and not only and accuracy <= majority + NEAR_CHANCE * (100 - majority)


def poor_fit(
    task: TaskInfo, majority: float, comparison: HeldOut | None = None, *, frozen: bool = False
) -> str | None:
    """What to warn of where a task is hardly better than chance, or worse than a simpler model; one with a `frozen`
    base has started from the network's own weights."""
    found = task.held_out
    compared = found or comparison
    if near_chance(task.training_accuracy, majority):
        return (
            f"task '{task.name}' was hardly learned: {task.training_accuracy:.1f} % of its own rows are answered "
            f"rightly, and always giving its largest class would be right for {majority:.1f} %. Train "
            "longer (epochs), raise learning_rate, "
            + ("" if frozen else "start from the network's own weights (init='pretrained'), ")
            + "or put the inputs on one scale."
        )
    if found is not None and found.others >= FEWEST_OTHERS and near_chance(found.accuracy, found.majority):
        return (
            f"task '{task.name}' is answered hardly better than by guessing: {found.accuracy:.1f} % of "
            f"{found.rows:,} rows held out are right, and always giving its largest class would be right for "
            f"{found.majority:.1f} %. Give more rows or columns that say more about the classes; if one class is "
            "rare, weights (class_weight='balanced')."
        )
    if compared is not None and compared.is_poor:
        which = "held-out rows" if found is not None else "of its own rows"
        return (
            f"task '{task.name}' ends below a linear model: {compared.accuracy:.1f} % of {compared.rows:,} {which} "
            f"are right, where a logistic regression has {compared.linear:.1f} %. Train longer (epochs), change "
            "learning_rate, or take a network that suits the data."
        )
    return None
