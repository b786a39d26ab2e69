"""Scores from the directions that φ takes: those of all D numbers, worked out in longer floats."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from ibpwf.dispatch import accelerated
from ibpwf.fast.inferring import screen_of
from ibpwf.inference.base import Features, infer_tasks
from ibpwf.inference.gaussian import Gaussian, MomentAccumulator

TASKS, SIZE = 20, 40


class Given(Features):
    """φ(x) = x."""

    def __call__(self, x: Tensor) -> Tensor:
        return x


def drawn(task: int, count: int, rank: int, seed: int = 0) -> Tensor:
    room = torch.randn(rank, SIZE, generator=torch.Generator().manual_seed(1))
    own = torch.Generator().manual_seed(100 + task)
    mixing = torch.randn(rank, rank, generator=own) * torch.logspace(-1, 0, rank)
    mean = 0.2 * torch.randn(rank, generator=own)
    rows = torch.randn(count, rank, generator=torch.Generator().manual_seed(1000 * seed + task))
    return (rows @ mixing + mean) @ room


def taught(rank: int) -> Gaussian:
    model = Gaussian(ridge=1e-4)
    for task in range(TASKS):
        sums = MomentAccumulator()
        sums.add(drawn(task, 300, rank))
        group = sums.finish()
        if not task:
            model.set_scale([group])
        model.add(task, group)
    return model


@pytest.mark.parametrize("rows", [1, 3])
def test_groups_of_equal_rows_are_told_apart(rows: int) -> None:
    model = Gaussian(ridge=1e-4)
    means = torch.randn(6, SIZE, generator=torch.Generator().manual_seed(3))
    for task, mean in enumerate(means):
        sums = MomentAccumulator()
        sums.add(mean.repeat(rows, 1))
        group = sums.finish()
        if not task:
            model.set_scale([group])
        model.add(task, group)
    assert infer_tasks(model, Given(), means).argmax(1).tolist() == list(range(6))
    with accelerated(False):
        plain = infer_tasks(model, Given(), means)
    torch.testing.assert_close(infer_tasks(model, Given(), means), plain)


@pytest.mark.parametrize("rank", [3, 9, 20])
def test_differences_of_scores_are_those_of_longer_floats(rank: int) -> None:
    model = taught(rank)
    reduced = screen_of(model).reduced
    assert reduced is not None
    phi = torch.cat([drawn(task, 3, rank, seed=1) for task in range(TASKS)]).double()
    assert bool(reduced.certain(phi).all())
    row, group = (index.flatten() for index in torch.meshgrid(torch.arange(60), torch.arange(TASKS), indexing="ij"))
    found = reduced(phi, row, group).view(60, TASKS)
    means, whiten, constant = (part.numpy().astype(np.longdouble) for part in model.prepared())
    z = np.einsum("ngd,gde->nge", phi.numpy().astype(np.longdouble)[:, None] - means, whiten)
    truth = constant - (z**2).sum(2) / 2
    below = truth - truth.max(1, keepdims=True)
    off = (found.numpy() - truth) - (found.numpy() - truth)[np.arange(60), truth.argmax(1)][:, None]
    assert np.abs(off[below > -45]).max() < 1e-10


def test_rows_that_lead_elsewhere_are_scored_in_all_numbers() -> None:
    model = taught(9)
    phi = torch.cat([drawn(task, 3, 9, seed=2) for task in range(TASKS)])
    phi[::2] += 1e-3 * torch.randn(30, SIZE, generator=torch.Generator().manual_seed(5))
    reduced = screen_of(model).reduced
    assert reduced is not None
    assert reduced.certain(phi.double()).tolist() == [False, True] * 30
    found = infer_tasks(model, Given(), phi)
    with accelerated(False):
        truth = infer_tasks(model, Given(), phi)
    torch.testing.assert_close(found, truth, rtol=1e-9, atol=1e-17)


def test_where_phi_takes_most_directions_nothing_is_reduced() -> None:
    assert screen_of(taught(30)).reduced is None
