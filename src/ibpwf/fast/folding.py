"""φ that is one linear layer of the input: told apart by a smaller product than the layer itself.

Which tasks are out of the question is seen in the r directions that φ takes (see `screening`). Where φ(x) = Wx + b,
the way there is linear too, (VᵀW)x + Vᵀ(b − centre), and r may be a third of φ's size: φ itself is then computed only
for inputs that more than one task may claim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ibpwf.fast.screening import ROUNDING, Located, Screen

OUTSIDE_SHARE = 1e-5  # of W, that may lie outside the directions φ takes: no more than rounding


@dataclass(frozen=True)
class LinearFeatures:
    """φ(x) = Wx + b of inputs as they are given, flat or not."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x.flatten(1), self.weight, self.bias)

    def same(self, other: LinearFeatures) -> bool:
        return self.weight is other.weight and self.bias is other.bias


def linear_features(net: nn.Module, state: Mapping[str, Tensor], layers: Sequence[str]) -> LinearFeatures | None:
    """φ as one linear layer of the input, if it is one: the first layer of an `nn.Sequential`, or what follows a
    `Flatten`, with nothing hooked in between. None for any other φ."""
    if len(layers) != 1 or type(net).forward is not nn.Sequential.forward:
        return None
    for name, module in net.named_children():
        if module._forward_hooks or module._forward_pre_hooks:
            return None
        if name == layers[0]:
            known = type(module) is nn.Linear and f"{name}.weight" in state
            return LinearFeatures(state[f"{name}.weight"], state.get(f"{name}.bias")) if known else None
        if not (type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1)):
            return None
    return None


@dataclass(frozen=True)
class Fold:
    """A screen's way from x: `matrix` (M×r) and `shift` (r). The rest are for bounds: how far a rounding error of one
    in every direction, by that direction's column of the matrix, can move whitened coordinates (G); how far a shift
    of one can; and the norms of what W and b have outside the directions that φ takes."""

    layer: LinearFeatures
    matrix: Tensor
    shift: Tensor
    stretch: Tensor
    shift_size: float
    outside: tuple[float, float]
    steepest: float

    @classmethod
    def of(cls, layer: LinearFeatures, screen: Screen) -> Fold | None:
        """None where the layer may give φ that lies in other directions than the groups'."""
        weight, basis = layer.weight.double(), screen.basis.double()
        bias = -screen.center if layer.bias is None else layer.bias.double() - screen.center
        matrix, shift = weight.T @ basis, basis.T @ bias
        outside = float((weight - basis @ matrix.T).norm()), float((bias - basis @ shift).norm())
        size, shift_size = float(weight.norm()), float(shift.norm())
        if outside[0] > OUTSIDE_SHARE * size or outside[1] > OUTSIDE_SHARE * (size + shift_size):
            return None
        moved = matrix.norm(dim=0).unsqueeze(1) * screen.whole.matrix.double()
        stretch = _spectral_bound(moved) * basis.shape[1] ** 0.5
        return cls(layer, matrix.float(), shift.float(), stretch, shift_size, outside, screen.steepest)

    def place(self, x: Tensor) -> Located:
        """Where φ(x) lies, as `Screen.place` finds it from φ.

        An entry of x·matrix is off by no more than (M+2)u·‖x‖·‖column‖, in whatever order it is summed. A vector of
        such errors e moves whitened coordinates by ‖Lᵀe‖ ≤ ‖Lᵀdiag(‖column‖)‖·√r·(M+2)u·‖x‖, which is far less than
        the steepest direction would allow. The basis, rounded, adds (√r+1)u of φ's length.
        """
        x = x.flatten(1)
        inside = torch.addmm(self.shift, x, self.matrix)
        given = torch.linalg.vector_norm(x, dim=1).double()
        each = (x.shape[1] + 16) * ROUNDING
        basis = (inside.shape[1] ** 0.5 + 8) * ROUNDING
        length = torch.linalg.vector_norm(inside, dim=1).double()
        stray = self.outside[0] * given + basis * length + (self.outside[1] + basis * self.shift_size)
        doubt = torch.outer(each * given, self.stretch).add_((self.steepest * stray).unsqueeze(1))
        return Located(inside, length, doubt)


def _spectral_bound(matrices: Tensor) -> Tensor:
    """At least the largest singular value of each matrix, and at most r^(1/16) times that: ‖A‖ ≤ ‖(AᵀA)⁴‖_F^⅛."""
    largest = matrices.flatten(1).norm(dim=1).clamp(min=1e-300)
    scaled = matrices / largest.view(-1, 1, 1)
    power = scaled.transpose(1, 2) @ scaled
    power = power @ power
    bound: Tensor = 1.001 * largest * (power @ power).flatten(1).norm(dim=1) ** 0.125
    return bound
