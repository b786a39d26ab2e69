"""A small variational autoencoder (Kingma and Welling 2014) over flat examples, the generator of generative replay.

    log p(x) ≥ ELBO(x) = E_{q(z|x)} log p(x|z) − KL(q(z|x) ‖ N(0, I)),      q(z|x) = N(mean, diag(variance))

Examples come normalized, but a pixel is a share of ink: its values fill a range and heap up at both ends of it. So
values are mapped from the range of the first task's data to u ∈ [0, 1], where each is the mean of a Bernoulli
variable, as is usual for such images:

    log p(x|z) = Σ_i u_i log p_i(z) + (1 − u_i) log(1 − p_i(z))

and a sample is the decoder's mean, mapped back. Later values outside the range count as its nearest end.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ibpwf.models import mlp


class VAE(nn.Module):
    """Encoder and decoder with the same hidden layers, in reverse; `low` and `span` are the range of the data."""

    low: Tensor
    span: Tensor

    def __init__(self, inputs: int, hidden: Sequence[int], latent: int) -> None:
        super().__init__()
        self.latent = latent
        self.encoder = mlp(inputs, hidden, 1)[:-1]
        self.mean = nn.Linear(hidden[-1], latent, dtype=torch.float32)
        self.log_variance = nn.Linear(hidden[-1], latent, dtype=torch.float32)
        self.decoder = mlp(latent, tuple(reversed(hidden)), inputs)
        self.register_buffer("low", torch.zeros((), dtype=torch.float32))
        self.register_buffer("span", torch.ones((), dtype=torch.float32))

    def set_range(self, x: Tensor) -> None:
        """Take the range of values from data."""
        self.low.copy_(x.min())
        span = x.max() - x.min()
        self.span.copy_(torch.where(span > 0, span, torch.ones_like(span)))

    def posterior(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of q(z|x) from the encoder's last hidden layer."""
        return self.mean(h), self.log_variance(h)

    def log_conditional(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x|z), one number a row."""
        u = ((x.flatten(1) - self.low) / self.span).clamp(0, 1)
        return -F.binary_cross_entropy_with_logits(self.decoder(z), u, reduction="none").sum(1)

    def elbo(self, x: Tensor, h: Tensor, generator: torch.Generator) -> Tensor:
        """The bound with one draw from q(z|x), a row each; `h` is the encoder's output for `x`."""
        mean, log_variance = self.posterior(h)
        z = mean + (log_variance / 2).exp() * noise_like(mean, generator)
        return self.log_conditional(x, z) - kl_to_standard_normal(mean, log_variance)

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """`count` new examples, flat."""
        z = torch.randn(count, self.latent, generator=generator, device=self.low.device, dtype=torch.float32)
        return self.low + self.span * torch.sigmoid(self.decoder(z))


def noise_like(tensor: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(tensor.shape, generator=generator, device=tensor.device, dtype=tensor.dtype)


def kl_to_standard_normal(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(mean, variance) ‖ N(0, I)), one number a row."""
    return (mean.square() + log_variance.exp() - 1 - log_variance).sum(1) / 2


@torch.no_grad()
def log_likelihood(vae: VAE, x: Tensor, samples: int, generator: torch.Generator) -> Tensor:
    """log p(x) by importance sampling from q(z|x), one number a row (Burda et al. 2016): on average a lower bound
    that no ELBO exceeds, and nearer with more samples."""
    mean, log_variance = vae.posterior(vae.encoder(x.flatten(1)))
    weights = []
    for _ in range(samples):
        noise = noise_like(mean, generator)
        z = mean + (log_variance / 2).exp() * noise
        # log N(z; 0, I) − log q(z|x); the constants of the two normal densities cancel.
        ratio = (noise.square() + log_variance - z.square()).sum(1) / 2
        weights.append(vae.log_conditional(x, z) + ratio)
    return torch.stack(weights).logsumexp(0) - torch.tensor(float(samples), dtype=torch.float32).log()
