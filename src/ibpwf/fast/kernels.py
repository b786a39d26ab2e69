"""`fast.kl` on a GPU as kernels in Triton, the language of kernels that comes with torch for CUDA.

A recorded step costs the host about half a microsecond for every kernel in it, and the KL of a small network was
half of its kernels. Here value and gradient of the KL are two: sticks by the dozen, then a layer's selection in one
program, as every stick is in the prior of all that follow. Both compute in float64. The formulas are those of
`fast.kl`, and what they stand for is in `factors.elbo` and `factors.distributions`.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ibpwf.factors.distributions import EULER_GAMMA, LEAST
from ibpwf.factors.elbo import Posterior, StickPrior
from ibpwf.factors.sticks import LOG_P_RANGE

GAMMA = tl.constexpr(EULER_GAMMA)
SMALLEST = tl.constexpr(LEAST)
LOG_P_LOW, LOG_P_HIGH = (tl.constexpr(limit) for limit in LOG_P_RANGE)
HALF_LOG_2PI = tl.constexpr(0.91893853320467274178)
STICKS = 64  # in a program: few, as each takes long
POINTS = tl.constexpr(20)  # of the double-exponential rule, from -3 to 3.2


@triton.jit
def _expm1(y):
    return tl.where(tl.abs(y) < 1e-4, y * (1 + y / 2 * (1 + y / 3)), tl.exp(y) - 1)


@triton.jit
def _log1p(y):
    return tl.where(y < 1e-4, y * (1 - y / 2 * (1 - 2 * y / 3)), tl.log(1 + y))


@triton.jit
def _gammas(z):
    """log Γ and ψ for z >= 1: Stirling's series at z + 6 (see `fast.kl.log_gamma`)."""
    p = z * (z + 5)
    product = p * (p + 4) * (p + 6)
    far = z + 6
    inverse, log_far = 1 / far, tl.log(far)
    square = inverse * inverse
    tail = (((square / -1680 + 1 / 1260) * square - 1 / 360) * square + 1 / 12) * inverse
    value = (far - 0.5) * log_far - far + HALF_LOG_2PI + tail - tl.log(product)
    tail = (((square / 240 - 1 / 252) * square + 1 / 120) * square - 1 / 12) * square
    rational = ((3 * p + 20) * p + 24) * (2 * z + 5) / product
    return value, log_far - inverse / 2 + tail - rational


@triton.jit
def _trigamma(z):
    near = 1 / (z * z) + 1 / ((z + 1) * (z + 1)) + 1 / ((z + 2) * (z + 2))
    near += 1 / ((z + 3) * (z + 3)) + 1 / ((z + 4) * (z + 4)) + 1 / ((z + 5) * (z + 5))
    inverse = 1 / (z + 6)
    square = inverse * inverse
    tail = ((1 / 42 - square / 30) * square - 1 / 30) * square + 1 / 6
    return near + inverse + square / 2 + tail * square * inverse


@triton.jit
def _cut_series(x, b, TERMS: tl.constexpr):
    """Value and derivatives by log x and log b of the first terms (`fast.kl.cut_series`)."""
    value_b, psi_b = _gammas(b + 1)
    total, by_x, by_b = x * 0, x * 0, x * 0
    for m in range(1, TERMS + 1):
        n = m * x
        value_n, psi_n = _gammas(n + 1)
        value_both, psi_both = _gammas(n + b + 1)
        term = tl.exp(value_n + value_b - value_both) / m
        total += term
        by_x += term * n * (psi_n - psi_both)
        by_b += term * (psi_b - psi_both) * b
    return total, by_x, by_b


@triton.jit
def _whole_series(log_x, b):
    """The same of all terms, by quadrature (`fast.kl.whole_series`)."""
    first = log_x <= 0
    mass, mean, by_x, by_h = b * 0, b * 0, b * 0, b * 0
    for point in range(POINTS):
        t = (b * 0 + point) * (6.2 / (POINTS - 1)) - 3.0
        e = tl.exp(t - tl.exp(-t))
        log_weight = t - tl.exp(-t) + tl.log(1 + tl.exp(-t)) + tl.log(b * 0 + 6.2 / (POINTS - 1))
        h = e / b
        inner = tl.minimum(h, 80.0)
        ratio = 1 / _expm1(inner)
        rate = _log1p(ratio)
        top = tl.minimum(tl.log(rate) + (inner - h) - tl.abs(log_x), 6.5)
        low = tl.maximum(top, -60.0)
        y = tl.exp(low)
        fall = 1 / _expm1(y)
        log1m = top - low - _log1p(fall)
        weight = tl.exp(log_weight - tl.where(first, e, -b * log1m))
        mass += weight / b
        mean -= weight * log1m
        weight *= y * fall
        by_x -= weight
        by_h += weight * h * (ratio / rate)
    return tl.where(first, mean, mass), by_x, tl.where(first, -by_h, by_h - mean - mass)


@triton.jit
def _add(a, b):
    return a + b


@triton.jit
def _sticks_kernel(
    log_c_at, log_d_at, prior_c_at, prior_d_at, mask_at, values_at, gradients_at, count,
    BETA: tl.constexpr, TERMS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """KL(q(v) || p(v)) stick by stick, each with its gradient by log c and log d."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    log_c = tl.load(log_c_at + at, mask=inside, other=0.0).to(tl.float64)
    log_d = tl.load(log_d_at + at, mask=inside, other=0.0).to(tl.float64)
    prior_c = tl.load(prior_c_at + at, mask=inside, other=1.0).to(tl.float64)
    mask = tl.load(mask_at + at, mask=inside, other=0.0).to(tl.float64)
    d = tl.exp(log_d)
    x = prior_c * tl.exp(-log_c)
    log_prior_c = tl.log(prior_c)
    _, psi = _gammas(d + 1)
    mean_log = -(psi + GAMMA)
    value = (1 - x) * mean_log + log_c + log_d - log_prior_c - 1 + 1 / d
    by_log_c = mean_log * x + 1
    by_log_d = _trigamma(d + 1) * d * (x - 1) + 1 - 1 / d
    if not BETA:
        prior_d = tl.load(prior_d_at + at, mask=inside, other=1.0).to(tl.float64)
        if TERMS == 0:
            series, by_log_x, by_log_b = _whole_series(log_prior_c - log_c, d)
        else:
            series, by_log_x, by_log_b = _cut_series(x, d, TERMS)
        value += (prior_d - 1) * series - tl.log(prior_d)
        by_log_c -= (prior_d - 1) * by_log_x
        by_log_d += (prior_d - 1) * by_log_b
    tl.store(values_at + at, value * mask, mask=inside)
    tl.store(gradients_at + count + at, (by_log_c * mask).to(tl.float32), mask=inside)
    tl.store(gradients_at + 2 * count + at, (by_log_d * mask).to(tl.float32), mask=inside)


@triton.jit
def _selection_kernel(
    logit_at, log_c_at, log_d_at, noise_at, mask_at, values_at, sums_at, gradients_at, width, BLOCK: tl.constexpr
):
    """KL(q(b) || p(b|v)) of a layer for the v that the noise gives. What the sticks gave is there already: the sum is
    of both, and gradients are added to."""
    row, rows = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, BLOCK)
    inside = column < width
    at, block = row * width + column, rows * width
    logit = tl.load(logit_at + at, mask=inside, other=0.0).to(tl.float64)
    over_c = tl.exp(-tl.load(log_c_at + at, mask=inside, other=0.0).to(tl.float64))
    noise = tl.load(noise_at + at, mask=inside, other=1.0).to(tl.float64)
    y = noise * tl.exp(-tl.load(log_d_at + at, mask=inside, other=0.0).to(tl.float64))
    mask = tl.load(mask_at + at, mask=inside, other=0.0).to(tl.float64)
    ratio = 1 / _expm1(tl.minimum(y, 700.0))
    raw_log_v = -_log1p(ratio) * over_c
    log_v = tl.minimum(raw_log_v, -SMALLEST)
    raw_log_p = tl.associative_scan(tl.where(inside, log_v, 0.0), 0, _add)
    log_p = tl.minimum(tl.maximum(raw_log_p, LOG_P_LOW), LOG_P_HIGH)
    not_p = -_expm1(log_p)
    delta = logit - log_p + tl.log(not_p)
    size = tl.abs(delta)
    near, square = size < 0.05, size * size
    far = tl.maximum(size, 0.05)
    coth = (1 + tl.exp(-far)) / (1 - tl.exp(-far))
    k = tl.where(near, square / 6 - square * square / 360, far * coth - 2)
    derivative = tl.where(near, size / 3 - size * square / 90 + size * square * square / 2520, (far - coth * k) / 2)
    by_logit = tl.where(delta < 0, -derivative, derivative) * mask
    by_log_p = tl.where(raw_log_p == log_p, -by_logit / not_p, 0.0)
    by_log_v = tl.associative_scan(by_log_p, 0, _add, reverse=True)
    by_log_v = tl.where(raw_log_v == log_v, by_log_v, 0.0)
    sticks = tl.load(values_at + at, mask=inside, other=0.0)
    tl.store(sums_at + row, tl.sum(tl.where(inside, k * mask + sticks, 0.0), 0))
    tl.store(gradients_at + at, by_logit.to(tl.float32), mask=inside)
    by_log_c = tl.load(gradients_at + block + at, mask=inside, other=0.0) - by_log_v * log_v
    tl.store(gradients_at + block + at, by_log_c.to(tl.float32), mask=inside)
    by_log_d = tl.load(gradients_at + 2 * block + at, mask=inside, other=0.0) - y * ratio * over_c * by_log_v
    tl.store(gradients_at + 2 * block + at, by_log_d.to(tl.float32), mask=inside)


def kl_and_gradients(
    q: Posterior, p: StickPrior, noise: Tensor, mask: Tensor, terms: int | None
) -> tuple[Tensor, Tensor]:
    """The KL of all rows, and its gradient by logit, log c and log d stacked."""
    rows, width = q.logit.shape
    count, device = q.logit.numel(), q.logit.device
    values = torch.empty(count, dtype=torch.float64, device=device)
    sums = torch.empty(rows, dtype=torch.float64, device=device)
    gradients = torch.empty(3, rows, width, device=device, dtype=torch.float32)
    _sticks_kernel[(triton.cdiv(count, STICKS),)](
        q.log_c, q.log_d, p.c, p.c if p.d is None else p.d, mask, values, gradients, count,
        BETA=p.d is None, TERMS=terms or 0, BLOCK=STICKS, num_warps=STICKS // 32,
    )  # fmt: skip
    block = triton.next_power_of_2(width)
    _selection_kernel[(rows,)](
        q.logit, q.log_c, q.log_d, noise, mask, values, sums, gradients,
        width, BLOCK=block, num_warps=min(max(block // 32, 1), 32),
    )  # fmt: skip
    return sums.sum().to(q.logit.dtype), gradients


@triton.jit
def _scores_kernel(strength_at, logit_at, temperature_at, uniform_at, scores_at, b_at, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    u = tl.load(uniform_at + at, mask=inside, other=0.5)
    u = tl.minimum(tl.maximum(u, 1e-7), 1 - 1e-7)
    noise = tl.log(u) - tl.log(1 - u)
    logit = tl.load(logit_at + at, mask=inside, other=0.0)
    b = tl.sigmoid((logit + noise) / tl.load(temperature_at))
    tl.store(b_at + at, b, mask=inside)
    tl.store(scores_at + at, tl.load(strength_at + at, mask=inside, other=0.0) * b, mask=inside)


@triton.jit
def _scores_gradients_kernel(strength_at, b_at, temperature_at, grad_at, gradients_at, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    b = tl.load(b_at + at, mask=inside, other=0.0)
    by_strength = tl.load(grad_at + at, mask=inside, other=0.0) * b
    strength = tl.load(strength_at + at, mask=inside, other=0.0)
    tl.store(gradients_at + at, by_strength, mask=inside)
    tl.store(gradients_at + count + at, (1 - b) * strength * by_strength / tl.load(temperature_at), mask=inside)


def scores_from(strength: Tensor, logit: Tensor, temperature: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """λ = r ⊙ b and b, from numbers uniform in (0, 1)."""
    scores, b = torch.empty_like(strength), torch.empty_like(strength)
    count = strength.numel()
    _scores_kernel[(triton.cdiv(count, 256),)](strength, logit, temperature, uniform, scores, b, count, BLOCK=256)
    return scores, b


def scores_gradients(strength: Tensor, b: Tensor, temperature: Tensor, grad: Tensor) -> Tensor:
    """What λ's gradient is to r and to logit π̄, stacked."""
    gradients = torch.empty(2, *strength.shape, device=strength.device, dtype=torch.float32)
    count = strength.numel()
    grid = (triton.cdiv(count, 256),)
    _scores_gradients_kernel[grid](strength, b, temperature, grad.contiguous(), gradients, count, BLOCK=256)
    return gradients
