"""The two relaxed distributions of IBP-WF, Kumaraswamy for sticks v and Concrete for selections b, and their KLs.

    q(v) = Kumaraswamy(c, d),    density  c d v^(c-1) (1 - v^c)^(d-1)
    q(b) = BernoulliConcrete(π̄), b = sigmoid(y),  y ~ Logistic(logit π̄ / τ, 1 / τ)

Sticks are kept as log v and selections as logits, so that values and gradients stay finite in float32 for every
parameter a training run can meet (c, d in [1e-3, 1e3], |logit| <= 30). torch's own classes of these names do not.
Random numbers are always given from outside.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

EULER_GAMMA = 0.57721566490153286061

LEAST = 1e-30
"""The least -log v: its reciprocal times any gradient of ours still fits into float32."""


def log1mexp(log_y: Tensor) -> Tensor:
    """`log(1 - exp(-y))` given `log y`, exact for tiny and for large y, with a derivative in [0, 1] everywhere.

    Written as `-log(1 + 1/(e^y - 1))`, whose derivative does not cancel. Below the first limit it is `log y` to the
    last digit, above the second as good as 0.
    """
    low, high = (-60.0, 6.5) if log_y.dtype == torch.float64 else (-15.0, 4.38)
    return torch.where(log_y < low, log_y, -torch.log1p(1 / torch.expm1(log_y.clamp(low, high).exp())))


def log_kumaraswamy_sample(c: Tensor, d: Tensor, noise: Tensor) -> Tensor:
    """`log v = log(1 - exp(-E/d)) / c`, `E ~ Exp(1)`: a reparametrized draw of q(v) (eq. post_v).

    Strictly negative and finite: at most -1e-30, with gradient zero where v is that close to 1.
    """
    noise = noise.clamp(min=torch.finfo(noise.dtype).tiny)
    return (log1mexp(noise.log() - d.log()) / c).clamp(max=-LEAST)


def kumaraswamy_log_mean(c: Tensor, d: Tensor) -> Tensor:
    """`log E[v] = log(d B(1 + 1/c, d))` under q(v)."""
    return d.log() + torch.lgamma(1 + 1 / c) + torch.lgamma(d) - torch.lgamma(1 + 1 / c + d)


def concrete_sample(logits: Tensor, temperature: Tensor | float, noise: Tensor) -> Tensor:
    """`b = sigmoid((logit π̄ + L) / τ)`, `L ~ Logistic(0, 1)`: a relaxed draw of q(b) (eq. post_b), inside (0, 1)."""
    b = torch.sigmoid((logits + noise) / temperature)
    return b.clamp(min=torch.finfo(b.dtype).tiny, max=1 - torch.finfo(b.dtype).eps / 2)


def kl_concrete(q_logits: Tensor, p_logits: Tensor) -> Tensor:
    """KL(q(b) ‖ p(b|v)) of eq. (online_inference), exact: `δ coth(δ/2) - 2`, whatever the temperature τ.

    logit b is Logistic(logits/τ, 1/τ), the KL does not change under that map, and scaling by τ leaves two unit
    logistics at distance `δ = q_logits - p_logits`. Below |δ| = 1 it is written by coth's continued fraction, which
    does not cancel: `2 (x coth x - 1) = 2 x² / (3 + x² / (5 + x² / (7 + ...)))` with x = δ/2.
    """
    delta = q_logits - p_logits
    q = delta.square() / 4
    near = 2 * q / (3 + q / (5 + q / (7 + q / (9 + q / (11 + q / (13 + q / 15))))))
    size = delta.abs().clamp(min=1)
    e = torch.exp(-size)
    return torch.where(delta.abs() < 1, near, size - 2 + 2 * size * e / (1 - e))


def kl_kumaraswamy_beta(a: Tensor, b: Tensor, alpha: Tensor) -> Tensor:
    """KL(q(v) ‖ p(v)) for the first task's prior Beta(α, 1): eq. (kl_kumar) with β = 1, which is closed.

    `(a-α)/a (-γ - ψ(b) - 1/b) + log(ab) - log α - (b-1)/b`, with `ψ(b) + 1/b = ψ(b+1)`: E log q(v), eq. (kl1), minus
    `log α + (α-1) E log v`, where `E log v = (-γ - ψ(b) - 1/b) / a` is eq. (mean_log_v).
    """
    mean_log = -(EULER_GAMMA + torch.digamma(b + 1))
    return (1 - alpha / a) * mean_log + a.log() + b.log() - alpha.log() - 1 + 1 / b


def kl_kumaraswamy(a: Tensor, b: Tensor, alpha: Tensor, beta: Tensor, terms: int | None = None) -> Tensor:
    """KL(q(v) ‖ p(v)) for a later task's prior Kumaraswamy(α, β), the posterior before it: eq. (kl_kumar),
    which is E log q(v), eq. (kl1), minus E log p(v), eq. (kl2).

    `log(ab/αβ) - (b-1)/b + (a-α)/a (-γ - ψ(b) - 1/b) + (β-1) Σ_m (b/m) B(m α/a + 1, b)`

    The paper cuts the sum after `terms` = 10; None takes all of them. What 10 terms leave out grows with a/α and with
    |β-1|, and fastest as b falls below 1; with β > 1 the cut value is too low, even negative at q = p:

        a, b, α, β          exact    10 terms      a, b, α, β          exact    10 terms
        200, 1.5, 200, 1.5  0        -0.01175      200, 0.7, 200, 0.5  0.05076   0.17305
        200, 3, 200, 3      0        -0.00233      20, 0.5, 5, 0.5     0.32827   0.85180
        200, 0.5, 200, 0.5  0         0.27026      20, 2, 2, 2         2.71278   2.44126
        200, 0.1, 200, 0.1  0         6.76460      2, 2, 20, 2        10.71616  10.71607
    """
    series = log_series(a, b, alpha) if terms is None else cut_log_series(a, b, alpha, terms)
    return kl_kumaraswamy_beta(a, b, alpha) - beta.log() + (beta - 1) * series


def log_moment(n: Tensor, b: Tensor) -> Tensor:
    """`log E[v^(n a)] = log(b B(n + 1, b))` under Kumaraswamy(a, b) (eq. moment); in float64, as lgamma cancels."""
    n, b = n.double(), b.double()
    return torch.lgamma(1 + n) + torch.lgamma(1 + b) - torch.lgamma(1 + n + b)


def cut_log_series(a: Tensor, b: Tensor, alpha: Tensor, terms: int) -> Tensor:
    """`-E log(1 - v^α) = Σ_m E[v^(m α)] / m` (eq. taylor_expansion), its first terms."""
    m = torch.arange(1, terms + 1, dtype=torch.float64, device=a.device).view(-1, *[1] * a.dim())
    return (log_moment(m * (alpha / a).double(), b).exp() / m).sum(0).to(a.dtype)


def log_series(a: Tensor, b: Tensor, alpha: Tensor) -> Tensor:
    """The same sum with all its terms, by quadrature, in float64.

    With `x = α/a` and `G(h; y) = -log(1 - (1 - e^-h)^y)` it is `∫ e^-E G(E/b; x) dE = ∫ e^(-b G(E/b; 1/x)) dE/b`: the
    mean, and the integral of the survival function. The first integrand is smooth for x <= 1, the second for x >= 1;
    20 points of the double-exponential rule `E = exp(t - e^-t)` leave an error below 1e-7 (1 + sum) for x in
    [1e-6, 1e6], b in [1e-3, 1e3].
    """
    log_x, scale = (alpha.double().log() - a.double().log()), b.double()
    t = torch.linspace(-3.0, 3.2, 20, dtype=torch.float64, device=a.device).view(-1, *[1] * a.dim())
    e = torch.exp(t - torch.exp(-t))
    log_weight = t - torch.exp(-t) + torch.log1p(torch.exp(-t)) + math.log(6.2 / 19)
    h = e / scale
    inner = h.clamp(max=80)
    log_rate = torch.log(-log1mexp(inner.log())) + (inner - h)  # log(-log(1 - e^-h)), which is -h for large h
    first = log_x <= 0
    # |log x|, written so that it has a derivative at 0 too: a task starts where q = p.
    log1m = log1mexp(log_rate - torch.where(first, -log_x, log_x))
    mean = -(torch.exp(log_weight - e) * log1m).sum(0)
    mass = torch.exp(log_weight + scale * log1m).sum(0) / scale
    return torch.where(first, mean, mass).to(a.dtype)
