"""Which task every row of a batch belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class RowTasks:
    """Of which tasks rows are: the tasks' `numbers`, and of every row the `place` of its own among them. All of it is
    on the host, which decides by it what to run: to ask a GPU about a few numbers takes longer than the numbers."""

    numbers: tuple[int, ...]
    place: Tensor

    @classmethod
    def of(cls, tasks: Tensor) -> RowTasks:
        """Of every row the number of its task, which is none below 0."""
        given = tasks.cpu().numpy()
        numbers = np.flatnonzero(np.bincount(given))
        places = np.zeros(int(numbers[-1]) + 1 if len(numbers) else 0, np.int64)
        places[numbers] = np.arange(len(numbers))
        return cls(tuple(numbers.tolist()), torch.from_numpy(places[given]))

    def __len__(self) -> int:
        return len(self.place)

    @property
    def tasks(self) -> Tensor:
        return torch.tensor(self.numbers, dtype=torch.long)[self.place]

    def called(self, numbers: Sequence[int]) -> RowTasks:
        """The same rows, where the tasks have other numbers."""
        return replace(self, numbers=tuple(numbers[number] for number in self.numbers))

    def split(self, rows: int) -> list[RowTasks]:
        """So many rows at a time."""
        return [self] if len(self) <= rows else [RowTasks.of(part) for part in torch.split(self.tasks, rows)]
