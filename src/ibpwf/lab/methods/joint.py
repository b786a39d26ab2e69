"""The upper bound: one network on the data of all tasks at once."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ibpwf.data.rows import IndexedRows, Rows
from ibpwf.lab.methods.dense import DenseMethod, seeded, total_bytes
from ibpwf.training.method import TaskData


class Joint(DenseMethod):
    """One network trained from scratch on the data of all tasks so far, `epochs` passes over their union.

    It keeps every example, so it is no continual learner but the mark to reach.
    """

    name: ClassVar[str] = "joint"
    summary: ClassVar[str] = "trained anew on the data of all tasks so far: the upper bound"
    stores: ClassVar[str] = "all examples"
    examples: tuple[tuple[Tensor, Tensor], ...] = ()  # a task each: x, and the output of each row's class

    def fork(self) -> Self:
        """Examples are shared: nothing writes to them."""
        return copy.deepcopy(self, {id(tensor): tensor for pair in self.examples for tensor in pair})

    def prepare(self, data: TaskData) -> None:
        with seeded(self.seed):
            self.net.load_state_dict(self.build().state_dict())
        self._silent = self.silent(self.learned + len(data.classes))

    def rows_to_train(self, data: TaskData) -> Rows:
        x, column = zip(*self.examples, (data.x, data.y + self.learned), strict=True)
        return IndexedRows(torch.cat(x), torch.cat(column))

    def competing(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return outputs[:, : len(self._silent)].masked_fill(self._silent[y], -torch.inf), y

    def consolidate(self, data: TaskData) -> None:
        self.examples = (*self.examples, (data.x, data.y + self.learned))

    def state(self) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
        """A file of examples per task, so that a new task writes no old one again."""
        content, files = super().state()
        stored = {f"examples-{task}": {"x": x, "column": column} for task, (x, column) in enumerate(self.examples)}
        return content, files | stored

    def load_state(self, content: Mapping[str, Any], files: Mapping[str, Mapping[str, Tensor]]) -> None:
        super().load_state(content, files)
        parts = [files[f"examples-{task}"] for task in range(len(self.classes))]
        self.examples = tuple((part["x"].to(self.device), part["column"].to(self.device)) for part in parts)

    def memory(self) -> dict[str, int]:
        return super().memory() | {"examples": sum(map(total_bytes, self.examples))}
