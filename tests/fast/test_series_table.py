"""The table of appendix B's series gives the sum and its derivatives: on its grid, between its nodes, beyond it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import integrate, special

from ibpwf.fast.series_table import HIGH, LOW, STEP, derivatives, series_table


def by_quadrature(log_x: float, log_b: float) -> float:
    """-E log(1 - v^x) under Kumaraswamy(1, b): an integral over E = -b log(1 - v), by SciPy."""
    x, b = np.exp(log_x), np.exp(log_b)

    def integrand(e: float) -> float:
        if e / b > 30:  # where v = 1 - e^(-e/b) is as good as 1
            return float((e / b - log_x) * np.exp(-e))
        log_v = np.log1p(-np.exp(-e / b)) if e / b > 1e-12 else np.log(e / b)
        return float(-np.log(-np.expm1(x * log_v)) * np.exp(-e))

    return float(sum(integrate.quad(integrand, *ends, limit=400)[0] for ends in ((0, 1e-3), (1e-3, 1), (1, 60))))


def by_terms(log_x: float, log_b: float) -> float:
    """Ten terms of (b/m) B(m x + 1, b)."""
    m, x, b = np.arange(1, 11), np.exp(log_x), np.exp(log_b)
    return float((np.exp(special.betaln(m * x + 1, b)) * b / m).sum())


@pytest.mark.parametrize(("terms", "truth"), [(None, by_quadrature), (10, by_terms)])
def test_it_is_the_sum_whatever_the_arguments(terms: int | None, truth: object) -> None:
    chance = np.random.default_rng(0)
    log_x, log_b = chance.uniform(-4, 4, 60), chance.uniform(-3, 3, 60)
    found, _, _ = series_table(terms)(log_x, log_b)
    expected = np.array([truth(*pair) for pair in zip(log_x, log_b, strict=True)])  # type: ignore[operator]
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("terms", [None, 10])
def test_its_derivatives_are_those_of_its_values(terms: int | None) -> None:
    table, chance, step = series_table(terms), np.random.default_rng(1), 1e-4
    log_x, log_b = chance.uniform(-6, 6, 500), chance.uniform(-5, 5, 500)
    value, by_x, by_b = table(log_x, log_b)
    for found, shift in ((by_x, (step, 0)), (by_b, (0, step))):
        after, before = (table(log_x + sign * shift[0], log_b + sign * shift[1])[0] for sign in (1, -1))
        np.testing.assert_allclose(
            found, (after - before) / (2 * step), atol=1e-5 * float(1 + value.max()), rtol=1e-4
        )


@pytest.mark.parametrize("terms", [None, 10])
def test_nothing_jumps_where_cells_meet_or_the_table_ends(terms: int | None) -> None:
    table = series_table(terms)
    nodes = np.arange(LOW[0] + STEP, HIGH[0], 16 * STEP)
    for at in (nodes, np.array([LOW[0], HIGH[0]])):
        log_b = np.full_like(at, 0.3)
        below, above = (table(at + shift, log_b) for shift in (-1e-9, 1e-9))
        for left, right in zip(below, above, strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("terms", [None, 10])
def test_beyond_the_grid_the_reference_and_its_gradient_are_taken(terms: int | None) -> None:
    """Sticks that hundreds of tasks have used lie there."""
    chance = np.random.default_rng(2)
    log_x, log_b = chance.uniform(-12, 12, 300), chance.uniform(HIGH[1] + 0.1, 35, 300)
    log_b[::3] = chance.uniform(LOW[1] - 2, LOW[1] - 0.1, 100)
    expected = derivatives(torch.from_numpy(log_x), torch.from_numpy(log_b), terms)
    for found, wanted in zip(series_table(terms)(log_x, log_b), expected, strict=False):
        np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-9, atol=1e-12)
