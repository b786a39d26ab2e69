"""Continual-learning scenarios of the known data sets: `scenario("split-mnist")`.

`split-<set>` deals the classes out to tasks. `permuted-<set>` gives every task all classes and its own
fixed shuffle of the input values, the first task none.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from ibpwf import registry
from ibpwf.errors import InputError, unknown
from ibpwf.lab.data.catalog import DATA_SETS
from ibpwf.lab.data.files import Progress
from ibpwf.lab.data.partition import (
    Order,
    Splits,
    checked_fraction,
    checked_seed,
    class_names,
    first_of_each,
    held_out,
    partition,
    whole_number,
)
from ibpwf.lab.data.sets import ArrayDataset, load
from ibpwf.lab.data.tasks import Rows, Scenario, Split, Task

PERMUTED_TASKS = 10
"""How many tasks a permuted scenario has unless told otherwise."""

_KINDS = ("split", "permuted")

# One float32 copy of a data set serves all live scenarios that read the whole of it, whatever their seeds.
_whole: weakref.WeakValueDictionary[tuple[int, bool, bool], Rows] = weakref.WeakValueDictionary()


def scenario_names() -> list[str]:
    """The names `scenario` knows."""
    return [f"{kind}-{name}" for name in DATA_SETS for kind in _KINDS]


def describe(name: str) -> str:
    """One line on a scenario, without loading any data."""
    kind, chosen = _parse(name)
    known = DATA_SETS[chosen]
    images = f"{known.n_train:,} + {known.n_test:,} images of {'×'.join(map(str, known.shape))}"
    if kind == "split":
        return f"{known.title}, {len(known.classes) // 2} tasks of 2 classes each; {images}"
    return f"{known.title}, {PERMUTED_TASKS} tasks, each its own fixed shuffle of the pixels; {images} a task"


def scenario(
    name: str,
    *,
    tasks: int | None = None,
    classes_per_task: int | None = None,
    splits: Splits | None = None,
    order: Order | None = None,
    seed: int = 0,
    validation: float = 0.0,
    examples: int | None = None,
    flatten: bool | None = None,
    normalize: bool = True,
    data_dir: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Scenario:
    """A scenario by its name; `scenario_names()` lists them.

    Split: `splits=[(0, 1), (2, 3, 4)]` names every task's classes; or `classes_per_task` (2) classes are
    dealt out in `order` (a list, or "random" by `seed`; as numbered by default). `tasks` keeps the first
    few. Labels stay those of the data set.

    Permuted: `tasks` (10) tasks with permutations drawn one after the other from `seed`, so that fewer
    tasks are the first of more. Whole examples are permuted, colours included.

    `validation` holds out that fraction of each class's training examples, by `seed`. `examples` keeps the
    first so many of each class, for training and for testing, for a first look at a large set. Grey images come
    flat, `(N, 784)`, and colour images as `(N, 3, 32, 32)`, unless `flatten` says otherwise. `normalize`
    standardises by the data set's constants; without it values are in [0, 1].
    """
    if name not in scenario_names():
        make = registry.find(registry.SCENARIOS, name, dict.fromkeys(scenario_names()))
        outside: Scenario = make(tasks=tasks, examples=examples, seed=seed, progress=progress)
        return outside
    kind, chosen = _parse(name)
    seed = checked_seed(seed)
    fraction = checked_fraction(validation)
    few = None if examples is None else whole_number("examples", examples, 1)
    for field, flag in (("normalize", normalize), ("flatten", flatten)):
        if not (isinstance(flag, bool) or (flag is None and field == "flatten")):
            raise InputError(f"{field}={flag!r}: it must be True or False.")
    classes = range(len(DATA_SETS[chosen].classes))
    # What was asked for is checked before the data is loaded: a typing error should not cost a download.
    if kind == "split":
        groups = partition(
            classes, splits=splits, classes_per_task=classes_per_task, order=order, tasks=tasks, seed=seed
        )
    else:
        for field, value in (("splits", splits), ("classes_per_task", classes_per_task), ("order", order)):
            if value is not None:
                raise InputError(
                    f"{field}={value!r}: every task of {name} has all classes. Drop it, or use 'split-{chosen}'."
                )
        count = whole_number("tasks", PERMUTED_TASKS if tasks is None else tasks, 1)

    data = load(chosen, data_dir=data_dir, progress=progress)
    parts = _Parts(data, normalize, data.shape[0] == 1 if flatten is None else flatten, fraction, seed, few)
    if kind == "split":
        made = [parts.task(class_names(group), index, group) for index, group in enumerate(groups)]
    else:
        made = _permuted_tasks(parts, count, tuple(classes), seed)
    return Scenario(name, tuple(made), seed, made[0].train.shape, len(classes))


def _parse(name: str) -> tuple[str, str]:
    if name not in scenario_names():
        raise unknown("scenario", name, scenario_names())
    kind, _, chosen = name.partition("-")
    return kind, chosen


def _permuted_tasks(parts: _Parts, count: int, classes: tuple[int, ...], seed: int) -> list[Task]:
    generator = torch.Generator().manual_seed(seed)
    first = parts.task("permutation-0", 0, classes)
    made = [first]
    values = torch.Size(first.train.shape).numel()
    for index in range(1, count):
        permutation = torch.randperm(values, generator=generator, device="cpu")
        made.append(parts.permuted(first, f"permutation-{index}", index, permutation))
    return made


class _Parts:
    """The training, validation and test rows of a data set, cut into tasks by index."""

    def __init__(
        self, data: ArrayDataset, normalize: bool, flatten: bool, fraction: float, seed: int, few: int | None
    ) -> None:
        self._data, self._normalize, self._flatten = data, normalize, flatten
        self._train: Tensor | None = None
        self._validation: Tensor | None = None
        self._test: Tensor | None = None
        if fraction:
            self._train, self._validation = held_out(data.train_y, fraction, seed)
        if few is not None:
            self._train = first_of_each(data.train_y, few, self._train)
            self._test = first_of_each(data.test_y, few)

    def task(self, name: str, index: int, classes: Sequence[int]) -> Task:
        """The task with the examples of these classes."""
        data = self._data
        validation = None
        if self._validation is not None:
            validation = self._split(data.train_x, data.train_y, self._validation, classes)
        return Task(
            name,
            index,
            tuple(classes),
            train=self._split(data.train_x, data.train_y, self._train, classes),
            test=self._split(data.test_x, data.test_y, self._test, classes),
            validation=validation,
        )

    @staticmethod
    def permuted(task: Task, name: str, index: int, permutation: Tensor) -> Task:
        """The same examples behind a permutation; nothing is copied."""
        return Task(
            name,
            index,
            task.classes,
            train=task.train.permuted(permutation),
            test=task.test.permuted(permutation),
            validation=None if task.validation is None else task.validation.permuted(permutation),
        )

    def _split(self, x: Tensor, y: Tensor, rows: Tensor | None, classes: Sequence[int]) -> Split:
        if len(classes) < len(self._data.classes):
            mine = torch.isin(y, torch.tensor(classes, dtype=y.dtype, device=y.device))
            if rows is not None:
                allowed = torch.zeros_like(mine)
                allowed[rows] = True
                mine &= allowed
            rows = torch.nonzero(mine).flatten()
        labels = (y if rows is None else y[rows]).to(torch.int64)
        return Split(self._rows(x, rows), labels)

    def _rows(self, x: Tensor, rows: Tensor | None) -> Rows:
        key = (id(x), self._normalize, self._flatten)
        if rows is None and (shared := _whole.get(key)) is not None:
            return shared
        made = Rows(
            x,
            rows,
            levels=self._data.levels,
            mean=self._data.mean if self._normalize else None,
            std=self._data.std if self._normalize else None,
            flatten=self._flatten,
        )
        if rows is None:
            _whole[key] = made
        return made
