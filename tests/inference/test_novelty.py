"""How new an input looks: distances as if a row had been left out, and limits that hold on unseen rows."""

from __future__ import annotations

import math

import pytest
import torch

from ibpwf.errors import InputError
from ibpwf.inference.novelty import Novelty, leave_one_out, usual_limit
from ibpwf.inference.shared import SharedGaussian, class_moments


def rows_of_two_classes(count: int, seed: int, features: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    noise = torch.Generator().manual_seed(seed)
    mixing = torch.randn(features, features, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    y = torch.arange(count) % 2
    x = torch.randn(count, features, generator=noise, dtype=torch.float64) @ mixing
    return x + 4.0 * y.unsqueeze(1), y


def learned(x: torch.Tensor, y: torch.Tensor, rate: float = 0.01) -> Novelty:
    inference = SharedGaussian(ridge=0.1)
    groups = class_moments([(x, y)], 2)
    inference.set_scale(groups)
    for group in groups:
        inference.add(0, group)
    return Novelty(inference, rate)


def test_the_closed_form_is_what_leaving_each_row_out_gives() -> None:
    x, y = rows_of_two_classes(40, seed=0)
    whole = learned(x, y)
    ridge = whole.inference.ridge_for(40) * 40  # the prior's whole weight, which does not change with a row
    for row in range(40):
        rest = torch.arange(40) != row
        centered = torch.cat([x[rest & (y == c)] - x[rest & (y == c)].mean(0) for c in (0, 1)])
        covariance = (centered.T @ centered + ridge * torch.eye(12, dtype=torch.float64)) / 39
        apart = x[row] - x[rest & (y == y[row])].mean(0)
        expected = apart @ torch.linalg.solve(covariance, apart)
        distance = whole._distances(x[row : row + 1], 0)[0, y[row]]
        found = leave_one_out(distance, *torch.tensor([20.0, 40.0], dtype=torch.float64))
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=0)


@pytest.mark.parametrize("rows", [60, 400])
def test_unseen_rows_of_the_same_kind_raise_about_as_many_alarms_as_stated(rows: int) -> None:
    alarms = []
    for seed in range(20):
        x, y = rows_of_two_classes(rows, seed)
        novelty = learned(x, y, rate=0.02)
        novelty.calibrate([(x, y)])
        unseen, _ = rows_of_two_classes(2000, seed + 1000)
        alarms.append(float((novelty([unseen]) > 1).double().mean()))
    assert 0.005 < sum(alarms) / 20 < 0.03


def test_rows_from_elsewhere_are_new_and_batches_make_no_difference() -> None:
    x, y = rows_of_two_classes(400, seed=1)
    novelty = learned(x, y)
    novelty.calibrate([(x[:150], y[:150]), (x[150:], y[150:])])
    elsewhere = x[:50] + 60
    assert bool((novelty([elsewhere]) > 1).all())
    torch.testing.assert_close(novelty([x[:7], x[7:50]]), novelty([x[:50]]))


def test_too_few_rows_have_no_limit_and_a_rate_is_a_share() -> None:
    assert usual_limit(torch.tensor([1.0]), 0.01) == math.inf
    assert usual_limit(torch.tensor([1.0, 2.0, 4.0]), 0.01) > 4.0
    assert usual_limit(torch.arange(1.0, 100.0), 0.01) == 99.0
    with pytest.raises(InputError, match=r"false_alarm_rate is 1.5"):
        Novelty(SharedGaussian(ridge=0.1), 1.5)
