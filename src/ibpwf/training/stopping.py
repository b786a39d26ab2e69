"""When a phase has trained long enough: rows that nothing is learned from say so.

After every epoch they are answered as the task would answer if it ended there. What counts is their mean negative
log-likelihood once scores are divided by the temperature that suits them best: a network that is merely too sure of
itself can be put right by a number (`inference.fusion`), so that alone is no reason to stop. When it has not fallen
for so many epochs as the phase has `patience`, the phase ends, with everything as it was after its best epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ibpwf.training.method import Method
from ibpwf.training.phase import Phase


@dataclass
class Best:
    """The best epoch of a phase so far, counted from 0: its loss, and the method as it was then."""

    epoch: int = -1
    loss: float = float("inf")
    content: Mapping[str, Any] | None = None
    tensors: Mapping[str, Tensor] | None = None


class Stopping:
    """Watches one phase after another."""

    def __init__(self, method: Method) -> None:
        self.method, self.best = method, Best()

    def start_phase(self) -> None:
        self.best = Best()

    def is_over(self, phase: Phase, epoch: int) -> bool:
        """Look at the held-out rows after an epoch: whether the phase has gone on for long enough without gain."""
        if not phase.patience:
            return False
        loss = self.method.held_out_loss()
        if loss is None:
            return False
        if loss < self.best.loss:
            content, tensors = self.method.training_state()
            kept = {name: tensor.detach().clone() for name, tensor in tensors.items()}
            self.best = Best(epoch, loss, content, kept)
        return self.best.tensors is not None and epoch - self.best.epoch >= phase.patience

    def end_phase(self, epoch: int) -> None:
        """Put the method back to its best epoch, if `epoch` was not it."""
        if self.best.tensors is not None and epoch != self.best.epoch:
            assert self.best.content is not None
            self.method.load_training_state(self.best.content, self.best.tensors)

    def state(self) -> tuple[dict[str, Any] | None, dict[str, Tensor]]:
        """For a checkpoint."""
        best = self.best
        if best.tensors is None:
            return None, {}
        return {"epoch": best.epoch, "loss": best.loss, "method": best.content}, dict(best.tensors)

    def restore(self, content: Mapping[str, Any] | None, tensors: Mapping[str, Tensor]) -> None:
        if content is not None:
            self.best = Best(int(content["epoch"]), float(content["loss"]), content["method"], tensors)
