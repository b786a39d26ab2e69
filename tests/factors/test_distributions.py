"""Draws of sticks and selections, and their KLs, against numpy and scipy: quadrature, long sums, samples."""

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

from ibpwf.factors import distributions as D

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


@pytest.mark.parametrize(("c", "d"), PAIRS)
def test_draws_follow_the_distribution(c: float, d: float) -> None:
    noise = torch.empty(20_000, dtype=DOUBLE).exponential_(generator=torch.Generator().manual_seed(0))
    sample = D.log_kumaraswamy_sample(*t(c, d), noise).exp().numpy()
    assert stats.kstest(sample, lambda v: 1 - (1 - v**c) ** d).pvalue > 1e-4
    mean = math.exp(D.kumaraswamy_log_mean(*t(c, d)))
    assert mean == pytest.approx(over_exponential(lambda e: math.exp(log_v(e, c, d))), rel=1e-8)
    assert abs(sample.mean() - mean) < 4.5 * sample.std() / math.sqrt(len(sample))


def test_log_sample_in_float32_is_the_float64_one() -> None:
    c, d, e = grid(POWERS, POWERS, [1e-30, 1e-9, 1e-3, 0.1, 1, 9, 100], dtype=DOUBLE)
    truth = np.array([log_v(*values) for values in zip(e.tolist(), c.tolist(), d.tolist(), strict=True)])
    got = D.log_kumaraswamy_sample(c.float(), d.float(), e.float()).double().numpy()
    np.testing.assert_allclose(got, np.minimum(truth, -1e-30), rtol=2e-4, atol=2e-30)


def test_sample_gradients_are_finite_differences() -> None:
    c, d = (torch.tensor(x, dtype=DOUBLE, requires_grad=True) for x in ([0.3, 2, 50], [4, 0.5, 1]))
    e = torch.tensor([0.2, 1, 3], dtype=DOUBLE)
    assert torch.autograd.gradcheck(D.log_kumaraswamy_sample, (c, d, e))
    assert torch.autograd.gradcheck(D.kumaraswamy_log_mean, (c, d))


def check_finite(values: Sequence[Tensor], parameters: tuple[Tensor, ...]) -> None:
    """Every value, and the gradient of its sum in every parameter, is finite."""
    for value in values:
        assert value.dtype == torch.float32
        assert value.isfinite().all()
        for gradient in torch.autograd.grad(value.sum(), parameters, retain_graph=True, allow_unused=True):
            assert gradient is None or gradient.isfinite().all()


def check_kumaraswamy_is_finite(c: Tensor, d: Tensor, noise: Tensor) -> None:
    c, d = c.clone().requires_grad_(), d.clone().requires_grad_()
    log = D.log_kumaraswamy_sample(c, d, noise)
    assert (log < 0).all()
    check_finite([log, D.kumaraswamy_log_mean(c, d)], (c, d))


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
    np.testing.assert_allclose(log_y.grad.numpy(), y / np.expm1(y), rtol=1e-12, atol=1e-150)
    ends = torch.tensor([-1e5, -200.0, 90.0, 1e5], requires_grad=True)
    value = D.log1mexp(ends)
    value.sum().backward()
    assert value.tolist() == pytest.approx([-1e5, -200.0, 0.0, 0.0], rel=0, abs=1e-30)
    assert ends.grad.tolist() == [1.0, 1.0, 0.0, 0.0]


def test_functions_vectorize_under_vmap() -> None:
    x = torch.linspace(-3, 3, 7, dtype=DOUBLE)
    gradient = torch.func.vmap(torch.func.grad(lambda z: D.kl_concrete(z, torch.zeros_like(z))))(x)
    truth = [1 / math.tanh(z / 2) - z / 2 / math.sinh(z / 2) ** 2 if z else 0.0 for z in x.tolist()]
    np.testing.assert_allclose(gradient.numpy(), truth, rtol=1e-9)
    c = x.exp()
    each = torch.func.vmap(lambda z: D.kl_kumaraswamy(z, z, *t(2.0, 3.0)))(c)
    torch.testing.assert_close(each, D.kl_kumaraswamy(c, c, *t(2.0, 3.0)))


@pytest.mark.parametrize(("logit", "tau"), [(0.0, 1.0), (1.5, 2 / 3), (-3.0, 0.3), (4.0, 5.0)])
def test_relaxed_draws_have_logits_of_a_scaled_logistic_distribution(logit: float, tau: float) -> None:
    uniform = torch.rand(20_000, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))
    b = D.concrete_sample(*t(logit, tau), uniform.logit()).numpy()
    assert stats.kstest(special.logit(b), stats.logistic(logit / tau, 1 / tau).cdf).pvalue > 1e-4
    p = special.expit(logit)  # rounded, a draw is Bernoulli's of q(b), whatever the temperature
    assert abs((b > 0.5).mean() - p) < 4.5 * math.sqrt(p * (1 - p) / len(b))
    noise = torch.tensor([-1.0, 0.5], dtype=DOUBLE)
    truth = special.expit((logit + noise.numpy()) / tau)
    np.testing.assert_allclose(D.concrete_sample(*t(logit, tau), noise).numpy(), truth)


def test_relaxed_draws_are_inside_the_unit_interval_and_finite_on_the_whole_grid_in_float32() -> None:
    logits, tau, noise = grid([-30, -29.9, -5, 0, 1e-4, 17, 30], [0.1, 2 / 3, 1, 10], [-70, -16, 0, 3, 70])
    b = D.concrete_sample(logits.requires_grad_(), tau.requires_grad_(), noise)
    assert ((b > 0) & (b < 1)).all()
    check_finite([b], (logits, tau))


def concrete_kl_truth(q: float, p: float, tau: float) -> float:
    """E_q[log q(y) - log p(y)] by quadrature over y, logistic densities from scipy."""
    one, other = stats.logistic(q / tau, 1 / tau), stats.logistic(p / tau, 1 / tau)
    center, kink = q / tau, p / tau
    ends = sorted({center + k / tau for k in (-60, -20, -5, 0, 5, 20, 60)} | {kink})
    ends = [e for e in ends if abs(e - center) <= 60 / tau]
    return integral(lambda y: one.pdf(y) * (one.logpdf(y) - other.logpdf(y)), *ends)


@pytest.mark.parametrize("tau", [0.2, 2 / 3, 5.0])
@pytest.mark.parametrize(("q", "p"), [(0.0, 0.0), (0.3, 0.1), (1.0, -0.5), (-4.0, 6.0), (20.0, -5.0)])
def test_concrete_kl_is_the_closed_form_whatever_the_temperature(q: float, p: float, tau: float) -> None:
    truth = concrete_kl_truth(q, p, tau)
    assert D.kl_concrete(*t(q, p)).item() == pytest.approx(truth, rel=1e-9, abs=1e-10)


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
    gradient = np.where(x < 0.5, sum(w * n * low ** (n - 1) for n, w in orders), far)
    tolerance = 2e-6 if dtype == torch.float32 else 1e-12
    np.testing.assert_allclose(value.detach().numpy(), truth, rtol=tolerance, atol=1e-37)
    np.testing.assert_allclose(delta.grad.abs().numpy(), gradient, rtol=tolerance, atol=1e-37)
    assert (delta.grad.sign() == delta.detach().sign()).all()
    assert value[0] == 0
    assert delta.grad[0] == 0


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
    assert D.kl_kumaraswamy(*t(*case)).item() == pytest.approx(truth, rel=1e-7, abs=3e-7)
    truth = kumaraswamy_kl_truth(a, b, log_kumaraswamy(alpha, 1.0))  # which is Beta(α, 1)
    assert D.kl_kumaraswamy_beta(*t(a, b, alpha)).item() == pytest.approx(truth, rel=1e-8, abs=1e-9)


@pytest.mark.parametrize(("c", "d"), PAIRS)
@pytest.mark.parametrize("power", [0.2, 1.0, 7.0])
def test_a_moment_is_the_mean_of_that_power(c: float, d: float, power: float) -> None:
    truth = over_exponential(lambda e: math.exp(power * log_v(e, c, d)))
    assert math.exp(D.log_moment(*t(power / c, d))) == pytest.approx(truth, rel=1e-8)


@pytest.mark.parametrize("case", CASES)
def test_kumaraswamy_kl_gradients(case: tuple[float, ...]) -> None:
    values = tuple(value.requires_grad_() for value in t(*case))
    assert torch.autograd.gradcheck(lambda *v: D.kl_kumaraswamy(*v, 10), values)
    assert torch.autograd.gradcheck(lambda *v: D.kl_kumaraswamy_beta(*v[:3]), values)
    step = 1e-4  # the quadrature's gradient against differences of scipy's quadrature
    gradients = torch.autograd.grad(D.kl_kumaraswamy(*values), values)
    for i, gradient in enumerate(gradients):
        low, high = (list(case), list(case))
        low[i], high[i] = case[i] * (1 - step), case[i] * (1 + step)
        ends = [kumaraswamy_kl_truth(*x[:2], log_kumaraswamy(*x[2:])) for x in (low, high)]
        assert gradient.item() == pytest.approx((ends[1] - ends[0]) / (2 * step * case[i]), rel=1e-4, abs=2e-5)


def test_kls_by_sampling() -> None:
    generator = torch.Generator().manual_seed(4)
    noise = torch.empty(100_000, dtype=DOUBLE).exponential_(generator=generator)
    log = D.log_kumaraswamy_sample(*t(6.0, 1.7), noise).tolist()
    one, other = log_kumaraswamy(6.0, 1.7), log_kumaraswamy(4.0, 0.8)
    sticks = np.array([one(x) - other(x) for x in log])
    uniform = torch.rand(100_000, dtype=DOUBLE, generator=generator)
    y = special.logit(D.concrete_sample(*t(2.0, 2 / 3), uniform.logit()).numpy())
    selection = stats.logistic(3.0, 1.5).logpdf(y) - stats.logistic(-1.5, 1.5).logpdf(y)
    for ratio, kl in ((sticks, D.kl_kumaraswamy(*t(6.0, 1.7, 4.0, 0.8))), (selection, D.kl_concrete(*t(2.0, -1.0)))):
        assert abs(ratio.mean() - kl.item()) < 4.5 * ratio.std() / math.sqrt(len(ratio))


def test_whole_kl_is_zero_with_zero_gradient_where_q_is_p() -> None:
    p_c, p_d = grid(POWERS, POWERS, dtype=DOUBLE)
    c, d = p_c.clone().requires_grad_(), p_d.clone().requires_grad_()
    kl = D.kl_kumaraswamy(c, d, p_c, p_d)
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
    with_sum, without = (D.kl_kumaraswamy(*t(1.0, b, x, beta)) for beta in (2.0, 1.0))
    got = (with_sum - without + math.log(2)).item()
    scale = 1 + truth + 1e-9 * without.abs().item()  # the subtraction above costs digits
    assert got == pytest.approx(truth, abs=1e-7 * scale)


@settings(max_examples=60, deadline=None)
@given(x=st.floats(-3, 3).map(lambda e: 10.0**e), b=any_power, terms=st.integers(1, 40))
def test_the_first_terms_are_those_of_the_series(x: float, b: float, terms: int) -> None:
    m = np.arange(1, terms + 1, dtype=float)
    log_term = special.gammaln(m * x + 1) + special.gammaln(b + 1) - special.gammaln(m * x + 1 + b) - np.log(m)
    assert D.cut_log_series(*t(1.0, b, x), terms).item() == pytest.approx(np.exp(log_term).sum(), rel=1e-8)
    assert D.cut_log_series(*t(1.0, b, x), terms).item() <= D.log_series(*t(1.0, b, x)).item() * (1 + 1e-6) + 1e-6


def test_kls_are_finite_on_the_whole_grid_in_float32() -> None:
    a, b, alpha, beta = grid(POWERS, POWERS, POWERS, POWERS)
    kls = [D.kl_kumaraswamy(a.requires_grad_(), b.requires_grad_(), alpha, beta, 10)]
    kls += [D.kl_kumaraswamy(a, b, alpha, beta), D.kl_kumaraswamy_beta(a, b, alpha)]
    check_finite(kls, (a, b))
    # And in float32 the whole KL is the float64 one, to the rounding of the largest term.
    wide = [x.detach().double() for x in (a, b, alpha, beta)]
    exact = D.kl_kumaraswamy(*wide)
    size = 1 + 1 / wide[1] + (1 - wide[2] / wide[0]).abs() * 8 + (wide[3] - 1).abs() * (1 + 1 / wide[1])
    assert ((kls[1] - exact).abs() / size).max() < 5e-6
    assert (exact / size > -1e-7).all()


def test_documented_errors_are_true() -> None:
    rows = re.findall(r"([\d.]+), ([\d.]+), ([\d.]+), ([\d.]+) +([-\d.]+) +([-\d.]+)", D.kl_kumaraswamy.__doc__ or "")
    assert len(rows) == 8
    for row in rows:
        *case, exact, cut = map(float, row)
        assert D.kl_kumaraswamy(*t(*case)).item() == pytest.approx(exact, abs=6e-6)
        assert D.kl_kumaraswamy(*t(*case), 10).item() == pytest.approx(cut, abs=6e-6)
