"""Classifiers solved for instead of trained: fixed random features, running sums, a linear head.

    φ(x) = ReLU(W x + b), W and b random and never changed
    A = Σ φφᵀ,   s_c = Σ_{y=c} φ,   n_c                  (float64; a new task only adds to them)

What is kept does not depend on the order of the tasks, so neither does the answer. There are no gradient steps:
`epochs`, `learning_rate` and `optimizer` have no effect, `hidden` are the random layers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from ibpwf.lab.methods.dense import DenseMethod, DenseSettings, Widths, total_bytes
from ibpwf.models import mlp
from ibpwf.parts import Positive
from ibpwf.training.method import TaskData
from ibpwf.training.phase import Phase


@dataclass(frozen=True)
class Sums:
    """Second moment D×D, class sums D×C and class counts C of the features of all data so far."""

    second: Tensor
    sums: Tensor
    count: Tensor

    @property
    def total(self) -> Tensor:
        return self.count.sum()

    @property
    def means(self) -> Tensor:
        """The class means, D×C."""
        return self.sums / self.count

    @property
    def within(self) -> Tensor:
        """The covariance about the class means, D×D."""
        return (self.second - (self.means * self.count) @ self.means.T) / self.total


class ClosedForm(DenseMethod):
    """Adds a task to the sums and solves for the head once; children say how."""

    networks: ClassVar[tuple[str, ...]] = ("mlp",)
    stores: ClassVar[str] = "feature moments and class sums"
    sums: Sums | None = None

    def build(self) -> nn.Module:
        return mlp(self.problem.inputs, self.settings.hidden, self.problem.outputs).requires_grad_(False)

    def begin_task(self, data: TaskData) -> Sequence[Phase]:
        super().begin_task(data)
        return []

    def features(self, x: Tensor) -> Tensor:
        assert isinstance(self.net, nn.Sequential)
        phi: Tensor = self.net[:-1](x)
        return phi.double()

    @abstractmethod
    def solve(self, sums: Sums) -> tuple[Tensor, Tensor]:
        """The head: weights D×C and a bias per class, so that softmax of its output is p(class | x)."""

    def consolidate(self, data: TaskData) -> None:
        sums = self.added(data)
        weight, bias = self.solve(sums)
        head = self.net.get_submodule("head")
        assert isinstance(head, nn.Linear)
        head.weight[: len(bias)] = weight.T.float()
        head.bias[: len(bias)] = bias.float()
        self.sums = sums

    def added(self, data: TaskData) -> Sums:
        """The sums with a task's data, read in pieces."""
        size, new = self.settings.hidden[-1], len(data.classes)
        zeros = torch.zeros(size, size + new, dtype=torch.float64, device=self.device)
        old = self.sums or Sums(zeros[:, :size], zeros[:, :0], zeros[0, :0])
        second, own, count = old.second.clone(), zeros[:, size:].clone(), zeros[0, size:].clone()
        for x, y in data.rows.in_order():
            phi, label = self.features(x), F.one_hot(y, new).double()
            second.addmm_(phi.T, phi)
            own.addmm_(phi.T, label)
            count += label.sum(0)
        return Sums(second, torch.cat([old.sums, own], 1), torch.cat([old.count, count]))

    def kept(self) -> dict[str, Tensor]:
        return {} if self.sums is None else vars(self.sums).copy()

    def load_kept(self, tensors: Mapping[str, Tensor]) -> None:
        self.sums = Sums(**tensors) if tensors else None

    def memory(self) -> dict[str, int]:
        return {"network": super().memory()["network"], "moments": total_bytes(self.kept().values())}


def mean_variance(covariance: Tensor) -> Tensor:
    """The mean of the diagonal; 1 where nothing varies."""
    mean = covariance.diagonal().mean()
    return torch.where(mean > 0, mean, torch.ones_like(mean))


def solve_regularized(matrix: Tensor, added: Tensor, right: Tensor) -> Tensor:
    """(matrix + added·I)⁻¹ right."""
    factor = torch.linalg.cholesky(matrix + added * torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device))
    return torch.cholesky_solve(right, factor)


class SLDASettings(DenseSettings):
    hidden: Widths = Field((1000,), description="widths of the random layers")
    shrinkage: Annotated[float, Field(gt=0, le=1)] = Field(
        1e-3, description="ε, how far the covariance goes towards a multiple of the identity"
    )


class SLDA(ClosedForm):
    """Streaming linear discriminant analysis (Hayes & Kanan, 2020): a mean per class, one covariance Σ for all.

    log p(c|x) = φᵀΛμ_c − ½ μ_cᵀΛμ_c + log n_c + const,   Λ = [(1 − ε)Σ + ε (tr Σ / D) I]⁻¹
    """

    name: ClassVar[str] = "slda"
    summary: ClassVar[str] = "streaming linear discriminant analysis on random features"
    settings_type: ClassVar[type[DenseSettings]] = SLDASettings
    settings: SLDASettings

    def solve(self, sums: Sums) -> tuple[Tensor, Tensor]:
        covariance, epsilon = sums.within, self.settings.shrinkage
        weight = solve_regularized((1 - epsilon) * covariance, epsilon * mean_variance(covariance), sums.means)
        return weight, (sums.count / sums.total).log() - 0.5 * (sums.means * weight).sum(0)


class RidgeSettings(DenseSettings):
    hidden: Widths = Field((5000,), description="widths of the random layers")
    ridge: Positive = Field(1e-3, description="weight decay, relative to the features' mean variance")


class Ridge(ClosedForm):
    """Ridge regression of one-hot labels with an intercept, on all data ever seen, through their moments:

    W = (Ā + λI)⁻¹ B̄,   λ = ridge · tr Ā / D,   Ā and B̄ centered

    Read as N(f(x) | e_c, σ²I) with the residual variance σ², log p(c|x) = f_c(x)/σ² + const.
    """

    name: ClassVar[str] = "ridge"
    summary: ClassVar[str] = "ridge regression on random features from accumulated moments"
    settings_type: ClassVar[type[DenseSettings]] = RidgeSettings
    settings: RidgeSettings

    def regression(self, sums: Sums) -> tuple[Tensor, Tensor, Tensor]:
        """W (D×C), the intercepts and σ²."""
        share, mean = sums.count / sums.total, sums.sums.sum(1) / sums.total
        second = sums.second - torch.outer(mean, mean) * sums.total
        cross = sums.sums - torch.outer(mean, sums.count)
        added = self.settings.ridge * mean_variance(second)
        weight = solve_regularized(second, added, cross)
        left = (sums.count * (1 - share)).sum() - (weight * cross).sum() - added * weight.square().sum()
        return weight, share - mean @ weight, left / (sums.total * len(share))

    def solve(self, sums: Sums) -> tuple[Tensor, Tensor]:
        weight, bias, variance = self.regression(sums)
        variance = variance.clamp(min=1e-4)
        return weight / variance, bias / variance
