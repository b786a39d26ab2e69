"""Scores of Gaussians in float64 from the r directions that φ takes, for φ that has next to nothing elsewhere.

Let φ − centre = Va + o with V the r directions, and QR = WᵀV of a group's whitening W. Then

    ‖Wᵀ(φ−μ)‖² = ‖QᵀWᵀ(φ−μ)‖² + (o−o_μ)ᵀ (Σ_oo + ρI)⁻¹ (o−o_μ)

where Σ_oo, what the group's covariance has outside of V, is no more than rounding. So the last term is ‖o−o_μ‖²/ρ,
whose part ‖o‖²/ρ all groups share, and is off by no more than ‖Σ_oo‖‖o−o_μ‖²/ρ². A group takes D×r numbers then and
not D×D, and r may be a quarter of D.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ibpwf.fast.pairs import products
from ibpwf.fast.screening import Screen

NATS = 1e-12  # that a score may be off by


@dataclass(frozen=True)
class ReducedScores:
    """`matrix` (G×D×(r+1)) and `offset` (G×(r+1)) give QᵀWᵀ(φ−μ) and o·o_μ/ρ. φ may have a norm of `room` outside of
    `basis` (D×r)."""

    center: Tensor
    basis: Tensor
    matrix: Tensor
    offset: Tensor
    constant: Tensor
    room: float

    @classmethod
    def of(
        cls, screen: Screen, means: Tensor, whiten: Tensor, constant: Tensor, pooled: Tensor, ridge: float
    ) -> ReducedScores | None:
        """None where so little is certain that no φ would do, or where the directions are not few."""
        groups, size = means.shape
        if 2 * screen.basis.shape[1] > size:
            return None
        basis = torch.linalg.qr(screen.basis.double()).Q
        # No group's covariance is larger than that of all together.
        elsewhere = groups * float((pooled.trace() - (basis * (pooled @ basis)).sum()).clamp(min=0))
        elsewhere += groups * size * 2.0**-50 * float(pooled.trace())
        apart = means - screen.center
        outside = apart - apart @ basis @ basis.T
        outside = outside - outside @ basis @ basis.T  # free of what rounding has left there
        # Groups of equal rows have no covariance at all, anywhere.
        room = ((2 * NATS / elsewhere) ** 0.5 if elsewhere else math.inf) * ridge - float(outside.norm(dim=1).max())
        if not room > 0:
            return None
        frame = whiten @ torch.linalg.qr(whiten.transpose(1, 2) @ basis).Q
        matrix = torch.cat([frame, outside.unsqueeze(2) / ridge], 2)
        offset = -(means.unsqueeze(1) @ frame).squeeze(1)
        shift = -(screen.center @ outside.T + 0.5 * outside.square().sum(1)) / ridge
        return cls(screen.center, basis, matrix, torch.cat([offset, shift.unsqueeze(1)], 1), constant, room)

    def certain(self, phi: Tensor) -> Tensor:
        """N: whether a row of φ, in float64, may be scored so."""
        centered = phi - self.center
        found: Tensor = (centered - centered @ self.basis @ self.basis.T).norm(dim=1) <= self.room
        return found

    def __call__(self, phi: Tensor, row: Tensor, group: Tensor) -> Tensor:
        """The scores of pairs of rows and groups, up to a constant of the row."""
        return self.constant[group] + products(self.matrix, self.offset, phi, row, group, _relative_score)


def _relative_score(z: Tensor) -> Tensor:
    return torch.add(z[..., -1], z[..., :-1].square().sum(-1), alpha=-0.5)
