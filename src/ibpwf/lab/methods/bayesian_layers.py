"""A multilayer perceptron whose weights are independent Gaussians, for VCL and IBNN.

q(θ) = Π_i N(θ_i; μ_i, σ_i²). Every layer also holds its prior N(μ0_i, σ0_i²), which `take_prior` sets before a
task to what was learned so far: it is never stored, as it is the posterior itself between tasks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

START_LOG_STD = -3.0  # log σ² = -6, as in the authors' experiments

Weights = list[tuple[Tensor, Tensor]]


def kl_gaussian(mean: Tensor, log_std: Tensor, prior_mean: Tensor, prior_log_std: Tensor) -> Tensor:
    """KL(N(μ, σ²) ‖ N(μ0, σ0²)) = Σ ½ (σ²/σ0² - 1) - log σ/σ0 + ½ (μ - μ0)²/σ0²: exactly 0 at q = p, as are its
    gradients, so that a weight no data speak of stays where it is. They are (μ - μ0)/σ0² and, with respect to log σ,
    σ²/σ0² - 1, which the value is made of: autograd need not find them again. None reaches the prior."""
    with torch.no_grad():
        ratio, shift = log_std - prior_log_std, mean - prior_mean
        by_log_std = torch.expm1(2 * ratio)
        by_mean = shift * torch.exp(-2 * prior_log_std)
        total = 0.5 * (by_log_std.sum() + (by_mean * shift).sum()) - ratio.sum()
    moving = torch.dot(by_mean.flatten(), mean.flatten()) + torch.dot(by_log_std.flatten(), log_std.flatten())
    return total + (moving - moving.detach())


def normal(like: Tensor, noise: Generator) -> Tensor:
    return torch.randn(like.shape, generator=noise, device=like.device, dtype=like.dtype)


class GaussianLinear(nn.Module):
    """y = W x + b with W, b ~ q, and the prior of both."""

    def __init__(self, inputs: int, outputs: int, prior_std: float) -> None:
        super().__init__()
        start = nn.Linear(inputs, outputs, dtype=torch.float32)
        self.means = nn.ParameterList([start.weight, start.bias])
        self.log_stds = nn.ParameterList(torch.full_like(mean, START_LOG_STD) for mean in self.means)
        self.first_log_std = math.log(prior_std)
        self.prior: list[tuple[Tensor, Tensor]] = []
        self.take_prior(0)

    def forward(self, x: Tensor, noise: Generator | None) -> Tensor:
        """A draw of y by the local reparametrization (Kingma et al., 2015): y ~ N(μ x, σ² x²), independently for
        every row; with no noise, its mean."""
        mean = F.linear(x, *self.means)
        if noise is None:
            return mean
        spread = F.linear(x.square(), *(torch.exp(2 * log_std) for log_std in self.log_stds)).sqrt()
        return mean + spread * normal(mean, noise)

    @torch.no_grad()
    def draw(self, noise: Generator) -> tuple[Tensor, Tensor]:
        """(W, b) ~ q."""
        pairs = zip(self.means, self.log_stds, strict=True)
        weight, bias = (mean + log_std.exp() * normal(mean, noise) for mean, log_std in pairs)
        return weight, bias

    def kl(self, outputs: int | None = None) -> Tensor:
        """KL(q ‖ prior) of the first `outputs` rows, or of all."""
        parts = zip(self.means, self.log_stds, self.prior, strict=True)
        rows = slice(outputs)
        terms = [kl_gaussian(m[rows], s[rows], m0[rows], s0[rows]) for m, s, (m0, s0) in parts]
        return torch.stack(terms).sum()

    @torch.no_grad()
    def take_prior(self, learned: int) -> None:
        """The posterior of the first `learned` rows becomes their prior; the others have the first task's."""
        self.prior = []
        for mean, log_std in zip(self.means, self.log_stds, strict=True):
            prior_mean, prior_log_std = torch.zeros_like(mean), torch.full_like(log_std, self.first_log_std)
            prior_mean[:learned], prior_log_std[:learned] = mean[:learned], log_std[:learned]
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

    def layers(self) -> list[GaussianLinear]:
        return [layer for layer in (*self.hidden, self.head) if isinstance(layer, GaussianLinear)]

    def means(self) -> list[nn.Parameter]:
        return [mean for layer in self.layers() for mean in layer.means]

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

    def take_prior(self, learned: int) -> None:
        """What was learned becomes the prior: the hidden layers and the first `learned` outputs (none: nothing)."""
        for layer in self.layers()[:-1]:
            layer.take_prior(len(layer.means[0]) if learned else 0)
        self.head.take_prior(learned)
