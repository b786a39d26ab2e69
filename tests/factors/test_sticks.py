"""The stick-breaking IBP against closed sums, scipy and a restaurant simulated customer by customer."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import special, stats

from ibpwf.factors.sticks import expected_probabilities, expected_total, logit_from_log, prior_logit, stick_log_pi

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
    rng = np.random.default_rng(1)
    log_v = np.log(rng.beta(ALPHA, 1, (RUNS, 80)))
    pi = stick_log_pi(torch.tensor(log_v)).exp().numpy()
    return (rng.random((RUNS, TASKS, 80)) < pi[:, None]).astype(float)


def close(sample: np.ndarray, mean: float) -> bool:
    """Within 4.5 standard errors of the sample mean."""
    return bool(abs(sample.mean() - mean) < 4.5 * sample.std() / math.sqrt(len(sample)))


def test_the_restaurant_serves_as_many_dishes_as_expected(story: tuple[np.ndarray, np.ndarray]) -> None:
    assert close(story[0].sum(1), expected_total(ALPHA, TASKS))


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
def test_the_expected_probability_is_the_mean_of_drawn_sticks(alpha: float) -> None:
    log_v = np.log(np.random.default_rng(2).beta(alpha, 1, (20_000, 12)))
    pi = stick_log_pi(torch.tensor(log_v)).exp()
    for k in (0, 1, 4) if alpha < 1 else (0, 1, 4, 11):  # of small α, a mean is made by the few that are not
        assert close(pi[:, k].numpy(), float(expected_probabilities(alpha, 12)[k]))


def test_sticks_multiply() -> None:
    log_v = torch.log(torch.rand(4, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    pi = np.cumprod(np.exp(log_v.numpy()), axis=-1)
    np.testing.assert_allclose(stick_log_pi(log_v).exp().numpy(), pi, rtol=1e-12)
    np.testing.assert_allclose(prior_logit(log_v).numpy(), special.logit(pi), rtol=1e-9)
    torch.testing.assert_close(stick_log_pi(log_v[:, :5]), stick_log_pi(log_v)[:, :5])  # later sticks change nothing


@pytest.mark.parametrize("alpha", [1e-3, 0.5, 3.0, 200.0, 1e6])
def test_expected_numbers(alpha: float) -> None:
    k = np.arange(1, 1001)
    truth = np.exp(k * (np.log(alpha) - np.log1p(alpha)))
    np.testing.assert_allclose(expected_probabilities(alpha, 1000).double().numpy(), truth, rtol=1e-5, atol=1e-37)
    assert expected_probabilities(alpha, 1000).log().isfinite().all()
    assert expected_total(alpha, 50) == pytest.approx(alpha * (special.digamma(51) + np.euler_gamma), rel=1e-12)
    assert expected_total(alpha, 0) == 0


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
