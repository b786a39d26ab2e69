"""Const-WF: weight factors without the Indian buffet process (Mehta et al., 2021, section 'IBP Ablation Study').

    W_t = W_a diag(r_t) W_b over all ν + (t − 1) ω factors so far

The first task brings ν factors per layer, each later one ω more. A task reads every factor there is through its
own strengths r_t; only its new factors are trained. Task inference is IBP-WF's, so one training answers both
settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from ibpwf.factors.dictionary import Dictionary
from ibpwf.factors.factorize import factorize
from ibpwf.lab.methods.dense import DenseSettings, Problem, Widths, seeded
from ibpwf.method import IBPWF
from ibpwf.models import mlp
from ibpwf.parts import Count, Positive, require
from ibpwf.settings import Settings
from ibpwf.training.method import TaskData
from ibpwf.training.objective import Loss, batch_accuracy
from ibpwf.training.phase import Phase

CERTAIN = 30.0
"""The logit of a factor that every task reads: its probability rounds to 1 in float32."""


class ConstWFSettings(DenseSettings):
    """Beside its own, IBP-WF's settings, with its 10 + 5 epochs in one."""

    hidden: Widths = (400,)
    epochs: Count = 15
    batch_size: Count = 32
    nu: Count = Field(200, description="ν, factors per layer of the first task")
    omega: Annotated[int, Field(ge=0)] = Field(40, description="ω, new factors per layer of every later task")
    heads: Literal["shared", "per-task"] = Field(
        "shared", description="one head factorized like any other layer, or a dense one of its own for every task"
    )
    strength_std: Positive = Field(0.316, description="spread of the initial strengths r")
    inference: Literal["gaussian", "class-gaussian"] = Field(
        "gaussian", description="how the task is told from φ(x): a Gaussian per task, or one per class"
    )
    ridge: Positive = Field(1e-4, description="added to covariances, relative to the first task's variance")


class ConstantDictionary(Dictionary):
    """Grows by the same number of factors with every task."""

    def __init__(self, inputs: int, outputs: int, nu: int, omega: int) -> None:
        super().__init__(inputs, outputs, alpha=nu)
        self.nu, self.omega = nu, omega

    def room_for(self, task_number: int) -> int:
        return self.nu + (task_number - 1) * self.omega


class ConstWF(IBPWF):
    """IBP-WF with nothing to infer: the selection is all factors from the start, so there is no ELBO phase."""

    name: ClassVar[str] = "const-wf"
    summary: ClassVar[str] = "weight factors without the IBP: a fixed number of new ones per task"
    stores: ClassVar[str] = "all factors, each task's strengths, feature means and covariances"
    settings_type: ClassVar[type[DenseSettings]] = ConstWFSettings

    def __init__(
        self,
        problem: Problem,
        settings: ConstWFSettings | None = None,
        *,
        seed: int = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        chosen = settings or ConstWFSettings()
        require(chosen.network == "mlp", "network", chosen.network, "const-wf trains: mlp")
        with seeded(seed):
            net = mlp(problem.inputs, chosen.hidden, problem.outputs)
        model = factorize(net, heads=chosen.heads, strength_std=chosen.strength_std).to(device)
        model.layers = {
            name: ConstantDictionary(layer.inputs, layer.outputs, chosen.nu, chosen.omega)
            for name, layer in model.layers.items()
        }
        super().__init__(model, Settings(inference=chosen.inference, ridge=chosen.ridge))
        self.problem, self.chosen, self.seed = problem, chosen, seed

    def begin_task(self, data: TaskData) -> Sequence[Phase]:
        network = self.model.start_task(len(data.classes), data.generator("init"))
        with torch.no_grad():
            network.posterior.logit.fill_(CERTAIN)
        network.fix_selection(self.settings.kappa)
        self.network = network
        s = self.chosen
        return [Phase("train", s.epochs, s.batch_size, s.learning_rate, s.optimizer)]

    def parameters(self, phase: Phase) -> Sequence[nn.Parameter]:
        """The new factors, the task's strengths and biases."""
        return self._training.trainable(posterior=False)

    def loss(self, x: Tensor, y: Tensor) -> Loss:
        logits = self._training(x)
        return Loss(F.cross_entropy(logits, y), accuracy=batch_accuracy(logits, y))

    def memory(self) -> dict[str, int]:
        """Bytes kept between tasks, by kind."""
        sizes = dict.fromkeys(("factors", "strengths", "own", "moments"), 0)
        kinds = {"posterior": "strengths", "inference": "moments"}
        for tensors in self.state()[1].values():
            for name, tensor in tensors.items():
                kind = name.partition("/")[0]
                sizes[kinds.get(kind, kind)] += tensor.nbytes
        return sizes

    def configuration(self) -> dict[str, Any]:
        """What `create` needs to make the same untrained method again."""
        return {**self.problem.to_json(), "settings": self.chosen.to_json(), "seed": self.seed}

    @classmethod
    def create(cls, configuration: Mapping[str, Any], device: str | torch.device = "cpu") -> Self:
        settings = ConstWFSettings.from_json(configuration["settings"])
        return cls(Problem.from_json(configuration), settings, seed=configuration["seed"], device=device)
