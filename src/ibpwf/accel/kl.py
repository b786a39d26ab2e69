"""The KL of a task's whole posterior, value and gradient in one go.

Stands for `core.elbo.posterior_kl` and `sample_scores`. Written with the functions of `core.distributions` the KL is
about eighty operations on small matrices, and automatic differentiation adds as many again: on a CPU that takes as
long as the matrix products of the network. Here value and gradient come from the same intermediate results and
autograd sees one operation. On a GPU that is two kernels, where torch brings Triton (`accel.kernels`).
"""

from __future__ import annotations

import math
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ibpwf.core.distributions import EULER_GAMMA, LEAST
from ibpwf.core.elbo import Posterior, StickPrior, posterior_kl, sample_scores
from ibpwf.core.prior import LOG_P_RANGE
from ibpwf.core.reference import stands_for


@cache
def _kernels() -> ModuleType | None:
    """`accel.kernels`, or None where torch has no Triton."""
    try:
        from ibpwf.accel import kernels
    except ImportError:
        return None
    return kernels


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
        kernels = _kernels() if logit.is_cuda else None
        if kernels is not None:
            total, gradients = kernels.kl_and_gradients(Posterior(logit, log_c, log_d), prior, noise, mask, terms)
            ctx.save_for_backward(gradients)
            result: Tensor = total
            return result
        over_c = torch.exp(-log_c)
        selection, by_logit, by_log_c, by_log_d = _selection(logit, over_c, log_d, noise, mask)
        sticks, stick_by_log_c, stick_by_log_d = _sticks(log_c, log_d, over_c, prior, terms)
        ctx.save_for_backward(
            by_logit,
            stick_by_log_c.mul_(mask).add_(by_log_c),
            stick_by_log_d.mul_(mask).add_(by_log_d),
        )
        return selection.add_(sticks).mul_(mask).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        gradients = ctx.saved_tensors
        each = (grad * gradients[0]).unbind() if len(gradients) == 1 else tuple(grad * part for part in gradients)
        return (*each, None, None, None, None)


def _plain(q: Posterior, p: StickPrior, noise: Tensor, mask: Tensor, terms: int | None) -> bool:
    return q.logit.dtype == torch.float32


@stands_for(posterior_kl, when=_plain)
def fast_posterior_kl(q: Posterior, p: StickPrior, noise: Tensor, mask: Tensor, terms: int | None) -> Tensor:
    result: Tensor = _PosteriorKL.apply(*q, p, noise, mask, terms)  # type: ignore[no-untyped-call]
    return result


def _selection(
    logit: Tensor, over_c: Tensor, log_d: Tensor, noise: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`core.elbo.selection_kl`, and the gradient of its masked sum by logit, log c and log d. Every stick is in the
    prior of all that follow: a gradient runs back through the cumulative sum."""
    y = noise * torch.exp(-log_d)
    ratio = torch.expm1(y).reciprocal_()
    raw_log_v = torch.log1p(ratio).neg_().mul_(over_c)  # log v = log(1 - e^-y) / c
    log_v = raw_log_v.clamp(max=-LEAST)
    raw_log_p = log_v.cumsum(-1)
    log_p = raw_log_p.clamp(*LOG_P_RANGE)
    not_p = torch.expm1(log_p).neg_()
    delta = logit - log_p + not_p.log()  # the prior's logit is log p - log(1 - p)
    value, by_logit = _concrete(delta)
    by_logit.mul_(mask)
    by_log_p = torch.where(raw_log_p == log_p, by_logit / not_p, 0.0).neg_()
    by_log_v = by_log_p.flip(-1).cumsum(-1).flip(-1)  # Σ over this stick and the later ones
    by_log_v = torch.where(raw_log_v == log_v, by_log_v, 0.0)
    by_log_d = y.mul_(ratio).mul_(over_c).mul_(by_log_v).neg_()
    return value, by_logit, by_log_v.mul_(log_v).neg_(), by_log_d


def _concrete(delta: Tensor) -> tuple[Tensor, Tensor]:
    """`core.distributions.kl_concrete`, `k(δ) = δ coth(δ/2) - 2`, and its derivative `(δ - coth(δ/2) k) / 2`, in
    float64 so that nothing cancels for the float32 they are returned in: errors below 1e-9."""
    size = delta.abs().double().clamp_(min=1e-6)
    coth = torch.tanh(size / 2).reciprocal_()
    k = (size * coth).sub_(2)
    derivative = size.sub_(coth.mul_(k)).div_(2).to(delta.dtype)
    return k.to(delta.dtype), torch.copysign(derivative, delta)


def _sticks(
    log_c: Tensor, log_d: Tensor, over_c: Tensor, prior: StickPrior, terms: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """`core.elbo.stick_kl`, and its derivatives by log c and log d."""
    d, log_prior_c = log_d.exp(), prior.c.log()
    over_d, x = torch.exp(-log_d), prior.c * over_c
    mean_log = torch.digamma(d + 1).add_(EULER_GAMMA).neg_()
    value = (1 - x).mul_(mean_log).add_(log_c).add_(log_d).sub_(log_prior_c).sub_(1).add_(over_d)
    by_log_c = mean_log.mul_(x).add_(1)
    by_log_d = torch.polygamma(1, d + 1).mul_(d).mul_(x - 1).add_(1).sub_(over_d)
    if prior.d is not None:
        log_x = log_prior_c - log_c
        series, by_log_x, by_log_b = whole_series(log_x, log_d) if terms is None else cut_series(log_x, log_d, terms)
        weight = prior.d - 1
        value = value.sub_(prior.d.log()).addcmul_(weight, series)
        by_log_c = by_log_c.addcmul_(weight, by_log_x, value=-1)
        by_log_d = by_log_d.addcmul_(weight, by_log_b)
    return value, by_log_c, by_log_d


def whole_series(log_x: Tensor, log_b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`core.distributions.log_series`, and its derivatives by log x and log b, x = α/a."""
    t = torch.linspace(-3.0, 3.2, 20, dtype=log_x.dtype, device=log_x.device).view(-1, *[1] * log_x.dim())
    e = torch.exp(t - torch.exp(-t))
    log_weight = t - torch.exp(-t) + torch.log1p(torch.exp(-t)) + math.log(6.2 / 19)
    first, b = log_x <= 0, log_b.exp()
    h = e / b
    inner = h.clamp(max=80)
    ratio = torch.expm1(inner).reciprocal()
    rate = torch.log1p(ratio)  # -log(1 - e^-h), where h <= 80
    log1m, derivative = _log1mexp(rate.log() + (inner - h) - log_x.abs())
    weight = torch.exp(log_weight - torch.where(first, e, -b * log1m))
    mass, mean = weight.sum(0) / b, -(weight * log1m).sum(0)
    weight = weight * derivative
    by_x, by_h = -weight.sum(0), (weight * h * (ratio / rate)).sum(0)
    return torch.where(first, mean, mass), by_x, torch.where(first, -by_h, by_h - mean - mass)


def _log1mexp(log_y: Tensor) -> tuple[Tensor, Tensor]:
    """`core.distributions.log1mexp` and its derivative `y / (e^y - 1)`."""
    top = log_y.clamp(max=6.5)
    inner = top.clamp(min=-60.0)
    y = inner.exp()
    ratio = torch.expm1(y).reciprocal()
    return top - inner - torch.log1p(ratio), y * ratio


def log_gamma(z: Tensor) -> tuple[Tensor, Tensor]:
    """log Γ(z) and its derivative ψ(z) for float64 `z >= 1`, together in half the time of torch's two functions.

    Stirling's series at z + 6, where what it leaves out is below 1e-10, less log of z (z+1) ... (z+5).
    """
    p = (z + 5).mul_(z)
    product = (p + 4).mul_(p).mul_(p + 6)
    far = z + 6
    inverse, log_far = far.reciprocal(), far.log()
    square = inverse.square()
    tail = square.mul(-1 / 1680).add_(1 / 1260).mul_(square).sub_(1 / 360).mul_(square).add_(1 / 12).mul_(inverse)
    value = torch.sub(log_far, 1).mul_(far).sub_(log_far, alpha=0.5).add_(0.5 * math.log(2 * math.pi))
    value.add_(tail).sub_(product.log())
    tail = square.mul(1 / 240).sub_(1 / 252).mul_(square).add_(1 / 120).mul_(square).sub_(1 / 12).mul_(square)
    rational = p.mul(3).add_(20).mul_(p).add_(24).mul_(z.mul(2).add_(5)).div_(product)
    return value, log_far.sub_(inverse, alpha=0.5).add_(tail).sub_(rational)


def cut_series(log_x: Tensor, log_b: Tensor, terms: int) -> tuple[Tensor, Tensor, Tensor]:
    """`core.distributions.cut_log_series`, and its derivatives by log x and log b; in float64."""
    b = log_b.double().exp()
    m = torch.arange(1, terms + 1, dtype=b.dtype, device=b.device).view(-1, *[1] * b.dim())
    n = m * log_x.double().exp()
    # One call for all arguments: the ten and ten of the terms, and b's own.
    values, derivatives = log_gamma(torch.cat([n + 1, n + (b + 1), (b + 1).unsqueeze(0)]))
    (value_n, value_both, value_b), (psi_n, psi_both, psi_b) = (
        torch.split(part, [terms, terms, 1]) for part in (values, derivatives)
    )
    term = (value_n + value_b).sub_(value_both).exp_().div_(m)  # the moment E[v^(m α)] over m
    by_x = (psi_n - psi_both).mul_(n).mul_(term).sum(0)
    by_b = (psi_b - psi_both).mul_(term).sum(0).mul_(b)
    kind = log_x.dtype
    return term.sum(0).to(kind), by_x.to(kind), by_b.to(kind)


class _SampledScores(torch.autograd.Function):
    """λ = r · sigmoid((logit π̄ + noise) / τ); on a GPU from uniform numbers, one kernel each way."""

    @staticmethod
    def forward(ctx: Any, strength: Tensor, logit: Tensor, temperature: Tensor, uniform: Tensor) -> Tensor:
        kernels = _kernels() if logit.is_cuda else None
        if kernels is not None:
            scores: Tensor
            scores, b = kernels.scores_from(strength, logit, temperature, uniform)
        else:
            b = torch.sigmoid((logit + torch.logit(uniform, eps=1e-7)) / temperature)
            scores = strength * b
        ctx.save_for_backward(strength, b, temperature)
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        strength, b, temperature = ctx.saved_tensors
        kernels = _kernels() if b.is_cuda else None
        if kernels is not None:
            by_strength, by_logit = kernels.scores_gradients(strength, b, temperature, grad)
            return by_strength, by_logit, None, None
        by_strength = grad * b
        return by_strength, (1 - b).mul_(strength).mul_(by_strength).div_(temperature), None, None


def _float32(strength: Tensor, logit: Tensor, temperature: Tensor, uniform: Tensor) -> bool:
    return logit.dtype == torch.float32


@stands_for(sample_scores, when=_float32)
def fast_sample_scores(strength: Tensor, logit: Tensor, temperature: Tensor, uniform: Tensor) -> Tensor:
    result: Tensor = _SampledScores.apply(strength, logit, temperature, uniform)  # type: ignore[no-untyped-call]
    return result
