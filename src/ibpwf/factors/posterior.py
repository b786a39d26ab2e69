"""One task's variational posterior over factor selection, for all layers at once.

    q(v) = Kumaraswamy(c, d),   q(b) = BernoulliConcrete(π̄),   r a point estimate     (paper, eq. post_q)

Every layer is one row of a few matrices, padded to the widest layer: sampling and the KL of a whole
network are then a handful of large operations, however many layers there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ibpwf.factors.distributions import kumaraswamy_log_mean
from ibpwf.factors.elbo import Posterior, StickPrior, posterior_kl, sample_scores
from ibpwf.factors.prior import expected_probabilities, logit_from_log

PADDING_LOGIT = -30.0


@dataclass(frozen=True)
class LayerVectors:
    """One layer's vectors, in stick order: r, logit π̄, c and d. All of length F."""

    strength: Tensor
    logit: Tensor
    c: Tensor
    d: Tensor

    def __len__(self) -> int:
        return len(self.strength)

    def apply(self, fn: Callable[[Tensor], Tensor]) -> LayerVectors:
        return LayerVectors(*(fn(v) for v in (self.strength, self.logit, self.c, self.d)))

    def selected(self, kappa: float) -> Tensor:
        """Which factors the task uses: π̄ ≥ κ, and at least the likeliest one (section 2.3)."""
        threshold = math.log(kappa) - math.log1p(-kappa)
        chosen = self.logit >= threshold
        if not bool(chosen.any()):
            chosen = torch.zeros_like(chosen)
            chosen[self.logit.argmax()] = True
        return chosen


def initial_vectors(
    alpha: float,
    width: int,
    previous: LayerVectors | None,
    strength_std: float,
    generator: torch.Generator,
) -> LayerVectors:
    """Where a task starts: r ~ N(0, strength_std), q(v) at its prior, π̄ at the previous task's π̄.

    Sticks beyond the previous task's continue the prior: v ~ Beta(α, 1), and π̄ at the mean of π there, which
    is the last known stick's mean times (α/(α+1))^j. For the first task that is (α/(α+1))^k.
    """
    strength = torch.randn(width, generator=generator, dtype=torch.float32) * strength_std
    known = 0 if previous is None else len(previous)
    extra = max(width - known, 0)
    c = torch.full((extra,), float(alpha), dtype=torch.float32)
    d = torch.ones(extra, dtype=torch.float32)
    log_mean = expected_probabilities(alpha, extra).log()
    if previous is None:
        return LayerVectors(strength, logit_from_log(log_mean), c, d)
    prior_c, prior_d = previous.c.cpu(), previous.d.cpu()
    start = float(kumaraswamy_log_mean(prior_c.double(), prior_d.double()).sum()) if known else 0.0
    logit = torch.cat([previous.logit.cpu(), logit_from_log(log_mean + start)])
    return LayerVectors(strength, logit[:width], torch.cat([prior_c, c])[:width], torch.cat([prior_d, d])[:width])


class TaskPosterior(nn.Module):
    """q of one task for all layers: rows are layers, columns stick positions.

    `prior` holds each layer's prior on v: Beta(α, 1) = Kumaraswamy(α, 1) for the first task, the previous
    task's q(v) afterwards (online inference in v only, appendix C).
    """

    prior_c: Tensor
    prior_d: Tensor
    mask: Tensor
    temperature: Tensor

    def __init__(
        self,
        start: Sequence[LayerVectors],
        prior: Sequence[LayerVectors],
        temperature: float,
        kl_terms: int | None = None,
    ) -> None:
        super().__init__()
        self.widths = [len(vectors) for vectors in start]
        self.kl_terms = kl_terms
        width = max(self.widths)

        def stacked(rows: list[Tensor], fill: float) -> Tensor:
            return torch.stack([nn.functional.pad(row, (0, width - len(row)), value=fill) for row in rows])

        self.strength = nn.Parameter(stacked([v.strength for v in start], 0.0))
        self.logit = nn.Parameter(stacked([v.logit for v in start], PADDING_LOGIT))
        self.log_c = nn.Parameter(stacked([v.c.log() for v in start], 0.0))
        self.log_d = nn.Parameter(stacked([v.d.log() for v in start], 0.0))
        self.register_buffer("prior_c", stacked([v.c for v in prior], 1.0))
        self.register_buffer("prior_d", stacked([v.d for v in prior], 1.0))
        self.register_buffer("mask", stacked([torch.ones(n, dtype=torch.float32) for n in self.widths], 0.0))
        self.register_buffer("temperature", torch.tensor(float(temperature), dtype=torch.float32))
        self._beta_prior = bool((self.prior_d == 1).all())

    def sample_scores(self, generator: torch.Generator | None = None) -> Tensor:
        """λ = r ⊙ b with b ~ BernoulliConcrete(π̄), one relaxed draw per layer and factor."""
        uniform = torch.rand(self.logit.shape, generator=generator, device=self.logit.device, dtype=torch.float32)
        return sample_scores(self.strength, self.logit, self.temperature, uniform)

    def kl(self, generator: torch.Generator | None = None) -> Tensor:
        """KL(q ‖ p) of all layers, for one draw of v (eq. online_inference)."""
        if self.log_c.is_cuda:
            noise = torch.empty_like(self.log_c).exponential_(generator=generator)
        else:  # of the same distribution, from which torch takes longer to draw there
            uniform = torch.rand(self.log_c.shape, generator=generator, dtype=torch.float32)
            noise = uniform.clamp_(1e-7, 1 - 1e-7).log_().neg_()
        prior = StickPrior(self.prior_c, None if self._beta_prior else self.prior_d)
        return posterior_kl(Posterior(self.logit, self.log_c, self.log_d), prior, noise, self.mask, self.kl_terms)

    def selection(self) -> list[nn.Parameter]:
        """What says which factors are taken: all but their strengths."""
        return [self.logit, self.log_c, self.log_d]

    def carry_over(self, old: TaskPosterior) -> None:
        """Take over the parameters of `old`, which has the same layers but fewer sticks, to the bit."""
        with torch.no_grad():
            for mine, theirs in zip(self.parameters(), old.parameters(), strict=True):
                for row, n in enumerate(old.widths):
                    mine[row, :n] = theirs[row, :n]

    def vectors(self, row: int) -> LayerVectors:
        """Layer `row`'s vectors as they stand."""
        n = self.widths[row]
        parts = (self.strength, self.logit, self.log_c.exp(), self.log_d.exp())
        return LayerVectors(*(part[row, :n].detach().clone() for part in parts))

    def prior_vectors(self, row: int) -> LayerVectors:
        """Layer `row`'s prior (only c and d carry meaning)."""
        n = self.widths[row]
        c, d = self.prior_c[row, :n].clone(), self.prior_d[row, :n].clone()
        return LayerVectors(torch.zeros_like(c), torch.zeros_like(c), c, d)
