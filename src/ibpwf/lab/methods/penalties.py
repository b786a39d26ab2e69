"""Methods that hold parameters near where an old task left them, the more so the more that task needs them.

    loss = cross-entropy + λ Σ_i Ω_i (θ_i − θ*_i)²

`L2` is the whole of it, with Ω = 1; the others say what Ω_t, the importance of a parameter to task t, is. λ has no
factor ½, as in SI, MAS and the code the paper ran (Hsu et al., 2018): half of EWC's λ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ibpwf.lab.methods.dense import DenseMethod, DenseSettings
from ibpwf.lab.methods.example_gradients import gradient_sum, trainable
from ibpwf.parts import Count, NotNegative, Positive, Share
from ibpwf.training.method import TaskData

NEGLIGIBLE = 1e-5  # the part of the Fisher information that is not worth computing: most labels make up less


class L2Settings(DenseSettings):
    coefficient: NotNegative = Field(0.03, description="λ, how hard parameters are held; 0 is fine-tuning")


class L2(DenseMethod):
    """Ω = 1: all parameters are held alike (the baseline of Kirkpatrick et al., 2017, figure 2)."""

    name: ClassVar[str] = "l2"
    summary: ClassVar[str] = "holds all parameters near the previous task's, all alike"
    stores: ClassVar[str] = "an old value per parameter"
    settings_type: ClassVar[type[DenseSettings]] = L2Settings
    settings: L2Settings
    keeps: ClassVar[tuple[str, ...]] = ("importance", "anchor")
    importance: Tensor | None = None  # Ω; none before the first task
    anchor: Tensor | None = None  # θ*

    decay: float = 0.0  # γ: how much of the old importance stays when a task's is added

    def importance_of(self, data: TaskData) -> Tensor:
        """Ω_t of the task just trained, one number per parameter, in the order of `position`."""
        return torch.ones_like(self.position()).detach()

    def join(self, importance: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """Ω and θ* with one more task, of which Ω_t and where it ended are given."""
        return importance if self.importance is None else self.decay * self.importance + importance, position

    def position(self) -> Tensor:
        """θ: all parameters that move, as one vector."""
        return torch.cat([p.flatten() for p in trainable(self.net).values()])

    def penalty(self, x: Tensor, outputs: Tensor) -> Tensor:
        if self.importance is None or self.anchor is None:
            return super().penalty(x, outputs)
        away = self.position() - self.anchor
        # With the pull held fixed the gradient is half the square's, at one product instead of three.
        energy = torch.dot(self.importance * away.detach(), away)
        return self.settings.coefficient * (2 * energy - energy.detach())

    def consolidate(self, data: TaskData) -> None:
        self.net.eval()
        self.importance, self.anchor = self.join(self.importance_of(data), self.position().detach())

    def some_examples(self, data: TaskData, most: int) -> Tensor:
        """At most `most` of the task's inputs, the same ones for the same seed."""
        x = data.x
        order = torch.randperm(len(x), generator=data.generator("importance"))[:most]
        return x[order.to(x.device)]


class MASSettings(L2Settings):
    coefficient: NotNegative = 1.0
    output_samples: Count = Field(1024, description="on how many training examples, at most, outputs are looked at")


class MAS(L2):
    """Memory aware synapses (Aljundi et al., ECCV 2018): how much the outputs f of the task at hand change,

    Ω_t = E_x |∂ ‖f(x)‖² / ∂θ|; the tasks' importances add up.
    """

    name: ClassVar[str] = "mas"
    summary: ClassVar[str] = "holds parameters by how much the outputs change with them"
    stores: ClassVar[str] = "an importance and an old value per parameter"
    settings_type: ClassVar[type[DenseSettings]] = MASSettings
    settings: MASSettings
    decay = 1.0

    def importance_of(self, data: TaskData) -> Tensor:
        x, columns = self.some_examples(data, self.settings.output_samples), self.columns(self.task.index)
        return gradient_sum(self.net, lambda outputs: outputs[columns].square().sum(), torch.abs, x) / len(x)


class EWCSettings(L2Settings):
    coefficient: NotNegative = 100.0
    fisher_samples: Count = Field(
        1024, description="on how many training examples, at most, the Fisher information is computed"
    )


class EWC(L2):
    """Elastic weight consolidation (Kirkpatrick et al., PNAS 2017): λ Σ_t F_t (θ − θ*_t)², a term for every old
    task, with the diagonal of its Fisher information, labels from the model's own distribution:

        F_t = E_x E_{y ~ p(y|x)} (∂ log p(y|x) / ∂θ)²

    The terms are kept as the one they add up to, but for a constant: importance Σ_t F_t around the mean of the
    anchors θ*_t weighted by F_t.
    """

    name: ClassVar[str] = "ewc"
    summary: ClassVar[str] = "holds parameters by their Fisher information, a term per old task"
    stores: ClassVar[str] = "an importance and an old value per parameter"
    settings_type: ClassVar[type[DenseSettings]] = EWCSettings
    settings: EWCSettings

    def importance_of(self, data: TaskData) -> Tensor:
        return self.fisher(self.some_examples(data, self.settings.fisher_samples))

    def fisher(self, x: Tensor) -> Tensor:
        """F of the task at hand. A label's share in it goes with p (1 − p)²; a trained network is so sure that the
        labels with the smallest shares, which make up `NEGLIGIBLE` of them together, are most labels."""
        columns = self.columns(self.task.index)
        with torch.no_grad():
            p = self.net(x)[:, columns].double().softmax(1)
        shares, order = (p * (1 - p).square()).flatten().sort(stable=True)
        pairs = order[shares.cumsum(0) > NEGLIGIBLE * shares.sum()]
        rows, labels = pairs // p.shape[1], pairs % p.shape[1]

        def weighted(outputs: Tensor, label: Tensor) -> Tensor:
            """√p log p with √p held fixed: the square of its gradient is p (∂ log p)²."""
            log_p = outputs[columns].log_softmax(0).gather(0, label.unsqueeze(0)).squeeze(0)
            return (log_p.detach() / 2).exp() * log_p

        return gradient_sum(self.net, weighted, torch.square, x[rows], labels) / len(x)

    def join(self, importance: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        if self.importance is None or self.anchor is None:
            return importance, position
        total = self.importance + importance
        share = torch.where(total > 0, importance / total, 1.0)
        return total, torch.lerp(self.anchor, position, share)


class OnlineEWCSettings(EWCSettings):
    coefficient: NotNegative = 400.0
    gamma: Share = Field(1.0, description="how much of the old Fisher information stays when a task's is added")


class OnlineEWC(EWC):
    """λ F (θ − θ*)² with F ← γ F + F_t, and θ* where the last task ended (Schwarz et al., ICML 2018)."""

    name: ClassVar[str] = "online-ewc"
    summary: ClassVar[str] = "holds parameters by a running Fisher information"
    settings_type: ClassVar[type[DenseSettings]] = OnlineEWCSettings
    settings: OnlineEWCSettings

    def join(self, importance: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        old = self.importance
        return importance if old is None else self.settings.gamma * old + importance, position


class SISettings(L2Settings):
    coefficient: NotNegative = 300.0
    damping: Positive = Field(0.1, description="ξ, which bounds the importance of parameters that hardly moved")


class SI(L2):
    """Synaptic intelligence (Zenke et al., ICML 2017): what a parameter did for the loss on its way,

        Ω_t = max(0, ω) / (Δ² + ξ),   ω = − Σ_steps g · (step of θ)

    where Δ is how far it moved in the task and g the gradient of the task's own loss, without the penalty's.
    """

    name: ClassVar[str] = "si"
    summary: ClassVar[str] = "holds parameters by what they did for the loss along the path"
    stores: ClassVar[str] = "an importance and an old value per parameter"
    settings_type: ClassVar[type[DenseSettings]] = SISettings
    settings: SISettings
    decay = 1.0

    def prepare(self, data: TaskData) -> None:
        self.start = self.position().detach()
        self.before, self.gradient = self.start.clone(), torch.zeros_like(self.start)
        self.path = torch.zeros_like(self.start)  # ω

    def buffers(self) -> Sequence[Tensor]:
        return *super().buffers(), self.before, self.gradient, self.path

    @torch.no_grad()
    def after_backward(self) -> None:
        moving = trainable(self.net).values()
        torch.cat([p.flatten() for p in moving], out=self.before)
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in moving]
        torch.cat([part.flatten() for part in parts], out=self.gradient)
        if self.importance is not None and self.anchor is not None:
            away = self.before - self.anchor
            self.gradient.addcmul_(self.importance, away, value=-2 * self.settings.coefficient)

    @torch.no_grad()
    def after_step(self) -> None:
        self.path.addcmul_(self.gradient, self.position().sub_(self.before), value=-1)

    def importance_of(self, data: TaskData) -> Tensor:
        moved = self.position().detach() - self.start
        return self.path.clamp(min=0) / (moved.square() + self.settings.damping)
