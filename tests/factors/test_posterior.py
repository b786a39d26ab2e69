"""One task's posterior against numpy: its samples, its KL, and where it starts. The posterior runs in float32."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats
from torch import Tensor

from ibpwf.factors.distributions import kumaraswamy_log_mean
from ibpwf.factors.posterior import StickPosterior, StickVectors
from ibpwf.factors.prior import IBP, LayerShape

COPIES = 20_000
LAYERS = 8_000


def vectors(logit: list[float], c: list[float], d: list[float], strength: list[float] | None = None) -> StickVectors:
    return StickVectors(*(torch.tensor(part) for part in (strength or [1.0] * len(logit), logit, c, d)))


def started(alpha: float, width: int, previous: StickVectors | None) -> StickVectors:
    """Where a task with an IBP starts, at strengths of 1."""
    return IBP(alpha=alpha).start(LayerShape("layer", 3, 2), torch.ones(width), previous)


NARROW = vectors([1.5, -0.5, -2.0], [6.0, 3.0, 9.0], [1.4, 0.8, 1.0], [0.5, -1.0, 2.0])
WIDE = vectors([3.0, 0.4, 0.1, -1.0, -4.0], [12.0, 5.0, 4.0, 7.0, 2.0], [2.5, 1.0, 0.7, 1.2, 3.0])
BETA_NARROW, BETA_WIDE = (vectors([0.0] * n, [5.0] * n, [1.0] * n) for n in (3, 5))
OLD_NARROW = vectors([0.0] * 3, [4.0, 4.5, 5.0], [1.3, 0.9, 1.0])
OLD_WIDE = vectors([0.0] * 5, [10.0, 6.0, 5.0, 5.0, 5.0], [2.0, 1.5, 0.6, 1.0, 1.0])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# What the truth is made of: numpy and scipy in float64, nothing of the library's.


def kumaraswamy_density(v: np.ndarray | float, c: float, d: float) -> np.ndarray | float:
    return c * d * v ** (c - 1) * (1 - v**c) ** (d - 1)


def stick_kl(c: float, d: float, prior_c: float, prior_d: float) -> float:
    """KL(Kumaraswamy(c, d) ‖ Kumaraswamy(prior)) by quadrature over the quantiles of q."""

    def difference(u: float) -> float:
        v = (1 - u ** (1 / d)) ** (1 / c)
        return float(np.log(kumaraswamy_density(v, c, d) / kumaraswamy_density(v, prior_c, prior_d)))

    return float(integrate.quad(difference, 0, 1, limit=200)[0])


def logistic_kl(delta: np.ndarray) -> np.ndarray:
    """KL between two unit logistic densities `delta` apart, by interpolation in a table."""
    return np.interp(delta, *logistic_kl_table())


@lru_cache
def logistic_kl_table() -> tuple[np.ndarray, np.ndarray]:
    """Distances, and the KL at each by the trapezium rule."""
    z = np.linspace(-40, 40, 801)
    weight = stats.logistic.pdf(z) * (z[1] - z[0])
    grid = np.linspace(-60, 60, 2401)
    values = [weight @ (stats.logistic.logpdf(z) - stats.logistic.logpdf(z + shift)) for shift in grid]
    return grid, np.array(values)


def selection_kl(layer: StickVectors, rng: np.random.Generator) -> np.ndarray:
    """Σ_k KL(q(b_k) ‖ p(b_k | v)) for many draws of v ~ q(v)."""
    logit, c, d = (part.double().numpy() for part in (layer.logit, layer.c, layer.d))
    v = (1 - rng.random((10 * COPIES, len(c))) ** (1 / d)) ** (1 / c)
    return logistic_kl(logit - special.logit(np.cumprod(v, axis=1))).sum(1)


def expected_kl(layer: StickVectors, prior: StickVectors) -> tuple[float, float]:
    """The layer's KL and the standard deviation of its one-sample estimate."""
    draws = selection_kl(layer, np.random.default_rng(0))
    pairs = zip(*(part.tolist() for part in (layer.c, layer.d, prior.c, prior.d)), strict=True)
    return float(draws.mean()) + sum(stick_kl(*four) for four in pairs), float(draws.std())


# Sampling


@pytest.mark.parametrize("temperature", [0.3, 2 / 3, 5.0])
@pytest.mark.parametrize("logit", [-4.0, 0.0, 1.5])
def test_scores_are_the_strength_times_a_draw_of_the_concrete_distribution(logit: float, temperature: float) -> None:
    strength = -1.7
    layer = vectors([logit] * COPIES, [1.0] * COPIES, [1.0] * COPIES, [strength] * COPIES)
    scores = StickPosterior([layer], [layer], temperature).sample_scores(seeded())[0]
    b = scores.detach().double().numpy() / strength

    for x in special.expit(np.linspace(-8, 8, 9)):
        # P(b ≤ x) = P(L ≤ τ logit(x) − logit π̄), L standard logistic
        expected = stats.logistic.cdf(temperature * special.logit(x) - logit)
        assert stats.binomtest(int((b <= x).sum()), COPIES, expected).pvalue > 1e-4


def test_the_gradient_through_a_sample_is_on_average_that_of_the_expected_score() -> None:
    logit, temperature = 0.7, 2 / 3
    layer = vectors([logit] * COPIES, [1.0] * COPIES, [1.0] * COPIES)
    posterior = StickPosterior([layer], [layer], temperature)
    posterior.sample_scores(seeded(1)).sum().backward()
    gradients = posterior.logit.grad[0].double().numpy()

    def mean(at: float) -> float:
        return float(stats.logistic.expect(lambda z: special.expit((at + z) / temperature), lb=-30, ub=30))

    expected = (mean(logit + 1e-3) - mean(logit - 1e-3)) / 2e-3
    assert gradients.mean() == pytest.approx(expected, abs=4.5 * gradients.std() / math.sqrt(COPIES))


def test_the_same_generator_gives_the_same_sample_and_another_seed_another() -> None:
    posterior = StickPosterior([NARROW], [BETA_NARROW], 0.5)
    first, again, other = (posterior.sample_scores(seeded(s)) for s in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


# The KL


@pytest.mark.parametrize("priors", [(BETA_NARROW, BETA_WIDE), (OLD_NARROW, OLD_WIDE)], ids=["Beta", "Kumaraswamy"])
def test_the_kl_is_the_sum_over_layers_of_what_quadrature_and_monte_carlo_say(
    priors: tuple[StickVectors, StickVectors],
) -> None:
    truths = [expected_kl(layer, prior) for layer, prior in zip((NARROW, WIDE), priors, strict=True)]
    # Many copies of both layers in one network: their KL is a sum of as many independent estimates.
    start = [layer for layer in (NARROW, WIDE) for _ in range(LAYERS)]
    prior = [layer for layer in priors for _ in range(LAYERS)]
    kl = StickPosterior(start, prior, 2 / 3).kl(seeded(5)).item() / LAYERS
    error = math.sqrt(sum(std**2 for _, std in truths) / LAYERS)
    assert error < 0.005 * sum(mean for mean, _ in truths)
    assert kl == pytest.approx(sum(mean for mean, _ in truths), abs=3 * error)


def test_another_prior_on_the_sticks_changes_the_kl_by_what_quadrature_says() -> None:
    start, old, beta = (NARROW, WIDE), (OLD_NARROW, OLD_WIDE), (BETA_NARROW, BETA_WIDE)
    under_old, under_beta = (StickPosterior(start, prior, 2 / 3).kl(seeded(5)).item() for prior in (old, beta))
    expected = 0.0
    for layer, one, other in zip(start, old, beta, strict=True):
        for k in range(len(layer)):
            c, d = float(layer.c[k]), float(layer.d[k])
            expected += stick_kl(c, d, float(one.c[k]), float(one.d[k]))
            expected -= stick_kl(c, d, float(other.c[k]), float(other.d[k]))
    assert abs(expected) > 0.1
    assert under_old - under_beta == pytest.approx(expected, abs=1e-5)


def test_the_papers_ten_terms_differ_from_the_exact_kl_by_the_rest_of_the_series() -> None:
    priors = [OLD_NARROW, OLD_WIDE]
    exact = StickPosterior([NARROW, WIDE], priors, 2 / 3).kl(seeded(6)).item()
    cut = StickPosterior([NARROW, WIDE], priors, 2 / 3, kl_terms=10).kl(seeded(6)).item()
    left_out = 0.0
    for layer, prior in zip((NARROW, WIDE), priors, strict=True):
        for a, b, alpha, beta in zip(*(p.tolist() for p in (layer.c, layer.d, prior.c, prior.d)), strict=True):
            m = np.arange(11, 200_001)
            left_out += (beta - 1) * float((b / m * special.beta(m * alpha / a + 1, b)).sum())
    assert abs(left_out) > 0.01
    assert exact - cut == pytest.approx(left_out, abs=2e-3)


def test_a_posterior_that_equals_its_prior_pays_for_the_selection_only() -> None:
    start = [OLD_NARROW, OLD_WIDE]
    kl = StickPosterior(start * LAYERS, start * LAYERS, 1.0).kl(seeded(7)).item() / LAYERS
    draws = [selection_kl(layer, np.random.default_rng(8)) for layer in start]
    error = math.sqrt(sum(d.var() for d in draws) / LAYERS)
    assert kl == pytest.approx(sum(d.mean() for d in draws), abs=3 * error)


@pytest.mark.parametrize("priors", [(BETA_NARROW, BETA_WIDE), (OLD_NARROW, OLD_WIDE)])
def test_padding_a_narrow_layer_has_no_influence_on_values_or_gradients(
    priors: tuple[StickVectors, StickVectors],
) -> None:
    def outcome(disturbed: bool) -> tuple[Tensor, Tensor, list[Tensor]]:
        posterior = StickPosterior([NARROW, WIDE], priors, 2 / 3)
        if disturbed:
            with torch.no_grad():
                for part in posterior.parameters():
                    part[0, 3:] += torch.tensor([0.9, -1.3])
        scores = posterior.sample_scores(seeded(9))[0, :3]
        kl = posterior.kl(seeded(10))
        (kl + scores.square().sum()).backward()
        return scores, kl, [part.grad for part in posterior.parameters()]

    scores, kl, gradients = outcome(disturbed=False)
    scores_too, kl_too, gradients_too = outcome(disturbed=True)
    assert torch.equal(scores, scores_too)
    assert torch.equal(kl, kl_too)
    for gradient, gradient_too in zip(gradients, gradients_too, strict=True):
        assert bool((gradient[0, 3:] == 0).all())
        assert bool(gradient[0, :3].any())
        assert torch.equal(gradient[:, :3], gradient_too[:, :3])


def test_a_layer_thousands_of_sticks_narrower_than_the_widest_keeps_finite_values_and_gradients() -> None:
    wide = started(1000.0, 3000, None)
    tiny = started(0.2, 4, None)
    posterior = StickPosterior([tiny, wide], [tiny, wide], 2 / 3)
    kl = posterior.kl(seeded())
    kl.backward()
    assert math.isfinite(kl.item())
    for part in (posterior.logit, posterior.log_c, posterior.log_d):
        assert bool(torch.isfinite(part.grad).all())
        assert bool((part.grad[0, 4:] == 0).all())


def test_vectors_come_back_without_their_padding_and_as_copies() -> None:
    posterior = StickPosterior([NARROW, WIDE], [OLD_NARROW, OLD_WIDE], 2 / 3)
    for row, (given, prior) in enumerate([(NARROW, OLD_NARROW), (WIDE, OLD_WIDE)]):
        got = posterior.vectors(row)
        for name in ("strength", "logit", "c", "d"):
            np.testing.assert_allclose(getattr(got, name).numpy(), getattr(given, name).numpy(), rtol=1e-6)
        assert torch.equal(posterior.prior[row].c, prior.c)
        assert torch.equal(posterior.prior[row].d, prior.d)
        got.logit.zero_()
        assert torch.equal(posterior.vectors(row).logit, given.logit)


# Where a task starts


@pytest.mark.parametrize(("alpha", "width"), [(0.5, 8), (5.0, 12), (200.0, 400)])
def test_the_first_task_starts_at_the_prior(alpha: float, width: int) -> None:
    start = started(alpha, width, None)
    expected = (alpha / (alpha + 1)) ** np.arange(1, width + 1)
    np.testing.assert_allclose(special.expit(start.logit.double().numpy()), expected, rtol=1e-5)
    assert start.c.tolist() == [np.float32(alpha)] * width
    assert start.d.tolist() == [1.0] * width


def test_the_next_task_starts_at_the_previous_probabilities_and_takes_its_posterior_as_prior() -> None:
    start = started(5.0, 5, WIDE)
    assert torch.equal(start.logit, WIDE.logit)
    assert torch.equal(start.c, WIDE.c)
    assert torch.equal(start.d, WIDE.d)


def test_new_sticks_continue_where_the_previous_posteriors_last_stick_stands() -> None:
    alpha, extra = 4.0, 6
    start = started(alpha, 5 + extra, WIDE)
    means = [
        integrate.quad(lambda v, c=c, d=d: v * kumaraswamy_density(v, c, d), 0, 1)[0]
        for c, d in zip(WIDE.c.tolist(), WIDE.d.tolist(), strict=True)
    ]
    expected = np.prod(means) * (alpha / (alpha + 1)) ** np.arange(1, extra + 1)
    np.testing.assert_allclose(special.expit(start.logit[5:].double().numpy()), expected, rtol=1e-5)
    assert torch.equal(start.logit[:5], WIDE.logit)
    assert start.c[5:].tolist() == [alpha] * extra
    assert start.d[5:].tolist() == [1.0] * extra
    assert torch.equal(start.c[:5], WIDE.c)


@pytest.mark.parametrize(("c", "d"), [(0.4, 0.6), (1.0, 1.0), (5.0, 1.0), (2.0, 30.0), (200.0, 1.5)])
def test_the_mean_of_a_stick_agrees_with_quadrature(c: float, d: float) -> None:
    mean = integrate.quad(lambda u: (1 - u ** (1 / d)) ** (1 / c), 0, 1, epsabs=1e-12)[0]
    got = kumaraswamy_log_mean(torch.tensor(c).double(), torch.tensor(d).double())
    assert float(got) == pytest.approx(math.log(mean), rel=1e-6)


@pytest.mark.parametrize(
    ("kappa", "expected"),
    [(0.5, [True, True, True, False, False]), (0.9, [True, False, False, False, False]), (0.01, [True] * 5)],
)
def test_selected_are_the_factors_with_probability_at_least_kappa(kappa: float, expected: list[bool]) -> None:
    assert [bool(special.expit(x) >= kappa) for x in WIDE.logit.tolist()] == expected
    assert IBP(kappa=kappa).selected(WIDE).tolist() == expected


def test_at_least_the_likeliest_factor_is_selected() -> None:
    layer = vectors([-3.0, -1.0, -2.0], [1.0] * 3, [1.0] * 3)
    assert IBP(kappa=0.999).selected(layer).tolist() == [False, True, False]
