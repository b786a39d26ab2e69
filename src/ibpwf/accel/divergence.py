"""The KL divergence of a task's whole posterior, value and slopes in one go (paper, eq. online_inference).

    Σ_layers,k  E_q(v)[ KL(q(b_k) ‖ p(b_k | v)) ]  +  KL(q(v_k) ‖ p(v_k))

Written with the functions of `distributions` it is about eighty operations on small matrices, and automatic
differentiation adds as many again: on a CPU that took as long as the matrix products of the network. Here value and
slopes come from the same intermediate results and autograd sees one operation. On a GPU that is one kernel, where
torch brings Triton (`fused`).
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ibpwf.core.distributions import EULER_GAMMA, LEAST
from ibpwf.core.prior import LOG_P_RANGE
from ibpwf.core.series import log_series_slopes


@cache
def _kernels() -> ModuleType | None:
    """`fused`, or None where torch has no Triton."""
    try:
        from ibpwf.accel import kernels as fused
    except ImportError:
        return None
    return fused


class _PosteriorKL(torch.autograd.Function):
    """Σ mask · KL as a function of logit π̄, log c and log d."""

    @staticmethod
    def forward(
        ctx: Any,
        logit: Tensor,
        log_c: Tensor,
        log_d: Tensor,
        noise: Tensor,
        prior_c: Tensor,
        prior_d: Tensor | None,
        mask: Tensor,
        terms: int | None,
    ) -> Tensor:
        kernels = _kernels() if logit.is_cuda else None
        if kernels is not None:
            total, slopes = kernels.kl_and_slopes(logit, log_c, log_d, noise, prior_c, prior_d, mask, terms)
            ctx.save_for_backward(slopes)
            result: Tensor = total
            return result
        over_c = torch.exp(-log_c)
        selection, by_logit, by_log_c, by_log_d = _selection(logit, over_c, log_d, noise, mask)
        sticks, stick_by_log_c, stick_by_log_d = _sticks(log_c, log_d, over_c, prior_c, prior_d, terms)
        ctx.save_for_backward(
            by_logit,
            stick_by_log_c.mul_(mask).add_(by_log_c),
            stick_by_log_d.mul_(mask).add_(by_log_d),
        )
        return selection.add_(sticks).mul_(mask).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        slopes = ctx.saved_tensors
        each = (grad * slopes[0]).unbind() if len(slopes) == 1 else tuple(grad * slope for slope in slopes)
        return (*each, None, None, None, None, None)


def _selection(
    logit: Tensor, over_c: Tensor, log_d: Tensor, noise: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """KL(q(b) ‖ p(b|v)) for the draw of v that `noise` ~ Exp(1) gives, and slopes of its masked sum by logit, log c
    and log d. Every stick is in the prior of all that follow: a slope runs back through the cumulative sum."""
    y = noise * torch.exp(-log_d)
    ratio = torch.expm1(y).reciprocal_()
    raw_log_v = torch.log1p(ratio).neg_().mul_(over_c)  # log v = log(1 - e^-y) / c
    log_v = raw_log_v.clamp(max=-LEAST)
    raw_log_p = log_v.cumsum(-1)
    log_p = raw_log_p.clamp(*LOG_P_RANGE)
    not_p = torch.expm1(log_p).neg_()
    delta = logit - log_p + not_p.log()  # the prior's logit is log p - log(1 - p)
    value, by_logit = _logistic_kl(delta)
    by_logit.mul_(mask)
    by_log_p = torch.where(raw_log_p == log_p, by_logit / not_p, 0.0).neg_()
    by_log_v = by_log_p.flip(-1).cumsum(-1).flip(-1)  # Σ over this stick and the later ones
    by_log_v = torch.where(raw_log_v == log_v, by_log_v, 0.0)
    by_log_d = y.mul_(ratio).mul_(over_c).mul_(by_log_v).neg_()
    return value, by_logit, by_log_v.mul_(log_v).neg_(), by_log_d


def _logistic_kl(delta: Tensor) -> tuple[Tensor, Tensor]:
    """`k(δ) = δ coth(δ/2) - 2` and its slope `(δ - coth(δ/2) k) / 2`, in float64 so that nothing cancels for the
    float32 they are returned in: errors below 1e-9, where `kl_concrete` takes twice as many operations."""
    size = delta.double().abs_().clamp_(min=1e-6)
    coth = torch.tanh(size / 2).reciprocal_()
    k = (size * coth).sub_(2)
    slope = size.sub_(coth.mul_(k)).div_(2).to(delta.dtype)
    return k.to(delta.dtype), torch.copysign(slope, delta)


def _sticks(
    log_c: Tensor, log_d: Tensor, over_c: Tensor, prior_c: Tensor, prior_d: Tensor | None, terms: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """KL(q(v) ‖ p(v)) of eq. (kl_kumar), slopes by log c and log d; closed where `prior_d` is None (Beta)."""
    d, log_prior_c = log_d.exp(), prior_c.log()
    over_d, x = torch.exp(-log_d), prior_c * over_c
    mean_log = torch.digamma(d + 1).add_(EULER_GAMMA).neg_()
    value = (1 - x).mul_(mean_log).add_(log_c).add_(log_d).sub_(log_prior_c).sub_(1).add_(over_d)
    by_log_c = mean_log.mul_(x).add_(1)
    by_log_d = torch.polygamma(1, d + 1).mul_(d).mul_(x - 1).add_(1).sub_(over_d)
    if prior_d is not None:
        series, by_log_x, by_log_b = log_series_slopes(log_prior_c - log_c, log_d, terms)
        weight = prior_d - 1
        value = value.sub_(prior_d.log()).addcmul_(weight, series)
        by_log_c = by_log_c.addcmul_(weight, by_log_x, value=-1)
        by_log_d = by_log_d.addcmul_(weight, by_log_b)
    return value, by_log_c, by_log_d


def posterior_kl(
    logit: Tensor,
    log_c: Tensor,
    log_d: Tensor,
    noise: Tensor,
    prior_c: Tensor,
    prior_d: Tensor | None,
    mask: Tensor,
    terms: int | None,
) -> Tensor:
    """The KL of all layers (rows) and sticks (columns) where `mask` is 1, for the v that `noise` ~ Exp(1) gives.

    The prior of v is Beta(prior_c, 1) where `prior_d` is None, else Kumaraswamy(prior_c, prior_d), by the first
    `terms` terms of appendix B's series, or all of them if None.
    """
    result: Tensor = _PosteriorKL.apply(logit, log_c, log_d, noise, prior_c, prior_d, mask, terms)  # type: ignore[no-untyped-call]
    return result


class _RelaxedScores(torch.autograd.Function):
    """λ = r · sigmoid((logit π̄ + noise) / τ)."""

    @staticmethod
    def forward(ctx: Any, strength: Tensor, logit: Tensor, temperature: Tensor, noise: Tensor) -> Tensor:
        b = torch.sigmoid((logit + noise) / temperature)
        ctx.save_for_backward(strength, b, temperature)
        return strength * b

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        strength, b, temperature = ctx.saved_tensors
        by_strength = grad * b
        return by_strength, (1 - b).mul_(strength).mul_(by_strength).div_(temperature), None, None


def relaxed_scores(strength: Tensor, logit: Tensor, temperature: Tensor, noise: Tensor) -> Tensor:
    """λ = r ⊙ b, b ~ BernoulliConcrete(π̄) made from `noise` ~ Logistic(0, 1)."""
    result: Tensor = _RelaxedScores.apply(strength, logit, temperature, noise)  # type: ignore[no-untyped-call]
    return result


class _DrawnScores(torch.autograd.Function):
    """`_RelaxedScores` from uniform numbers, one kernel each way."""

    @staticmethod
    def forward(ctx: Any, strength: Tensor, logit: Tensor, temperature: Tensor, uniform: Tensor) -> Tensor:
        kernels = _kernels()
        assert kernels is not None
        scores: Tensor
        scores, b = kernels.scores_from(strength, logit, temperature, uniform)
        ctx.save_for_backward(strength, b, temperature)
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        kernels = _kernels()
        assert kernels is not None
        by_strength, by_logit = kernels.scores_slopes(*ctx.saved_tensors, grad)
        return by_strength, by_logit, None, None


def drawn_scores(strength: Tensor, logit: Tensor, temperature: Tensor, uniform: Tensor) -> Tensor:
    """λ = r ⊙ b, b ~ BernoulliConcrete(π̄) made from numbers uniform in (0, 1)."""
    if logit.is_cuda and _kernels() is not None:
        result: Tensor = _DrawnScores.apply(strength, logit, temperature, uniform)  # type: ignore[no-untyped-call]
        return result
    return relaxed_scores(strength, logit, temperature, torch.logit(uniform, eps=1e-7))
