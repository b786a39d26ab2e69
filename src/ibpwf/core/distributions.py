"""The two relaxed distributions of IBP-WF, Kumaraswamy and BernoulliConcrete, and their KL divergences.

Everything is computed in log space for `v` and in logit space for `b`, so that values and gradients stay
finite in float32 for every parameter a training run can meet (c, d in [1e-3, 1e3], |logit| <= 30). The noise
can be given from outside (`log_kumaraswamy_sample`, `concrete_sample`), as a CUDA graph needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Size, Tensor
from torch.autograd.function import once_differentiable
from torch.distributions import Beta, Distribution, constraints, register_kl
from torch.distributions.utils import broadcast_all
from torch.nn import functional as F

from ibpwf.core.series import log1mexp, log_moment, log_series

EULER_GAMMA = 0.57721566490153286061
LEAST = 1e-30  # the least -log v: its reciprocal times any gradient of ours still fits into float32


def exponential_noise(shape: Sequence[int], like: Tensor, generator: Generator | None = None) -> Tensor:
    """Draws of Exp(1), strictly positive, of `like`'s type and device."""
    noise = torch.empty(tuple(shape), dtype=like.dtype, device=like.device)
    return noise.exponential_(generator=generator).clamp_(min=torch.finfo(like.dtype).eps / 4)


def logistic_noise(shape: Sequence[int], like: Tensor, generator: Generator | None = None) -> Tensor:
    """Draws of the standard logistic distribution: the difference of two Gumbel variables."""
    pair = exponential_noise((2, *shape), like, generator).log_()
    return pair[0] - pair[1]


def log_kumaraswamy_sample(c: Tensor, d: Tensor, exponential_noise: Tensor) -> Tensor:
    """`log v = log(1 - exp(-E/d)) / c`, `E ~ Exp(1)`: a reparametrised draw of Kumaraswamy(c, d).

    Strictly negative and finite: at most -1e-30, with gradient zero where v is that close to 1.
    """
    noise = exponential_noise.clamp(min=torch.finfo(exponential_noise.dtype).tiny)
    return (log1mexp(noise.log() - d.log()) / c).clamp(max=-LEAST)


def concrete_sample_logit(logits: Tensor, temperature: Tensor | float, logistic_noise: Tensor) -> Tensor:
    """`y = logit(b) = (logits + L) / temperature`, `L ~ Logistic(0, 1)`."""
    return (logits + logistic_noise) / temperature


def concrete_sample(logits: Tensor, temperature: Tensor | float, logistic_noise: Tensor) -> Tensor:
    """`b = sigmoid((logits + L) / temperature)`, kept strictly inside (0, 1)."""
    return _inside(torch.sigmoid(concrete_sample_logit(logits, temperature, logistic_noise)))


def _inside(value: Tensor) -> Tensor:
    """`value` moved strictly inside (0, 1), by less than a rounding."""
    return value.clamp(min=torch.finfo(value.dtype).tiny, max=1 - torch.finfo(value.dtype).eps / 2)


def _at_ends(value: Tensor, inside: Tensor) -> Tensor:
    """`inside`, but exactly 0 and 1 where `value` is at or beyond the ends of [0, 1]."""
    return torch.where(value <= 0, 0.0, torch.where(value >= 1, 1.0, inside))


class Kumaraswamy(Distribution):
    """Density `c d v^(c-1) (1 - v^c)^(d-1)` on (0, 1): the variational posterior q(v)."""

    arg_constraints = {"concentration1": constraints.positive, "concentration0": constraints.positive}  # noqa: RUF012
    support = constraints.unit_interval
    has_rsample = True

    def __init__(self, concentration1: Any, concentration0: Any, validate_args: bool | None = None) -> None:
        self.concentration1, self.concentration0 = broadcast_all(concentration1, concentration0)
        super().__init__(self.concentration1.shape, validate_args=validate_args)

    @property
    def c(self) -> Tensor:
        return self.concentration1

    @property
    def d(self) -> Tensor:
        return self.concentration0

    def expand(self, batch_shape: Any, _instance: Any = None) -> Kumaraswamy:
        return Kumaraswamy(self.c.expand(batch_shape), self.d.expand(batch_shape), False)

    def rsample_log(self, sample_shape: Any = (), generator: Generator | None = None) -> Tensor:
        """A draw of `log v`: strictly negative and finite."""
        noise = exponential_noise(self._extended_shape(Size(sample_shape)), self.c, generator)
        return log_kumaraswamy_sample(self.c, self.d, noise)

    def rsample(self, sample_shape: Any = (), generator: Generator | None = None) -> Tensor:
        return _inside(self.rsample_log(sample_shape, generator).exp())

    def _log_survival(self, log_v: Tensor) -> Tensor:
        """`log(1 - v^c)`."""
        return log1mexp(self.c.log() + torch.log(-log_v.clamp(max=-LEAST)))

    def log_prob_from_log(self, log_v: Tensor) -> Tensor:
        """The log density of v (not of log v) given `log v < 0`."""
        ends = (self.c - 1) * log_v + (self.d - 1) * self._log_survival(log_v)
        return self.c.log() + self.d.log() + ends

    def log_prob(self, value: Tensor) -> Tensor:
        """The log density; where v has lost digits near 1, prefer `log_prob_from_log`."""
        if self._validate_args:
            self._validate_sample(value)
        return self.log_prob_from_log(_inside(value).log())

    def cdf(self, value: Tensor) -> Tensor:
        """`1 - (1 - v^c)^d`."""
        return _at_ends(value, -torch.expm1(self.d * self._log_survival(_inside(value).log())))

    def icdf(self, value: Tensor) -> Tensor:
        """The quantile `(1 - (1 - u)^(1/d))^(1/c)`."""
        return _at_ends(value, log_kumaraswamy_sample(self.c, self.d, -torch.log1p(-_inside(value))).exp())

    @property
    def mean(self) -> Tensor:
        """`E[v] = d B(1 + 1/c, d)`."""
        return log_moment(1 / self.c.double(), self.d).exp().to(self.c.dtype)

    @property
    def variance(self) -> Tensor:
        first, second = (log_moment(order / self.c.double(), self.d).exp() for order in (1, 2))
        return (second - first.square()).clamp(min=0).to(self.c.dtype)

    @property
    def mean_log(self) -> Tensor:
        """`E[log v] = (-γ - ψ(d) - 1/d) / c = -(γ + ψ(d+1)) / c`."""
        return -(EULER_GAMMA + torch.digamma(self.d + 1)) / self.c

    def entropy(self) -> Tensor:
        """`-log(c d) - (c-1)/c (-γ - ψ(d) - 1/d) + (d-1)/d` (the paper's T1, eq. kl1, is its negative)."""
        return -(self.c.log() + self.d.log()) - (self.c - 1) * self.mean_log + 1 - 1 / self.d


class BernoulliConcrete(Distribution):
    """The relaxed Bernoulli of Maddison et al.: `b = sigmoid(y)`, `y ~ Logistic(logits/τ, 1/τ)`."""

    arg_constraints = {"logits": constraints.real, "temperature": constraints.positive}  # noqa: RUF012
    support = constraints.unit_interval
    has_rsample = True

    def __init__(self, logits: Any, temperature: Any, validate_args: bool | None = None) -> None:
        self.logits, self.temperature = broadcast_all(logits, temperature)
        super().__init__(self.logits.shape, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> BernoulliConcrete:
        tau = self.temperature.expand(batch_shape)
        return BernoulliConcrete(self.logits.expand(batch_shape), tau, False)

    @property
    def probs(self) -> Tensor:
        """`π = sigmoid(logits)`: also P(b > 1/2), whatever the temperature."""
        return torch.sigmoid(self.logits)

    def rsample_logit(self, sample_shape: Any = (), generator: Generator | None = None) -> Tensor:
        """A draw of `y = logit(b)`."""
        noise = logistic_noise(self._extended_shape(Size(sample_shape)), self.logits, generator)
        return concrete_sample_logit(self.logits, self.temperature, noise)

    def rsample(self, sample_shape: Any = (), generator: Generator | None = None) -> Tensor:
        return _inside(torch.sigmoid(self.rsample_logit(sample_shape, generator)))

    def log_prob_logit(self, y: Tensor) -> Tensor:
        """The log density over `y = logit(b)`: `log τ - z - 2 log(1 + e^-z)`, `z = τ y - logits`."""
        z = self.temperature * y - self.logits
        return self.temperature.log() + F.logsigmoid(z) + F.logsigmoid(-z)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log density over b; near 0 and 1, where b has lost digits, prefer `log_prob_logit`."""
        if self._validate_args:
            self._validate_sample(value)
        b = _inside(value)
        log_b, log_not = b.log(), torch.log1p(-b)
        return self.log_prob_logit(log_b - log_not) - log_b - log_not


def logistic_kl(delta: Tensor) -> Tensor:
    """`k(δ) = δ coth(δ/2) - 2`; below 1 by coth's continued fraction, which does not cancel.

    `2 (x coth x - 1) = 2 x² / (3 + x² / (5 + x² / (7 + ...)))`, x = δ/2; it begins δ²/6 - δ⁴/360.
    """
    size, q = delta.abs(), delta.square() / 4
    fraction = 5 + q / (7 + q / (9 if delta.dtype != torch.float64 else 9 + q / (11 + q / (13 + q / 15))))
    e = torch.exp(-size)
    return torch.where(size < 1, 2 * q / (3 + q / fraction), size - 2 + 2 * size * e / (1 - e))


def logistic_kl_slope(delta: Tensor, k: Tensor) -> Tensor:
    """`k' = δ/2 - k (2 + k) / (2 δ)`, which is exact for small δ; for large δ it is written in e^-|δ|."""
    size = delta.abs()
    e = torch.exp(-size.clamp(min=1))
    near = size / 2 - k * (2 + k) / (2 * size.clamp(min=1e-30))
    far = (1 - e * e - 2 * size * e) / (1 - e).square()
    return torch.where(size < 1, near, far) * delta.sign()


class _LogisticKL(torch.autograd.Function):
    """`logistic_kl` with its slope."""

    generate_vmap_rule = True

    @staticmethod
    def forward(delta: Tensor) -> Tensor:
        return logistic_kl(delta)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * logistic_kl_slope(*ctx.saved_tensors)


def kl_concrete(q_logits: Tensor, p_logits: Tensor) -> Tensor:
    """KL between two BernoulliConcrete of the same temperature τ: `δ coth(δ/2) - 2`, whatever τ.

    `y = logit(b)` is Logistic(logits/τ, 1/τ), the KL does not change under the map b -> y, and scaling y by τ
    leaves two unit logistics at distance `δ = q_logits - p_logits`.
    """
    result: Tensor = _LogisticKL.apply(q_logits - p_logits)  # type: ignore[no-untyped-call]
    return result


def kl_concrete_temperatures(q_logits: Tensor, q_tau: Tensor, p_logits: Tensor, p_tau: Tensor) -> Tensor:
    """KL between two BernoulliConcrete of any temperatures, by quadrature: error below 1e-10 (1 + KL).

    With `z ~ Logistic(0, 1)`, `r = τ_p/τ_q`, `s = r q_logits - p_logits`: `KL = -log r - 2 - s + 2 J(r, s)`,
    `J(r, s) = E softplus(r z + s) = r J(1/r, s/r)`, as softplus is itself the mean of `max(0, . + z')`: so
    r <= 1 can be had, where the integrand is smooth and the trapezium rule in z converges exponentially.
    """
    q_logits, q_tau, p_logits, p_tau = broadcast_all(q_logits, q_tau, p_logits, p_tau)
    r = p_tau / q_tau
    s = r * q_logits - p_logits
    scale = r.clamp(min=1)
    z = torch.linspace(-36, 36, 145, dtype=r.dtype, device=r.device).view(-1, *[1] * r.dim())
    weight = 0.5 * torch.sigmoid(z) * torch.sigmoid(-z)
    softplus = -F.logsigmoid(-((r / scale.square()) * z + s / scale))
    return 2 * scale * (weight * softplus).sum(0) - s - 2 - r.log()


def kl_kumaraswamy_beta(a: Tensor, b: Tensor, alpha: Tensor | float) -> Tensor:
    """KL(Kumaraswamy(a, b) ‖ Beta(α, 1)), closed form: eq. (kl_kumar) with β = 1.

    `(a-α)/a (-γ - ψ(b) - 1/b) + log(ab) - log α - (b-1)/b`, with `ψ(b) + 1/b = ψ(b+1)`.
    """
    alpha = torch.as_tensor(alpha, dtype=a.dtype, device=a.device)
    mean_log = -(EULER_GAMMA + torch.digamma(b + 1))
    return (1 - alpha / a) * mean_log + a.log() + b.log() - alpha.log() - 1 + 1 / b


def kl_kumaraswamy(
    a: Tensor, b: Tensor, alpha: Tensor | float, beta: Tensor | float, terms: int = 10, tail: bool = False
) -> Tensor:
    """KL(Kumaraswamy(a, b) ‖ Kumaraswamy(α, β)), the paper's eq. (kl_kumar).

    `log(ab/αβ) - (b-1)/b + (a-α)/a (-γ - ψ(b) - 1/b) + (β-1) Σ_m (b/m) B(m α/a + 1, b)`

    The paper cuts the sum after 10 terms. `tail=True` takes all of them, by quadrature (error below
    1e-7 |β-1| (1 + sum), `terms` unused) in half the time. What 10 terms leave out grows with a/α and with
    |β-1|, and fastest as b falls below 1; with β > 1 the cut value is too low, even negative at q = p:

        a, b, α, β          exact    10 terms      a, b, α, β          exact    10 terms
        200, 1.5, 200, 1.5  0        -0.01175      200, 0.7, 200, 0.5  0.05076   0.17305
        200, 3, 200, 3      0        -0.00233      20, 0.5, 5, 0.5     0.32827   0.85180
        200, 0.5, 200, 0.5  0         0.27026      20, 2, 2, 2         2.71278   2.44126
        200, 0.1, 200, 0.1  0         6.76460      2, 2, 20, 2        10.71616  10.71607
    """
    a, b, alpha, beta = broadcast_all(a, b, alpha, beta)
    series = log_series(a, b, alpha, None if tail else terms)
    return kl_kumaraswamy_beta(a, b, alpha) - beta.log() + (beta - 1) * series


def kl_kumaraswamy_error(
    a: Tensor, b: Tensor, alpha: Tensor | float, beta: Tensor | float, terms: int = 10
) -> Tensor:
    """An upper bound of |error| of `kl_kumaraswamy` cut after M = `terms` terms: `|β-1| Σ_{m>M} t_m`.

    `t_m = μ(m α/a)/m`, with the moment `μ(n) = b B(n + 1, b)`, is convex in m, so that
    `Σ_{m>M} t_m <= ∫_N^∞ μ(n) dn/n`, `N = (M + ½) α/a`. As `ψ(1+n+b) - ψ(1+n) >= b/(1+n+b)`, for n > n'
    `μ(n) <= μ(n') ((n'+b+1)/(n+b+1))^b`; with `n' = max(N, 1)` the integral is at most
    `μ(N) log(n'/N) + μ(n') (n'+b+1)/(n' b)`.
    """
    a, b, alpha, beta = (value.double() for value in broadcast_all(a, b, alpha, beta))
    start = (terms + 0.5) * alpha / a
    split = start.clamp(min=1)
    near = log_moment(start, b).exp() * (split / start).log()
    rest = log_moment(split, b).exp() * (split + b + 1) / (split * b)
    return (beta - 1).abs() * (near + rest)


def _kl_concrete_concrete(q: BernoulliConcrete, p: BernoulliConcrete) -> Tensor:
    if torch.equal(q.temperature, p.temperature):
        return kl_concrete(q.logits, p.logits)
    return kl_concrete_temperatures(q.logits, q.temperature, p.logits, p.temperature)


def _kl_kumaraswamy_beta(q: Kumaraswamy, p: Beta) -> Tensor:
    """For any Beta(α, β): `KL(q ‖ Beta(α, 1)) + log α + log B(α, β) - (β - 1) E_q log(1 - v)`."""
    c, d, alpha, beta = broadcast_all(q.c, q.d, p.concentration1, p.concentration0)
    log_beta = torch.lgamma(alpha) + torch.lgamma(beta) - torch.lgamma(alpha + beta)
    rest = alpha.log() + log_beta + (beta - 1) * log_series(c, d, torch.ones_like(c), None)
    return kl_kumaraswamy_beta(c, d, alpha) + rest


register_kl(BernoulliConcrete, BernoulliConcrete)(_kl_concrete_concrete)  # type: ignore[no-untyped-call]
register_kl(Kumaraswamy, Beta)(_kl_kumaraswamy_beta)  # type: ignore[no-untyped-call]
register_kl(Kumaraswamy, Kumaraswamy)(  # type: ignore[no-untyped-call]
    lambda q, p: kl_kumaraswamy(q.c, q.d, p.c, p.d, tail=True)
)
