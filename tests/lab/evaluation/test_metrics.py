"""The metrics are what their papers define, on any accuracy matrix."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibpwf.lab.evaluation.metrics import (
    Matrix,
    average_accuracy,
    backward_transfer,
    forgetting,
    forward_transfer,
    learned,
    spread,
)

percentages = st.floats(0, 100)


@st.composite
def matrices(draw: st.DrawFn) -> Matrix:
    """R[i][j]: accuracy on task j after task i, None above the diagonal."""
    tasks = draw(st.integers(1, 6))
    return [[draw(percentages) if j <= i else None for j in range(tasks)] for i in range(tasks)]


@given(matrices())
def test_average_accuracy_is_the_mean_over_tasks_after_the_last(matrix: Matrix) -> None:
    total, count = 0.0, 0
    for value in matrix[len(matrix) - 1]:
        assert value is not None
        total, count = total + value, count + 1
    assert average_accuracy(matrix) == pytest.approx(total / count)


@given(matrices())
def test_forgetting_is_the_mean_fall_from_the_best_a_task_ever_was(matrix: Matrix) -> None:
    tasks = len(matrix)
    falls = []
    for j in range(tasks - 1):
        best = -1.0
        for i in range(j, tasks):
            value = matrix[i][j]
            assert value is not None
            best = max(best, value)
        last = matrix[tasks - 1][j]
        assert last is not None
        falls.append(best - last)
    assert forgetting(matrix) == pytest.approx(sum(falls) / len(falls) if falls else 0.0)
    assert forgetting(matrix) >= 0


@given(matrices())
def test_backward_transfer_is_the_mean_change_since_a_task_was_learnt(matrix: Matrix) -> None:
    tasks = len(matrix)
    array = np.array([[np.nan if value is None else value for value in row] for row in matrix])
    changes = [array[tasks - 1, j] - array[j, j] for j in range(tasks - 1)]
    assert backward_transfer(matrix) == pytest.approx(float(np.mean(changes)) if changes else 0.0)


@given(st.lists(st.tuples(st.one_of(st.none(), percentages), percentages), min_size=1, max_size=6))
def test_forward_transfer_is_the_mean_lead_over_chance_before_learning(
    pairs: list[tuple[float | None, float]],
) -> None:
    leads = [before - chance for before, chance in pairs if before is not None]
    found = forward_transfer([before for before, _ in pairs], [chance for _, chance in pairs])
    if leads:
        assert found == pytest.approx(sum(leads) / len(leads))
    else:
        assert found is None


def test_a_transfer_of_exactly_zero_is_a_number_and_not_missing() -> None:
    assert forward_transfer([None, 50.0], [50.0, 50.0]) == 0.0


def test_lists_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        forward_transfer([None, 50.0], [50.0])


@given(st.lists(percentages, min_size=1, max_size=8))
def test_spread_gives_mean_sample_deviation_and_the_values(values: list[float]) -> None:
    found = spread(values)
    assert found["mean"] == pytest.approx(float(np.mean(values)))
    assert found["per_seed"] == values
    if len(values) == 1:
        assert found["std"] is None
    else:
        assert found["std"] == pytest.approx(float(np.std(values, ddof=1)), abs=1e-9)


def test_zero_percent_counts_as_learnt() -> None:
    assert learned([0.0, None, 5.0]) == [0.0, 5.0]
