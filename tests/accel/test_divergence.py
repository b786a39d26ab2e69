"""The posterior's KL in one operation against autograd through the separate functions, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ibpwf.accel.divergence import posterior_kl, relaxed_scores
from ibpwf.core.series import log_gamma
from scipy import special
from torch import Tensor

from ibpwf.core import distributions as D
from ibpwf.core.prior import logit_from_log, stick_log_pi

ROWS, STICKS = 3, 40


def uniform(low: float, high: float, seed: int) -> Tensor:
    numbers = torch.rand(ROWS, STICKS, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return low + (high - low) * numbers


def by_autograd(
    logit: Tensor,
    log_c: Tensor,
    log_d: Tensor,
    noise: Tensor,
    prior_c: Tensor,
    prior_d: Tensor | None,
    terms: int | None,
) -> Tensor:
    """The KL per stick, term by term as the paper has it."""
    c, d = log_c.exp(), log_d.exp()
    prior_logit = logit_from_log(stick_log_pi(D.log_kumaraswamy_sample(c, d, noise)))
    selection = D.kl_concrete(logit, prior_logit)
    if prior_d is None:
        return selection + D.kl_kumaraswamy_beta(c, d, prior_c)
    return selection + D.kl_kumaraswamy(c, d, prior_c, prior_d, terms=terms or 10, tail=terms is None)


@pytest.mark.parametrize(("online", "terms"), [(False, None), (True, None), (True, 10)])
@pytest.mark.parametrize("spread", [1.0, 4.0])
def test_value_and_slopes_are_those_of_the_separate_functions(online: bool, terms: int | None, spread: float) -> None:
    given = [uniform(-6, 6, 0), uniform(-spread / 2, spread, 1), uniform(-spread, spread, 2)]
    given[1] += 3.0
    noise = -uniform(1e-7, 1 - 1e-7, 3).log()
    prior_c, prior_d = uniform(5, 50, 4), uniform(0.3, 3, 5) if online else None
    mask = (uniform(0, 1, 6) < 0.8).double()
    truth_at = [part.clone().requires_grad_() for part in given]
    truth = (by_autograd(*truth_at, noise, prior_c, prior_d, terms) * mask).sum()
    truth.backward()

    at = [part.float().requires_grad_() for part in given]
    rest = [None if part is None else part.float() for part in (noise, prior_c, prior_d, mask)]
    value = posterior_kl(*at, *rest, terms)
    (3 * value).backward()

    assert value.item() == pytest.approx(truth.item(), rel=2e-6)
    for part, other in zip(at, truth_at, strict=True):
        scale = float(other.grad.abs().max())
        np.testing.assert_allclose(part.grad / 3, other.grad, rtol=2e-4, atol=2e-6 * scale)


def test_a_selection_at_the_priors_own_probability_costs_nothing_and_has_no_slope() -> None:
    c, d, noise = torch.full((1, 5), 4.0), torch.ones(1, 5), torch.full((1, 5), 0.7)
    logit = logit_from_log(stick_log_pi(D.log_kumaraswamy_sample(c, d, noise))).requires_grad_()
    value = posterior_kl(logit, c.log(), d.log(), noise, c, None, torch.ones(1, 5), None)
    value.backward()
    assert value.item() == pytest.approx(0.0, abs=1e-5)  # q(v) is the prior's, too
    assert float(logit.grad.abs().max()) < 1e-6


def test_sticks_at_the_ends_of_what_floats_can_hold_give_finite_values_and_slopes() -> None:
    logit = torch.tensor([[30.0, -30.0, 0.0, 5.0]], requires_grad=True)
    log_c = torch.tensor([[-6.9, 6.9, 6.9, -6.9]], requires_grad=True)
    log_d = torch.tensor([[-6.9, 6.9, -6.9, 6.9]], requires_grad=True)
    noise = torch.tensor([[16.0, 1e-7, 16.0, 1e-7]])
    prior_c, prior_d = torch.full((1, 4), 20.0), torch.full((1, 4), 0.7)
    for prior in (None, prior_d):
        value = posterior_kl(logit, log_c, log_d, noise, prior_c, prior, torch.ones(1, 4), 10)
        slopes = torch.autograd.grad(value, (logit, log_c, log_d))
        assert all(bool(torch.isfinite(part).all()) for part in (value, *slopes))


def test_relaxed_scores_are_the_strength_times_a_concrete_draw_with_its_gradient() -> None:
    given = [uniform(-2, 2, 7), uniform(-5, 5, 8)]
    temperature, noise = torch.tensor(0.6, dtype=torch.float64), torch.logit(uniform(0.01, 0.99, 9))
    truth_at, at = ([part.clone().requires_grad_() for part in given] for _ in range(2))
    truth = truth_at[0] * D.concrete_sample(truth_at[1], temperature, noise)
    scores = relaxed_scores(*at, temperature, noise)
    weights = uniform(-1, 1, 10)
    (truth * weights).sum().backward()
    (scores * weights).sum().backward()
    torch.testing.assert_close(scores, truth)
    for part, other in zip(at, truth_at, strict=True):
        torch.testing.assert_close(part.grad, other.grad)


def test_log_gamma_and_its_slope_agree_with_scipy() -> None:
    z = torch.cat([torch.linspace(1, 12, 500), torch.logspace(1, 5, 300)]).double()
    value, slope = log_gamma(z)
    np.testing.assert_allclose(value, special.gammaln(z.numpy()), rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(slope, special.psi(z.numpy()), rtol=1e-12, atol=1e-9)
