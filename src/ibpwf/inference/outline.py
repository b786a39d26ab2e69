"""How far φ lies from a task's classes in a few directions, by which what is like nothing learned is known.

A regression says which class is likeliest, not whether any is: clothes may well look like a digit to a router of
digits. Of every task a Gaussian is kept beside its sums, of all its classes one covariance, in q = 256 random
directions of φ (the distances of D features are all but kept in so few: Johnson and Lindenstrauss, 1984):

    d(φ) = min_c |(φ − μ_c) P W|        with P = ±1/√D, and W such that WᵀPᵀΣP W = I
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from ibpwf.inference.signs import random_signs

DIRECTIONS = 256

FLOOR = 1e-2
"""Of the mean variance, added to every direction's: one in which hardly any row has moved says nothing of others."""


@lru_cache(maxsize=4)
def directions(width: int, device: torch.device = torch.device("cpu")) -> Tensor:  # noqa: B008
    """P, D×q, the same for ever. Up to 256 features are looked at as they are."""
    if width <= DIRECTIONS:
        return torch.eye(width, device=device, dtype=torch.float32)
    found: Tensor = (random_signs(width, DIRECTIONS, seed=2021) / width**0.5).to(device)
    return found


def whitening(scatter: Tensor, rows: float) -> Tensor:
    """W, q×q in float32, of the scatter of so many rows in the directions."""
    values, vectors = torch.linalg.eigh(scatter.double() / rows)
    floor = FLOOR * float(values.clamp(min=0).mean())
    found: Tensor = (vectors / (values.clamp(min=0) + (floor or 1.0)).sqrt()).float().contiguous()
    return found


def scatter_of(whitening: Tensor, rows: float) -> Tensor:
    """The scatter that a whitening of so many rows was made of, as far as its float32 tells."""
    lengths = whitening.double().norm(dim=0)
    values = lengths.square().reciprocal()
    vectors = whitening.double() / lengths
    floor = FLOOR * float(values.mean()) / (1 + FLOOR)
    scatter: Tensor = (vectors * ((values - floor).clamp(min=0) * rows)) @ vectors.T
    return scatter


def distances(phi: Tensor, means: Tensor, whitening: Tensor) -> Tensor:
    """d of rows from the nearest of a task's classes, N."""
    straight = directions(phi.shape[1], phi.device) @ whitening
    apart = torch.cdist(phi.float() @ straight, (means @ straight.double()).float())
    return apart.amin(1).double()
