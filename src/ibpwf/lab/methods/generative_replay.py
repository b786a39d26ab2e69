"""Generative replay: a generator learns to make examples like those seen, and the previous network answers them.

At task t a copy of the previous network and generator makes as many examples x̃ as a mini-batch has and labels them;
network and generator then learn the new examples and the replayed ones, weighted by their shares of the tasks:

    loss = 1/t [CE(y, f(x)) − w ELBO(x)] + (1 − 1/t) [L(f_{t−1}(x̃), f(x̃)) − w ELBO(x̃)]

In the task setting nobody knows which task a replayed example is of, so it counts in the heads of all earlier tasks,
on average over heads.

DGR: Shin et al. (2017), 'Continual Learning with Deep Generative Replay', NeurIPS, with a VAE as generator. RtF, and
the task setting: van de Ven and Tolias (2018), 'Generative replay with feedback connections as a general strategy
for continual learning', arXiv:1809.10635; the paper takes its numbers from there.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from ibpwf.lab.methods.dense import DenseMethod, DenseSettings, total_bytes
from ibpwf.lab.methods.vae import VAE
from ibpwf.models import mlp
from ibpwf.parts import Count, Positive
from ibpwf.training.method import TaskData
from ibpwf.training.objective import Loss, batch_accuracy
from ibpwf.training.phase import Phase


class DGRSettings(DenseSettings):
    latent: Count = Field(
        100, description="latent values of the generator, which has `hidden` on either side of them"
    )


class SolverAndGenerator(nn.Module):
    """A network that answers, and a generator beside it: they share no parameters, so that one optimizer trains
    each as if alone."""

    def __init__(self, inputs: int, hidden: Sequence[int], outputs: int, latent: int) -> None:
        super().__init__()
        self.solver = mlp(inputs, hidden, outputs)
        self.vae = VAE(inputs, hidden, latent)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.solver(x)
        return out

    def answers_and_elbo(self, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Class scores, and the generator's bound on log p(x), one number a row."""
        return self.solver(x), self.vae.elbo(x, self.vae.encoder(x.flatten(1)), generator)

    def answering(self) -> Sequence[nn.Module]:
        """The parts that answering needs; the rest is only there to generate."""
        return [self.solver]


class FeedbackNetwork(nn.Module):
    """Both in one: a VAE with class scores read off the encoder's last hidden layer."""

    def __init__(self, inputs: int, hidden: Sequence[int], outputs: int, latent: int) -> None:
        super().__init__()
        self.vae = VAE(inputs, hidden, latent)
        self.head = nn.Linear(hidden[-1], outputs, dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.vae.encoder(x.flatten(1)))
        return out

    def answers_and_elbo(self, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        h = self.vae.encoder(x.flatten(1))
        return self.head(h), self.vae.elbo(x, h, generator)

    def answering(self) -> Sequence[nn.Module]:
        return [self.vae.encoder, self.head]


class DGR(DenseMethod):
    """L is the cross-entropy with the previous network's answer, argmax f_{t−1}(x̃)."""

    networks: ClassVar[tuple[str, ...]] = ("mlp",)
    name: ClassVar[str] = "dgr"
    summary: ClassVar[str] = "trains on examples that a VAE makes up and the previous network labels"
    stores: ClassVar[str] = "a generator"
    settings_type: ClassVar[type[DenseSettings]] = DGRSettings
    settings: DGRSettings
    architecture: ClassVar[type[SolverAndGenerator | FeedbackNetwork]] = SolverAndGenerator
    net: SolverAndGenerator | FeedbackNetwork
    previous: SolverAndGenerator | FeedbackNetwork | None

    @property
    def generator_weight(self) -> float:
        """Of the ELBO beside the cross-entropy; with no shared parameter its size means nothing to Adam."""
        return 1.0

    def build(self) -> nn.Module:
        s, problem = self.settings, self.problem
        return self.architecture(problem.inputs, s.hidden, problem.outputs, s.latent)

    def prepare(self, data: TaskData) -> None:
        self._draws = data.generator("replay", self.device)
        if not self.classes:
            self.net.vae.set_range(data.x)

    def generators(self) -> Sequence[torch.Generator]:
        return [self._draws]

    def loss(self, x: Tensor, y: Tensor) -> Loss:
        """What answering and generating cost on new and replayed examples, and the second beside it."""
        count, share = len(x), 1 / (self.task.index + 1)
        if self.classes:
            assert self.previous is not None
            with torch.no_grad():
                replayed = self.previous.vae.sample(count, self._draws).view_as(x)
                before = self.previous(replayed)
            x = torch.cat([x, replayed])
        outputs, elbo = self.net.answers_and_elbo(x, self._draws)
        logits, target = self.competing(outputs[:count], y)
        fit = share * F.cross_entropy(logits, target)
        bound = share * -elbo[:count].mean()
        if self.classes:
            fit = fit + (1 - share) * self.replay_loss(outputs[count:], before)
            bound = bound - (1 - share) * elbo[count:].mean()
        bound = self.generator_weight * bound
        return Loss(fit + bound, bound, batch_accuracy(logits, target))

    def replay_loss(self, outputs: Tensor, before: Tensor) -> Tensor:
        """How far the outputs for replayed examples are from those the previous network gave."""
        task = self.task.index
        if self.problem.setting == "class":  # the new classes compete, after the earlier ones
            return self.answer_loss(outputs[:, self.columns(task)], before[:, : self.learned])
        heads = [self.columns(earlier) for earlier in range(task)]
        return torch.stack([self.answer_loss(outputs[:, head], before[:, head]) for head in heads]).mean()

    def answer_loss(self, logits: Tensor, before: Tensor) -> Tensor:
        """Cross-entropy with the previous network's answers; `logits` may have further columns than `before`."""
        return F.cross_entropy(logits, before.argmax(1))

    def memory(self) -> dict[str, int]:
        answering = sum(total_bytes(part.state_dict().values()) for part in self.net.answering())
        return {"network": answering, "generator": super().memory()["network"] - answering}


class RtFSettings(DGRSettings):
    iterations: Count | None = Field(
        2000, description="steps a task, rounded up to whole epochs; with none, `epochs` counts"
    )
    temperature: Positive = Field(2.0, description="T, which softens the answers that are distilled")
    generator_weight: Positive = Field(1.0, description="of the ELBO per input value")


class RtF(DGR):
    """Replay through feedback: generator and network are one, and answers are distilled at temperature T:

        L = −T² Σ_c softmax_c(f_{t−1}(x̃)/T) · log softmax_c(f(x̃)/T)

    The ELBO counts per input value, so that it does not drown the answers' loss in the layers both share.
    """

    name: ClassVar[str] = "rtf"
    summary: ClassVar[str] = "replay through feedback: one network that answers and generates, distilled on replay"
    settings_type: ClassVar[type[DenseSettings]] = RtFSettings
    settings: RtFSettings
    architecture: ClassVar[type[SolverAndGenerator | FeedbackNetwork]] = FeedbackNetwork

    @property
    def generator_weight(self) -> float:
        return self.settings.generator_weight / self.problem.inputs

    def begin_task(self, data: TaskData) -> Sequence[Phase]:
        phases = super().begin_task(data)
        if self.settings.iterations is None:
            return phases
        steps = max(len(data.rows) // self.settings.batch_size, 1)
        return [dataclasses.replace(phase, epochs=math.ceil(self.settings.iterations / steps)) for phase in phases]

    def answer_loss(self, logits: Tensor, before: Tensor) -> Tensor:
        """Columns the previous network did not have are to get nothing."""
        temperature = self.settings.temperature
        wanted = (before / temperature).softmax(1)
        given = (logits / temperature).log_softmax(1)[:, : wanted.shape[1]]
        return -(temperature**2) * (wanted * given).sum(1).mean()
