"""The KL of a task's whole posterior, value and gradient in one go.

Stands for `factors.elbo.posterior_kl` and `sample_scores`. Written with the functions of `factors.distributions`, the
KL is about eighty operations on small matrices, and automatic differentiation adds as many again: on a CPU that takes
as long as the matrix products of the network. Here value and gradient come from the same intermediate results and
autograd sees one operation. On a CPU it is written in NumPy, whose operations on a few hundred numbers take half the
time of torch's, with the series of appendix B from a table; on a GPU it is two kernels, where torch brings Triton
(`fast.kernels`).
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from ibpwf.dispatch import stands_for
from ibpwf.factors.distributions import EULER_GAMMA, LEAST
from ibpwf.factors.elbo import Posterior, StickPrior, posterior_kl, sample_scores
from ibpwf.factors.sticks import LOG_P_RANGE
from ibpwf.fast.series_table import series_table

Numbers = NDArray[np.float64]


@cache
def kernels() -> ModuleType | None:
    """`fast.kernels`, or None where torch has no Triton."""
    try:
        from ibpwf.fast import kernels as found
    except ImportError:
        return None
    return found


def _float32(q: Posterior, p: StickPrior, noise: Tensor, mask: Tensor, terms: int | None) -> bool:
    """Numbers as training has them, on a CPU or where there are kernels."""
    return q.logit.dtype == torch.float32 and (not q.logit.is_cuda or kernels() is not None)


class _PosteriorKL(torch.autograd.Function):
    """Σ mask · KL as a function of logit π̄, log c and log d."""

    @staticmethod
    def forward(
        ctx: Any,
        logit: Tensor,
        log_c: Tensor,
        log_d: Tensor,
        prior: StickPrior,
        noise: Tensor,
        mask: Tensor,
        terms: int | None,
    ) -> Tensor:
        found = kernels() if logit.is_cuda else None
        total: Tensor
        if found is not None:
            total, gradients = found.kl_and_gradients(Posterior(logit, log_c, log_d), prior, noise, mask, terms)
        else:
            total, gradients = kl_and_gradients(Posterior(logit, log_c, log_d), prior, noise, mask, terms)
        ctx.save_for_backward(gradients)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (gradients,) = ctx.saved_tensors
        return (*(grad * gradients).unbind(), None, None, None, None)


@stands_for(posterior_kl, when=_float32)
def fast_posterior_kl(q: Posterior, p: StickPrior, noise: Tensor, mask: Tensor, terms: int | None) -> Tensor:
    result: Tensor = _PosteriorKL.apply(*q, p, noise, mask, terms)  # type: ignore[no-untyped-call]
    return result


def kl_and_gradients(
    q: Posterior, p: StickPrior, noise: Tensor, mask: Tensor, terms: int | None
) -> tuple[Tensor, Tensor]:
    """The KL of all rows, and its gradient by logit, log c and log d stacked; on a CPU, in float64 inside."""
    logit, log_c, log_d, kept = (part.detach().numpy().astype(np.float64) for part in (*q, mask))
    over_c, over_d = np.exp(-log_c), np.exp(-log_d)
    gradients = np.empty((3, *logit.shape), dtype=np.float32)
    selection, gradients[0], by_log_c, by_log_d = _selection(logit, over_c, over_d, noise.numpy(), kept)
    sticks, stick_by_log_c, stick_by_log_d = _sticks(log_c, log_d, over_c, over_d, p, terms)
    gradients[1] = stick_by_log_c * kept + by_log_c
    gradients[2] = stick_by_log_d * kept + by_log_d
    return torch.tensor(((selection + sticks) * kept).sum(), dtype=torch.float32), torch.from_numpy(gradients)


def _selection(
    logit: Numbers, over_c: Numbers, over_d: Numbers, noise: NDArray[Any], mask: Numbers
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """`factors.elbo.selection_kl`, and the gradient of its masked sum by logit, log c and log d. Every stick is in
    the prior of all that follow: a gradient runs back through the cumulative sum."""
    y = np.minimum(noise * over_d, 700.0)
    ratio = 1.0 / np.expm1(y)
    free_log_v = np.log1p(ratio) * -over_c  # log v = log(1 - e^-y) / c
    log_v = np.minimum(free_log_v, -LEAST)
    free_log_p = np.cumsum(log_v, axis=-1)
    log_p = np.clip(free_log_p, *LOG_P_RANGE)
    not_p = -np.expm1(log_p)
    delta = logit - log_p + np.log(not_p)  # the prior's logit is log p - log(1 - p)
    size = np.maximum(np.abs(delta), 1e-6)
    coth = 1.0 / np.tanh(size / 2)
    value = size * coth - 2  # δ coth(δ/2) - 2, and its derivative (δ - coth(δ/2) value) / 2
    by_logit = np.copysign((size - coth * value) * 0.5, delta) * mask
    by_log_p = np.where(free_log_p == log_p, by_logit / not_p, 0.0)
    later = np.cumsum(by_log_p[..., ::-1], axis=-1)[..., ::-1]  # Σ over this stick and the later ones
    by_log_v = np.where(free_log_v == log_v, -later, 0.0)
    return value, by_logit, -by_log_v * log_v, -y * ratio * over_c * by_log_v


def _sticks(
    log_c: Numbers, log_d: Numbers, over_c: Numbers, over_d: Numbers, prior: StickPrior, terms: int | None
) -> tuple[Numbers, Numbers, Numbers]:
    """`factors.elbo.stick_kl`, and its derivatives by log c and log d."""
    prior_c = prior.c.numpy().astype(np.float64)
    log_prior_c, d = np.log(prior_c), 1.0 / over_d
    x = prior_c * over_c
    digamma, trigamma = polygammas(d + 1)
    mean_log = -(digamma + EULER_GAMMA)
    value = (1 - x) * mean_log + log_c + log_d - log_prior_c - 1 + over_d
    by_log_c = mean_log * x + 1
    by_log_d = trigamma * d * (x - 1) + 1 - over_d
    if prior.d is not None:
        prior_d = prior.d.numpy().astype(np.float64)
        series, by_log_x, by_log_b = series_table(terms)(log_prior_c - log_c, log_d)
        value += (prior_d - 1) * series - np.log(prior_d)
        by_log_c -= (prior_d - 1) * by_log_x
        by_log_d += (prior_d - 1) * by_log_b
    return value, by_log_c, by_log_d


def polygammas(z: Numbers) -> tuple[Numbers, Numbers]:
    """ψ(z) and ψ'(z) for z >= 1: their asymptotic series at z + 6, where what they leave out is below 1e-10, and six
    steps of the recurrence back."""
    inverse = 1.0 / (z + 6)
    square = inverse * inverse
    digamma = np.log(z + 6) - inverse / 2 + (((square / 240 - 1 / 252) * square + 1 / 120) * square - 1 / 12) * square
    tail = (((1 / 42 - square / 30) * square - 1 / 30) * square + 1 / 6) * square * inverse
    trigamma = inverse + square / 2 + tail
    for step in range(6):
        part = 1.0 / (z + step)
        digamma -= part
        trigamma += part * part
    return digamma, trigamma


class _SampledScores(torch.autograd.Function):
    """λ = r · sigmoid((logit π̄ + noise) / τ) from uniform numbers, one kernel each way."""

    @staticmethod
    def forward(ctx: Any, strength: Tensor, logit: Tensor, temperature: Tensor, uniform: Tensor) -> Tensor:
        scores: Tensor
        scores, b = kernels().scores_from(strength, logit, temperature, uniform)  # type: ignore[union-attr]
        ctx.save_for_backward(strength, b, temperature)
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        by_strength, by_logit = kernels().scores_gradients(*ctx.saved_tensors, grad)  # type: ignore[union-attr]
        return by_strength, by_logit, None, None


def _on_a_gpu(strength: Tensor, logit: Tensor, temperature: Tensor, uniform: Tensor) -> bool:
    """On a CPU autograd takes no longer."""
    return logit.is_cuda and logit.dtype == torch.float32 and kernels() is not None


@stands_for(sample_scores, when=_on_a_gpu)
def fast_sample_scores(strength: Tensor, logit: Tensor, temperature: Tensor, uniform: Tensor) -> Tensor:
    result: Tensor = _SampledScores.apply(strength, logit, temperature, uniform)  # type: ignore[no-untyped-call]
    return result
