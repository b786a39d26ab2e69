"""Variational continual learning (Nguyen et al., 2018), without and with a coreset.

The posterior over the weights after one task is the prior of the next:

    q_t = argmin_q  Σ_n E_q[-log p(y_n | x_n, θ)] + KL(q ‖ q_{t-1}),     q_0 = N(0, σ²),

q a product of Gaussians. Each class has its own output weights: with a head per task, an old head is left as it
was, and a new one starts from q_0. The first task starts from a maximum-likelihood fit.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from ibpwf.data.rows import ROWS_PER_PASS, IndexedRows, Rows
from ibpwf.inference.prediction import Prediction
from ibpwf.lab.methods.bayesian_layers import BayesianMLP
from ibpwf.lab.methods.dense import DenseMethod, DenseSettings, total_bytes
from ibpwf.lab.methods.rehearsal import shares
from ibpwf.parts import Count, NotNegative, Positive, require
from ibpwf.training.loop import fit_steps
from ibpwf.training.method import TaskData
from ibpwf.training.objective import Fit, Loss
from ibpwf.training.phase import Phase

LIKELIHOOD = "likelihood"


class VCLSettings(DenseSettings):
    epochs: Count = Field(
        8,
        description="passes over a task's rows; the paper says 50 and names no batch, but at 128 a batch that is too "
        "long: the posterior widens towards the prior and lets go of old tasks",
    )
    likelihood_epochs: Annotated[int, Field(ge=0)] = Field(
        3, description="passes of maximum likelihood before the first task"
    )
    samples: Count = Field(20, description="networks drawn from the posterior and averaged in an answer")
    prior_std: Positive = Field(1.0, description="σ of the first prior")


class VCL(DenseMethod):
    networks: ClassVar[tuple[str, ...]] = ("mlp",)
    name: ClassVar[str] = "vcl"
    summary: ClassVar[str] = "a Bayesian network whose posterior is the next task's prior"
    stores: ClassVar[str] = "a variance for every weight"
    settings_type: ClassVar[type[DenseSettings]] = VCLSettings
    settings: VCLSettings
    net: BayesianMLP

    _samples, _seed = 1, 0

    def build(self) -> nn.Module:
        return BayesianMLP(self.problem.inputs, self.settings.hidden, self.problem.outputs, self.settings.prior_std)

    # Learning

    def begin_task(self, data: TaskData) -> Sequence[Phase]:
        phases = list(super().begin_task(data))
        epochs = self.settings.likelihood_epochs
        if epochs and not self.classes:
            phases.insert(0, dataclasses.replace(phases[0], name=LIKELIHOOD, epochs=epochs))
        return phases

    def prepare(self, data: TaskData) -> None:
        self.noise = data.generator("noise", self.device)
        self.examples_trained = len(data.rows)
        self.net.take_prior(self.learned)

    def parameters(self, phase: Phase) -> Sequence[nn.Parameter]:
        self.bayesian = phase.name != LIKELIHOOD
        return list(self.net.parameters()) if self.bayesian else self.net.means()

    def generators(self) -> Sequence[torch.Generator]:
        return (self.noise,)

    def outputs(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x, self.noise if self.bayesian else None)
        return out

    def penalty(self, x: Tensor, outputs: Tensor) -> Tensor:
        if not self.bayesian:
            return super().penalty(x, outputs)
        return self.net.kl(self.learned + len(self.task.classes), self.noise) / self.examples_trained

    # Answering

    @property
    def answering(self) -> BayesianMLP:
        """The posterior that answers."""
        return self.net

    def predict(
        self, x: Tensor, task: Tensor | None, *, marginal: bool, posterior_samples: int, seed: int
    ) -> Prediction:
        self._samples, self._seed = posterior_samples or self.settings.samples, seed
        return super().predict(x, task, marginal=marginal, posterior_samples=posterior_samples, seed=seed)

    def mean_probabilities(self, x: Tensor, columns: slice) -> Tensor:
        """1/S Σ_s softmax f(x; θ_s) over `columns`, θ_s ~ q: the same S networks for every row."""
        noise = torch.Generator(self.device).manual_seed(self._seed)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for _ in range(self._samples):
            weights = self.answering.draw(noise)
            rows = torch.split(x, ROWS_PER_PASS)
            parts = [self.answering.run(weights, r)[:, columns].double().softmax(1) for r in rows]
            total = total + torch.cat(parts)
        return total / self._samples

    def logits(self, x: Tensor, task: int) -> Tensor:
        return self.mean_probabilities(x, self.own_columns(task)).log()

    def class_log_probabilities(self, x: Tensor) -> Tensor:
        return self.mean_probabilities(x, slice(0, self.learned)).log()


class VCLCoresetSettings(VCLSettings):
    memory_size: Count = Field(400, description="examples kept in all, shared evenly by the tasks seen")
    selection: Literal["random", "k-center"] = Field(
        "random", description="which examples are kept: any, or each the farthest from those before it"
    )
    coreset_epochs: Count = Field(100, description="passes over the kept examples before answering")
    coreset_kl_weight: NotNegative = Field(0.1, description="of the KL while they are learned; 1 is the bound itself")


class VCLCoreset(VCL):
    """VCL with a coreset C_t, which is kept out of training: the posterior that is handed on, q̃_t, never sees it,
    and the one that answers is q_t = argmin_q Σ_{C_t} E_q[-log p(y | x, θ)] + KL(q ‖ q̃_t)."""

    name: ClassVar[str] = "vcl-coreset"
    summary: ClassVar[str] = "VCL that learns a few kept examples last, before it answers"
    stores: ClassVar[str] = "a variance for every weight, examples, a second posterior to answer with"
    settings_type: ClassVar[type[DenseSettings]] = VCLCoresetSettings
    settings: VCLCoresetSettings

    examples: tuple[tuple[Tensor, Tensor], ...] = ()  # x and y per task, in order of choice; y is an output's number
    answerer: BayesianMLP | None = None

    @property
    def answering(self) -> BayesianMLP:
        return self.answerer or self.net

    def prepare(self, data: TaskData) -> None:
        rows = len(data.rows)
        share = shares(self.settings.memory_size, data.index + 1)[-1]
        remedy = f"task '{data.name}' has {rows} examples and some must be left to train on; keep fewer"
        require(share < rows, "memory_size", self.settings.memory_size, remedy)
        super().prepare(data)
        choice = data.generator("coreset")
        if self.settings.selection == "k-center":
            self.held_out = k_center(data.x, share, int(torch.randint(rows, (), generator=choice)))
        else:
            self.held_out = torch.randperm(rows, generator=choice)[:share].to(self.device)
        self.examples_trained = rows - share

    def rows_to_train(self, data: TaskData) -> Rows:
        """Those not in the coreset."""
        x, y = data.rows.tensors()
        rest = torch.ones(len(y), dtype=torch.bool, device=self.device)
        rest[self.held_out] = False
        return IndexedRows(x[rest], y[rest])

    def consolidate(self, data: TaskData) -> None:
        x, y = data.rows.tensors()
        parts = (*self.examples, (x[self.held_out], y[self.held_out] + self.learned))
        sizes = shares(self.settings.memory_size, len(parts))
        examples = tuple((x[:size].clone(), y[:size].clone()) for (x, y), size in zip(parts, sizes, strict=True))
        self.answerer = self.refined(data, examples)
        self.examples = examples

    def refined(self, data: TaskData, examples: Sequence[tuple[Tensor, Tensor]]) -> BayesianMLP:
        """A copy of the posterior that has learned the coreset, starting from and held to the posterior itself."""
        x, y = (torch.cat(parts) for parts in zip(*examples, strict=True))
        s, outputs = self.settings, sum(map(len, self.known))
        net, noise = copy.deepcopy(self.net), data.generator("refine", self.device)
        net.take_prior(outputs)
        silent, weight = self.silent(outputs), s.coreset_kl_weight / len(y)

        def loss(x: Tensor, y: Tensor) -> Loss:
            kl = net.kl(outputs, noise) * weight
            logits = net(x, noise)[:, :outputs].masked_fill(silent[y], -torch.inf)
            return Loss(F.cross_entropy(logits, y) + kl, kl)

        phase = Phase("coreset", s.coreset_epochs, s.batch_size, s.learning_rate, s.optimizer)
        fit = Fit(list(net.parameters()), loss, generators=(noise,), tf32=self.tf32)
        for _ in fit_steps(fit, phase, IndexedRows(x, y), data.generator("order"), f"the coreset of '{data.name}'"):
            pass
        return net

    def kept(self) -> dict[str, Tensor]:
        if self.answerer is None:
            return {}
        tensors = {f"posterior/{name}": tensor for name, tensor in self.answerer.state_dict().items()}
        for task, (x, y) in enumerate(self.examples):
            tensors |= {f"examples/{task}/x": x, f"examples/{task}/y": y}
        return tensors

    def load_kept(self, tensors: Mapping[str, Tensor]) -> None:
        tasks = range(len(self.classes))
        self.examples = tuple((tensors[f"examples/{t}/x"], tensors[f"examples/{t}/y"]) for t in tasks)
        if self.classes:
            self.answerer = copy.deepcopy(self.net)
            self.answerer.load_state_dict({name: tensors[f"posterior/{name}"] for name in self.net.state_dict()})

    def memory(self) -> dict[str, int]:
        kept = self.kept()
        examples = total_bytes(tensor for name, tensor in kept.items() if name.startswith("examples/"))
        posterior = total_bytes(kept.values()) - examples
        return {"network": super().memory()["network"], "examples": examples, "posterior": posterior}


def k_center(x: Tensor, count: int, start: int) -> Tensor:
    """Rows of x, each the farthest from those before it, beginning with `start` (Gonzalez, 1985): any first k of
    them leave no row farther from its nearest center than twice what k centers can do at best."""
    x = x.flatten(1)
    chosen = []
    distance = torch.full((len(x),), torch.inf, dtype=x.dtype, device=x.device)
    row = start
    for _ in range(count):
        chosen.append(row)
        distance = torch.minimum(distance, (x - x[row]).square().sum(1))
        distance[chosen] = -1.0
        row = int(distance.argmax())
    return torch.tensor(chosen, dtype=torch.int64, device=x.device)
