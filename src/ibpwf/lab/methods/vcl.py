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
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ibpwf.inference.prediction import Prediction
from ibpwf.lab.methods.bayesian_layers import BayesianMLP
from ibpwf.lab.methods.buffer import shares
from ibpwf.lab.methods.dense import ROWS_AT_ONCE, DenseMethod, DenseSettings
from ibpwf.settings import require
from ibpwf.training.loop import fit_steps
from ibpwf.training.method import Loss, TaskData
from ibpwf.training.objective import Fit
from ibpwf.training.phase import Phase
from ibpwf.training.rows import Rows, TensorRows

LIKELIHOOD = "likelihood"


class VCLSettings(DenseSettings):
    """`likelihood_epochs` of maximum likelihood before the first task, `samples` of the posterior averaged in an
    answer, `prior_std` of the first prior.

    The paper says 50 epochs and names no batch. At 128 a batch that is too long: the posterior widens towards the
    prior and lets go of old tasks, so the default is shorter."""

    epochs: int = 8
    likelihood_epochs: int = 3
    samples: int = 20
    prior_std: float = 1.0

    def check(self) -> None:
        super().check()
        require(self.likelihood_epochs >= 0, "likelihood_epochs", self.likelihood_epochs, "give 0 or more")
        require(self.samples >= 1, "samples", self.samples, "give at least 1")
        require(self.prior_std > 0, "prior_std", self.prior_std, "it must be above 0")


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
        self.examples_trained = len(data.y)
        self.net.take_prior(self.learnt)

    @property
    def learnt(self) -> int:
        """How many outputs have been learnt."""
        return sum(map(len, self.classes))

    def parameters(self, phase: Phase) -> Sequence[nn.Parameter]:
        self.bayesian = phase.name != LIKELIHOOD
        return list(self.net.parameters()) if self.bayesian else self.net.means()

    def generators(self) -> Sequence[torch.Generator]:
        return (self.noise,)

    def fit(self, x: Tensor, y: Tensor) -> Tensor:
        task = self.task.index
        logits = self.net(x, self.noise if self.bayesian else None)
        return F.cross_entropy(logits[:, self.columns(task)], self.target(y, task))

    def penalty(self, x: Tensor) -> Tensor:
        if not self.bayesian:
            return super().penalty(x)
        return self.net.kl(self.learnt + len(self.task.classes), self.noise) / self.examples_trained

    # Answering

    @property
    def answering(self) -> BayesianMLP:
        """The posterior that answers."""
        return self.net

    def predict(self, x: Tensor, task: Tensor | None, *, marginal: bool, draws: int, seed: int) -> Prediction:
        self._samples, self._seed = draws or self.settings.samples, seed
        return super().predict(x, task, marginal=marginal, draws=draws, seed=seed)

    def mean_probabilities(self, x: Tensor, columns: slice) -> Tensor:
        """1/S Σ_s softmax f(x; θ_s) over `columns`, θ_s ~ q: the same S networks for every row."""
        noise = torch.Generator(self.device).manual_seed(self._seed)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for _ in range(self._samples):
            weights = self.answering.draw(noise)
            rows = torch.split(x, ROWS_AT_ONCE)
            parts = [self.answering.run(weights, r)[:, columns].double().softmax(1) for r in rows]
            total = total + torch.cat(parts)
        return total / self._samples

    def logits(self, x: Tensor, task: int) -> Tensor:
        first = self.first_column(task)
        return self.mean_probabilities(x, slice(first, first + len(self.classes[task]))).log()

    def class_log_probabilities(self, x: Tensor) -> Tensor:
        return self.mean_probabilities(x, slice(0, self.learnt)).log()


class VCLCoresetSettings(VCLSettings):
    """`memory_size` examples in all, shared evenly by the tasks seen; `coreset_epochs` over them before answering,
    with `coreset_kl_weight` on the KL (1 is the bound itself)."""

    memory_size: int = 400
    selection: Literal["random", "k-center"] = "random"
    coreset_epochs: int = 100
    coreset_kl_weight: float = 0.1

    def check(self) -> None:
        super().check()
        require(self.memory_size >= 1, "memory_size", self.memory_size, "give at least 1 example, or use method vcl")
        require(self.coreset_epochs >= 1, "coreset_epochs", self.coreset_epochs, "give at least 1")
        weight = self.coreset_kl_weight
        require(weight >= 0, "coreset_kl_weight", weight, "it cannot be negative; 1 is the bound itself")


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
        share = shares(self.settings.memory_size, len(self.classes) + 1)[-1]
        remedy = f"task '{data.name}' has {len(data.y)} examples and some must be left to train on; keep fewer"
        require(share < len(data.y), "memory_size", self.settings.memory_size, remedy)
        super().prepare(data)
        choice = data.generator("coreset")
        if self.settings.selection == "k-center":
            start = int(torch.randint(len(data.y), (), generator=choice))
            self.held_out = k_center(data.x, share, start)
        else:
            self.held_out = torch.randperm(len(data.y), generator=choice)[:share].to(self.device)
        rest = torch.ones(len(data.y), dtype=torch.bool, device=self.device)
        rest[self.held_out] = False
        self.rest = rest.nonzero().flatten()
        self.examples_trained = len(self.rest)

    def rows_to_train(self, data: TaskData) -> Rows:
        """Those not in the coreset."""
        return TensorRows(data.x[self.rest], data.y[self.rest])

    def consolidate(self, data: TaskData) -> None:
        new = data.x[self.held_out], data.y[self.held_out] + self.learnt
        sizes = shares(self.settings.memory_size, len(self.known))
        pairs = zip((*self.examples, new), sizes, strict=True)
        examples = tuple((x[:size].clone(), y[:size].clone()) for (x, y), size in pairs)
        self.answerer = self.refined(data, examples)
        self.examples = examples

    def refined(self, data: TaskData, examples: Sequence[tuple[Tensor, Tensor]]) -> BayesianMLP:
        """A copy of the posterior that has learnt the coreset, starting from and held to the posterior itself."""
        x, y = (torch.cat(parts) for parts in zip(*examples, strict=True))
        outputs = sum(map(len, self.known))
        net, noise = copy.deepcopy(self.net), data.generator("refine", self.device)
        net.take_prior(outputs)
        rivals = torch.zeros(outputs, outputs, dtype=torch.bool, device=self.device)
        for task, classes in enumerate(self.known):
            first = self.first_column(task)
            rivals[first : first + len(classes), self.columns(task)] = True

        def loss(x: Tensor, y: Tensor) -> Loss:
            kl = net.kl(outputs, noise) * weight
            logits = net(x, noise)[:, :outputs].masked_fill(~rivals[y], -torch.inf)
            return Loss(F.cross_entropy(logits, y) + kl, kl)

        s = self.settings
        weight = s.coreset_kl_weight / len(y)
        phase = Phase("coreset", s.coreset_epochs, s.batch_size, s.learning_rate, s.optimizer)
        fit = Fit(list(net.parameters()), loss, generators=(noise,), tf32=self.tf32)
        for _ in fit_steps(fit, phase, TensorRows(x, y), data.generator("order"), f"the coreset of '{data.name}'"):
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
            names = self.net.state_dict()
            self.answerer.load_state_dict({name: tensors[f"posterior/{name}"] for name in names})

    def memory(self) -> dict[str, int]:
        sizes = {"examples": 0, "posterior": 0}
        for name, tensor in self.kept().items():
            sizes[name.partition("/")[0]] += tensor.numel() * tensor.element_size()
        return {"network": super().memory()["network"], **sizes}


def k_center(x: Tensor, count: int, start: int) -> Tensor:
    """Rows of x, each the farthest from those before it, beginning with `start` (Gonzalez, 1985): any first k of
    them leave no row farther from its nearest centre than twice what k centres can do at best."""
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
