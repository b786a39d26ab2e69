"""Learning without forgetting: the new network should still answer for the old tasks as the old network does, on
the new task's data (Li & Hoiem, 2017; distillation after Hinton et al., 2015)."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from ibpwf.lab.methods.dense import DenseMethod, DenseSettings
from ibpwf.parts import NotNegative, Positive


class LwFSettings(DenseSettings):
    coefficient: NotNegative = Field(1.0, description="λ, of the distillation beside the new task; 0 is fine-tuning")
    temperature: Positive = Field(2.0, description="T, which softens both networks' answers")


class LwF(DenseMethod):
    """loss = cross-entropy + λ T² Σ_h KL(softmax(old_h / T) ‖ softmax(new_h / T)).

    Task setting: h runs over the old tasks' heads. Class setting: h is the one head; the old network chooses among
    the old classes and gives the new ones no probability, the new network chooses among all.
    """

    name: ClassVar[str] = "lwf"
    summary: ClassVar[str] = "distils the previous network's answers for old tasks while learning a new one"
    settings_type: ClassVar[type[DenseSettings]] = LwFSettings
    settings: LwFSettings

    def penalty(self, x: Tensor, outputs: Tensor) -> Tensor:
        total = super().penalty(x, outputs)
        if not self.classes or self.previous is None:
            return total
        temperature = self.settings.temperature
        with torch.no_grad():
            old = self.previous(x) / temperature
        new = outputs / temperature
        for head, known in self.heads():
            log_p, log_q = old[:, head][:, :known].log_softmax(1), new[:, head].log_softmax(1)[:, :known]
            total = total + F.kl_div(log_q, log_p, reduction="batchmean", log_target=True)
        return self.settings.coefficient * temperature**2 * total

    def heads(self) -> list[tuple[slice, int]]:
        """Outputs among which the new network chooses, and how many of them, from the first, the old one knew."""
        if self.problem.setting == "class":
            return [(self.columns(self.task.index), self.learned)]
        return [(self.columns(task), len(classes)) for task, classes in enumerate(self.classes)]
