"""The GPU's kernels against the same formulas in torch: on a GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from ibpwf.accel.divergence import posterior_kl, relaxed_scores

from ibpwf.accel import kernels as fused

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def uniform(low: float, high: float, seed: int, shape: tuple[int, ...] = (3, 37)) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def posterior(spread: float) -> list[Tensor]:
    """logit, log c, log d."""
    return [uniform(-8, 8, 0), uniform(-spread / 2, spread, 1) + 3.0, uniform(-spread, spread, 2)]


@pytest.mark.parametrize(("online", "terms"), [(False, None), (True, None), (True, 10)])
@pytest.mark.parametrize("spread", [1.0, 5.0])
def test_the_kernel_gives_the_kl_and_its_slopes(online: bool, terms: int | None, spread: float) -> None:
    given = posterior(spread)
    noise, prior_c = -uniform(1e-7, 1 - 1e-7, 3).log(), uniform(5, 50, 4)
    prior_d = uniform(0.3, 3, 5) if online else None
    mask = (uniform(0, 1, 6) < 0.8).float()
    at = [part.clone().requires_grad_() for part in given]
    truth = posterior_kl(*at, noise, prior_c, prior_d, mask, terms)
    slopes = torch.autograd.grad(truth, at)
    there = [None if part is None else part.to(DEVICE) for part in (*given, noise, prior_c, prior_d, mask)]
    value, found = fused.kl_and_slopes(*there, terms)
    torch.testing.assert_close(value.cpu(), truth.detach(), rtol=2e-6, atol=0)
    for part, other in zip(found.cpu(), slopes, strict=True):
        torch.testing.assert_close(part, other, rtol=2e-4, atol=3e-6 * float(other.abs().max()))


def test_sticks_at_the_ends_of_what_floats_can_hold_give_finite_values_and_slopes() -> None:
    logit = torch.tensor([[30.0, -30.0, 0.0, 5.0]])
    log_c, log_d = torch.tensor([[-6.9, 6.9, 6.9, -6.9]]), torch.tensor([[-6.9, 6.9, -6.9, 6.9]])
    noise = torch.tensor([[22.0, 6e-8, 22.0, 6e-8]])
    prior_c, prior_d = torch.full((1, 4), 20.0), torch.full((1, 4), 0.7)
    for terms, prior in ((None, None), (None, prior_d), (10, prior_d)):
        there = [None if part is None else part.to(DEVICE) for part in (logit, log_c, log_d, noise, prior_c, prior)]
        value, slopes = fused.kl_and_slopes(*there, torch.ones(1, 4, device=DEVICE), terms)
        assert bool(torch.isfinite(value))
        assert bool(torch.isfinite(slopes).all())


def test_the_kernels_give_the_scores_and_their_slopes() -> None:
    shape = (2, 300)
    strength, logit = uniform(-2, 2, 7, shape), uniform(-5, 5, 8, shape)
    temperature, numbers, grad = torch.tensor(0.6), uniform(0.0, 1.0, 9, shape), uniform(-1, 1, 10, shape)
    at = [strength.clone().requires_grad_(), logit.clone().requires_grad_()]
    truth = relaxed_scores(*at, temperature, torch.logit(numbers, eps=1e-7))
    slopes = torch.autograd.grad(truth, at, grad)
    there = [part.to(DEVICE) for part in (strength, logit, temperature, numbers)]
    scores, b = fused.scores_from(*there)
    found = fused.scores_slopes(there[0], b, there[2], grad.to(DEVICE))
    torch.testing.assert_close(scores.cpu(), truth.detach(), rtol=1e-5, atol=1e-6)
    for part, other in zip(found.cpu(), slopes, strict=True):
        torch.testing.assert_close(part, other, rtol=1e-5, atol=1e-6)
