"""What a scenario is made of: splits of examples, tasks, and the sequence of tasks.

Images stay unsigned bytes until someone asks for them. Permuted tasks share one float32 copy of the
data set and differ only by an index.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import overload

import torch
from torch import Tensor


class Rows:
    """Examples as float32, made from bytes on first use and then kept; shared by all who hold it.

    `rows` picks examples from `source`; None means all of them. Values are divided by `levels`, then
    shifted by `mean` and divided by `std` per channel, where these are given.
    """

    def __init__(
        self,
        source: Tensor,
        rows: Tensor | None = None,
        *,
        levels: int = 1,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        flatten: bool = False,
    ) -> None:
        self._source, self._rows = source, rows
        self._levels, self._mean, self._std = levels, mean, std
        self._flatten = flatten
        self._scaled = levels != 1 or mean is not None
        self._tensor: Tensor | None = None

    def __len__(self) -> int:
        return len(self._source) if self._rows is None else len(self._rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        shape = tuple(self._source.shape[1:])
        return (int(torch.Size(shape).numel()),) if self._flatten else shape

    def tensor(self) -> Tensor:
        """All examples, `(N, *shape)`."""
        if self._tensor is None:
            picked = self._source if self._rows is None else self._source[self._rows]
            # In place below, so never on the source itself.
            x = picked.to(torch.float32, copy=self._rows is None and self._scaled)
            if self._levels != 1:
                x.div_(self._levels)
            if self._mean is not None and self._std is not None:
                per_channel = (1, -1, *([1] * (x.ndim - 2)))
                x.sub_(torch.tensor(self._mean, dtype=x.dtype, device=x.device).view(per_channel))
                x.div_(torch.tensor(self._std, dtype=x.dtype, device=x.device).view(per_channel))
            self._tensor = x.flatten(1) if self._flatten else x
        return self._tensor


class Split:
    """Examples of one task: `x` float32 `(N, *shape)`, `y` int64 `(N,)`.

    Without a permutation `x` is `base`, made once. With one, `x` is gathered from `base` when asked for
    and is freed when nobody holds it: bind it to a name, or gather mini-batches with `batch`, or on
    another device do `base[i].flatten(1)[:, permutation]` (tasks of one scenario share one `base`).
    Tensors are shared, so treat them as read-only.
    """

    def __init__(self, rows: Rows, y: Tensor, permutation: Tensor | None = None) -> None:
        self._examples, self._y, self._permutation = rows, y, permutation
        self._x: weakref.ref[Tensor] | None = None

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> Split:
        """A split of ready-made tensors."""
        return cls(Rows(x), y)

    def __reduce__(self) -> tuple[type[Split], tuple[Rows, Tensor, Tensor | None]]:
        # The weak reference to `x` cannot travel to another process, and need not.
        return Split, (self._examples, self._y, self._permutation)

    def __len__(self) -> int:
        return len(self._y)

    def __repr__(self) -> str:
        permuted = "" if self._permutation is None else ", permuted"
        return f"Split({len(self):,} examples of shape {self.shape}{permuted})"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return self._examples.shape

    @property
    def base(self) -> Tensor:
        """The examples before the permutation, row for row those of `y`."""
        return self._examples.tensor()

    @property
    def permutation(self) -> Tensor | None:
        """Which value of a flattened base example stands at each place of `x`; None means its own."""
        return self._permutation

    @property
    def x(self) -> Tensor:
        """All inputs, `(N, *shape)`."""
        if self._permutation is None:
            return self.base
        x = self._x() if self._x is not None else None
        if x is None:
            x = self._gathered(self.base)
            self._x = weakref.ref(x)
        return x

    @property
    def y(self) -> Tensor:
        """All labels, `(N,)`."""
        return self._y

    def to(self, device: torch.device | str, moved: dict[int, Rows] | None = None) -> Split:
        """The same examples on another device; splits that are given the same `moved` share one copy of a base."""
        moved = {} if moved is None else moved
        key = id(self._examples)
        if key not in moved:
            moved[key] = Rows(self.base.to(device))
        permutation = None if self._permutation is None else self._permutation.to(device)
        return Split(moved[key], self._y.to(device), permutation)

    def permuted(self, permutation: Tensor) -> Split:
        """The same examples, still in the same memory, behind `permutation`."""
        return Split(self._examples, self._y, permutation)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and labels of the examples at `indices`, without making the whole of `x`."""
        return self._gathered(self.base[indices]), self._y[indices]

    def _gathered(self, x: Tensor) -> Tensor:
        if self._permutation is None:
            return x
        return x.flatten(1).index_select(1, self._permutation).view(-1, *self.shape)


@dataclass(frozen=True, eq=False)
class Task:
    """One task. `index` is its place in its scenario; `classes` are the labels it has."""

    name: str
    index: int
    classes: tuple[int, ...]
    train: Split
    test: Split
    validation: Split | None = None

    def __repr__(self) -> str:
        held_out = "" if self.validation is None else f", {len(self.validation):,} validation"
        return f"Task({self.index}: {self.name!r}, {len(self.train):,} train{held_out}, {len(self.test):,} test)"


@dataclass(frozen=True, eq=False)
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
            picked = self.tasks[index]
            renumbered = tuple(replace(task, index=place) for place, task in enumerate(picked))
            return replace(self, tasks=renumbered)
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
