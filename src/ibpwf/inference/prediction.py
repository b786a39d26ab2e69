"""What `predict` gives back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from ibpwf.factors.row_tasks import RowTasks
from ibpwf.torch_state import pinned


@dataclass(frozen=True)
class Prediction:
    """One row per input.

    `classes` names the columns of `probabilities`: (task number, label), for every class learnt so far; a
    class is a task and a label, because a label may return in a later task. `labels` are the user's own.
    `task` is the task each row was answered for, given or inferred; `task_probabilities` is P(t | φ(x)), 0 where
    it is below 1e-19, or one-hot where the task was given. Unless `marginal=True` was asked for, a row's
    probabilities are conditional on its task. `entropy` is that of `probabilities`, in nats; with posterior draws,
    `mutual_information` is the part that comes from uncertain weights.
    """

    labels: Tensor
    probabilities: Tensor
    classes: tuple[tuple[int, int], ...]
    task: Tensor
    task_probabilities: Tensor
    entropy: Tensor
    mutual_information: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)


class Known(Protocol):
    """A task, as far as its answers are concerned."""

    @property
    def classes(self) -> tuple[int, ...]: ...


class OwnTaskPrediction(Prediction):
    """A prediction each row of which is conditional on one task: `own` has the probabilities of that task's classes,
    and 0 behind them where another task has more. Columns of other tasks hold nothing, so the table of all tasks'
    columns is made when it is first asked for: without it an answer costs the same among a million."""

    _own: Tensor
    _known: Sequence[Known]

    def __init__(
        self,
        own: Tensor,
        known: Sequence[Known],
        of: RowTasks,
        entropy: Tensor,
        mutual_information: Tensor | None = None,
        task_probabilities: Tensor | None = None,
    ) -> None:
        task = of.tasks.to(own.device)
        fields = {
            "labels": _labels(own, known, of) if len(own) else task,
            "task": task,
            "entropy": entropy,
            "mutual_information": mutual_information,
        }
        if task_probabilities is not None:
            fields["task_probabilities"] = task_probabilities
        self.__dict__.update(fields, _own=own, _known=known)  # frozen, as its parent is

    @cached_property
    def classes(self) -> tuple[tuple[int, int], ...]:
        return tuple((task, label) for task, known in enumerate(self._known) for label in known.classes)

    @cached_property
    @pinned()
    def probabilities(self) -> Tensor:
        widths = torch.tensor([len(known.classes) for known in self._known], device=self.task.device)
        first, columns = widths.cumsum(0) - widths, torch.arange(self._own.shape[1], device=widths.device)
        rows, column = (columns < widths[self.task].unsqueeze(1)).nonzero().unbind(1)
        out = torch.zeros(len(self), int(widths.sum()), dtype=torch.float64, device=widths.device)
        out[rows, first[self.task[rows]] + column] = self._own[rows, column]
        return out

    @cached_property
    @pinned()
    def task_probabilities(self) -> Tensor:
        return F.one_hot(self.task, len(self._known)).double()


def _labels(own: Tensor, known: Sequence[Known], of: RowTasks) -> Tensor:
    """The likeliest class of each row's own task."""
    classes = (known[number].classes for number in of.numbers)
    table = torch.tensor([[*each, *[0] * (own.shape[1] - len(each))] for each in classes], device=own.device)
    return table[of.place.to(own.device), own.argmax(1)]


def rows_by_value(values: Tensor) -> list[tuple[int, Tensor]]:
    """Each value there is in `values`, from the least, and the rows that have it, in order."""
    ordered, rows = values.sort(stable=True)
    different, counts = torch.unique_consecutive(ordered, return_counts=True)
    return list(zip(different.tolist(), torch.split(rows, counts.tolist()), strict=True)) if len(rows) else []
