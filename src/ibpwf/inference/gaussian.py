"""Whose task is this input? One Gaussian over φ per group (paper, eq. task_inf).

    t̂ = argmin_t  ½ log|Σ_t| − log N_t + ½ (φ−μ_t)ᵀ Σ_t⁻¹ (φ−μ_t)

A group is a task (the paper) or a class of a task. Only first and second moments are kept, in float64. φ is
usually rank-deficient, so every Σ gets the same absolute ridge: directions φ never takes then add the same
constant to every group and cancel, where a ridge relative to each group's own variance would not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ibpwf.accel.folding import Fold, LinearFeatures
from ibpwf.accel.screening import Screen, rows_by_value
from ibpwf.errors import InputError

SCREEN_FROM = 4
"""With fewer groups than this, looking at a few coordinates first costs more than it saves."""


@dataclass(frozen=True)
class Moments:
    """Count, mean and covariance (about the mean) of φ over one group's training data."""

    count: int
    mean: Tensor
    covariance: Tensor

    def to(self, device: torch.device) -> Moments:
        return Moments(self.count, self.mean.to(device), self.covariance.to(device))


class MomentAccumulator:
    """Collects moments batch by batch, about a fixed shift so that nothing cancels."""

    def __init__(self) -> None:
        self.count = 0
        self.shift: Tensor | None = None
        self.first: Tensor | None = None
        self.second: Tensor | None = None

    def add(self, phi: Tensor) -> None:
        if not len(phi):
            return
        phi = phi.double()
        if self.shift is None or self.first is None or self.second is None:
            self.shift = phi.mean(0)
            self.first = torch.zeros_like(self.shift)
            self.second = phi.new_zeros(phi.shape[1], phi.shape[1])
        centred = phi - self.shift
        self.count += len(phi)
        self.first = self.first + centred.sum(0)
        self.second = self.second + centred.T @ centred

    def finish(self) -> Moments:
        if self.shift is None or self.first is None or self.second is None:
            raise InputError("no examples to take feature statistics from.")
        offset = self.first / self.count
        covariance = self.second / self.count - torch.outer(offset, offset)
        return Moments(self.count, self.shift + offset, (covariance + covariance.T) / 2)


def whitening(covariance: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """W with WWᵀ = (Σ + ρI)⁻¹, and ½ log|Σ + ρI|.

    By Cholesky; by eigenvalues where Σ is so large that its rounding errors outweigh ρ and leave it indefinite.
    """
    eye = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    factor, failed = torch.linalg.cholesky_ex(covariance + ridge * eye)
    if not failed:
        return torch.linalg.solve_triangular(factor, eye, upper=False).T, factor.diagonal().log().sum()
    values, vectors = torch.linalg.eigh(covariance)
    scale = (values.clamp(min=0) + ridge).sqrt()
    return vectors / scale, scale.log().sum()


class GaussianTaskInference:
    """P(t | φ(x)) from stored moments.

    `ridge` is relative to the first task's mean variance and becomes one absolute number for all groups.
    `shrinkage` γ moves every covariance towards their mean, (1 − γ) Σ_g + γ Σ̄ (Friedman's regularised discriminant
    analysis); what is kept of a group stays its own. Groups may be added at any time; `owner` says which task each
    belongs to.
    """

    def __init__(self, ridge: float = 1e-4, shrinkage: float = 0.0) -> None:
        if not ridge > 0:
            raise InputError(f"ridge is {ridge}; it must be above 0.")
        self.ridge, self.shrinkage = ridge, shrinkage
        self.absolute_ridge: float | None = None
        self.groups: list[Moments] = []
        self.owner: list[int] = []
        self._whitening: tuple[Tensor, Tensor, Tensor] | None = None
        self._each: dict[int, tuple[Moments, Tensor, Tensor]] = {}  # a group's whitening, by its id
        self._screen: Screen | None = None
        self._screened = False  # whether a screen was made, or found to be of no use
        self._fold: tuple[LinearFeatures, Fold | None] | None = None

    def _changed(self) -> None:
        """Other groups than before: what was prepared from all of them together is no more."""
        self._whitening, self._screen, self._screened, self._fold = None, None, False, None
        there = set() if self.shrinkage else {id(group) for group in self.groups}
        self._each = {key: value for key, value in self._each.items() if key in there}

    def add(self, task: int, moments: Moments) -> None:
        if self.absolute_ridge is None:
            raise ValueError("set_scale first")
        self.groups.append(moments)
        self.owner.append(task)
        self._changed()

    def keep(self, count: int) -> None:
        """Drop all groups after the first `count`."""
        del self.groups[count:], self.owner[count:]
        self._changed()
        if not count:
            self.absolute_ridge = None

    def forget(self, task: int) -> None:
        """Drop the groups of one task; later tasks move up by one number. The ridge stays: it is every group's."""
        kept = [(g, o - (o > task)) for g, o in zip(self.groups, self.owner, strict=True) if o != task]
        self.groups, self.owner = [group for group, _ in kept], [owner for _, owner in kept]
        self._changed()
        if not kept:
            self.absolute_ridge = None

    def set_scale(self, groups: list[Moments]) -> None:
        """Fix the absolute ridge from the first task's data, whatever its grouping."""
        total = sum(group.count for group in groups)
        mean = sum((g.mean * (g.count / total) for g in groups), torch.zeros_like(groups[0].mean))
        within = sum(float(g.covariance.trace()) * g.count / total for g in groups)
        between = sum(float(((g.mean - mean) ** 2).sum()) * g.count / total for g in groups)
        variance = (within + between) / len(mean)
        self.absolute_ridge = self.ridge * (variance if variance > 0 else 1.0)

    def regularise(self, ridge: float, shrinkage: float) -> None:
        """Another ridge and shrinkage for the same moments."""
        assert self.absolute_ridge is not None
        self.absolute_ridge *= ridge / self.ridge
        self.ridge, self.shrinkage = ridge, shrinkage
        self._each = {}
        self._changed()

    def ridge_for(self, rows: int) -> float:
        """What is added to the diagonal of a covariance made of `rows` rows: always the same."""
        assert self.absolute_ridge is not None
        return self.absolute_ridge

    def prepared(self) -> tuple[Tensor, Tensor, Tensor]:
        """Per group: mean, whitening and log N − ½ log|Σ + ρI|. Made once, used for all inputs."""
        if self._whitening is None:
            means, whiten, constant = [], [], []
            common = self._common()
            for group in self.groups:
                _, matrix, half_log_determinant = self._whitened(group, common)
                whiten.append(matrix)
                constant.append(math.log(group.count) - half_log_determinant)
                means.append(group.mean)
            stacked = torch.stack(whiten)
            for group, matrix in zip(self.groups, stacked, strict=True):  # a view: held once
                self._each[id(group)] = (group, matrix, self._each[id(group)][2])
            self._whitening = torch.stack(means), stacked, torch.stack(constant)
        return self._whitening

    def _common(self) -> Tensor | None:
        """γ Σ̄, the mean covariance by its share; None where none is asked for."""
        if not self.shrinkage:
            return None
        rows = sum(group.count for group in self.groups)
        weighted = (group.covariance * (self.shrinkage * group.count / rows) for group in self.groups)
        return sum(weighted, torch.zeros_like(self.groups[0].covariance))

    def _whitened(self, group: Moments, common: Tensor | None) -> tuple[Moments, Tensor, Tensor]:
        """A group's whitening and ½ log|Σ + ρI|; a new task does not have those of all others made again, unless
        they share a part."""
        found = self._each.get(id(group))
        if found is None or found[0] is not group:
            covariance = group.covariance if common is None else (1 - self.shrinkage) * group.covariance + common
            found = self._each[id(group)] = (group, *whitening(covariance, self.ridge_for(group.count)))
        return found

    def group_scores(self, phi: Tensor) -> Tensor:
        """log N_g + log N(φ | μ_g, Σ_g + ρI) up to one constant, for every row and group: N×G."""
        means, whiten, constant = self.prepared()
        phi = phi.double()
        # (φ − μ)W = φW − μW: one batched product for all groups.
        z = phi.unsqueeze(0) @ whiten - means.unsqueeze(1) @ whiten
        return constant - 0.5 * z.square().sum(-1).T

    def screen(self) -> Screen | None:
        """What tells which groups are out of the question; None where it would not pay, or not be certain."""
        if len(self.groups) < SCREEN_FROM or torch.get_float32_matmul_precision() != "highest":
            return None
        if not self._screened:
            means, whiten, constant = self.prepared()
            pooled = sum((group.covariance for group in self.groups), torch.zeros_like(whiten[0])) / len(self.groups)
            self._screen = Screen.of(means, whiten, constant, pooled, self.ridge_for(0))
            self._screened = True
        return self._screen

    def likely_scores(self, phi: Tensor) -> Tensor:
        """`group_scores`, with -inf for groups whose probability is certainly below 1e-19 (see `screening`)."""
        screen = self.screen()
        if screen is None:
            return self.group_scores(phi)
        phi = phi.double()
        return self._scores_of(screen.survivors(screen.place(phi)), lambda rows: phi[rows])

    def likely_scores_through(self, layer: LinearFeatures, x: Tensor) -> Tensor:
        """`likely_scores(layer(x))`, with φ itself only where it is needed (see `folding`)."""
        screen = self.screen()
        if screen is None:
            return self.group_scores(layer(x))
        if self._fold is None or not layer.same(self._fold[0]):
            self._fold = layer, Fold.of(layer, screen)
        fold = self._fold[1]
        if fold is None:
            return self.likely_scores(layer(x))
        return self._scores_of(screen.survivors(fold.place(x)), lambda rows: layer(x[rows]).double())

    def _scores_of(self, left: Tensor, phi_of: Callable[[Tensor], Tensor]) -> Tensor:
        """Scores of the groups that are `left` of every row; `phi_of` gives φ of the rows it is asked for."""
        scores = torch.full(left.shape, -torch.inf, dtype=torch.float64, device=left.device).masked_fill_(left, 0.0)
        rows = (left.sum(1) > 1).nonzero().flatten()  # a group left alone has probability 1, whatever its score
        if len(rows):
            claimed, phi = left[rows], phi_of(rows)
            if 2 * int(claimed.sum()) > claimed.numel():
                scores[rows] = self.group_scores(phi)
                return scores
            means, whiten, constant = self.prepared()
            place, group = claimed.nonzero(as_tuple=True)
            for one, at in rows_by_value(group):
                z = phi[place[at]] @ whiten[one] - means[one] @ whiten[one]
                scores[rows[place[at]], one] = constant[one] - 0.5 * z.square().sum(-1)
        return scores

    def task_log_probabilities(self, phi: Tensor, tasks: int, chunk: int = 2048) -> Tensor:
        """log P(t | φ(x)), N×T; a task's probability is the sum over its groups (eq. phi_task_inference)."""
        parts = [self._by_task(self.group_scores(part), tasks).log_softmax(1) for part in torch.split(phi, chunk)]
        return torch.cat(parts) if parts else phi.new_zeros(0, tasks).double()

    def task_probabilities(self, phi: Tensor, tasks: int, chunk: int = 2048) -> Tensor:
        """P(t | φ(x)), N×T: what `task_log_probabilities` are the logarithms of, with 0 for less than 1e-19. Tasks
        that are out of the question cost next to nothing, so that a hundred are told apart in the time of a few."""
        return self._probabilities(self.likely_scores, phi, tasks, chunk)

    def task_probabilities_through(self, layer: LinearFeatures, x: Tensor, tasks: int, chunk: int = 2048) -> Tensor:
        """`task_probabilities(layer(x))` for a φ that is one linear layer of x, sooner."""
        return self._probabilities(partial(self.likely_scores_through, layer), x, tasks, chunk)

    def _probabilities(self, scores: Callable[[Tensor], Tensor], given: Tensor, tasks: int, chunk: int) -> Tensor:
        parts = [self._by_task(scores(part), tasks).softmax(1) for part in torch.split(given, chunk)]
        return torch.cat(parts) if parts else given.new_zeros(0, tasks).double()

    def _by_task(self, scores: Tensor, tasks: int) -> Tensor:
        """Scores of tasks, N×T, from those of all their groups."""
        if self.owner != list(range(tasks)):
            places: list[list[int]] = [[] for _ in range(tasks)]
            for group, task in enumerate(self.owner):
                if task < tasks:
                    places[task].append(group)
            most = max(len(groups) for groups in places)
            none = len(self.owner)  # a column of -inf: no group
            table = torch.tensor([groups + [none] * (most - len(groups)) for groups in places], device=scores.device)
            scores = torch.nn.functional.pad(scores, (0, 1), value=-torch.inf)[:, table].logsumexp(2)
        return scores

    def to(self, device: torch.device) -> None:
        self.groups = [group.to(device) for group in self.groups]
        self._changed()
