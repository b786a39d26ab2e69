"""Task inference with one covariance for all classes: linear discriminant analysis on φ.

    t̂ = argmax_t  log Σ_{c∈t} N_c exp(−½ (φ−μ_c)ᵀ Σ⁻¹ (φ−μ_c)),   Σ = (Σ_c N_c Σ_c + ρD·I) / Σ_c N_c

A class gives its mean alone, all classes together the covariance, so that it is well known long before a class has
as many examples as φ has dimensions. The ridge counts as a prior: it is worth D rows of variance ρ, and fades.
A task keeps one covariance about its class means however many classes it has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import Tensor, nn

from ibpwf.distributed import ALONE, Group
from ibpwf.inference.base import Batch
from ibpwf.inference.gaussian import GaussianScores, GroupedInference, MomentAccumulator, Moments
from ibpwf.parts import register


def class_moments(batches: Iterable[tuple[Tensor, Tensor]], classes: int, group: Group = ALONE) -> list[Moments]:
    """Each class's count and mean from batches of φ and y, and with each the covariance about the class means of
    all: one tensor, the same for every class."""
    everything = MomentAccumulator()
    sums: Tensor | None = None
    counts = torch.zeros(classes, dtype=torch.float64)
    for phi, y in batches:
        phi = phi.double()
        everything.add(phi)
        one_hot = torch.nn.functional.one_hot(y, classes).double()
        added = one_hot.T @ phi
        sums = added if sums is None else sums + added
        counts = counts.to(phi.device) + one_hot.sum(0)
    everything.add_up(group)
    whole = everything.finish()
    sums = whole.mean.new_zeros(classes, len(whole.mean)) if sums is None else sums
    counts = counts.to(sums.device)
    group.add_up([sums, counts])
    means = sums / counts.clamp(min=1).unsqueeze(1)  # a class may have no rows among more of a known task
    apart = means - whole.mean
    within = whole.covariance - (apart * (counts / whole.count).unsqueeze(1)).T @ apart
    within = (within + within.T) / 2
    return [Moments(int(count), mean, within) for count, mean in zip(counts.tolist(), means, strict=True)]


def pooled(first: list[Moments], second: list[Moments]) -> list[Moments]:
    """The moments of the rows of both together, class by class, each having one covariance for all its classes."""
    counts, more = (
        torch.tensor([float(one.count) for one in part], dtype=torch.float32).to(first[0].mean)
        for part in (first, second)
    )
    means = torch.stack([one.mean for one in first])
    apart = torch.stack([one.mean for one in second]) - means
    share = (more / (counts + more)).unsqueeze(1)
    rows = float((counts + more).sum())
    scatter = first[0].covariance * float(counts.sum()) + second[0].covariance * float(more.sum())
    within = (scatter + (apart * share * counts.unsqueeze(1)).T @ apart) / rows
    within = (within + within.T) / 2
    totals = (counts + more).tolist()
    return [Moments(int(count), mean, within) for count, mean in zip(totals, means + apart * share, strict=True)]


@register
class SharedGaussian(GroupedInference):
    """P(t | φ(x)) from class means and the covariance that all classes share."""

    kind: ClassVar[str] = "shared-gaussian"

    @property
    def needs_classes(self) -> bool:
        return True

    def groups_for(self, classes: int) -> int:
        return classes

    def moments_of(self, batches: Iterable[Batch], classes: int) -> list[Moments]:
        return class_moments(batches, classes, self._processes)

    def updated(self, groups: list[Moments], batches: Iterable[Batch], classes: int) -> list[Moments]:
        return pooled(groups, class_moments(batches, classes, self._processes))

    def ridge_for(self, rows: int) -> float:
        """A prior worth as many rows as φ has dimensions."""
        return super().ridge_for(rows) * len(self.groups[0].mean) / rows

    def prepared(self) -> tuple[Tensor, Tensor, Tensor]:
        """Class means, Σ⁻¹μ as columns, and log N − ½ μᵀΣ⁻¹μ."""
        found = self._whitening
        if found is None:
            rows = sum(group.count for group in self.groups)
            means = torch.stack([group.mean for group in self.groups])
            covariance = sum((g.covariance * (g.count / rows) for g in self.groups), torch.zeros_like(means[0]))
            eye = torch.eye(len(covariance), dtype=means.dtype, device=means.device)
            covariance = covariance + self.ridge_for(rows) * eye
            directions = torch.linalg.solve(covariance, means.T)
            prior = torch.tensor([math.log(g.count) for g in self.groups], dtype=means.dtype, device=means.device)
            found = self._whitening = means, directions, prior - 0.5 * (means.T * directions).sum(0)
        return found

    def export_module(self) -> nn.Module:
        return _SharedScores(self)

    def group_scores(self, phi: Tensor) -> Tensor:
        """log N_c + log N(φ | μ_c, Σ) up to what all classes have in common, for every row and class."""
        _, directions, constant = self.prepared()
        return phi.double() @ directions + constant


class _SharedScores(GaussianScores):
    def of_groups(self, phi: Tensor) -> Tensor:
        return phi @ self.get_buffer("matrix") + self.get_buffer("constant")
