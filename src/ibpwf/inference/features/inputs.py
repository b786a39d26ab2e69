"""φ(x) = x: inputs that are good features already, such as a trained network's."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor, nn

from ibpwf.inference.base import Features
from ibpwf.parts import register


@register
class Inputs(Features):
    """The numbers of a row as they come."""

    kind: ClassVar[str] = "inputs"

    def __call__(self, x: Tensor) -> Tensor:
        return x.flatten(1).float()

    def width_for(self, shape: tuple[int, ...]) -> int:
        return math.prod(shape)

    def export_module(self) -> nn.Module:
        return nn.Flatten()
