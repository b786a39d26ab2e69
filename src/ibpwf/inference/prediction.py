"""What `predict` gives back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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


def rows_by_value(values: Tensor) -> list[tuple[int, Tensor]]:
    """Each value there is in `values`, from the least, and the rows that have it, in order."""
    ordered, rows = values.sort(stable=True)
    different, counts = torch.unique_consecutive(ordered, return_counts=True)
    return list(zip(different.tolist(), torch.split(rows, counts.tolist()), strict=True)) if len(rows) else []
