"""What is trained: parameters, a loss, and what happens around an optimizer's step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ibpwf.distributed import ALONE, Group
from ibpwf.training.phase import Phase, make_optimizer


class Loss(NamedTuple):
    """Of a mini-batch: what is minimized; the part of it that is no fit (a KL, a pull towards old parameters); and
    the share of rows that were answered rightly, where the method can tell."""

    total: Tensor
    penalty: Tensor | None = None
    accuracy: Tensor | None = None


def batch_accuracy(logits: Tensor, y: Tensor) -> Tensor:
    """The share of rows whose largest output is their label's."""
    return (logits.detach().argmax(1) == y).float().mean()


class Objective(ABC):
    """Parameters and a loss to train them with. Only these two must be given."""

    tf32: bool = True  # whether products rounded to 10 bits are precise enough to train with on CUDA
    bfloat16: bool = False  # whether they may be rounded to 8
    capturable: bool = True  # whether a step may be recorded as a CUDA graph
    decides_on_host: bool = False  # whether `on_host` has something to do
    group: Group = ALONE  # the processes that train it together
    sets_rate: bool = True  # whether the optimizer's learning rate follows the phase's

    @abstractmethod
    def parameters(self, phase: Phase) -> Sequence[nn.Parameter]:
        """What moves in this phase."""

    @abstractmethod
    def loss(self, x: Tensor, y: Tensor) -> Loss:
        """The mini-batch's loss."""

    def make_optimizer(self, phase: Phase, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        return make_optimizer(phase, parameters)

    def generators(self) -> Sequence[torch.Generator]:
        """Random streams the loss draws from (a recorded step must know them)."""
        return ()

    def buffers(self) -> Sequence[Tensor]:
        """State the loss changes besides parameters, such as running statistics."""
        return ()

    def trained_networks(self) -> Sequence[nn.Module]:
        """What the loss runs rows through. Where several processes train it, batch normalization in them looks at the
        rows of all."""
        return ()

    def after_backward(self) -> None:  # noqa: B027
        """Called between the backward pass and the optimizer's step; may change gradients."""

    def on_host(self) -> None:  # noqa: B027
        """Called after `after_backward` for what must be decided on the CPU; never part of a recorded step."""

    def after_step(self) -> None:  # noqa: B027 (most have nothing to do here)
        """Called after every optimizer step."""


class Fit(Objective):
    """Some parameters and a loss, with nothing around them."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        loss: Callable[[Tensor, Tensor], Loss],
        *,
        generators: Sequence[torch.Generator] = (),
        buffers: Sequence[Tensor] = (),
        tf32: bool = True,
        bfloat16: bool = False,
    ) -> None:
        self._parameters, self._loss = list(parameters), loss
        self._generators, self._buffers = generators, buffers
        self.tf32, self.bfloat16 = tf32, bfloat16

    def parameters(self, phase: Phase) -> Sequence[nn.Parameter]:
        return self._parameters

    def loss(self, x: Tensor, y: Tensor) -> Loss:
        return self._loss(x, y)

    def generators(self) -> Sequence[torch.Generator]:
        return self._generators

    def buffers(self) -> Sequence[Tensor]:
        return self._buffers
