"""Learning without forgetting: the new network should still answer for the old tasks as the old network does, on
the new task's data (Li & Hoiem, 2017; distillation after Hinton et al., 2015)."""

from __future__ import annotations

import copy
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ibpwf.lab.methods.dense import DenseMethod, DenseSettings
from ibpwf.settings import require
from ibpwf.training.method import Loss, TaskData


class LwFSettings(DenseSettings):
    """`coefficient` weighs the distillation against the new task, `temperature` softens both answers."""

    coefficient: float = 1.0
    temperature: float = 2.0

    def check(self) -> None:
        super().check()
        require(self.coefficient >= 0, "coefficient", self.coefficient, "it cannot be negative; 0 is fine-tuning")
        require(self.temperature > 0, "temperature", self.temperature, "it must be above 0")


class LwF(DenseMethod):
    """loss = cross-entropy + λ T² Σ_h KL(softmax(old_h / T) ‖ softmax(new_h / T)).

    Task setting: h runs over the old tasks' heads. Class setting: h is the one head; the old network chooses among
    the old classes and gives the new ones no probability, the new network chooses among all.
    """

    name: ClassVar[str] = "lwf"
    summary: ClassVar[str] = "distils the previous network's answers for old tasks while learning a new one"
    settings_type: ClassVar[type[DenseSettings]] = LwFSettings
    settings: LwFSettings
    teacher: nn.Module | None = None  # the network as the last task left it, while a task is learnt

    def prepare(self, data: TaskData) -> None:
        self.teacher = copy.deepcopy(self.net).eval().requires_grad_(False) if self.classes else None

    def loss(self, x: Tensor, y: Tensor) -> Loss:
        task, outputs = self.task.index, self.net(x)
        fit = F.cross_entropy(outputs[:, self.columns(task)], self.target(y, task))
        distillation = self.distillation(outputs, x)
        return Loss(fit + distillation, distillation)

    def heads(self) -> list[tuple[slice, int]]:
        """Outputs among which the new network chooses, and how many of them, from the first, the old one knew."""
        if self.problem.setting == "class":
            return [(self.columns(self.task.index), sum(map(len, self.classes)))]
        return [(self.columns(task), len(classes)) for task, classes in enumerate(self.classes)]

    def distillation(self, outputs: Tensor, x: Tensor) -> Tensor:
        total = torch.zeros((), device=x.device)
        if self.teacher is None:
            return total
        temperature = self.settings.temperature
        with torch.no_grad():
            old = self.teacher(x) / temperature
        new = outputs / temperature
        for head, known in self.heads():
            log_p, log_q = old[:, head][:, :known].log_softmax(1), new[:, head].log_softmax(1)[:, :known]
            total = total + F.kl_div(log_q, log_p, reduction="batchmean", log_target=True)
        return self.settings.coefficient * temperature**2 * total

    def consolidate(self, data: TaskData) -> None:
        self.teacher = None

    def abandon_task(self) -> None:
        super().abandon_task()
        self.teacher = None
