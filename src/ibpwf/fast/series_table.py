"""The series of appendix B from a table: what `fast.kl` takes for `factors.distributions.log_series` and
`cut_log_series`.

The sum depends on two numbers a stick, log(α/a) and log b, and is smooth in both. Its value and derivatives are taken
from the reference function by autograd, once, on a grid of steps of 1/16, and between the nodes by bicubic
polynomials that agree with all of them: errors below 1e-6 (1 + sum), in a tenth of the time that ten or twenty terms
take. Beyond the grid, where a stick gets that hundreds of tasks have used, the reference's quadrature is taken with
derivatives written out.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ibpwf.factors.distributions import cut_log_series, log_series

Numbers = NDArray[np.float64]

STEP = 0.0625
LOW, HIGH = (-8.0, -7.0), (8.0, 7.0)
"""Limits of log(α/a) and log b."""

ROWS_AT_ONCE = 16

# From (f, f') at both ends of a unit interval to the coefficients of 1, t, t² and t³.
HERMITE = np.array([[1.0, 0, 0, 0], [0, 0, 1, 0], [-3, 3, -2, -1], [2, -2, 1, 1]])


def derivatives(log_x: Tensor, log_b: Tensor, terms: int | None) -> tuple[Tensor, ...]:
    """The sum, its derivatives by log x and log b, and the mixed one, by autograd."""
    log_x, log_b = (part.double().detach().requires_grad_() for part in (log_x, log_b))
    one = torch.ones_like(log_x)
    a, b = one, log_b.exp()
    total = log_series(a, b, log_x.exp()) if terms is None else cut_log_series(a, b, log_x.exp(), terms)
    by_x, by_b = torch.autograd.grad(total, (log_x, log_b), one, create_graph=True)
    (mixed,) = torch.autograd.grad(by_x, log_b, one)
    return tuple(part.detach() for part in (total, by_x, by_b, mixed))


class SeriesTable:
    """Sixteen coefficients for every cell of the grid."""

    def __init__(self, terms: int | None) -> None:
        self.terms = terms
        sides = [
            torch.arange(low, high + STEP / 2, STEP, dtype=torch.float64) for low, high in zip(LOW, HIGH, strict=True)
        ]
        grid = torch.meshgrid(*sides, indexing="ij")
        with torch.enable_grad():  # some rows at a time: what autograd remembers of all of them takes most of a GB
            rows = zip(*(torch.split(side, ROWS_AT_ONCE) for side in grid), strict=True)
            parts = [derivatives(log_x, log_b, terms) for log_x, log_b in rows]
        f, by_x, by_b, mixed = (torch.cat(part).numpy() for part in zip(*parts, strict=True))
        corners = np.empty((*(len(side) - 1 for side in sides), 4, 4))
        for row, (value, gradient) in enumerate(((f, by_b), (f, by_b), (by_x, mixed), (by_x, mixed))):
            at = slice(1, None) if row % 2 else slice(None, -1)
            scale = STEP if row >= 2 else 1.0
            corners[..., row, 0], corners[..., row, 1] = value[at, :-1] * scale, value[at, 1:] * scale
            corners[..., row, 2], corners[..., row, 3] = (
                gradient[at, :-1] * scale * STEP,
                gradient[at, 1:] * scale * STEP,
            )
        self.columns = corners.shape[1]
        self.cells: Numbers = (HERMITE @ corners @ HERMITE.T).reshape(-1, 4, 4)

    def __call__(self, log_x: Numbers, log_b: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """The sum and its derivatives by log x and log b."""
        x, b = (log_x - LOW[0]) / STEP, (log_b - LOW[1]) / STEP
        column, row = np.floor(b), np.floor(x)
        rows = len(self.cells) // self.columns
        outside = ~((row >= 0) & (row < rows) & (column >= 0) & (column < self.columns))  # what is no number, too
        stray = outside.any()
        cell = np.where(outside, 0, row * self.columns + column).astype(np.int64)
        t, s = (x - row).ravel(), (b - column).ravel()
        coefficients = self.cells[cell.ravel()]
        one, none = np.ones_like(t), np.zeros_like(t)
        t2, s2 = t * t, s * s
        along_b = np.stack([np.stack([one, s, s2, s2 * s], 1), np.stack([none, one, 2 * s, 3 * s2], 1)], 2)
        by_row = coefficients @ along_b  # N×4×2: value and derivative along b, for every power of t
        powers = np.stack([one, t, t2, t2 * t], 1)
        value = (by_row[:, :, 0] * powers).sum(1).reshape(x.shape)
        by_b = (by_row[:, :, 1] * powers).sum(1).reshape(x.shape) / STEP
        by_x = (by_row[:, 1, 0] + 2 * t * by_row[:, 2, 0] + 3 * t2 * by_row[:, 3, 0]).reshape(x.shape) / STEP
        if stray:
            self._exact(outside, log_x, log_b, value, by_x, by_b)
        return value, by_x, by_b

    def _exact(self, at: NDArray[np.bool_], log_x: Numbers, log_b: Numbers, *into: Numbers) -> None:
        found = (
            quadrature(log_x[at], log_b[at]) if self.terms is None else first_terms(log_x[at], log_b[at], self.terms)
        )
        for whole, part in zip(into, found, strict=True):
            whole[at] = part


def first_terms(log_x: Numbers, log_b: Numbers, terms: int) -> tuple[Numbers, ...]:
    """`cut_log_series` and its derivatives by log x and log b."""
    by = [torch.from_numpy(part).requires_grad_() for part in (log_x, log_b)]
    with torch.enable_grad():
        total = cut_log_series(torch.ones_like(by[0]), by[1].exp(), by[0].exp(), terms)
        gradients = torch.autograd.grad(total.sum(), by)
    return tuple(part.detach().numpy() for part in (total, *gradients))


NODES = np.linspace(-3.0, 3.2, 20)[:, None]
LARGE = 30.0
"""From here on e^-h is nothing beside 1."""


def quadrature(log_x: Numbers, log_b: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """`log_series` and its derivatives by log x and log b, with the same points."""
    e = np.exp(NODES - np.exp(-NODES))
    log_weight = NODES - np.exp(-NODES) + np.log1p(np.exp(-NODES)) + np.log(6.2 / 19)
    b = np.exp(log_b)
    h = e / b
    small = np.minimum(h, LARGE)
    near, far = np.log(-np.expm1(-np.minimum(small, 1.0))), np.log1p(-np.exp(-np.maximum(small, 0.5)))
    rate = -np.where(small < 0.7, near, far)  # -log(1 - e^-h)
    log_rate = np.where(h < LARGE, np.log(rate), -h)
    by_log_b = np.where(h < LARGE, small / (np.expm1(small) * rate), h)  # of log_rate
    s = log_rate - np.abs(log_x)
    z = np.exp(np.clip(s, -40.0, 6.0))
    log1m = np.where(s < -40.0, s, np.log(-np.expm1(-z)))  # log(1 - e^-z)
    slope = np.where(s < -40.0, 1.0, z / np.expm1(z))
    mean, mass = np.exp(log_weight - e), np.exp(log_weight + b * log1m)
    first = log_x <= 0
    value = np.where(first, -(mean * log1m).sum(0), mass.sum(0) / b)
    by_x = -np.where(first, (mean * slope).sum(0), (mass * slope).sum(0))
    outer = (mass * (b * (log1m + slope * by_log_b) - 1)).sum(0) / b
    return value, by_x, np.where(first, -(mean * slope * by_log_b).sum(0), outer)


@cache
def series_table(terms: int | None) -> Any:
    """The table of the sum's first terms, or of all of them; made when it is first asked for."""
    return SeriesTable(terms)
