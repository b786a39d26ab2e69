"""φ(x) = x: inputs that are good features already, such as a trained network's."""

from __future__ import annotations

from torch import Tensor

from ibpwf.inference.base import Features


class InputFeatures(Features):
    """The numbers of a row as they come."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.flatten(1).float()
