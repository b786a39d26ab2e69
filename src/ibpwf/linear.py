"""How well a task's held-out rows are answered, beside two simple ways: always the largest class, and a logistic
regression on the same rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ibpwf.data.rows import IndexedRows, Rows

MOST_ROWS, MOST_INPUTS = 20_000, 4_096
"""Of a logistic regression that is only there to compare with; images with more numbers have none."""
MOST_OWN_ROWS = 2_500
"""Of a task that has no held-out rows: its regression is there to warn, and must not take long."""

FEWEST_ROWS = 30
"""Fewer rows say nothing of how well a model does."""

FOLDS = 5
"""A fifth of a task's own rows is for judging a regression on the others."""

CLEARLY = 2.0
"""Points of accuracy by which a linear model must at least be better to be worth a warning."""

ITERATIONS, PENALTY = 100, 1e-3
HISTORY = 10
"""Steps that L-BFGS remembers, each as large as the weights; with all 100 it would need gigabytes."""


@dataclass(frozen=True)
class HeldOut:
    """Per cent of so many held-out rows that are answered rightly: by the task, by always giving its largest class,
    and by a logistic regression (None where there is none to compare with)."""

    rows: int
    accuracy: float
    majority: float
    linear: float | None

    @property
    def others(self) -> int:
        """How many of the rows are not of the largest class."""
        return round(self.rows * (100 - self.majority) / 100)

    @property
    def is_poor(self) -> bool:
        """Whether a linear model answers them clearly better."""
        return self.linear is not None and clearly_below(self.accuracy, self.linear, self.rows)


def clearly_below(accuracy: float, other: float, rows: int) -> bool:
    """Whether, of so many rows, more are wrong than chance would have it: three standard errors, and 2 points."""
    shares = (other / 100, accuracy / 100)
    error = 100 * math.sqrt(sum(max(share * (1 - share), 0.01) for share in shares) / rows)
    return other - accuracy > max(CLEARLY, 3 * error)


def compared(train: Rows, held: Rows, logits: Tensor) -> HeldOut:
    """`logits` are the task's own for the held-out rows."""
    x, y = held.tensors()
    largest = torch.bincount(train.labels).argmax().to(y)
    return HeldOut(
        len(y), _share(logits.argmax(1) == y), _share(y == largest), linear_accuracy(train, x, y, logits.shape[1])
    )


def compared_on_own_rows(rows: Rows, logits: Callable[[Tensor], Tensor], draw: torch.Generator) -> HeldOut | None:
    """The same by some of the rows that a task has learned from; None where there are too few. The regression is
    judged by rows that it has not learned from: a fifth of them, or of few rows all, by cross-validation."""
    parts = list[tuple[Tensor, Tensor]]()
    for part in rows.sample(MOST_OWN_ROWS, draw):
        if not _comparable(part[0]):
            return None
        parts.append(part)
    x, y = (torch.cat(column) for column in zip(*parts, strict=True))
    apart = IndexedRows(x, y).split(1 / FOLDS, len(y), draw)
    if apart is not None and len(apart[1]) >= FEWEST_ROWS:
        train, asked = apart
    elif len(y) >= FEWEST_ROWS:
        train = asked = IndexedRows(x, y)
    else:
        return None
    own, known = logits(asked.tensors()[0]), asked.tensors()[1]
    if _share(own.argmax(1) == known) > 100 - CLEARLY:  # no regression could be clearly better
        return None
    return compared(train, asked, own) if train is not asked else _cross_validated(x, y, own, draw)


def _cross_validated(x: Tensor, y: Tensor, own: Tensor, draw: torch.Generator) -> HeldOut:
    """All rows beside the logistic regressions that have not learned from them."""
    right = 0.0
    for fold in torch.randperm(len(y), generator=draw).to(y.device).tensor_split(FOLDS):
        others = torch.ones(len(y), dtype=torch.bool, device=y.device)
        others[fold] = False
        linear = linear_accuracy(IndexedRows(x[others], y[others]), x[fold], y[fold], own.shape[1])
        if linear is None:
            return HeldOut(len(y), _share(own.argmax(1) == y), _majority(y), None)
        right += linear * len(fold)
    return HeldOut(len(y), _share(own.argmax(1) == y), _majority(y), right / len(y))


def _majority(y: Tensor) -> float:
    return _share(y == torch.bincount(y).argmax())


def _comparable(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x[0].numel() <= MOST_INPUTS


def _share(right: Tensor) -> float:
    return 100 * float(right.double().mean())


@torch.enable_grad()
def linear_accuracy(train: Rows, x: Tensor, y: Tensor, classes: int) -> float | None:
    """Of a logistic regression with a small penalty, on inputs of unit spread."""
    if not _comparable(x) or classes < 2:
        return None
    parts, labels, rows = [], [], 0
    for some, known in train.sample(MOST_ROWS, torch.Generator().manual_seed(0)):
        parts.append(some.flatten(1))
        labels.append(known)
        rows += len(known)
        if rows >= MOST_ROWS:
            break
    inputs, known = torch.cat(parts)[:MOST_ROWS], torch.cat(labels)[:MOST_ROWS]
    mean, spread = inputs.mean(0), inputs.std(0, correction=0).clamp(min=1e-6)
    inputs, asked = (inputs - mean) / spread, (x.flatten(1) - mean) / spread
    weight = torch.zeros(inputs.shape[1] + 1, classes, device=x.device, requires_grad=True, dtype=torch.float32)
    optimizer = torch.optim.LBFGS([weight], max_iter=ITERATIONS, history_size=HISTORY, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        total = F.cross_entropy(inputs @ weight[1:] + weight[0], known) + PENALTY * weight[1:].square().mean(1).sum()
        total.backward()  # type: ignore[no-untyped-call]
        return total

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        return _share((asked.clamp(-10, 10) @ weight[1:] + weight[0]).argmax(1) == y)
