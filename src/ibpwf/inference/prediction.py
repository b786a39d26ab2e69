"""What a prediction is: labels with probabilities, tasks, entropy and novelty."""

from __future__ import annotations

import copy
from collections.abc import Sequence, Sized
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Generic, Protocol, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import TypeVar

from ibpwf.errors import InputError
from ibpwf.factors.row_tasks import RowTasks
from ibpwf.torch_state import pinned

A = TypeVar("A", default=Tensor)


@dataclass(frozen=True)
class Prediction(Generic[A]):
    """The predictions for some inputs, a row each: tensors from a `Learner`, arrays from a `ContinualClassifier`.

    Attributes
    ----------
    labels
        The predicted labels.
    probabilities, classes
        A column for every class learned so far, and what the columns are. Of a learner a class is (task number,
        label), because a label may return in a later task; of a classifier it is a label. Unless `marginal=True` was
        given, a row's probabilities are conditional on its task.
    task
        The task each row was predicted for, given or inferred: its number, or of a classifier its name, which always
        has the predicted label.
    task_probabilities
        P(t | φ(x)), a column for each task, 0 where it is below 1e-19; one-hot where the task was given.
    entropy
        Of `probabilities`, in nats.
    mutual_information
        The part of the entropy that comes from uncertain weights; None without posterior samples.
    novelty
        Above 1 where an input is unlike all that was learned; None where it was not asked for.
    """

    labels: A
    probabilities: A
    classes: tuple[Any, ...]
    task: A
    task_probabilities: A
    entropy: A
    mutual_information: A | None = None
    novelty: A | None = None

    def __len__(self) -> int:
        return len(cast(Sized, self.labels))

    @property
    @pinned()
    def probability(self) -> A:
        """Of each row's label."""
        p: Any = self.probabilities
        if isinstance(p, np.ndarray):
            own = np.array(self.classes) == np.asarray(self.labels)[:, None]
            found: Any = np.where(own, p, 0.0).max(1, initial=0)
        else:
            task, label = torch.tensor(self.classes, device=p.device).view(-1, 2).unbind(1)
            mine, given = (cast(Tensor, one).unsqueeze(1) for one in (self.labels, self.task))
            found = p.masked_fill((task != given) | (label != mine), 0).amax(1)
        return cast(A, found)

    @property
    def is_novel(self) -> A:
        """Whether novelty is above 1."""
        if self.novelty is None:
            raise InputError("novelty was not asked for; call novelty(x), or prediction(x) of a classifier.")
        return cast(A, cast(Any, self.novelty) > 1)

    def numpy(self) -> Prediction[NDArray[Any]]:
        """The same fields as NumPy arrays."""
        return Prediction(**{name: _array(getattr(self, name)) for name in FIELDS})

    def rows(self, here: Any) -> Prediction[A]:
        """The prediction for some of the inputs, by a slice or their numbers."""
        own, spread, novelty = cast(Any, self), cast(Any, self.mutual_information), cast(Any, self.novelty)
        return Prediction(
            own.labels[here],
            own.probabilities[here],
            self.classes,
            own.task[here],
            own.task_probabilities[here],
            own.entropy[here],
            None if spread is None else spread[here],
            None if novelty is None else novelty[here],
        )

    @staticmethod
    def joined(parts: Sequence[Prediction[NDArray[Any]]]) -> Prediction[NDArray[Any]]:
        """One prediction of arrays out of several."""
        whole: dict[str, Any] = {name: getattr(parts[0], name) for name in FIELDS}
        for name, value in whole.items():
            if name != "classes" and value is not None:
                whole[name] = np.concatenate([getattr(part, name) for part in parts])
        return Prediction(**whole)

    def with_novelty(self, novelty: A) -> Self:
        other = copy.copy(self)
        other.__dict__["novelty"] = novelty
        return other


FIELDS = tuple(field.name for field in fields(Prediction))


def _array(values: Any) -> Any:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else values


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
