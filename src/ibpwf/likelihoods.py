"""log p(y | x, t): what a task's outputs say of its targets.

A likelihood owns all that depends on what targets are: their checks, the loss, what counts as right, how a task is
calibrated and compared with simpler models, and predictions. `Categorical` is for class labels; one of your own is a
subclass of `Likelihood`, or of `Categorical` where only the loss differs (docs/extending.md).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from ibpwf.data.rows import Rows
from ibpwf.errors import InputError
from ibpwf.factors.row_tasks import RowTasks
from ibpwf.inference.fusion import given
from ibpwf.inference.prediction import Known, OwnTaskPrediction, Prediction, rows_by_value
from ibpwf.inference.uncertainty import entropy
from ibpwf.inputs import check_labels
from ibpwf.linear import HeldOut, compared, compared_on_own_rows
from ibpwf.parts import Part, register

TEMPERATURES = torch.logspace(-1.5, 3, 46, base=2, dtype=torch.float64)
"""Those that scores are tried with, from 0.35 to 8."""


@dataclass(frozen=True)
class RowScores:
    """Calibrated scores of rows, each of one task.

    Attributes
    ----------
    scores
        N×C; a row's own come first, and columns beyond `widths` mean nothing.
    of
        The tasks of the rows, as the model's owner numbers them, and for each of them its place in `widths`.
    widths
        How many scores each task in `of` has.
    known
        All tasks, by number.
    owners
        The tasks of the rows where `of` has versions of them.
    task_probabilities
        P(t | x) where the task was inferred.
    """

    scores: Tensor
    of: RowTasks
    widths: Sequence[int]
    known: Sequence[Known]
    owners: RowTasks
    task_probabilities: Tensor | None = None


class Likelihood(Part, ABC):
    """log p(y | x, t) as a function of a network's outputs, which are called scores.

    A subclass must have `checked`, `log_prob` and `predict`.
    """

    group: ClassVar[str] = "likelihood"
    has_classes: ClassVar[bool] = False
    """Whether targets are class labels, which rotations of images and some kinds of task inference need."""
    capturable: ClassVar[bool] = True
    """Whether a step with this loss may be recorded as a CUDA graph."""

    def require_classes(self, what: str, remedy: str) -> None:
        """Reject what is only possible with class labels."""
        if not self.has_classes:
            raise InputError(
                f"{what} needs class labels, and the targets of {type(self).__name__} are none; {remedy}."
            )

    # Targets

    @abstractmethod
    def checked(self, y: Any, examples: int) -> Tensor:
        """The targets of so many examples as a tensor with a row for each; rejects anything else by name."""

    def classes(self, y: Tensor) -> tuple[int, ...]:
        """The class labels of a task in order; none where targets are no labels."""
        return ()

    def local(self, y: Tensor, classes: Sequence[int], what: str = "y") -> Tensor:
        """Targets as the loss takes them: labels count the task's classes from 0. `what` is for the message where
        one is not among the classes."""
        return y

    def outputs(self, classes: Sequence[int], y: Tensor) -> int:
        """How many outputs a task needs with such targets: one for each number of a target."""
        return y[0].numel()

    def is_constant(self, outputs: int) -> bool:
        """Whether a task with so many outputs has nothing to learn."""
        return False

    def check_task(self, classes: Sequence[int], outputs: int) -> str | None:
        """What is wrong with a stored task that has so many outputs; None if nothing is."""
        return "it has classes" if classes else None

    # Training

    @abstractmethod
    def log_prob(self, scores: Tensor, y: Tensor) -> Tensor:
        """log p(y | scores) of every row, N."""

    def loss(self, scores: Tensor, y: Tensor) -> Tensor:
        """What training minimizes beside the KL: minus the mean of `log_prob`."""
        return -self.log_prob(scores, y).mean()

    def right(self, scores: Tensor, y: Tensor) -> Tensor | None:
        """Which rows are predicted rightly, N; None where predictions are not right or wrong."""
        return None

    def divergence(self, new: Tensor, old: Tensor) -> Tensor:
        """How differently a new version of a task answers from the old one, whose scores are `old`."""
        return (new - old.detach()).square().mean()

    def validation_loss(self, scores: Tensor, y: Tensor, weights: Tensor | None = None) -> float:
        """By which early stopping compares epochs; with weights, a weighted mean."""
        losses = -self.log_prob(scores.detach(), y).double().cpu()
        if weights is None or not float(weights.sum()) > 0:
            return float(losses.mean())
        return float((losses * weights.double()).sum() / weights.double().sum())

    def temperature(self, scores: Tensor, y: Tensor) -> float:
        """What scores are divided by, so that predictions are as certain as these validation rows allow."""
        return 1.0

    # How good a task is, in percent; None where there is no such number

    def majority(self, rows: Rows) -> float:
        """The accuracy of always predicting the largest class; 100 where there is nothing to compare with."""
        return 100.0

    def compared(self, train: Rows, rows: Rows, scores: Tensor) -> HeldOut | None:
        """The accuracy on validation rows, whose scores these are, beside simpler models of the rows to train on."""
        return None

    def compared_on_own_rows(
        self, rows: Rows, scores: Callable[[Tensor], Tensor], generator: Generator
    ) -> HeldOut | None:
        """The same by rows that the task was trained on, where there is no validation split."""
        return None

    # Prediction

    @abstractmethod
    def predict(self, rows: RowScores) -> Prediction:
        """The answer for every row, given its task."""


@register
class Categorical(Likelihood):
    """Class labels: p(y | x, t) = softmax of the scores."""

    kind: ClassVar[str] = "categorical"
    has_classes: ClassVar[bool] = True

    def checked(self, y: Any, examples: int) -> Tensor:
        return check_labels(y, examples)

    def classes(self, y: Tensor) -> tuple[int, ...]:
        return tuple(torch.unique(y).tolist())

    def local(self, y: Tensor, classes: Sequence[int], what: str = "y") -> Tensor:
        known = torch.tensor(classes, device=y.device)
        place = torch.searchsorted(known, y).clamp(max=len(classes) - 1)
        wrong = known[place] != y
        if bool(wrong.any()):
            raise InputError(
                f"{what} has the label {int(y[wrong][0])}, which was not there when the task began; every pass must "
                "have the same classes."
            )
        return place

    def outputs(self, classes: Sequence[int], y: Tensor) -> int:
        return len(classes)

    def is_constant(self, outputs: int) -> bool:
        return outputs == 1

    def check_task(self, classes: Sequence[int], outputs: int) -> str | None:
        return None if outputs == len(classes) > 0 else f"it has {outputs} outputs for {len(classes)} classes"

    def log_prob(self, scores: Tensor, y: Tensor) -> Tensor:
        return -F.cross_entropy(scores, y, reduction="none")

    def loss(self, scores: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(scores, y)

    def right(self, scores: Tensor, y: Tensor) -> Tensor:
        return scores.detach().argmax(1) == y

    def divergence(self, new: Tensor, old: Tensor) -> Tensor:
        """KL(old ‖ new) (Li and Hoiem, "Learning without forgetting", 2016)."""
        return F.kl_div(new.log_softmax(1), old.detach().softmax(1), reduction="batchmean")

    def validation_loss(self, scores: Tensor, y: Tensor, weights: Tensor | None = None) -> float:
        """The mean negative log-likelihood at the best temperature, in nats."""
        scaled = scores.detach().double().cpu().unsqueeze(0) / TEMPERATURES.view(-1, 1, 1)
        likelihood = scaled.log_softmax(2)[:, torch.arange(len(y)), y.cpu()]
        if weights is None or not float(weights.sum()) > 0:
            return float(-likelihood.mean(1).max())
        return float(-(likelihood * weights.double()).sum(1).max() / weights.double().sum())

    def temperature(self, scores: Tensor, y: Tensor) -> float:
        return given(scores, y, None).temperature

    def majority(self, rows: Rows) -> float:
        counts = rows.class_weights()
        return 100 * float(counts.max().float() / counts.sum())

    def compared(self, train: Rows, rows: Rows, scores: Tensor) -> HeldOut | None:
        return compared(train, rows, scores)

    def compared_on_own_rows(
        self, rows: Rows, scores: Callable[[Tensor], Tensor], generator: Generator
    ) -> HeldOut | None:
        return compared_on_own_rows(rows, scores, generator)

    def predict(self, rows: RowScores) -> Prediction:
        own, total = probabilities(rows.scores, rows.widths, rows.of)
        return OwnTaskPrediction(own, rows.known, rows.owners, total, None, rows.task_probabilities)


def probabilities(scores: Tensor, widths: Sequence[int], of: RowTasks) -> tuple[Tensor, Tensor]:
    """p(y | x, t) of rows of several tasks, N×C, and its entropy. Sums run over a task's own classes alone: further
    columns, though 0, would change the order of the sum and so its last bit."""
    if min(widths, default=0) == max(widths, default=0):
        own = scores[:, : max(widths, default=0)].softmax(1)
        return own, entropy(own)
    own, total = torch.zeros_like(scores), scores.new_zeros(len(scores))
    for width, rows in rows_by_value(torch.tensor(widths)[of.place]):
        p = scores[rows, :width].softmax(1)
        own[rows, :width], total[rows] = p, entropy(p)
    return own, total
