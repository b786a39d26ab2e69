"""A generative classifier: a small VAE per class, trained on that class alone (van de Ven, Li & Tolias, 2021).

    ŷ = argmax_c log p_c(x),   log p_c(x) ≈ log 1/S Σ_s p_c(x|z_s) p(z_s) / q_c(z_s|x),   z_s ~ q_c(z|x)

Nothing is replayed and no class ever sees another, so there is nothing to forget.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from ibpwf.lab.methods.dense import DenseSettings, Widths
from ibpwf.lab.methods.expansion import Separate
from ibpwf.parts import Count, Positive
from ibpwf.training.method import TaskData
from ibpwf.training.objective import Loss, batch_accuracy
from ibpwf.training.phase import Phase

VALUES_AT_ONCE = {"cpu": 1 << 20, "cuda": 1 << 26}
"""How many decoded values to have in memory at a time: what fits a processor's cache, or fills a GPU."""


class GenClassifierSettings(DenseSettings):
    hidden: Widths = Field((85, 85), description="widths of the encoder's hidden layers, in reverse the decoder's")
    learning_rate: Positive = Field(3e-3, description="at the start; it falls along half a cosine")
    latent: Count = Field(10, description="size of z")
    sigma: Positive = Field(0.65, description="deviation of x from what is decoded, in x's own units")
    samples: Count = Field(20, description="S, draws of z in an answer")


class PerClass(nn.Module):
    """As many linear layers as classes, side by side: N×in, or K×N×in, to K×N×out."""

    def __init__(self, classes: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(classes, inputs, outputs, dtype=torch.float32).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(classes, 1, outputs, dtype=torch.float32).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


def perceptrons(classes: int, widths: Sequence[int]) -> nn.Sequential:
    """A multilayer perceptron per class."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [PerClass(classes, before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class ClassVAEs(nn.Module):
    """The VAEs of one task's classes: z ~ N(0, I), x ~ N(decoder(z), σ²I)."""

    def __init__(self, classes: int, inputs: int, hidden: Sequence[int], latent: int, sigma: float) -> None:
        super().__init__()
        self.sigma = sigma
        self.encoder = perceptrons(classes, [inputs, *hidden, 2 * latent])
        self.decoder = perceptrons(classes, [latent, *reversed(hidden), inputs])

    def log_weights(self, x: Tensor, noise: Tensor) -> Tensor:
        """log p(x|z) + log p(z) − log q(z|x) with z = μ(x) + s(x)·noise: K×N×S. `noise` is S×Z for all rows, or
        N×S×Z. Its mean over S is the ELBO, its log-mean-exp the importance-sampled log p(x)."""
        mean, log_variance = self.encoder(x).unsqueeze(2).chunk(2, -1)
        z = mean + (0.5 * log_variance).exp() * noise
        prior = 0.5 * (noise.square() + log_variance - z.square()).sum(-1)
        decoded = self.decoder(z.flatten(1, 2)).unflatten(1, z.shape[1:3])
        squares = ((x.unsqueeze(1) - decoded) / self.sigma).square().sum(-1)
        weights: Tensor = prior - 0.5 * squares - 0.5 * x.shape[1] * math.log(2 * math.pi * self.sigma**2)
        return weights


class GenClassifier(Separate):
    """The VAEs of a task are trained together, each on its own class's rows."""

    name: ClassVar[str] = "gen-classifier"
    summary: ClassVar[str] = "a generative model per class; the likeliest one names the class"
    stores: ClassVar[str] = "a variational autoencoder per class"
    answers: ClassVar[tuple[str, ...]] = ("task", "class")
    settings_type: ClassVar[type[DenseSettings]] = GenClassifierSettings
    settings: GenClassifierSettings

    def module(self, task: int, outputs: int) -> nn.Module:
        s = self.settings
        return ClassVAEs(outputs, self.problem.inputs, s.hidden, s.latent, s.sigma)

    def vaes(self, task: int) -> ClassVAEs:
        vaes = self.net[task]
        assert isinstance(vaes, ClassVAEs)
        return vaes

    def begin_task(self, data: TaskData) -> Sequence[Phase]:
        return [replace(phase, schedule="cosine") for phase in super().begin_task(data)]

    def prepare(self, data: TaskData) -> None:
        super().prepare(data)
        self._noise = data.generator("noise", self.device)

    def generators(self) -> Sequence[torch.Generator]:
        return (self._noise,)

    def loss(self, x: Tensor, y: Tensor) -> Loss:
        """−ELBO of every row under its own class's VAE, one sample each."""
        noise = torch.randn(
            len(x), 1, self.settings.latent, generator=self._noise, device=x.device, dtype=torch.float32
        )
        elbo = self.vaes(self.task.index).log_weights(x, noise).squeeze(2)
        return Loss(-elbo.gather(0, y.unsqueeze(0)).mean(), accuracy=batch_accuracy(elbo.T, y))

    def forward(self, x: Tensor, task: int) -> Tensor:
        """log p_c(x) for the classes of a task. All rows and classes share the S draws of noise, so an answer does
        not depend on what else is asked, and what the draws have in common cancels between classes."""
        s, vaes = self.settings, self.vaes(task)
        noise = torch.randn(
            s.samples, s.latent, generator=torch.Generator().manual_seed(self.seed), dtype=torch.float32
        ).to(x.device)
        values = s.samples * self.problem.inputs * len(self.known[task])
        rows = max(1, VALUES_AT_ONCE.get(x.device.type, 1 << 20) // values)
        parts = [vaes.log_weights(part, noise).logsumexp(2).T for part in torch.split(x, rows)]
        return torch.cat(parts) - math.log(s.samples)

    def class_log_probabilities(self, x: Tensor) -> Tensor:
        scores = torch.cat([self.logits(x, task) for task in range(len(self.classes))], 1)
        return scores.double().log_softmax(1)
