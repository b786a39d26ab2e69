"""What a scenario is made of: tasks with their training and test examples, in the order they are learnt.

Scenario("mine", [Task("first", train=(x, y), test=(x_test, y_test)), Task("second", ...)])
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import overload

import torch
from torch import Tensor

from ibpwf.errors import InputError
from ibpwf.lab.data.examples import Array, Rows, Split, check_fit, checked_split

Examples = Split | tuple[Array, Array]
"""Examples as users give them: inputs `(N, *shape)` and labels `(N,)`, whole numbers from 0."""


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Task:
    """One task. `classes` are the labels it has; `index` is its place in its scenario, which sets it."""

    name: str
    train: Split
    test: Split
    validation: Split | None
    classes: tuple[int, ...]
    index: int

    def __init__(
        self,
        name: str,
        train: Examples,
        test: Examples,
        validation: Examples | None = None,
        *,
        classes: Sequence[int] | None = None,
        index: int = 0,
    ) -> None:
        """Examples are pairs of arrays `(x, y)`, or splits; `classes` are those in `train` unless said otherwise.

        Inputs are taken as they are: converted to float32 if need be, not standardized, not copied if not needed.
        """
        if not isinstance(name, str) or not name:
            raise InputError(f"name={name!r}: the name of a task must be a text that is not empty.")
        parts = {"train": train, "test": test} | ({} if validation is None else {"validation": validation})
        splits = _splits(parts, f"task '{name}': ")
        own = torch.unique(splits["train"].y).tolist() if classes is None else classes
        # Past the guard of a frozen class, this once.
        self.__dict__.update({"name": name, "validation": None, "classes": tuple(own), "index": index} | splits)

    def permuted(self, name: str, permutation: Tensor) -> Task:
        """The same examples with their values moved by `permutation`; nothing is copied."""
        train, test = self.train.permuted(permutation), self.test.permuted(permutation)
        validation = None if self.validation is None else self.validation.permuted(permutation)
        return Task(name, train, test, validation, classes=self.classes)

    def __repr__(self) -> str:
        held_out = "" if self.validation is None else f", {len(self.validation):,} validation"
        return f"Task({self.index}: {self.name!r}, {len(self.train):,} train{held_out}, {len(self.test):,} test)"


def _splits(parts: dict[str, Examples], where: str) -> dict[str, Split]:
    """The parts of a task as splits; arrays are checked, and that they fit those trained with."""
    splits, given = {}, False
    for part, examples in parts.items():
        if not isinstance(examples, Split):
            if not isinstance(examples, (tuple, list)) or len(examples) != 2:
                raise InputError(f"{where}give {part} as two arrays, (x, y).")
            examples, given = checked_split(*examples, part, where), True
        splits[part] = examples
    if len(splits["test"]) == 0:
        raise InputError(f"{where}it has no test examples; give at least one.")
    for part in splits if given else ():
        check_fit(splits["train"], splits[part], part, where)
    return splits


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Scenario(Sequence[Task]):
    """Tasks in the order they are learnt: `len`, index, slice, iterate.

    Labels are in `range(n_classes)`, also in a slice. A slice is a scenario whose tasks keep their names
    and are counted from 0 again.
    """

    name: str
    tasks: tuple[Task, ...]
    seed: int
    input_shape: tuple[int, ...]
    n_classes: int

    def __init__(
        self,
        name: str,
        tasks: Iterable[Task],
        *,
        seed: int = 0,
        input_shape: tuple[int, ...] | None = None,
        n_classes: int | None = None,
    ) -> None:
        """Tasks may share classes, and need inputs of one shape and names that differ.

        `seed` is the one the tasks were drawn with. `input_shape` and `n_classes` follow from the tasks.
        """
        own = tuple(tasks)
        if not own and input_shape is None:
            raise InputError("tasks is empty; a scenario needs at least one task.")
        for place, task in enumerate(own):
            if not isinstance(task, Task):
                raise InputError(f"tasks[{place}] is a {type(task).__name__}; give a Task.")
            if task.train.shape != own[0].train.shape:
                raise InputError(
                    f"tasks[{place}]: its examples have shape {task.train.shape}, those of tasks[0] have "
                    f"{own[0].train.shape}; all must be alike."
                )
            if task.name in [earlier.name for earlier in own[:place]]:
                raise InputError(f"tasks[{place}] is called '{task.name}' as an earlier one; names must differ.")
        self.__dict__.update(
            name=name,
            tasks=tuple(replace(task, index=place) for place, task in enumerate(own)),
            seed=seed,
            input_shape=own[0].train.shape if input_shape is None else input_shape,
            n_classes=1 + max(max(task.classes) for task in own) if n_classes is None else n_classes,
        )

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    @overload
    def __getitem__(self, index: int) -> Task: ...

    @overload
    def __getitem__(self, index: slice) -> Scenario: ...

    def __getitem__(self, index: int | slice) -> Task | Scenario:
        if isinstance(index, slice):
            return replace(self, tasks=self.tasks[index])
        try:
            return self.tasks[index]
        except IndexError:
            raise IndexError(f"task {index} of scenario '{self.name}', which has {len(self)} tasks") from None

    def to(self, device: torch.device | str) -> Scenario:
        """The same tasks with all examples on `device`; permuted tasks share one copy there as well."""
        moved: dict[int, Rows] = {}
        tasks = tuple(
            replace(
                task,
                train=task.train.to(device, moved),
                test=task.test.to(device, moved),
                validation=None if task.validation is None else task.validation.to(device, moved),
            )
            for task in self.tasks
        )
        return replace(self, tasks=tasks)

    def __repr__(self) -> str:
        names = ", ".join(task.name for task in self.tasks)
        return (
            f"Scenario({self.name!r}, {len(self)} tasks: {names or '—'}; input {self.input_shape}, "
            f"{self.n_classes} classes, seed {self.seed})"
        )
