"""Accuracy of every task after every task, and what follows from it.

Rows of a matrix are moments (after task i), columns are tasks j; entries above the diagonal are None, because
task j > i has not been learnt. Accuracies are percentages.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Matrix = list[list[float | None]]


def learned(row: Sequence[float | None]) -> list[float]:
    return [value for value in row if value is not None]


def average_accuracy(matrix: Matrix) -> float:
    """Mean accuracy over all tasks after the last one (the paper's tables)."""
    return statistics.fmean(learned(matrix[-1]))


def forgetting(matrix: Matrix) -> float:
    """Mean over tasks but the last of the best accuracy a task ever had minus its last (Chaudhry et al., 2018)."""
    tasks = len(matrix)
    if tasks < 2:
        return 0.0
    drops = []
    for j in range(tasks - 1):
        column = learned([row[j] for row in matrix])
        drops.append(max(column) - column[-1])
    return statistics.fmean(drops)


def backward_transfer(matrix: Matrix) -> float:
    """Mean over tasks but the last of the last accuracy minus the one right after learning (Lopez-Paz, 2017)."""
    tasks = len(matrix)
    if tasks < 2:
        return 0.0
    gains = []
    for j in range(tasks - 1):
        column = learned([row[j] for row in matrix])
        gains.append(column[-1] - column[0])
    return statistics.fmean(gains)


def forward_transfer(before: Sequence[float | None], chance: Sequence[float]) -> float | None:
    """Mean over tasks but the first of the accuracy just before learning minus chance (Lopez-Paz, 2017)."""
    gains = [value - base for value, base in zip(before, chance, strict=True) if value is not None]
    return statistics.fmean(gains) if gains else None


def calibration_error(probability: Tensor, right: Tensor, bins: int = 15) -> float:
    """Expected calibration error in percent: how far the share of right answers is from their mean probability, in
    bins of equal width, weighted by the answers in each (Guo et al., 2017)."""
    place = (probability * bins).ceil().clamp(1, bins).long() - 1
    counts = torch.zeros(bins, dtype=torch.float64, device=place.device)
    gaps = counts.scatter_add(0, place, probability.double() - right.double())
    return 100.0 * float(gaps.abs().sum()) / max(len(place), 1)


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean, standard deviation (n−1; None for one seed) and the values themselves."""
    return {
        "mean": statistics.fmean(values),
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "per_seed": list(values),
    }
