"""Replay through feedback: generator and network are one, a VAE whose last hidden layer also answers.

Deep generative replay with a single network: encoder → (class scores, q(z|x)), z → decoder (the feedback). The
previous network's answers to replayed examples x̃ are learnt as probabilities, at temperature T = 2:

    distillation = −T² Σ_c softmax_c(f_{t−1}(x̃)/T) · log softmax_c(f(x̃)/T)

and the ELBO counts per input value (divided by their number), so that it does not drown the answers' loss in the
layers both share.

Van de Ven and Tolias (2018), 'Generative replay with feedback connections as a general strategy for continual
learning', arXiv:1809.10635; the paper takes its numbers from there (2,000 steps a task; Permuted MNIST 5,000).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from ibpwf.lab.methods.dense import DenseSettings
from ibpwf.lab.methods.dgr import DGR, DGRSettings, Scholar
from ibpwf.lab.methods.vae import VAE
from ibpwf.settings import require
from ibpwf.training.method import TaskData
from ibpwf.training.phase import Phase


class RtFSettings(DGRSettings):
    """`iterations` are steps a task, rounded up to whole epochs; with none, `epochs` counts. `temperature` softens
    the answers that are distilled, `generator_weight` is that of the ELBO per input value."""

    iterations: int | None = 2000
    temperature: float = 2.0
    generator_weight: float = 1.0

    def check(self) -> None:
        super().check()
        number = self.iterations
        require(number is None or number >= 1, "iterations", number, "give at least 1, or none to count in epochs")
        for name in ("temperature", "generator_weight"):
            require(getattr(self, name) > 0, name, getattr(self, name), "it must be above 0")


class FeedbackNetwork(Scholar):
    """A VAE with class scores read off the encoder's last hidden layer."""

    def __init__(self, inputs: int, hidden: Sequence[int], outputs: int, latent: int) -> None:
        super().__init__()
        self.vae = VAE(inputs, hidden, latent)
        self.head = nn.Linear(hidden[-1], outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.vae.encoder(x.flatten(1)))
        return out

    def answers_and_elbo(self, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        h = self.vae.encoder(x.flatten(1))
        return self.head(h), self.vae.elbo(x, h, generator)

    def answering(self) -> Sequence[nn.Module]:
        return [self.vae.encoder, self.head]


class RtF(DGR):
    name: ClassVar[str] = "rtf"
    summary: ClassVar[str] = "replay through feedback: one network that answers and generates, distilled on replay"
    stores: ClassVar[str] = "a generator"
    settings_type: ClassVar[type[DenseSettings]] = RtFSettings

    @property
    def options(self) -> RtFSettings:
        assert isinstance(self.settings, RtFSettings)
        return self.settings

    def build(self) -> Scholar:
        s, problem = self.options, self.problem
        return FeedbackNetwork(problem.inputs, s.hidden, problem.outputs, s.latent)

    @property
    def generator_weight(self) -> float:
        return self.options.generator_weight / self.problem.inputs

    def begin_task(self, data: TaskData) -> Sequence[Phase]:
        phases = super().begin_task(data)
        if self.options.iterations is None:
            return phases
        steps = max(len(data.y) // self.options.batch_size, 1)
        return [dataclasses.replace(phase, epochs=math.ceil(self.options.iterations / steps)) for phase in phases]

    def answer_loss(self, logits: Tensor, before: Tensor) -> Tensor:
        """Distillation; columns the previous network did not have are to get nothing."""
        warmth = self.options.temperature
        wanted = (before / warmth).softmax(1)
        given = (logits / warmth).log_softmax(1)[:, : wanted.shape[1]]
        return -(warmth**2) * (wanted * given).sum(1).mean()
