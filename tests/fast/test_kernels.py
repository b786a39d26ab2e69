"""The GPU's kernels against the reference functions: on a GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from ibpwf.dispatch import accelerated
from ibpwf.factors.elbo import Posterior, StickPrior, posterior_kl, sample_scores
from ibpwf.fast import kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def uniform(low: float, high: float, seed: int, shape: tuple[int, ...] = (3, 37)) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def there(*parts: Tensor) -> list[Tensor]:
    return [part.to(DEVICE) for part in parts]


@pytest.mark.parametrize(("online", "terms"), [(False, None), (True, None), (True, 10)])
@pytest.mark.parametrize("spread", [1.0, 5.0])
def test_the_kernel_gives_the_kl_and_its_gradients(online: bool, terms: int | None, spread: float) -> None:
    given = [uniform(-8, 8, 0), uniform(-spread / 2, spread, 1) + 3.0, uniform(-spread, spread, 2)]
    noise, prior_c = -uniform(1e-7, 1 - 1e-7, 3).log(), uniform(5, 50, 4)
    prior_d = uniform(0.3, 3, 5) if online else None
    mask = (uniform(0, 1, 6) < 0.8).float()
    at = [part.double().requires_grad_() for part in given]
    with accelerated(False):
        prior = StickPrior(prior_c.double(), None if prior_d is None else prior_d.double())
        truth = posterior_kl(Posterior(*at), prior, noise.double(), mask.double(), terms)
    gradients = torch.autograd.grad(truth, at)
    prior = StickPrior(prior_c.to(DEVICE), None if prior_d is None else prior_d.to(DEVICE))
    value, found = kernels.kl_and_gradients(Posterior(*there(*given)), prior, *there(noise, mask), terms)
    torch.testing.assert_close(value.cpu().double(), truth.detach(), rtol=2e-6, atol=0)
    for part, other in zip(found.cpu(), gradients, strict=True):
        torch.testing.assert_close(part.double(), other, rtol=2e-4, atol=3e-6 * float(other.abs().max()))


def test_sticks_at_the_ends_of_what_floats_can_hold_give_finite_values_and_gradients() -> None:
    logit = torch.tensor([[30.0, -30.0, 0.0, 5.0]])
    log_c, log_d = torch.tensor([[-6.9, 6.9, 6.9, -6.9]]), torch.tensor([[-6.9, 6.9, -6.9, 6.9]])
    noise = torch.tensor([[22.0, 6e-8, 22.0, 6e-8]])
    prior_c, prior_d, one = there(torch.full((1, 4), 20.0), torch.full((1, 4), 0.7), torch.ones(1, 4))
    for terms, prior in ((None, None), (None, prior_d), (10, prior_d)):
        q = Posterior(*there(logit, log_c, log_d))
        value, gradients = kernels.kl_and_gradients(q, StickPrior(prior_c, prior), noise.to(DEVICE), one, terms)
        assert bool(torch.isfinite(value))
        assert bool(torch.isfinite(gradients).all())


def test_the_kernels_give_the_scores_and_their_gradients() -> None:
    strength, logit, u, grad = uniform(-2, 2, 7), uniform(-5, 5, 8), uniform(0.001, 0.999, 9), uniform(-1, 1, 10)
    temperature = torch.tensor(0.6)
    at = [strength.clone().requires_grad_(), logit.clone().requires_grad_()]
    with accelerated(False):
        truth = sample_scores(*at, temperature, u)
    gradients = torch.autograd.grad((truth * grad).sum(), at)
    scores, b = kernels.scores_from(*there(strength, logit, temperature, u))
    found = kernels.scores_gradients(strength.to(DEVICE), b, temperature.to(DEVICE), grad.to(DEVICE))
    torch.testing.assert_close(scores.cpu(), truth.detach(), rtol=1e-5, atol=1e-6)
    for part, other in zip(found.cpu(), gradients, strict=True):
        torch.testing.assert_close(part, other, rtol=1e-5, atol=1e-6)
