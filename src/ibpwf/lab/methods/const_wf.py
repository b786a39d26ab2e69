"""Const-WF: weight factors without the Indian buffet process, as many new ones for every task (`ConstantGrowth`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from ibpwf.factors.factorize import factorize
from ibpwf.factors.prior import ConstantGrowth
from ibpwf.inference.gaussian import Gaussian
from ibpwf.lab.methods.dense import DenseSettings, Problem, Widths, seeded
from ibpwf.method import IBPWF
from ibpwf.models import mlp
from ibpwf.parts import Count, Positive, require
from ibpwf.settings import Settings

SHARED = ("epochs", "batch_size", "learning_rate", "optimizer", "augment", "precision", "heads")


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


class ConstWF(IBPWF):
    """IBP-WF with another prior: the selection is all factors from the start, so there is no ELBO phase."""

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
        prior = ConstantGrowth(nu=chosen.nu, omega=chosen.omega, strength_std=chosen.strength_std)
        inference = Gaussian(ridge=chosen.ridge, per="class" if chosen.inference == "class-gaussian" else "task")
        shared = {name: getattr(chosen, name) for name in SHARED}
        ours = Settings(prior=prior, finetune_epochs=0, inference=inference, **shared)
        super().__init__(factorize(net, **ours.factorization).to(device), ours)
        self.problem, self.chosen, self.seed = problem, chosen, seed

    def configuration(self) -> dict[str, Any]:
        """What `create` needs to make the same untrained method again."""
        return {**self.problem.to_json(), "settings": self.chosen.to_json(), "seed": self.seed}

    def fixed_files(self) -> dict[str, dict[str, Tensor]]:
        return {}

    @classmethod
    def create(cls, configuration: Mapping[str, Any], device: str | torch.device = "cpu") -> Self:
        settings = ConstWFSettings.from_json(configuration["settings"])
        return cls(Problem.from_json(configuration), settings, seed=configuration["seed"], device=device)
