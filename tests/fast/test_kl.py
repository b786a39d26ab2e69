"""The posterior's KL and the sampled scores in one operation, against the reference in float64 and its gradients."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special
from torch import Tensor

from ibpwf.dispatch import accelerated
from ibpwf.factors.distributions import log_kumaraswamy_sample
from ibpwf.factors.elbo import Posterior, StickPrior, posterior_kl, sample_scores
from ibpwf.factors.sticks import prior_logit
from ibpwf.fast.kl import fast_posterior_kl, polygammas

ROWS, STICKS = 3, 16
KINDS = [(False, None), (True, None), (True, 10)]  # whether the prior is a Kumaraswamy distribution, and terms


def uniform(low: float, high: float, seed: int) -> Tensor:
    numbers = torch.rand(ROWS, STICKS, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (low + (high - low) * numbers).float().double()  # which float32 holds as well


def value_and_gradients(
    kind: torch.dtype, at: list[Tensor], prior: StickPrior, noise: Tensor, mask: Tensor, terms: int | None
) -> list[Tensor]:
    leaves = [part.to(kind).requires_grad_() for part in at]
    prior = StickPrior(prior.c.to(kind), None if prior.d is None else prior.d.to(kind))
    kl = posterior_kl(Posterior(*leaves), prior, noise.to(kind), mask.to(kind), terms)
    return [kl.detach(), *torch.autograd.grad(kl, leaves)]


def check(at: list[Tensor], prior: StickPrior, noise: Tensor, mask: Tensor, terms: int | None) -> None:
    """The stand-in in float32 is the reference in float64, but for float32's rounding of the largest term."""
    with accelerated(False):
        truth = value_and_gradients(torch.float64, at, prior, noise, mask, terms)
    found = value_and_gradients(torch.float32, at, prior, noise, mask, terms)
    assert all(bool(torch.isfinite(part).all()) for part in found)
    for got, expected in zip(found, truth, strict=True):
        scale = float(expected.abs().max())
        np.testing.assert_allclose(got, expected, rtol=3e-4, atol=1e-5 * scale + 1e-6)
    assert not bool((found[1] * (1 - mask)).any()), "a stick that is not there has no gradient"


@pytest.mark.parametrize(("online", "terms"), KINDS)
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    logits=st.floats(0.1, 30),
    log_c=st.tuples(st.floats(-3, 3), st.floats(-3, 3)),
    log_d=st.tuples(st.floats(-3, 3), st.floats(-3, 3)),
    log_prior=st.tuples(st.floats(-1, 3), st.floats(-1, 1)),
    there=st.floats(0.2, 1),
)
def test_value_and_gradients_are_the_references(
    online: bool,
    terms: int | None,
    seed: int,
    logits: float,
    log_c: tuple[float, float],
    log_d: tuple[float, float],
    log_prior: tuple[float, float],
    there: float,
) -> None:
    ten = np.log(10)
    at = [
        uniform(-logits, logits, seed),
        uniform(min(log_c) * ten, max(log_c) * ten, seed + 1),
        uniform(min(log_d) * ten, max(log_d) * ten, seed + 2),
    ]
    noise = -uniform(1e-7, 1 - 1e-7, seed + 3).log().float().double()
    prior = StickPrior(uniform(1, 10, seed + 4) * 10 ** log_prior[0], None)
    prior = StickPrior(prior.c.float().double(), None)
    if online:
        prior = prior._replace(d=(uniform(0.5, 2, seed + 5) * 10 ** log_prior[1]).float().double())
    check(at, prior, noise, (uniform(0, 1, seed + 6) <= there).double(), terms)


@pytest.mark.parametrize(("online", "terms"), KINDS)
def test_where_a_task_starts_value_and_gradients_are_the_references(online: bool, terms: int | None) -> None:
    """There q(v) is the prior itself."""
    c, d = uniform(3, 40, 0), uniform(0.3, 3, 1) if online else torch.ones(ROWS, STICKS, dtype=torch.float64)
    at = [uniform(-3, 3, 2), c.log(), d.log()]
    noise = -uniform(1e-7, 1 - 1e-7, 3).log()
    check(at, StickPrior(c, d if online else None), noise, torch.ones(ROWS, STICKS).double(), terms)


def test_a_selection_at_the_priors_own_probability_costs_nothing_and_has_no_gradient() -> None:
    c, d, noise = torch.full((1, 5), 4.0), torch.ones(1, 5), torch.full((1, 5), 0.7)
    logit = prior_logit(log_kumaraswamy_sample(c, d, noise)).requires_grad_()
    value = fast_posterior_kl(Posterior(logit, c.log(), d.log()), StickPrior(c, None), noise, torch.ones(1, 5), None)
    value.backward()
    assert value.item() == pytest.approx(0.0, abs=1e-5)  # q(v) is the prior's, too
    assert float(logit.grad.abs().max()) < 1e-6


@pytest.mark.parametrize("accelerate", [True, False])
def test_sticks_at_the_ends_of_what_floats_can_hold_give_finite_values_and_gradients(accelerate: bool) -> None:
    ends = list(itertools.product([30.0, -30.0, 0.0], [-6.9, 6.9], [-6.9, 6.9], [16.0, 1e-7]))
    logit, log_c, log_d, noise = (torch.tensor([column]) for column in zip(*ends, strict=True))
    at = [part.requires_grad_() for part in (logit, log_c, log_d)]
    one = torch.ones_like(noise)
    with accelerated(accelerate):
        for d, terms in ((None, None), (0.7 * one, None), (0.7 * one, 10)):
            value = posterior_kl(Posterior(*at), StickPrior(20 * one, d), noise, one, terms)
            gradients = torch.autograd.grad(value, at)
            assert all(bool(torch.isfinite(part).all()) for part in (value, *gradients))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    logits=st.floats(0.1, 30),
    strengths=st.floats(0.01, 10),
    temperature=st.floats(0.1, 5),
)
def test_scores_and_their_gradients_are_the_references(
    seed: int, logits: float, strengths: float, temperature: float
) -> None:
    given = [uniform(-strengths, strengths, seed).float(), uniform(-logits, logits, seed + 1).float()]
    tau, u, weights = (
        torch.tensor(temperature),
        uniform(1e-6, 1 - 1e-6, seed + 2).float(),
        uniform(-1, 1, seed + 3).float(),
    )
    found = []
    for accelerate in (True, False):
        at = [part.clone().requires_grad_() for part in given]
        with accelerated(accelerate):
            scores = sample_scores(*at, tau, u)
        found.append([scores.detach(), *torch.autograd.grad((scores * weights).sum(), at)])
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6 * strengths)


def test_scores_are_the_strength_times_a_sigmoid_in_float64() -> None:
    strength, logit, u = uniform(-2, 2, 7).float(), uniform(-5, 5, 8).float(), uniform(0.01, 0.99, 9).float()
    scores = sample_scores(strength, logit, torch.tensor(0.6), u).numpy()
    b = special.expit((logit.double().numpy() + special.logit(u.double().numpy())) / np.float32(0.6))
    np.testing.assert_allclose(scores, strength.double().numpy() * b, rtol=1e-5)


def test_digamma_and_trigamma_agree_with_scipy() -> None:
    z = np.concatenate([np.linspace(1, 12, 500), np.logspace(1, 5, 300)])
    digamma, trigamma = polygammas(z)
    np.testing.assert_allclose(digamma, special.psi(z), rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(trigamma, special.polygamma(1, z), rtol=1e-9)
