"""Does this input look like anything learnt? Mahalanobis distances to the classes, against what is usual.

    q_t(x) = min_c (φ−μ_c)ᵀ (Σ_c + ρI)⁻¹ (φ−μ_c)  over the task's Gaussians,   novelty(x) = min_t q_t(x) / τ_t

τ_t is exceeded by a stated share of the task's own inputs. Distances of training rows would promise too much: a row
has pulled its mean and its covariance towards itself, and in a thousand dimensions that halves its distance. So τ_t
is a quantile of what the distances would be had the row been left out, which has a closed form. A task's statistics
and τ_t never change, so more tasks can only make an input look less new.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import NormalDist

import torch
from torch import Tensor

from ibpwf.inference.gaussian import GroupedInference, Moments, whitening
from ibpwf.limits import check_rate


def leave_one_out(distance: Tensor, count: Tensor, rows: Tensor) -> Tensor:
    """What a training row's squared Mahalanobis distance would be without the row.

    `count` rows made its mean, `rows` its covariance. Leaving the row out takes a/n·ddᵀ from the covariance, with
    a = count/(count−1), and moves the mean by d/(count−1): the Sherman-Morrison formula gives the rest. The ridge
    stays as it is. A row that is its class's only one has no distance to speak of: infinity.
    """
    a = count / (count - 1)
    left = 1 - a * distance / rows
    moved = (rows - 1) / rows * a.square() * distance / left.clamp(min=1e-12)
    return torch.where(count > 1, moved, torch.inf)


def usual_limit(distances: Tensor, rate: float) -> float:
    """The distance that a share `rate` of unseen inputs of the same kind should exceed.

    The conformal quantile, of which at most a share `rate` of unseen inputs is expected above. With too few rows to
    have it (below 99 for 1 %), the quantile of a normal distribution fitted to the logarithms, and no less than the
    largest distance there is.
    """
    known = distances[torch.isfinite(distances) & (distances > 0)].sort().values
    if len(known) < 2:
        return math.inf
    rank = math.ceil((len(known) + 1) * (1 - rate))
    if rank <= len(known):
        return float(known[rank - 1])
    logs = known.log()
    fitted = math.exp(float(logs.mean()) + NormalDist().inv_cdf(1 - rate) * float(logs.std()))
    return max(fitted, float(known[-1]))


ENOUGH = 2
"""Rows that a class needs for each feature to have a covariance of its own."""


class Novelty:
    """How far inputs are from all tasks' Gaussians, in units of each task's usual limit."""

    def __init__(self, inference: GroupedInference, rate: float, limits: Sequence[float] = ()) -> None:
        check_rate(rate)
        self.inference, self.rate = inference, rate
        self.limits = list(limits)
        self._whitened: dict[int, list[tuple[Tensor, Tensor, list[int]]]] = {}

    def fork(self, inference: GroupedInference, rate: float) -> Novelty:
        """The same limits beside an inference that has learned another task, which is then calibrated at `rate`."""
        other = Novelty(inference, rate, self.limits)
        other._whitened = dict(self._whitened)
        return other

    def calibrate(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Set the next task's limit from φ and class numbers (from 0) of its own training rows."""
        self.limits.append(self._limit(len(self.limits), batches))

    def calibrate_update(self, task: int, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Move a task's limit out for more rows of it, where they lie farther out; nobody knows any more how far the
        old ones do."""
        self._whitened = {}  # the ridge may be another
        self.limits[task] = max(self.limits[task], self._limit(task, batches))

    def _limit(self, task: int, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
        groups = self._groups(task)
        rows = torch.tensor([float(self._rows(group, groups)) for group in groups], dtype=torch.float64)
        count = torch.tensor([float(group.count) for group in groups], dtype=torch.float64)
        found = []
        for phi, y in batches:
            distance = self._distances(phi, task).cpu()
            own = (y if len(groups) > 1 else torch.zeros_like(y)).cpu().unsqueeze(1)
            # To its own class alone: a shared covariance has been drawn towards the row in every class's eyes.
            found.append(leave_one_out(distance.gather(1, own), count[own], rows[own]).flatten())
        return usual_limit(torch.cat(found), self.rate)

    def __call__(self, batches: Iterable[Tensor]) -> Tensor:
        """Novelty of every row: above 1 it is farther from every task than all but `rate` of that task's inputs."""
        parts = []
        for phi in batches:
            each = [self._distances(phi, task).amin(1) / limit for task, limit in enumerate(self.limits)]
            parts.append(torch.stack(each).amin(0))
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def _groups(self, task: int) -> list[Moments]:
        """A task's Gaussians. Classes of few rows have one covariance together, about the mean of each: by its own, a
        row that is left out of so few would lie anywhere, and nothing would be new."""
        groups = [g for g, owner in zip(self.inference.groups, self.inference.owner, strict=True) if owner == task]
        own = self.inference.per_class and len(groups) > 1
        if not own or min(group.count for group in groups) >= ENOUGH * len(groups[0].mean):
            return groups
        rows = sum(group.count for group in groups)
        parts = (group.covariance * (group.count / rows) for group in groups)
        common = sum(parts, torch.zeros_like(groups[0].covariance))
        return [replace(group, covariance=common) for group in groups]

    @staticmethod
    def _rows(group: Moments, groups: Sequence[Moments]) -> int:
        """How many rows made a group's covariance: those of all groups that share it."""
        return sum(other.count for other in groups if other.covariance is group.covariance)

    def _distances(self, phi: Tensor, task: int) -> Tensor:
        """Squared Mahalanobis distances to every Gaussian of a task, N×G."""
        phi = phi.double()
        out = phi.new_empty(len(phi), len(self._groups(task)))
        for matrix, means, places in self._prepared(task):
            z = phi @ matrix
            squares = z.square().sum(1, keepdim=True) + means.square().sum(1) - 2 * z @ means.T
            out[:, places] = squares.clamp(min=0)
        return out

    def _prepared(self, task: int) -> list[tuple[Tensor, Tensor, list[int]]]:
        """For each covariance of a task: its whitening, the whitened means that share it, and their places."""
        found = self._whitened.get(task)
        if found is None:
            found = self._whitened[task] = list(self._whiten(self._groups(task)))
        return found

    def _whiten(self, groups: list[Moments]) -> Iterator[tuple[Tensor, Tensor, list[int]]]:
        by_covariance: dict[int, list[int]] = {}
        for place, group in enumerate(groups):
            by_covariance.setdefault(id(group.covariance), []).append(place)
        for places in by_covariance.values():
            first = groups[places[0]]
            matrix, _ = whitening(first.covariance, self.inference.ridge_for(self._rows(first, groups)))
            yield matrix, torch.stack([groups[place].mean for place in places]) @ matrix, places
