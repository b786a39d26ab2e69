"""A multilayer perceptron whose weights are independent Gaussians, for VCL and IBNN.

q(θ) = Π_i N(θ_i; μ_i, σ_i²). Every layer also holds its prior N(μ0_i, σ0_i²), which `take_prior` sets before a
task to what was learnt so far: it is never stored, as it is the posterior itself between tasks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

START_LOG_STD = -3.0  # log σ² = -6, as in the authors' experiments

Weights = list[tuple[Tensor, Tensor]]


class _KLGaussian(torch.autograd.Function):
    """The sum of `kl_gaussian`, with its slopes written out: a third of a step's time is spent here."""

    @staticmethod
    def forward(mean: Tensor, log_std: Tensor, prior_mean: Tensor, prior_log_std: Tensor) -> tuple[Tensor, ...]:
        ratio, shift = log_std - prior_log_std, mean - prior_mean
        by_log_std = torch.expm1(2 * ratio)
        by_mean = shift * torch.exp(-2 * prior_log_std)
        total = 0.5 * (by_log_std.sum() + (by_mean * shift).sum()) - ratio.sum()
        return total, by_mean, by_log_std

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*output[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor, Tensor, None, None]:
        by_mean, by_log_std = ctx.saved_tensors
        return grad * by_mean, grad * by_log_std, None, None


def kl_gaussian(mean: Tensor, log_std: Tensor, prior_mean: Tensor, prior_log_std: Tensor) -> Tensor:
    """KL(N(μ, σ²) ‖ N(μ0, σ0²)) = Σ ½ (σ²/σ0² - 1) - log σ/σ0 + ½ (μ - μ0)²/σ0²: exactly 0 at q = p, as are its
    slopes, so that a weight no data speak of stays where it is. No slope reaches the prior."""
    total: Tensor = _KLGaussian.apply(mean, log_std, prior_mean, prior_log_std)[0]  # type: ignore[no-untyped-call]
    return total


class GaussianLinear(nn.Module):
    """y = W x + b with W, b ~ q, and the prior of both."""

    def __init__(self, inputs: int, outputs: int, prior_std: float) -> None:
        super().__init__()
        start = nn.Linear(inputs, outputs)
        self.means = nn.ParameterList([start.weight, start.bias])
        self.log_stds = nn.ParameterList(torch.full_like(mean, START_LOG_STD) for mean in self.means)
        self.first_log_std = math.log(prior_std)
        self.prior: list[tuple[Tensor, Tensor]] = []
        self.take_prior(0)

    def forward(self, x: Tensor, noise: Generator | None) -> Tensor:
        """A draw of y by the local reparametrisation (Kingma et al., 2015): y ~ N(μ x, σ² x²), independently for
        every row; with no noise, its mean."""
        mean = F.linear(x, *self.means)
        if noise is None:
            return mean
        spread = F.linear(x.square(), *(torch.exp(2 * log_std) for log_std in self.log_stds)).sqrt()
        return mean + spread * torch.randn(mean.shape, generator=noise, device=mean.device, dtype=mean.dtype)

    def draw(self, noise: Generator) -> tuple[Tensor, Tensor]:
        """(W, b) ~ q."""
        pairs = zip(self.means, self.log_stds, strict=True)
        weight, bias = (
            mean + log_std.exp() * torch.randn(mean.shape, generator=noise, device=mean.device, dtype=mean.dtype)
            for mean, log_std in pairs
        )
        return weight.detach(), bias.detach()

    def kl(self, outputs: int | None = None) -> Tensor:
        """KL(q ‖ prior) of the first `outputs` rows, or of all."""
        parts = zip(self.means, self.log_stds, self.prior, strict=True)
        rows = slice(outputs)
        terms = [kl_gaussian(m[rows], s[rows], m0[rows], s0[rows]) for m, s, (m0, s0) in parts]
        return torch.stack(terms).sum()

    @torch.no_grad()
    def take_prior(self, learnt: int) -> None:
        """The posterior of the first `learnt` rows becomes their prior; the others have the first task's."""
        self.prior = []
        for mean, log_std in zip(self.means, self.log_stds, strict=True):
            prior_mean, prior_log_std = torch.zeros_like(mean), torch.full_like(log_std, self.first_log_std)
            prior_mean[:learnt], prior_log_std[:learnt] = mean[:learnt], log_std[:learnt]
            self.prior.append((prior_mean, prior_log_std))


class BayesianMLP(nn.Module):
    """Gaussian layers with ReLU between them; `head` has a row for every class that will come."""

    def __init__(self, inputs: int, hidden: Sequence[int], outputs: int, prior_std: float = 1.0) -> None:
        super().__init__()
        widths = [inputs, *hidden]
        self.hidden = nn.ModuleList(GaussianLinear(before, after, prior_std) for before, after in pairwise(widths))
        self.head = GaussianLinear(widths[-1], outputs, prior_std)

    def forward(self, x: Tensor, noise: Generator | None = None) -> Tensor:
        for layer in self.hidden:
            x = torch.relu(layer(x, noise))
        out: Tensor = self.head(x, noise)
        return out

    def means(self) -> list[nn.Parameter]:
        return [mean for layer in self.layers() for mean in layer.means]

    def layers(self) -> list[GaussianLinear]:
        return [layer for layer in (*self.hidden, self.head) if isinstance(layer, GaussianLinear)]

    def draw(self, noise: Generator) -> Weights:
        """One network ~ q, to `run` as often as needed."""
        return [layer.draw(noise) for layer in self.layers()]

    @torch.no_grad()
    def run(self, weights: Weights, x: Tensor) -> Tensor:
        for weight, bias in weights[:-1]:
            x = torch.relu(F.linear(x, weight, bias))
        return F.linear(x, *weights[-1])

    def kl(self, outputs: int, noise: Generator) -> Tensor:
        """KL(q ‖ prior) of the hidden layers and of the first `outputs` outputs; a child may have to sample it."""
        hidden = [layer.kl() for layer in self.layers()[:-1]]
        return torch.stack([*hidden, self.head.kl(outputs)]).sum()

    def take_prior(self, learnt: int) -> None:
        """What was learnt becomes the prior: the hidden layers and the first `learnt` outputs (none: nothing)."""
        for layer in self.layers()[:-1]:
            layer.take_prior(len(layer.means[0]) if learnt else 0)
        self.head.take_prior(learnt)
