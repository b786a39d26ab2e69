"""Covariances on their way to the mean of all."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ibpwf import Settings
from ibpwf.errors import InputError
from ibpwf.inference.gaussian import Gaussian, MomentAccumulator, Moments


def clouds(sizes: tuple[int, ...] = (300, 100, 200)) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    found = []
    for number, size in enumerate(sizes):
        mix = torch.randn(6, 6, generator=generator)
        found.append(torch.randn(size, 6, generator=generator) @ mix + number)
    return found


def moments(phi: Tensor) -> Moments:
    sums = MomentAccumulator()
    sums.add(phi)
    return sums.finish()


def inference(groups: list[Moments], shrinkage: float, ridge: float = 1e-3) -> Gaussian:
    made = Gaussian(ridge=ridge, shrinkage=shrinkage)
    made.set_scale(groups[:1])
    for number, group in enumerate(groups):
        made.add(number, group)
    return made


def test_scores_are_those_of_mixed_covariances() -> None:
    groups = [moments(phi) for phi in clouds()]
    rows = sum(group.count for group in groups)
    mean = sum(group.covariance * (group.count / rows) for group in groups)
    mixed = [Moments(group.count, group.mean, 0.7 * group.covariance + 0.3 * mean) for group in groups]
    found, truth = inference(groups, 0.3), inference(mixed, 0.0)
    truth._absolute_ridge = found.absolute_ridge
    x = torch.cat(clouds((5, 5, 5)))
    torch.testing.assert_close(found.group_scores(x), truth.group_scores(x))


def test_a_new_group_changes_what_is_common_to_all() -> None:
    groups = [moments(phi) for phi in clouds()]
    x = torch.cat(clouds((4, 4, 4)))
    grown = inference(groups[:2], 0.5)
    before = grown.group_scores(x)
    grown.add(2, groups[2])
    whole = inference(groups, 0.5)
    torch.testing.assert_close(grown.group_scores(x), whole.group_scores(x))
    assert not torch.allclose(grown.group_scores(x)[:, :2], before)


def test_other_numbers_for_the_same_moments() -> None:
    groups = [moments(phi) for phi in clouds()]
    x = torch.cat(clouds((4, 4, 4)))
    again = inference(groups, 0.0)
    again.group_scores(x)
    again = again.regularized(ridge=1e-2, shrinkage=0.4)
    torch.testing.assert_close(again.group_scores(x), inference(groups, 0.4, 1e-2).group_scores(x))


@pytest.mark.parametrize(
    "changes",
    [
        {"inference.shrinkage": -0.1},
        {"inference.shrinkage": 1.5},
        {"inference.shrinkage": 0.2, "inference": "shared-gaussian"},
    ],
)
def test_a_share_that_makes_no_sense_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InputError, match="shrinkage"):
        Settings(**changes)  # type: ignore[arg-type]
