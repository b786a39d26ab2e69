"""Ridge regression from sums alone: for which λ, and with what weights.

    (G + λI) W = B,   f(φ) = ȳ + Wᵀ(φ − μ)

λ has the smallest error in generalized cross-validation (Golub, Heath and Wahba, 1979) unless one is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from ibpwf.inference.ridge_sums import ROUNDING, RidgeSums

PROBES = 64
"""Random vectors by which the trace of an inverse is estimated; its error is some thousandths."""

CAUTION = 1.05
"""Times which a degree of freedom is counted: without it generalized cross-validation now and then finds next to no
ridge best, where there are about as many rows as features, or where rows are much alike, as mirror images are. On
held-out training images this was as good as 1 where that was good, and better where it was not."""

DECADES = tuple(10.0**power for power in range(-5, 1))


@dataclass(frozen=True)
class RidgeSolution:
    """f(φ) = φW + `intercept`; `ridge` is λ relative to the mean of G's diagonal."""

    sums: RidgeSums
    weight: Tensor
    intercept: Tensor
    ridge: float

    def scores(self, phi: Tensor) -> Tensor:
        return phi.to(self.weight) @ self.weight + self.intercept

    @cached_property
    def levels(self) -> Tensor:
        """Of every class, its own score for the mean of its rows, in float64; found once, task by task, so that
        neither time nor memory grows with the square of the classes."""
        found, first = [], 0
        for task in self.sums.tasks:
            own = slice(first, first + len(task.means))
            scores = task.means.to(self.weight) @ self.weight[:, own] + self.intercept[own]
            found.append(scores.diagonal().double())
            first = own.stop
        return torch.cat(found)


def solve(sums: RidgeSums, ridge: float | Literal["auto"]) -> RidgeSolution:
    """The regression on all tasks."""
    normal = NormalEquations(sums)
    best = downhill(normal.attempt) if ridge == "auto" else normal.attempt(ridge)
    if best is None:
        best = normal.by_eigenvalues(DECADES[-1] if ridge == "auto" else ridge)
    intercept = normal.share - normal.center @ best.weight
    return RidgeSolution(sums, best.weight, intercept, best.ridge)


def downhill(attempt: Callable[[float], Attempt | None]) -> Attempt | None:
    """The attempt with the least error, in steps of ten from the middle of `DECADES`, and then of √10. Each is a
    Cholesky factor, so those that the error rises towards are not made."""
    best = None
    middle = len(DECADES) // 2
    for side in (DECADES[middle:], DECADES[:middle][::-1]):
        climbed = False
        for number, ridge in enumerate(side):
            tried = attempt(ridge)
            if tried is not None and (best is None or tried.error < best.error):
                best, climbed = tried, number > 0
            elif best is not None:
                break
        if climbed:
            break
    if best is None:
        return None
    between = (attempt(best.ridge * factor) for factor in (10**-0.5, 10**0.5))
    return min((best, *(each for each in between if each is not None)), key=lambda each: each.error)


@dataclass(frozen=True)
class Attempt:
    """The weights D×C for one λ, and the squared error of f, summed over classes, that rows left out would have."""

    ridge: float
    weight: Tensor
    error: float


class NormalEquations:
    """(G + λI) W = B of all tasks, centered. G itself is never held: each attempt makes it in the memory in which
    Cholesky's factor takes its place, one D×D matrix beside the sums."""

    def __init__(self, sums: RidgeSums) -> None:
        self.sums = sums
        self.counts = torch.cat([task.counts for task in sums.tasks])
        means = torch.cat([task.means for task in sums.tasks])
        self.rows = float(self.counts.sum())
        self.share = self.counts / self.rows
        self.center = self.share @ means
        self.apart = means - self.center
        self.right = (self.apart * self.counts.unsqueeze(1)).T
        diagonals = [matrix.diagonal().double() for matrix in sums.scatters()]
        self.diagonal = sum(diagonals, torch.zeros_like(self.center)) + (self.apart * self.right.T).sum(0)

    def attempt(self, ridge: float) -> Attempt | None:
        """By Cholesky; None where λ is lost in the rounding errors of G and leaves it indefinite."""
        matrix = self._matrix(ridge)
        factor = matrix.mT  # what is above the diagonal of one is below that of the other
        failed = torch.empty(0, dtype=torch.int32, device=factor.device)
        torch.linalg.cholesky_ex(factor, out=(factor, failed))
        if bool(failed):
            return None
        probes = torch.randint(2, (len(factor), PROBES), generator=torch.Generator().manual_seed(0))
        probes = probes.to(factor) * 2.0 - 1
        both = torch.linalg.solve_triangular(factor, torch.cat([self.right.to(factor), probes], 1), upper=False)
        both = torch.linalg.solve_triangular(factor.mT, both, upper=True).double()  # and no copy of the factor
        weight, solved = both[:, :-PROBES], both[:, -PROBES:]
        return self._judged(ridge, weight, float((solved * probes).sum()) / PROBES)

    def by_eigenvalues(self, ridge: float) -> Attempt:
        """For any λ: eigenvalues below 0 are rounding errors."""
        matrix = self._matrix(0.0).double()
        values, vectors = torch.linalg.eigh(matrix, UPLO="U")
        values = values.clamp(min=0) + self._absolute(ridge)
        weight = (vectors / values) @ (vectors.T @ self.right)
        return self._judged(ridge, weight, float((1 / values).sum()))

    def _absolute(self, ridge: float) -> float:
        return ridge * (float(self.diagonal.mean()) or 1.0)

    def _matrix(self, ridge: float) -> Tensor:
        """G + λI, on and above the diagonal."""
        first, *others = self.sums.scatters()
        matrix = first.clone()
        for scatter in others:
            matrix += scatter
        matrix.addmm_(self.right.to(matrix), self.apart.to(matrix))
        matrix.diagonal().add_(self._absolute(ridge))
        return matrix

    def _judged(self, ridge: float, weight: Tensor, trace_of_inverse: float) -> Attempt:
        """Generalized cross-validation: the squared error of the rows learned from, over (1 − c·df/N)²."""
        penalty = self._absolute(ridge)
        around_mean = float((self.counts * (1 - self.share)).sum())
        residual = around_mean - float((weight * self.right).sum()) - penalty * float(weight.square().sum())
        freedom = 1 + len(weight) - penalty * trace_of_inverse
        left = max(1 - CAUTION * freedom / self.rows, 1 / self.rows)
        return Attempt(ridge, weight, max(residual, ROUNDING * around_mean) / self.rows / left**2)
