"""Elastic weight consolidation: importance is the Fisher information (Kirkpatrick et al., PNAS 2017), and its
online form with one running Fisher information (Schwarz et al., ICML 2018)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ibpwf.lab.methods.dense import DenseSettings
from ibpwf.lab.methods.penalties import ImportancePenalty, PenaltySettings
from ibpwf.settings import require
from ibpwf.training.method import TaskData

NEGLIGIBLE = 1e-5  # the part of the information that is not worth computing: most labels make up less than this


class EWCSettings(PenaltySettings):
    """`fisher_samples`: on how many training examples, at most, the Fisher information is computed."""

    coefficient: float = 100.0
    fisher_samples: int = 1024

    def check(self) -> None:
        super().check()
        require(self.fisher_samples >= 1, "fisher_samples", self.fisher_samples, "give at least 1 example")


class EWC(ImportancePenalty):
    """λ Σ_t F_t (θ − θ*_t)², a term for every old task, with the diagonal of its Fisher information

        F_t = E_x E_{y ~ p(y|x)} (∂ log p(y|x) / ∂θ)²,

    labels from the model's own distribution. The terms are kept as the one they add up to, but for a constant:
    importance Σ_t F_t around the mean of the anchors θ*_t weighted by F_t.
    """

    name: ClassVar[str] = "ewc"
    summary: ClassVar[str] = "holds parameters by their Fisher information, a term per old task"
    settings_type: ClassVar[type[DenseSettings]] = EWCSettings
    settings: EWCSettings

    def importance_of(self, data: TaskData) -> Tensor:
        return self.fisher(self.some_examples(data, self.settings.fisher_samples))

    def fisher(self, x: Tensor) -> Tensor:
        """F of the task at hand. A label's share in it goes with p (1 − p)²; a trained network is so sure that the
        labels with the smallest shares, which make up `NEGLIGIBLE` of them together, are most labels."""
        with torch.no_grad():
            p = self.net(x)[:, self.columns(self.task.index)].double().softmax(1)
        shares, order = (p * (1 - p).square()).flatten().sort(stable=True)
        pairs = order[shares.cumsum(0) > NEGLIGIBLE * shares.sum()]
        rows, labels = pairs // p.shape[1], pairs % p.shape[1]
        return self.gradient_sum(weighted_log_probability, torch.square, x[rows], labels) / len(x)

    def join(self, importance: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        if self.importance is None or self.anchor is None:
            return importance, position
        total = self.importance + importance
        share = torch.where(total > 0, importance / total, 1.0)
        return total, torch.lerp(self.anchor, position, share)


def weighted_log_probability(outputs: Tensor, label: Tensor) -> Tensor:
    """√p log p with √p held fixed: the square of its gradient is p (∂ log p)²."""
    log_p = outputs.log_softmax(0).gather(0, label.unsqueeze(0)).squeeze(0)
    return (log_p.detach() / 2).exp() * log_p


class OnlineEWCSettings(EWCSettings):
    """`gamma`: how much of the old Fisher information stays when a task's is added."""

    coefficient: float = 400.0
    gamma: float = 1.0

    def check(self) -> None:
        super().check()
        require(0 <= self.gamma <= 1, "gamma", self.gamma, "give a number from 0 to 1")


class OnlineEWC(EWC):
    """λ F (θ − θ*)² with F ← γ F + F_t, and θ* where the last task ended."""

    name: ClassVar[str] = "online-ewc"
    summary: ClassVar[str] = "holds parameters by a running Fisher information"
    settings_type: ClassVar[type[DenseSettings]] = OnlineEWCSettings
    settings: OnlineEWCSettings

    @property
    def decay(self) -> float:
        return self.settings.gamma

    def join(self, importance: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        return ImportancePenalty.join(self, importance, position)
