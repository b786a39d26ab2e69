"""Methods that hold parameters near where an old task left them, the more so the more that task needs them.

    loss = cross-entropy + λ Σ_i Ω_i (θ_i − θ*_i)²

Ω, the importance, starts at none and after every task becomes γ Ω + Ω_t; θ* is where the last task ended. A child
says how Ω_t is computed: `l2` (here), `ewc` and `online-ewc`, `si`, `mas`. λ has no factor ½, as in SI, MAS and
the code the paper ran (Hsu et al., 2018): half of EWC's λ.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from ibpwf.lab.methods.dense import ROWS_AT_ONCE, DenseMethod, DenseSettings
from ibpwf.lab.methods.linear_layers import only_linear, slopes_and_inputs
from ibpwf.settings import require
from ibpwf.training.method import TaskData

NUMBERS_AT_ONCE = {"cpu": 1 << 22, "cuda": 1 << 26}  # gradients held at a time: on a CPU, what its caches hold


class PenaltySettings(DenseSettings):
    """`coefficient` is λ."""

    coefficient: float = 1.0

    def check(self) -> None:
        super().check()
        require(self.coefficient >= 0, "coefficient", self.coefficient, "it cannot be negative; 0 is fine-tuning")


class ImportancePenalty(DenseMethod):
    """A quadratic penalty on moving away from the old tasks' parameters."""

    stores: ClassVar[str] = "an importance and an old value per parameter"
    settings_type: ClassVar[type[DenseSettings]] = PenaltySettings
    settings: PenaltySettings
    importance: Tensor | None = None  # Ω; none before the first task
    anchor: Tensor | None = None  # θ*

    @abstractmethod
    def importance_of(self, data: TaskData) -> Tensor:
        """Ω_t of the task just trained, one number per parameter, in the order of `position`."""

    @property
    def decay(self) -> float:
        """γ: how much of the old importance stays when a task's is added."""
        return 1.0

    def moving(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.net.named_parameters() if p.requires_grad}

    def position(self) -> Tensor:
        """θ: all parameters that move, as one vector."""
        return torch.cat([p.flatten() for p in self.moving().values()])

    def penalty(self, x: Tensor) -> Tensor:
        if self.importance is None or self.anchor is None:
            return super().penalty(x)
        away = self.position() - self.anchor
        # With the pull held fixed the gradient is half the square's, at one product instead of three.
        energy = torch.dot(self.importance * away.detach(), away)
        return self.settings.coefficient * (2 * energy - energy.detach())

    def consolidate(self, data: TaskData) -> None:
        self.net.eval()
        self.importance, self.anchor = self.join(self.importance_of(data), self.position().detach())

    def join(self, importance: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """Ω and θ* with one more task."""
        return importance if self.importance is None else self.decay * self.importance + importance, position

    def kept(self) -> dict[str, Tensor]:
        if self.importance is None or self.anchor is None:
            return {}
        return {"importance": self.importance, "anchor": self.anchor}

    def load_kept(self, tensors: Mapping[str, Tensor]) -> None:
        self.importance, self.anchor = tensors.get("importance"), tensors.get("anchor")

    def memory(self) -> dict[str, int]:
        return {"network": super().memory()["network"]} | {name: t.nbytes for name, t in self.kept().items()}

    # What EWC and MAS need

    def some_examples(self, data: TaskData, most: int) -> Tensor:
        """At most `most` of the task's inputs, the same ones for the same seed."""
        order = torch.randperm(len(data.x), generator=data.generator("importance"))[:most]
        return data.x[order.to(data.x.device)]

    def gradient_sum(
        self, value: Callable[..., Tensor], size: Callable[[Tensor], Tensor], x: Tensor, *others: Tensor
    ) -> Tensor:
        """Σ_n size(∂ value(f(x_n), …) / ∂θ), exact for every example, a few examples at a time; f(x_n) are the
        outputs that compete in the task at hand, and `size` is the absolute value or the square."""
        count = sum(p.numel() for p in self.moving().values())
        all_linear = only_linear(self.net)
        rows = ROWS_AT_ONCE if all_linear else max(1, NUMBERS_AT_ONCE["cuda" if x.is_cuda else "cpu"] // count)
        part = self._by_products if all_linear else self._by_examples
        total = torch.zeros(count, device=x.device)
        for batch in zip(*(torch.split(t, rows) for t in (x, *others)), strict=True):
            total += part(value, size, *batch)
        return total

    def _by_products(
        self, value: Callable[..., Tensor], size: Callable[[Tensor], Tensor], x: Tensor, *others: Tensor
    ) -> Tensor:
        """The gradient of a linear layer's weight is, for one example, the outer product of the slope δ_n of its
        output and its input a_n. The size of a product is the product of the sizes, so the sum is one matrix
        product, size(δ)ᵀ size(a), and no example's gradient is ever formed."""

        def total(outputs: Tensor) -> Tensor:
            return vmap(value)(outputs[:, self.columns(self.task.index)], *others).sum()

        parts: dict[str, Tensor] = {}
        for name, (slope, inputs) in slopes_and_inputs(self.net, x, total).items():
            parts[f"{name}.weight"], parts[f"{name}.bias"] = size(slope).T @ size(inputs), size(slope).sum(0)
        return torch.cat([parts[name].flatten() for name in self.moving()])

    def _by_examples(
        self, value: Callable[..., Tensor], size: Callable[[Tensor], Tensor], x: Tensor, *others: Tensor
    ) -> Tensor:
        """Any network: every example's own gradient."""
        columns = self.columns(self.task.index)

        def of_one(parameters: dict[str, Tensor], x: Tensor, *others: Tensor) -> Tensor:
            return value(functional_call(self.net, parameters, (x.unsqueeze(0),))[0, columns], *others)

        parameters = {name: p.detach() for name, p in self.moving().items()}
        gradients = vmap(grad(of_one), (None, 0, *(0 for _ in others)))(parameters, x, *others)
        return torch.cat([size(gradient).sum(0).flatten() for gradient in gradients.values()])


class L2Settings(PenaltySettings):
    coefficient: float = 0.03


class L2(ImportancePenalty):
    """Ω = 1: all parameters are held alike (the baseline of Kirkpatrick et al., 2017, figure 2)."""

    name: ClassVar[str] = "l2"
    summary: ClassVar[str] = "holds all parameters near the previous task's, all alike"
    stores: ClassVar[str] = "an old value per parameter"
    settings_type: ClassVar[type[DenseSettings]] = L2Settings

    @property
    def decay(self) -> float:
        return 0.0

    def importance_of(self, data: TaskData) -> Tensor:
        return torch.ones_like(self.position()).detach()
