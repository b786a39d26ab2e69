"""One task's variational posterior over factor selection, for all layers at once.

    q(v) = Kumaraswamy(c, d),   q(b) = BernoulliConcrete(π̄),   r a point estimate     (paper, eq. post_q)

Every layer is one row of a few matrices, padded to the widest layer: sampling and the KL of a whole
network are then a handful of large operations, however many layers there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor, nn

from ibpwf.factors.elbo import Posterior, StickPrior, posterior_kl, sample_scores

PADDING_LOGIT = -30.0


@dataclass(frozen=True)
class LayerVectors:
    """What is known of one layer's factors for one task, in stick order: the strengths r. A prior that needs more
    vectors has a subclass with a field for each."""

    strength: Tensor

    def __len__(self) -> int:
        return len(self.strength)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls))

    def apply(self, fn: Callable[[Tensor], Tensor]) -> Self:
        return type(self)(*(fn(getattr(self, name)) for name in self.names()))


@dataclass(frozen=True)
class StickVectors(LayerVectors):
    """r, logit π̄, c and d of one layer."""

    logit: Tensor
    c: Tensor
    d: Tensor


def stacked(rows: Sequence[Tensor], fill: float) -> Tensor:
    """Vectors as the rows of a matrix, padded to the longest."""
    width = max(map(len, rows))
    return torch.stack([nn.functional.pad(row, (0, width - len(row)), value=fill) for row in rows])


class TaskPosterior(nn.Module):
    """q of one task for all layers: rows are layers, columns stick positions. This one knows strengths alone, and
    every factor is used; a prior over the selection brings a subclass.

    All parameters are matrices of that shape. `prior` holds the vectors of p for each layer.
    """

    def __init__(self, start: Sequence[LayerVectors], prior: Sequence[LayerVectors]) -> None:
        super().__init__()
        self.widths, self.prior = [len(vectors) for vectors in start], list(prior)
        self.strength = nn.Parameter(stacked([vectors.strength for vectors in start], 0.0))

    def sample_scores(self, generator: torch.Generator | None = None) -> Tensor:
        """λ = r ⊙ b for one draw of the selection b."""
        return self.strength

    def mean_scores(self) -> Tensor:
        """E[λ] = r ⊙ E[b]."""
        return self.strength

    def kl(self, generator: torch.Generator | None = None) -> Tensor:
        """KL(q ‖ p) of all layers."""
        return self.strength.new_zeros(())

    def selection(self) -> list[nn.Parameter]:
        """The parameters that say which factors are used: all but their strengths."""
        return [parameter for parameter in self.parameters() if parameter is not self.strength]

    def vectors(self, row: int) -> LayerVectors:
        """Layer `row`'s vectors as they stand."""
        return LayerVectors(self._row(self.strength, row))

    def after_step(self) -> None:
        """Called after every optimizer step on the ELBO."""

    def _row(self, matrix: Tensor, row: int) -> Tensor:
        return matrix[row, : self.widths[row]].detach().clone()

    def carry_over(self, old: TaskPosterior) -> None:
        """Take over the parameters of `old`, which has the same layers but fewer sticks, to the bit."""
        with torch.no_grad():
            for mine, theirs in zip(self.parameters(), old.parameters(), strict=True):
                for row, n in enumerate(old.widths):
                    mine[row, :n] = theirs[row, :n]


class StickPosterior(TaskPosterior):
    """q of the Indian buffet process. `prior` is each layer's prior on v: Beta(α, 1) = Kumaraswamy(α, 1) for the
    first task, the previous task's q(v) afterwards (online inference in v only, appendix C).

    The temperature of the Concrete distribution is multiplied by `decay` after every step, down to `coldest`.
    """

    prior_c: Tensor
    prior_d: Tensor
    mask: Tensor
    temperature: Tensor

    def __init__(
        self,
        start: Sequence[StickVectors],
        prior: Sequence[StickVectors],
        temperature: float,
        kl_terms: int | None = None,
        decay: float | None = None,
        coldest: float = 0.0,
    ) -> None:
        super().__init__(start, prior)
        self.kl_terms, self.decay, self.coldest = kl_terms, decay, coldest
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

    def mean_scores(self) -> Tensor:
        """E[λ] = r ⊙ π̄."""
        return self.strength * self.logit.sigmoid()

    def kl(self, generator: torch.Generator | None = None) -> Tensor:
        """KL(q ‖ p) of all layers, for one draw of v (eq. online_inference)."""
        if self.log_c.is_cuda:
            noise = torch.empty_like(self.log_c).exponential_(generator=generator)
        else:  # of the same distribution, from which torch takes longer to draw there
            uniform = torch.rand(self.log_c.shape, generator=generator, dtype=torch.float32)
            noise = uniform.clamp_(1e-7, 1 - 1e-7).log_().neg_()
        prior = StickPrior(self.prior_c, None if self._beta_prior else self.prior_d)
        return posterior_kl(Posterior(self.logit, self.log_c, self.log_d), prior, noise, self.mask, self.kl_terms)

    def vectors(self, row: int) -> StickVectors:
        parts = (self.strength, self.logit, self.log_c.exp(), self.log_d.exp())
        return StickVectors(*(self._row(part, row) for part in parts))

    def after_step(self) -> None:
        if self.decay is not None:
            self.temperature.mul_(self.decay).clamp_(min=self.coldest)
