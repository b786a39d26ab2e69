"""Indian buffet neural networks (Kessler et al., 2020): VCL whose hidden units are switched on by an IBP.

A hidden layer is h = b ⊙ relu(W x), with b_k ~ Bernoulli(π_k), π_k = Π_{i≤k} v_i, v_i ~ Beta(α, 1), relaxed as in
IBP-WF: q(v) = Kumaraswamy(c, d), q(b) = BernoulliConcrete(π̄). To VCL's loss comes, for every hidden layer,

    E_q(v)[KL(q(b) ‖ p(b | v))] + KL(q(v) ‖ p(v)),     p(v) the previous task's q(v).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from ibpwf.factors.distributions import concrete_sample, kl_concrete, kl_kumaraswamy, log_kumaraswamy_sample
from ibpwf.factors.sticks import expected_probabilities, logit_from_log, stick_log_pi
from ibpwf.inference.uncertainty import entropy
from ibpwf.lab.methods.bayesian_layers import BayesianMLP, Weights
from ibpwf.lab.methods.dense import DenseSettings, Widths
from ibpwf.lab.methods.vcl import VCL, VCLSettings
from ibpwf.parts import Count, Positive
from ibpwf.training.method import Counts


class IBNNSettings(VCLSettings):
    hidden: Widths = (100,)
    epochs: Count = 5
    alpha: Positive = Field(50.0, description="of the IBP: how many units of a layer the prior expects in use")
    temperature: Positive = Field(0.7, description="of the relaxed selection of units")
    infer_task: Literal["none", "entropy", "batch-entropy"] = Field(
        "none",
        description="in the class setting, 'none' trains one head for all classes; 'entropy' trains a head per task "
        "and answers with the one of lowest entropy; 'batch-entropy' has all rows that are asked together share one "
        "head, as Kessler et al. do for their numbers: it presumes that they come from one task",
    )


def uniform(shape: Sequence[int], like: Tensor, noise: Generator) -> Tensor:
    return torch.rand(shape, generator=noise, device=like.device, dtype=like.dtype).clamp(1e-7, 1 - 1e-7)


class UnitSelection(nn.Module):
    """q(b) q(v) over one layer's units and the prior of v."""

    def __init__(self, units: int, alpha: float, temperature: float) -> None:
        super().__init__()
        self.alpha, self.temperature = alpha, temperature
        self.logit = nn.Parameter(logit_from_log(expected_probabilities(alpha, units).log()))
        self.log_c = nn.Parameter(torch.full((units,), math.log(alpha), dtype=torch.float32))
        self.log_d = nn.Parameter(torch.zeros(units, dtype=torch.float32))
        self.take_prior(0)

    def forward(self, rows: int, noise: Generator) -> Tensor:
        """A relaxed draw of b for every row."""
        u = uniform((rows, len(self.logit)), self.logit, noise)
        return concrete_sample(self.logit, self.temperature, u.log() - torch.log1p(-u))

    def selection_kl(self, noise: Generator) -> Tensor:
        """KL(q(b) ‖ p(b | v)) for one v ~ q(v): unbiased for its mean over v."""
        exponential = -uniform(self.log_c.shape, self.log_c, noise).log()
        log_v = log_kumaraswamy_sample(self.log_c.exp(), self.log_d.exp(), exponential)
        return kl_concrete(self.logit, logit_from_log(stick_log_pi(log_v))).sum()

    def stick_kl(self) -> Tensor:
        """KL(q(v) ‖ p(v))."""
        return kl_kumaraswamy(self.log_c.exp(), self.log_d.exp(), *self.prior).sum()

    @torch.no_grad()
    def take_prior(self, learned: int) -> None:
        """q(v) becomes p(v), which is Beta(α, 1) before anything was learned."""
        first = torch.full_like(self.log_c, self.alpha), torch.ones_like(self.log_d)
        self.prior = (self.log_c.exp(), self.log_d.exp()) if learned else first


class IndianBuffetMLP(BayesianMLP):
    """Gaussian layers, a selection of units after each."""

    def __init__(
        self, inputs: int, hidden: Sequence[int], outputs: int, prior_std: float, alpha: float, temperature: float
    ) -> None:
        super().__init__(inputs, hidden, outputs, prior_std)
        self.selections = nn.ModuleList(UnitSelection(width, alpha, temperature) for width in hidden)

    def selected(self) -> list[UnitSelection]:
        return [selection for selection in self.selections if isinstance(selection, UnitSelection)]

    def forward(self, x: Tensor, noise: Generator | None = None) -> Tensor:
        """With no noise: the means, all units on."""
        if noise is None:
            return super().forward(x)
        for layer, selection in zip(self.hidden, self.selections, strict=True):
            x = torch.relu(layer(x, noise)) * selection(len(x), noise)
        out: Tensor = self.head(x, noise)
        return out

    def draw(self, noise: Generator) -> Weights:
        """Weights ~ q and b at π̄, which a unit's outgoing weights take up."""
        weights = super().draw(noise)
        scales = [torch.sigmoid(selection.logit.detach()) for selection in self.selected()]
        return [weights[0], *((w * scale, b) for (w, b), scale in zip(weights[1:], scales, strict=True))]

    def kl(self, outputs: int, noise: Generator) -> Tensor:
        buffet = [selection.selection_kl(noise) + selection.stick_kl() for selection in self.selected()]
        return super().kl(outputs, noise) + torch.stack(buffet).sum()

    def take_prior(self, learned: int) -> None:
        super().take_prior(learned)
        for selection in self.selected():
            selection.take_prior(learned)


class IBNN(VCL):
    name: ClassVar[str] = "ibnn"
    summary: ClassVar[str] = "VCL with an Indian buffet process that switches hidden units on"
    stores: ClassVar[str] = "a variance for every weight, three numbers for every hidden unit"
    settings_type: ClassVar[type[DenseSettings]] = IBNNSettings
    settings: IBNNSettings
    net: IndianBuffetMLP

    def build(self) -> nn.Module:
        s, problem = self.settings, self.problem
        return IndianBuffetMLP(problem.inputs, s.hidden, problem.outputs, s.prior_std, s.alpha, s.temperature)

    def counts(self) -> Counts:
        """Units with π̄ ≥ ½; none is new or reused, as no task owns a unit."""
        active = sum(int((selection.logit >= 0).sum()) for selection in self.net.selected())
        return Counts(active=active)

    def columns(self, task: int) -> slice:
        """A task's own outputs where its head is to be inferred."""
        return super().columns(task) if self.settings.infer_task == "none" else self.own_columns(task)

    def class_log_probabilities(self, x: Tensor) -> Tensor:
        if self.settings.infer_task == "none":
            return super().class_log_probabilities(x)
        heads = [self.logits(x, task) for task in range(len(self.classes))]
        doubt = torch.stack([entropy(head.exp()) for head in heads], 1)
        if self.settings.infer_task == "batch-entropy":
            doubt = doubt.mean(0, keepdim=True).expand(len(x), -1)
        best = F.one_hot(doubt.argmin(1), len(heads)).bool()
        return torch.cat([h.masked_fill(~best[:, t : t + 1], -torch.inf) for t, h in enumerate(heads)], 1)
