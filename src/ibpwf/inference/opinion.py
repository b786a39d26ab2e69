"""What the router says of one task's own classes, kept as it was when the task had been learned.

    log P(c | x, t) = w e_c(x) + v r_c(x) + const,     r_c(x) = f_c(φ(x)) of the router of then

The router goes on changing with every task, so an answer that is never to change keeps its own columns of it. An
expert and a regression on other features err on different rows: with the task given both together are more often
right than either. w and v are what held-out rows say.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ibpwf.storage.tensor_checks import TensorReader

EXPERT, REGRESSION = 1.0, 1.0
"""w and v where no rows were held out."""


PREFIX = "opinion/"
WEIGHT, INTERCEPT = f"{PREFIX}weight", f"{PREFIX}intercept"


@dataclass(frozen=True)
class Opinion:
    """The regression on a task's classes: `weight` D×C and `intercept` C, on the scale of log P."""

    weight: Tensor
    intercept: Tensor

    def scores(self, phi: Tensor) -> Tensor:
        """r of rows, N×C in float64."""
        return (phi.to(self.weight) @ self.weight).double() + self.intercept

    def tensors(self) -> dict[str, Tensor]:
        """As they are stored among those of the task."""
        return {WEIGHT: self.weight, INTERCEPT: self.intercept}

    @classmethod
    def of(cls, weight: Tensor, intercept: Tensor) -> Opinion:
        """In memory of its own, laid out as it is when read from a folder: that decides about the last bits."""
        plain = torch.contiguous_format
        kept = weight.to(torch.float32, copy=True, memory_format=plain)
        return cls(kept, intercept.to(torch.float64, copy=True, memory_format=plain))


def taken_opinion(reader: TensorReader, classes: int) -> Opinion:
    """The opinion of a task of so many classes, out of its part."""
    weight = reader.take(WEIGHT, (reader.length(WEIGHT), classes))
    return Opinion(weight, reader.take(INTERCEPT, (classes,), torch.float64))
