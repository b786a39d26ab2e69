"""The stick-breaking IBP against closed sums, scipy and a restaurant simulated customer by customer."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from ibpwf.core.prior import (
    StickBreakingIBP,
    expected_probabilities,
    logit_from_log,
    prior_mean,
    stick_log_pi,
)
from ibpwf.errors import InputError

ALPHA, TASKS, RUNS = 3.0, 6, 4000


def restaurant(alpha: float, tasks: int, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """The IBP as a story: (new dishes, all dishes) of each customer."""
    served: list[int] = []
    new, eaten = [], []
    for customer in range(1, tasks + 1):
        old = 0
        for dish in range(len(served)):
            if rng.random() < served[dish] / customer:
                served[dish] += 1
                old += 1
        fresh = int(rng.poisson(alpha / customer))
        served += [1] * fresh
        new.append(fresh)
        eaten.append(old + fresh)
    return new, eaten


@pytest.fixture(scope="module")
def story() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    runs = [restaurant(ALPHA, TASKS, rng) for _ in range(RUNS)]
    return np.array([new for new, _ in runs]), np.array([eaten for _, eaten in runs])


@pytest.fixture(scope="module")
def sticks() -> np.ndarray:
    """Tasks that share one draw of π: selections of shape (runs, tasks, factors)."""
    generator = torch.Generator().manual_seed(1)
    pi = StickBreakingIBP(ALPHA).sample(80, generator, (RUNS,), dtype=torch.float64).pi
    return torch.bernoulli(pi[:, None].expand(RUNS, TASKS, 80), generator=generator).numpy()


def close(sample: np.ndarray, mean: float) -> bool:
    """Within 4.5 standard errors of the sample mean."""
    return bool(abs(sample.mean() - mean) < 4.5 * sample.std() / math.sqrt(len(sample)))


def test_new_factors_of_each_task_are_the_restaurants(story: tuple[np.ndarray, np.ndarray]) -> None:
    ibp = StickBreakingIBP(ALPHA)
    for task in range(1, TASKS + 1):
        assert close(story[0][:, task - 1], ibp.new_factors(task).mean)
        assert (story[0][:, task - 1] <= ibp.new_factors(task).high).mean() > 0.998
    assert close(story[0].sum(1), ibp.expected_total(TASKS))


def test_sticks_and_restaurant_use_as_many_factors(story: tuple[np.ndarray, np.ndarray], sticks: np.ndarray) -> None:
    total_story, total_sticks = story[0].sum(1), sticks.any(1).sum(1)
    error = math.sqrt((total_story.var() + total_sticks.var()) / RUNS)
    assert abs(total_story.mean() - total_sticks.mean()) < 4.5 * error
    seen = np.maximum.accumulate(sticks, axis=1)
    fresh = np.diff(seen.sum(2), axis=1, prepend=0)
    for task in range(TASKS):
        assert close(fresh[:, task], ALPHA / (task + 1))
    # One task's number of factors is Poisson(α) in both; chi-square on the counts 0..9 and the rest.
    expected = np.append(stats.poisson.pmf(np.arange(10), ALPHA), stats.poisson.sf(9, ALPHA)) * RUNS
    for counts in (story[1][:, -1], sticks[:, -1].sum(1).astype(int)):
        observed = np.bincount(np.minimum(counts, 10), minlength=11)
        assert ((observed - expected) ** 2 / expected).sum() < stats.chi2.ppf(1 - 1e-5, 10)


@pytest.mark.parametrize("alpha", [0.3, 5.0, 200.0])
def test_sample_means(alpha: float) -> None:
    ibp = StickBreakingIBP(alpha)
    v, pi, b = ibp.sample(12, torch.Generator().manual_seed(2), (20_000,), dtype=torch.float64)
    assert stats.kstest(v[:, 3].numpy(), stats.beta(alpha, 1).cdf).pvalue > 1e-4
    torch.testing.assert_close(pi, v.cumprod(-1))
    assert set(b.unique().tolist()) <= {0.0, 1.0}
    for k in (0, 1, 4, 11):
        assert close(pi[:, k].numpy(), (alpha / (alpha + 1)) ** (k + 1))
    assert close(b.sum(1).numpy(), ibp.expected_active(12))


def test_sample_is_repeatable_and_shaped() -> None:
    ibp = StickBreakingIBP(4.0)
    first = ibp.sample(7, torch.Generator().manual_seed(5), (2, 3))
    second = ibp.sample(7, torch.Generator().manual_seed(5), (2, 3))
    for one, other in zip(first, second, strict=True):
        assert one.shape == (2, 3, 7)
        assert one.dtype == torch.get_default_dtype()
        assert torch.equal(one, other)
    assert ibp.sample(0).pi.shape == (0,)


def test_sticks_continue_when_the_dictionary_grows() -> None:
    log_v = torch.log(torch.rand(4, 9, dtype=torch.float64))
    whole = stick_log_pi(log_v)
    np.testing.assert_allclose(whole.exp().numpy(), np.cumprod(np.exp(log_v.numpy()), axis=-1), rtol=1e-12)
    torch.testing.assert_close(stick_log_pi(log_v[:, 5:], whole[:, 4]), whole[:, 5:])
    torch.testing.assert_close(stick_log_pi(log_v[0, 5:], float(whole[0, 4])), whole[0, 5:])
    ibp, last = StickBreakingIBP(6.0), torch.full((20_000,), 0.25)
    pi = ibp.sample(3, torch.Generator().manual_seed(3), (20_000,), log_start=last.log()).pi
    assert close(pi[:, 2].numpy(), 0.25 * (6 / 7) ** 3)
    torch.testing.assert_close(ibp.expected_probabilities(4, start=3), ibp.expected_probabilities(7)[3:])
    assert ibp.expected_active(7) == pytest.approx(ibp.expected_active(3) + ibp.expected_active(4, start=3))


@pytest.mark.parametrize("alpha", [1e-3, 0.5, 3.0, 200.0, 1e6])
def test_expected_numbers(alpha: float) -> None:
    ibp, k = StickBreakingIBP(alpha), np.arange(1, 1001)
    truth = np.exp(k * (np.log(alpha) - np.log1p(alpha)))
    given_mean = expected_probabilities(alpha, 1000, dtype=torch.float64)
    np.testing.assert_allclose(given_mean.numpy(), truth, rtol=1e-9, atol=1e-300)
    assert expected_probabilities(alpha, 1000).log().isfinite().all()
    torch.testing.assert_close(prior_mean(alpha, 5), ibp.expected_probabilities(5))
    assert ibp.expected_active(1000) == pytest.approx(truth.sum(), rel=1e-9)
    assert ibp.expected_active(10**9) == pytest.approx(alpha, rel=1e-9)
    assert ibp.expected_total(50) == pytest.approx(alpha * (special.digamma(51) + np.euler_gamma), rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    alpha=st.floats(-3, 4).map(lambda e: 10.0**e),
    task=st.integers(1, 50),
    quantile=st.sampled_from([0.5, 0.9, 0.999]),
)
def test_new_factors_quantile_is_scipys(alpha: float, task: int, quantile: float) -> None:
    new = StickBreakingIBP(alpha).new_factors(task, quantile)
    assert new.mean == pytest.approx(alpha / task)
    assert new.high == int(stats.poisson.ppf(quantile, alpha / task))


def test_logit_from_log() -> None:
    log_p = torch.linspace(-700, -1e-9, 2001, dtype=torch.float64, requires_grad=True)
    value = logit_from_log(log_p)
    truth = log_p.detach().numpy() - np.log(-np.expm1(log_p.detach().numpy()))
    np.testing.assert_allclose(value.detach().numpy(), truth, rtol=1e-12)
    value.sum().backward()
    np.testing.assert_allclose(log_p.grad.numpy(), 1 / -np.expm1(log_p.detach().numpy()), rtol=1e-9)
    p = torch.tensor([1e-7, 0.2, 0.5, 0.9], dtype=torch.float64)
    np.testing.assert_allclose(logit_from_log(p.log()).numpy(), special.logit(p.numpy()), rtol=1e-9, atol=1e-12)


def test_logit_from_log_is_finite_at_its_ends() -> None:
    log_p = torch.tensor([0.0, -0.0, -1e-38, -1e-30, -1e-13, -1e-6, -1.0, -90.0, -1e5, -math.inf], requires_grad=True)
    value = logit_from_log(log_p)
    value.sum().backward()
    assert value.isfinite().all()
    assert log_p.grad.isfinite().all()
    np.testing.assert_allclose(value[:4].detach().numpy(), 30.0, rtol=1e-5)
    assert (value.diff() <= 0).all()
    assert value[8] == -1e5
    assert logit_from_log(torch.zeros(1), limit=50.0).item() == pytest.approx(50.0)


@pytest.mark.parametrize("alpha", [0.0, -2.0, math.nan, math.inf, "many", None])
def test_alpha_must_be_positive(alpha: float) -> None:
    with pytest.raises(InputError, match=r"alpha = .* above 0"):
        StickBreakingIBP(alpha)
    with pytest.raises(InputError, match="alpha"):
        expected_probabilities(alpha, 3)


def test_counts_must_fit() -> None:
    ibp = StickBreakingIBP(2.0)
    with pytest.raises(InputError, match="task = 0 does not fit: give a whole number of at least 1"):
        ibp.new_factors(0)
    with pytest.raises(InputError, match="tasks = -1"):
        ibp.expected_total(-1)
    with pytest.raises(InputError, match=r"count = 1\.5"):
        ibp.sample(1.5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="start = -1"):
        ibp.expected_active(3, -1)
    with pytest.raises(InputError, match="quantile = 1"):
        ibp.new_factors(1, 1.0)
    assert repr(ibp) == "StickBreakingIBP(alpha=2)"
