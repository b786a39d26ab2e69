"""Starting from trained weights: the truncated singular value decomposition of a layer as its first factors.

    W = U diag(s) Vᵀ ≈ Σ_{k≤F} (√s_k u_k) ⊗ (√s_k v_k),   r_k = 1

No other F factors come nearer to W (Eckart–Young): ‖W − W_F‖² = Σ_{k>F} s_k². The largest singular value takes the
first stick, because the prior holds early sticks to be the likeliest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ibpwf.factors.posterior import LayerVectors
from ibpwf.factors.prior import LayerShape, Prior

NEGLIGIBLE = 1e-3
"""The share of the largest singular value below which a direction counts as unused."""


@dataclass(frozen=True)
class LayerFit:
    """How well the factors of one layer give its trained weight back: ‖W − W_F‖ / ‖W‖ in the Frobenius norm."""

    factors: int
    rank: int
    relative_error: float


def singular_factors(matrix: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The first `count` factors of a J×M matrix, J×F and F×M; calculated on the CPU in float64.

    Where s_k is as good as 0 (a layer that starts at zero, a pruned one), √s_k on both sides would leave no gradient
    to learn from: the factor then keeps its length in `a`, and s_k goes to `b`.
    """
    u, s, vh = torch.linalg.svd(matrix.detach().cpu().double(), full_matrices=False)
    u, s, vh = u[:, :count], s[:count], vh[:count]
    least = float(s[0]) * NEGLIGIBLE if len(s) and float(s[0]) > 0 else 1.0
    length = s.clamp(min=least).sqrt()
    return (u * length).float(), ((s / length).unsqueeze(1) * vh).float()


def fit_of(matrix: Tensor, a: Tensor, b: Tensor) -> LayerFit:
    """The error of `a @ b` as an approximation of `matrix`."""
    given = matrix.detach().cpu().double()
    norm = float(given.norm())
    error = float((given - a.double() @ b.double()).norm())
    return LayerFit(a.shape[1], min(given.shape), error / norm if norm else error)


def fitted_vectors(prior: Prior, start: LayerVectors) -> LayerVectors:
    """Where the first task starts: every fitted factor at strength 1 and all but certain to be selected."""
    return prior.sure(replace(start, strength=torch.ones_like(start.strength)), torch.arange(len(start)))


def uniform(inputs: int, outputs: int, generator: torch.Generator) -> Tensor:
    """A weight as torch draws one for a layer of so many inputs."""
    return (torch.rand(inputs, outputs, generator=generator, dtype=torch.float32) * 2 - 1) / math.sqrt(inputs)


def anew_vectors(prior: Prior, start: LayerVectors, fitted_at: Tensor) -> LayerVectors:
    """Where a task starts that begins anew: as `fitted_vectors` on its own factors, and with no strength on locked
    ones, which it may still come to use."""
    strength = torch.zeros_like(start.strength)
    strength[fitted_at] = 1
    return prior.sure(replace(start, strength=strength), fitted_at)


def continued_vectors(start: LayerVectors, previous: LayerVectors, at: Tensor) -> LayerVectors:
    """Where a later task starts: the strengths of the task before on locked factors, 0 on new ones. A new version of
    a task starts so from the factors that it reads."""
    strength, at = torch.zeros_like(start.strength), at.cpu()
    strength[at] = previous.strength.cpu()[at]
    return replace(start, strength=strength)


def fresh_beside_base(inputs: int, outputs: int, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """New factors beside a frozen base: W_b is 0, so that a task begins as the base itself. Their strength is 1 and
    |w_a| ≤ 1 / (2√J), small enough for a few steps to turn it to where the data point; from factors as large as
    those that make up a whole weight, a task would learn little more than W_b."""
    a = (torch.rand(inputs, count, generator=generator, dtype=torch.float32) * 2 - 1) / (2 * math.sqrt(inputs))
    return a, torch.zeros(count, outputs, dtype=torch.float32)


def beside_base(
    prior: Prior, layer: LayerShape, start: LayerVectors, locked_at: Tensor, free_at: Tensor
) -> LayerVectors:
    """Where a task beside a frozen base starts, and its prior: as the base, so with no strength on locked factors,
    which are steps away from the base that others took."""
    strength, locked_at = start.strength.clone(), locked_at.cpu()
    strength[locked_at], strength[free_at] = 0, 1
    return prior.beside_base(layer, replace(start, strength=strength), locked_at, free_at)
