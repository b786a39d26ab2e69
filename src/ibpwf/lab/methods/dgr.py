"""Deep generative replay: a generator learns to make examples like those seen, and the previous network answers them.

At task t a copy of the previous network and generator makes as many examples x̃ as a mini-batch has and labels them;
network and generator then learn the new examples and the replayed ones, weighted by their shares of the tasks:

    loss = 1/t [CE(y, f(x)) − ELBO(x)] + (1 − 1/t) [CE(ỹ, f(x̃)) − ELBO(x̃)],      ỹ = argmax f_{t−1}(x̃)

The two share no parameters, so that one optimiser trains each as if alone. In the task setting nobody knows which
task a replayed example is of, so it counts in the heads of all earlier tasks, on average over heads.

Shin et al. (2017), 'Continual Learning with Deep Generative Replay', NeurIPS; a VAE as generator and the task
setting as in van de Ven and Tolias (2018), 'Generative replay with feedback connections', arXiv:1809.10635.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ibpwf.lab.methods.dense import DenseMethod, DenseSettings
from ibpwf.lab.methods.vae import VAE
from ibpwf.models import mlp
from ibpwf.settings import require
from ibpwf.training.method import Loss, TaskData


class DGRSettings(DenseSettings):
    """The generator has the network's hidden layers on either side of `latent` values."""

    latent: int = 100

    def check(self) -> None:
        super().check()
        require(self.latent >= 1, "latent", self.latent, "give at least 1")


class Scholar(nn.Module, ABC):
    """A network that answers, and a generator in it or beside it."""

    vae: VAE

    @abstractmethod
    def answers_and_elbo(self, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Class scores, and the generator's bound on log p(x), one number a row."""

    @abstractmethod
    def answering(self) -> Sequence[nn.Module]:
        """The parts that answering needs; the rest is only there to generate."""


class SolverAndGenerator(Scholar):
    """The two as separate networks."""

    def __init__(self, inputs: int, hidden: Sequence[int], outputs: int, latent: int) -> None:
        super().__init__()
        self.solver = mlp(inputs, hidden, outputs)
        self.vae = VAE(inputs, hidden, latent)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.solver(x)
        return out

    def answers_and_elbo(self, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return self.solver(x), self.vae.elbo(x, self.vae.encoder(x.flatten(1)), generator)

    def answering(self) -> Sequence[nn.Module]:
        return [self.solver]


class DGR(DenseMethod):
    networks: ClassVar[tuple[str, ...]] = ("mlp",)
    name: ClassVar[str] = "dgr"
    summary: ClassVar[str] = "trains on examples that a VAE makes up and the previous network labels"
    stores: ClassVar[str] = "a generator"
    settings_type: ClassVar[type[DenseSettings]] = DGRSettings
    net: Scholar
    _previous: Scholar | None = None

    @property
    def generator_weight(self) -> float:
        """Of the ELBO beside the cross-entropy; with no shared parameter its size means nothing to Adam."""
        return 1.0

    def build(self) -> Scholar:
        assert isinstance(self.settings, DGRSettings)
        s, problem = self.settings, self.problem
        return SolverAndGenerator(problem.inputs, s.hidden, problem.outputs, s.latent)

    def prepare(self, data: TaskData) -> None:
        self._draws = data.generator("replay", self.device)
        self._previous = copy.deepcopy(self.net).eval().requires_grad_(False) if self.classes else None
        if not self.classes:
            self.net.vae.set_range(data.x)

    def generators(self) -> Sequence[torch.Generator]:
        return [self._draws]

    def loss(self, x: Tensor, y: Tensor) -> Loss:
        """What answering and generating cost on new and replayed examples, and the second beside it."""
        task, count = self.task.index, len(x)
        share = 1 / (task + 1)
        if self._previous is not None:
            with torch.no_grad():
                replayed = self._previous.vae.sample(count, self._draws).view_as(x)
                before = self._previous(replayed)
            x = torch.cat([x, replayed])
        logits, elbo = self.net.answers_and_elbo(x, self._draws)
        fit = share * F.cross_entropy(logits[:count, self.columns(task)], self.target(y, task))
        bound = share * -elbo[:count].mean()
        if self._previous is not None:
            fit = fit + (1 - share) * self.replay_loss(logits[count:], before)
            bound = bound - (1 - share) * elbo[count:].mean()
        bound = self.generator_weight * bound
        return Loss(fit + bound, bound)

    def replay_loss(self, logits: Tensor, before: Tensor) -> Tensor:
        """How far the outputs for replayed examples are from those the previous network gave."""
        task = self.task.index
        if self.problem.setting == "class":  # the new classes compete, after the earlier ones
            return self.answer_loss(logits[:, self.columns(task)], before[:, : self.first_column(task)])
        heads = [self.columns(earlier) for earlier in range(task)]
        return torch.stack([self.answer_loss(logits[:, head], before[:, head]) for head in heads]).mean()

    def answer_loss(self, logits: Tensor, before: Tensor) -> Tensor:
        """Cross-entropy with the previous network's answers; `logits` may have further columns than `before`."""
        return F.cross_entropy(logits, before.argmax(1))

    def consolidate(self, data: TaskData) -> None:
        self._previous = None

    def abandon_task(self) -> None:
        super().abandon_task()
        self._previous = None

    def memory(self) -> dict[str, int]:
        sizes = super().memory()
        answering = sum(t.numel() * t.element_size() for m in self.net.answering() for t in m.state_dict().values())
        return {"network": answering, "generator": sizes["network"] - answering}
