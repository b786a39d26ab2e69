"""Kumaraswamy, BernoulliConcrete and their KLs against numpy and scipy: quadrature, long sums, samples."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats
from torch import Tensor
from torch.distributions import Beta, kl_divergence

from ibpwf.core import distributions as D
from ibpwf.core.distributions import BernoulliConcrete, Kumaraswamy

DOUBLE = torch.float64
PAIRS = [(0.4, 0.6), (1.0, 1.0), (5.0, 1.0), (2.0, 3.0), (0.7, 8.0), (30.0, 0.8)]
POWERS = [10.0**k for k in range(-3, 4)]
any_power = st.floats(-3, 3).map(lambda e: 10.0**e)
CASES = [(5, 1, 5, 1), (5, 1.5, 5, 1.5), (2, 3, 4, 0.6), (20, 0.5, 5, 0.5), (0.7, 2, 3, 8), (3, 0.4, 0.5, 2.5)]


def t(*values: float) -> tuple[Tensor, ...]:
    return tuple(torch.tensor(float(value), dtype=DOUBLE) for value in values)


def grid(*axes: Sequence[float], dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """Every combination of the axes' values, a column each."""
    return tuple(torch.tensor(column, dtype=dtype) for column in zip(*itertools.product(*axes), strict=True))


def integral(f: Callable[[float], float], *ends: float) -> float:
    """∫ f over each interval between the given ends."""
    pieces = itertools.pairwise(ends)
    return float(sum(integrate.quad(f, *piece, epsabs=1e-12, epsrel=1e-11, limit=200)[0] for piece in pieces))


def over_exponential(f: Callable[[float], float]) -> float:
    """E f(E) for E ~ Exp(1)."""
    return integral(lambda e: math.exp(-e) * f(e), 0, 1e-8, 1e-4, 1e-2, 0.3, 2, 8, 25, 60)


def log_v(e: float, c: float, d: float) -> float:
    """Kumaraswamy's quantile function in logs; 1 - v^c = exp(-e/d)."""
    h = e / d
    return (math.log(-math.expm1(-h)) if h < 0.7 else math.log1p(-math.exp(-h))) / c


def kumaraswamy_kl_truth(a: float, b: float, log_p: Callable[[float], float]) -> float:
    """E_q[log q(v) - log p(v)] by quadrature; log_p takes log v."""

    def difference(e: float) -> float:
        log = log_v(e, a, b)
        return math.log(a * b) + (a - 1) * log - (b - 1) * e / b - log_p(log)

    return over_exponential(difference)


def log_kumaraswamy(alpha: float, beta: float) -> Callable[[float], float]:
    """The log density of Kumaraswamy(α, β), given log v."""
    top = math.log(alpha * beta)
    return lambda log: top + (alpha - 1) * log + (beta - 1) * math.log(-math.expm1(alpha * log))


def log_beta(alpha: float, beta: float) -> Callable[[float], float]:
    """The log density of Beta(α, β), given log v."""
    top = -special.betaln(alpha, beta)
    return lambda log: top + (alpha - 1) * log + (beta - 1) * math.log(-math.expm1(log))


@pytest.mark.parametrize(("c", "d"), PAIRS)
def test_kumaraswamy_density_and_summaries(c: float, d: float) -> None:
    q = Kumaraswamy(*t(c, d))
    v = np.linspace(0.01, 0.99, 25)
    density = c * d * v ** (c - 1) * (1 - v**c) ** (d - 1)
    np.testing.assert_allclose(q.log_prob(torch.tensor(v)).exp().numpy(), density, rtol=1e-9)
    np.testing.assert_allclose(q.log_prob_from_log(torch.tensor(np.log(v))).exp().numpy(), density, rtol=1e-9)
    np.testing.assert_allclose(q.cdf(torch.tensor(v)).numpy(), 1 - (1 - v**c) ** d, rtol=1e-9, atol=1e-15)
    u = np.linspace(0.01, 0.99, 25)
    np.testing.assert_allclose(q.icdf(torch.tensor(u)).numpy(), (1 - (1 - u) ** (1 / d)) ** (1 / c), rtol=1e-9)
    assert q.cdf(torch.tensor([0.0, 1.0], dtype=DOUBLE)).tolist() == [0.0, 1.0]
    assert q.icdf(torch.tensor([0.0, 1.0], dtype=DOUBLE)).tolist() == [0.0, 1.0]
    mean = over_exponential(lambda e: math.exp(log_v(e, c, d)))
    second = over_exponential(lambda e: math.exp(2 * log_v(e, c, d)))
    assert q.mean.item() == pytest.approx(mean, rel=1e-8)
    assert q.variance.item() == pytest.approx(second - mean**2, rel=1e-6)
    assert q.mean_log.item() == pytest.approx(over_exponential(lambda e: log_v(e, c, d)), rel=1e-8)
    assert q.entropy().item() == pytest.approx(-kumaraswamy_kl_truth(c, d, lambda _: 0.0), rel=1e-8, abs=1e-8)


@pytest.mark.parametrize(("c", "d"), PAIRS)
def test_kumaraswamy_samples_follow_the_distribution(c: float, d: float) -> None:
    q = Kumaraswamy(*t(c, d))
    sample = q.rsample((20_000,), generator=torch.Generator().manual_seed(0))
    assert stats.kstest(sample.numpy(), lambda v: 1 - (1 - v**c) ** d).pvalue > 1e-4
    again = q.rsample_log((20_000,), generator=torch.Generator().manual_seed(0))
    assert torch.equal(sample, again.exp().clamp(max=1 - 2.0**-53))
    assert abs(sample.mean() - q.mean) < 4.5 * sample.std() / math.sqrt(len(sample))


def test_log_sample_in_float32_is_the_float64_one() -> None:
    c, d, e = grid(POWERS, POWERS, [1e-30, 1e-9, 1e-3, 0.1, 1, 9, 100], dtype=DOUBLE)
    truth = np.array([log_v(*values) for values in zip(e.tolist(), c.tolist(), d.tolist(), strict=True)])
    got = D.log_kumaraswamy_sample(c.float(), d.float(), e.float()).double().numpy()
    np.testing.assert_allclose(got, np.minimum(truth, -1e-30), rtol=2e-4, atol=2e-30)


def test_sample_gradients_are_finite_differences() -> None:
    c, d = (torch.tensor(x, dtype=DOUBLE, requires_grad=True) for x in ([0.3, 2, 50], [4, 0.5, 1]))
    e = torch.tensor([0.2, 1, 3], dtype=DOUBLE)
    assert torch.autograd.gradcheck(D.log_kumaraswamy_sample, (c, d, e))
    v = torch.tensor([-0.3, -2.0, -0.01], dtype=DOUBLE, requires_grad=True)
    assert torch.autograd.gradcheck(lambda c, d, v: Kumaraswamy(c, d).log_prob_from_log(v), (c, d, v))
    assert torch.autograd.gradcheck(lambda c, d: Kumaraswamy(c, d).entropy(), (c, d))
    assert torch.autograd.gradcheck(lambda c, d: Kumaraswamy(c, d).mean, (c, d))


def check_finite(values: Sequence[Tensor], parameters: tuple[Tensor, ...]) -> None:
    """Every value, and the gradient of its sum in every parameter, is finite."""
    for value in values:
        assert value.dtype == torch.float32
        assert value.isfinite().all()
        for gradient in torch.autograd.grad(value.sum(), parameters, retain_graph=True, allow_unused=True):
            assert gradient is None or gradient.isfinite().all()


def check_kumaraswamy_is_finite(c: Tensor, d: Tensor, noise: Tensor) -> None:
    q = Kumaraswamy(c.clone().requires_grad_(), d.clone().requires_grad_())
    log, v = D.log_kumaraswamy_sample(q.c, q.d, noise), q.rsample(generator=torch.Generator().manual_seed(0))
    assert (log < 0).all()
    fixed = log.detach()
    check_finite([log, q.log_prob_from_log(fixed), q.log_prob_from_log(log)], (q.c, q.d))
    check_finite([v, q.log_prob(v.detach()), q.log_prob(v), q.cdf(fixed.exp())], (q.c, q.d))
    check_finite([q.icdf(torch.full_like(c, 0.3)), q.mean, q.variance, q.mean_log, q.entropy()], (q.c, q.d))


def test_kumaraswamy_is_finite_on_the_whole_grid_in_float32() -> None:
    noise = [1e-30, 1e-20, 1e-7, 1e-3, 0.3, 1.0, 10.0, 100.0]
    check_kumaraswamy_is_finite(*grid(POWERS, POWERS, noise))


@settings(max_examples=60, deadline=None)
@given(c=any_power, d=any_power, e=st.floats(-30, 2).map(lambda x: 10.0**x))
def test_kumaraswamy_is_finite_in_float32(c: float, d: float, e: float) -> None:
    check_kumaraswamy_is_finite(*(torch.tensor([x]) for x in (c, d, e)))


def test_log1mexp() -> None:
    y = np.exp(np.linspace(-40, 6, 300))
    truth = [math.log(-math.expm1(-x)) if x < 0.7 else math.log1p(-math.exp(-x)) for x in y]
    log_y = torch.tensor(np.log(y), requires_grad=True)
    value = D.log1mexp(log_y)
    np.testing.assert_allclose(value.detach().numpy(), truth, rtol=1e-12)
    value.sum().backward()
    np.testing.assert_allclose(log_y.grad.numpy(), y / np.expm1(y), rtol=1e-12)
    ends = torch.tensor([-1e5, -200.0, 90.0, 1e5], requires_grad=True)
    value = D.log1mexp(ends)
    value.sum().backward()
    assert value.tolist() == [-1e5, -200.0, 0.0, 0.0]
    assert ends.grad.tolist() == [1.0, 1.0, 0.0, 0.0]


def test_distribution_protocol() -> None:
    ones = torch.ones(3, requires_grad=True)
    for q in (Kumaraswamy(ones, 2.0), BernoulliConcrete(ones, 2 / 3)):
        assert q.has_rsample
        assert q.expand((4, 3)).rsample((2,)).shape == (2, 4, 3)
        assert not q.sample((5,)).requires_grad
        assert q.rsample((5,)).requires_grad
        with pytest.raises(ValueError, match="support"):
            q.log_prob(torch.full((3,), 1.5))
    with pytest.raises(ValueError, match="concentration0"):
        Kumaraswamy(1.0, -1.0)
    with pytest.raises(ValueError, match="temperature"):
        BernoulliConcrete(0.0, 0.0)


def test_functions_vectorise_under_vmap() -> None:
    x = torch.linspace(-3, 3, 7, dtype=DOUBLE)
    slope = torch.func.vmap(torch.func.grad(lambda z: D.kl_concrete(z, torch.zeros_like(z))))(x)
    truth = [1 / math.tanh(z / 2) - z / 2 / math.sinh(z / 2) ** 2 if z else 0.0 for z in x.tolist()]
    np.testing.assert_allclose(slope.numpy(), truth, rtol=1e-9)
    c = x.exp()
    each = torch.func.vmap(lambda z: D.kl_kumaraswamy(z, z, 2.0, 3.0, tail=True))(c)
    torch.testing.assert_close(each, D.kl_kumaraswamy(c, c, 2.0, 3.0, tail=True))


@pytest.mark.parametrize(("logit", "tau"), [(0.0, 1.0), (1.5, 2 / 3), (-3.0, 0.3), (4.0, 5.0)])
def test_concrete_density_and_samples(logit: float, tau: float) -> None:
    q = BernoulliConcrete(*t(logit, tau))
    b = np.linspace(0.02, 0.98, 25)
    ratio = math.exp(logit)  # Maddison et al., the density of the binary Concrete
    density = tau * ratio * b ** (-tau - 1) * (1 - b) ** (-tau - 1) / (ratio * b**-tau + (1 - b) ** -tau) ** 2
    np.testing.assert_allclose(q.log_prob(torch.tensor(b)).exp().numpy(), density, rtol=1e-9)
    y, law = special.logit(b), stats.logistic(logit / tau, 1 / tau)
    np.testing.assert_allclose(q.log_prob_logit(torch.tensor(y)).numpy(), law.logpdf(y), rtol=1e-9)
    sample = q.rsample_logit((20_000,), torch.Generator().manual_seed(1))
    assert stats.kstest(sample.numpy(), law.cdf).pvalue > 1e-4
    assert torch.equal(q.rsample((20_000,), torch.Generator().manual_seed(1)), torch.sigmoid(sample))
    share = (sample > 0).double().mean().item()
    p = special.expit(logit)
    assert q.probs.item() == pytest.approx(p)
    assert abs(share - p) < 4.5 * math.sqrt(p * (1 - p) / 20_000)
    noise = torch.tensor([-1.0, 0.5], dtype=DOUBLE)
    truth = special.expit((logit + noise.numpy()) / tau)
    np.testing.assert_allclose(D.concrete_sample(q.logits, tau, noise).numpy(), truth)


def test_concrete_is_finite_on_the_whole_grid_in_float32() -> None:
    logits, tau, noise = grid([-30, -29.9, -5, 0, 1e-4, 17, 30], [0.1, 2 / 3, 1, 10], [-70, -16, 0, 3, 70])
    q = BernoulliConcrete(logits.requires_grad_(), tau.requires_grad_())
    b, y = D.concrete_sample(logits, tau, noise), D.concrete_sample_logit(logits, tau, noise)
    assert ((b > 0) & (b < 1)).all()
    check_finite([b, y, q.log_prob(b), q.log_prob(b.detach())], (logits, tau))
    check_finite([q.log_prob_logit(y), q.log_prob_logit(y.detach())], (logits, tau))


def concrete_kl_truth(q: float, tau_q: float, p: float, tau_p: float) -> float:
    """E_q[log q(y) - log p(y)] by quadrature over y, logistic densities from scipy."""
    one, other = stats.logistic(q / tau_q, 1 / tau_q), stats.logistic(p / tau_p, 1 / tau_p)
    centre, kink = q / tau_q, p / tau_p
    ends = sorted({centre + k / tau_q for k in (-60, -20, -5, 0, 5, 20, 60)} | {kink})
    ends = [e for e in ends if abs(e - centre) <= 60 / tau_q]
    return integral(lambda y: one.pdf(y) * (one.logpdf(y) - other.logpdf(y)), *ends)


@pytest.mark.parametrize("tau", [0.2, 2 / 3, 5.0])
@pytest.mark.parametrize(("q", "p"), [(0.0, 0.0), (0.3, 0.1), (1.0, -0.5), (-4.0, 6.0), (20.0, -5.0)])
def test_concrete_kl_is_the_closed_form_whatever_the_temperature(q: float, p: float, tau: float) -> None:
    truth = concrete_kl_truth(q, tau, p, tau)
    assert D.kl_concrete(*t(q, p)).item() == pytest.approx(truth, rel=1e-9, abs=1e-10)
    registered = kl_divergence(BernoulliConcrete(*t(q, tau)), BernoulliConcrete(*t(p, tau)))
    assert torch.equal(registered, D.kl_concrete(*t(q, p)))


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_concrete_kl_is_accurate_from_zero_to_1e4(dtype: torch.dtype) -> None:
    size = np.concatenate([[0.0], np.logspace(-12, 4, 400), [0.999999, 1.0, 1.000001]])
    delta = torch.tensor(np.concatenate([size, -size]), dtype=dtype, requires_grad=True)
    value = D.kl_concrete(delta, torch.zeros_like(delta))
    value.sum().backward()
    x = delta.detach().double().abs().numpy()
    # Below 0.5 the series 2 Σ B_2n δ^2n / (2n)!, above the hyperbolic functions as they stand.
    orders = [(2 * n, 2 * special.bernoulli(2 * n)[-1] / math.factorial(2 * n)) for n in range(1, 9)]
    low, high = np.minimum(x, 0.5), np.clip(x, 0.5, 700)
    truth = np.where(x < 0.5, sum(w * low**n for n, w in orders), x / np.tanh(high / 2) - 2)
    far = 1 / np.tanh(high / 2) - high / 2 / np.sinh(high / 2) ** 2
    slope = np.where(x < 0.5, sum(w * n * low ** (n - 1) for n, w in orders), far)
    tolerance = 2e-6 if dtype == torch.float32 else 1e-12
    np.testing.assert_allclose(value.detach().numpy(), truth, rtol=tolerance, atol=1e-37)
    np.testing.assert_allclose(delta.grad.abs().numpy(), slope, rtol=tolerance, atol=1e-37)
    assert (delta.grad.sign() == delta.detach().sign()).all()
    assert value[0] == 0
    assert delta.grad[0] == 0


@pytest.mark.parametrize("tau", [(0.1, 10.0), (10.0, 0.1), (0.5, 2 / 3), (1.0, 0.3), (2 / 3, 0.6)])
@pytest.mark.parametrize(("q", "p"), [(0.0, 0.0), (2.0, -1.0), (-6.0, 5.0)])
def test_concrete_kl_between_temperatures(q: float, p: float, tau: tuple[float, float]) -> None:
    values = t(q, tau[0], p, tau[1])
    truth = concrete_kl_truth(q, tau[0], p, tau[1])
    got = kl_divergence(BernoulliConcrete(*values[:2]), BernoulliConcrete(*values[2:]))
    assert got.item() == pytest.approx(truth, rel=1e-9, abs=1e-9)
    assert torch.autograd.gradcheck(D.kl_concrete_temperatures, tuple(v.requires_grad_() for v in values), atol=1e-6)


def closed_sum(a: float, b: float, alpha: float, beta: float, terms: int) -> float:
    """The paper's eq. (kl_kumar) as printed, one term at a time."""
    total = math.log(a * b / (alpha * beta)) - (b - 1) / b
    total += (a - alpha) / a * (-np.euler_gamma - special.digamma(b) - 1 / b)
    for m in range(1, terms + 1):
        total += alpha * b * (beta - 1) / (m * alpha + a * b) * special.beta(m * alpha / a, b)
    return float(total)


@pytest.mark.parametrize("case", CASES)
def test_kumaraswamy_kls(case: tuple[float, ...]) -> None:
    a, b, alpha, beta = case
    for terms in (1, 10, 60):
        cut = D.kl_kumaraswamy(*t(*case), terms=terms).item()
        assert cut == pytest.approx(closed_sum(*case, terms), rel=1e-9, abs=1e-11)
    truth = kumaraswamy_kl_truth(a, b, log_kumaraswamy(alpha, beta))
    exact = D.kl_kumaraswamy(*t(*case), tail=True).item()
    assert exact == pytest.approx(truth, rel=1e-7, abs=3e-7)
    assert kl_divergence(Kumaraswamy(*t(a, b)), Kumaraswamy(*t(alpha, beta))).item() == exact
    truth = kumaraswamy_kl_truth(a, b, log_kumaraswamy(alpha, 1.0))
    assert D.kl_kumaraswamy_beta(*t(a, b), alpha).item() == pytest.approx(truth, rel=1e-8, abs=1e-9)
    for second in (1.0, beta):
        truth = kumaraswamy_kl_truth(a, b, log_beta(alpha, second))
        got = kl_divergence(Kumaraswamy(*t(a, b)), Beta(*t(alpha, second))).item()
        assert got == pytest.approx(truth, rel=1e-7, abs=3e-7)


@pytest.mark.parametrize("case", CASES)
def test_kumaraswamy_kl_gradients(case: tuple[float, ...]) -> None:
    values = tuple(value.requires_grad_() for value in t(*case))
    assert torch.autograd.gradcheck(D.kl_kumaraswamy, values)
    assert torch.autograd.gradcheck(lambda *v: D.kl_kumaraswamy_beta(*v[:3]), values)
    step = 1e-4  # the quadrature's slopes against differences of scipy's quadrature
    slopes = torch.autograd.grad(D.kl_kumaraswamy(*values, tail=True), values)
    for i, slope in enumerate(slopes):
        low, high = (list(case), list(case))
        low[i], high[i] = case[i] * (1 - step), case[i] * (1 + step)
        ends = [kumaraswamy_kl_truth(*x[:2], log_kumaraswamy(*x[2:])) for x in (low, high)]
        assert slope.item() == pytest.approx((ends[1] - ends[0]) / (2 * step * case[i]), rel=1e-4, abs=2e-5)


def test_kls_by_sampling() -> None:
    generator = torch.Generator().manual_seed(4)
    one, other = Kumaraswamy(*t(6.0, 1.7)), Kumaraswamy(*t(4.0, 0.8))
    log = one.rsample_log((100_000,), generator)
    q, p = BernoulliConcrete(*t(2.0, 2 / 3)), BernoulliConcrete(*t(-1.0, 2 / 3))
    y = q.rsample_logit((100_000,), generator)
    sticks = one.log_prob_from_log(log) - other.log_prob_from_log(log)
    selection = q.log_prob_logit(y) - p.log_prob_logit(y)
    for ratio, kl in ((sticks, kl_divergence(one, other)), (selection, kl_divergence(q, p))):
        assert abs(ratio.mean() - kl) < 4.5 * ratio.std() / math.sqrt(len(ratio))


def test_whole_kl_is_zero_with_zero_slope_where_q_is_p() -> None:
    p_c, p_d = grid(POWERS, POWERS, dtype=DOUBLE)
    c, d = p_c.clone().requires_grad_(), p_d.clone().requires_grad_()
    kl = D.kl_kumaraswamy(c, d, p_c, p_d, tail=True)
    kl.sum().backward()
    scale = 1 + (1 / p_d - 1).abs()  # of the terms that cancel
    assert (kl.abs() / scale).max() < 1e-7
    assert ((c.grad * c).abs() / scale).max() < 1e-5
    assert ((d.grad * d).abs() / scale).max() < 1e-5


def log_sum_truth(x: float, b: float) -> float:
    """Σ_m (b/m) B(m x + 1, b) = -E log(1 - w), w = v^α, x = α/a, by quadrature."""

    def minus_log1m(e: float) -> float:
        log_w = x * log_v(e, 1.0, b)
        return -math.log(-math.expm1(log_w)) if log_w < -1e-290 else e / b - math.log(x)

    return over_exponential(minus_log1m)


@settings(max_examples=60, deadline=None)
@given(x=st.floats(-6, 6).map(lambda e: 10.0**e), b=any_power)
def test_all_terms_over_the_whole_range(x: float, b: float) -> None:
    truth = log_sum_truth(x, b)
    with_sum, without = (D.kl_kumaraswamy(*t(1.0, b, x, beta), tail=True) for beta in (2.0, 1.0))
    got = (with_sum - without + math.log(2)).item()
    scale = 1 + truth + 1e-9 * without.abs().item()  # the subtraction above costs digits
    assert got == pytest.approx(truth, abs=1e-7 * scale)


@pytest.mark.parametrize("x", [0.03, 0.3, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("b", [0.2, 0.7, 1.0, 2.5, 8.0])
def test_error_bound_bounds_and_is_not_idle(x: float, b: float) -> None:
    for terms in (2, 10):
        first = sum(b / m * special.beta(m * x + 1, b) for m in range(1, terms + 1))
        truth = 2 * (log_sum_truth(x, b) - first)
        bound = D.kl_kumaraswamy_error(*t(2.0, b, 2.0 * x, 3.0), terms=terms).item()
        assert truth - 1e-10 <= bound <= 4 * truth + 1e-10


@settings(max_examples=100, deadline=None)
@given(x=st.floats(-3, 3).map(lambda e: 10.0**e), b=any_power, terms=st.integers(1, 40))
def test_error_bound_is_above_a_long_sum(x: float, b: float, terms: int) -> None:
    m = np.arange(terms + 1, terms + 20_001, dtype=float)
    log_term = special.gammaln(m * x + 1) + special.gammaln(b + 1) - special.gammaln(m * x + 1 + b) - np.log(m)
    bound = D.kl_kumaraswamy_error(*t(1.0, b, x, 2.0), terms=terms).item()
    assert np.exp(log_term).sum() <= bound * (1 + 1e-6)


def test_kls_are_finite_on_the_whole_grid_in_float32() -> None:
    a, b, alpha, beta = grid(POWERS, POWERS, POWERS, POWERS)
    kls = [D.kl_kumaraswamy(a.requires_grad_(), b.requires_grad_(), alpha, beta)]
    kls += [D.kl_kumaraswamy(a, b, alpha, beta, tail=True), D.kl_kumaraswamy_beta(a, b, alpha)]
    check_finite(kls, (a, b))
    # And in float32 the whole KL is the float64 one, to the rounding of the largest term.
    wide = [x.detach().double() for x in (a, b, alpha, beta)]
    exact = D.kl_kumaraswamy(*wide, tail=True)
    size = 1 + 1 / wide[1] + (1 - wide[2] / wide[0]).abs() * 8 + (wide[3] - 1).abs() * (1 + 1 / wide[1])
    assert ((kls[1] - exact).abs() / size).max() < 5e-6
    assert (exact / size > -1e-7).all()


def test_documented_errors_are_true() -> None:
    rows = re.findall(r"([\d.]+), ([\d.]+), ([\d.]+), ([\d.]+) +([-\d.]+) +([-\d.]+)", D.kl_kumaraswamy.__doc__ or "")
    assert len(rows) == 8
    for row in rows:
        *case, exact, cut = map(float, row)
        assert D.kl_kumaraswamy(*t(*case), tail=True).item() == pytest.approx(exact, abs=6e-6)
        assert D.kl_kumaraswamy(*t(*case)).item() == pytest.approx(cut, abs=6e-6)
