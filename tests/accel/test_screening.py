"""Tasks that are out of the question are left out early: the answers are those of the whole computation."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ibpwf.accel import screening
from ibpwf.accel.screening import Screen, rows_by_value
from ibpwf.core.factorize import factorize
from ibpwf.inference.gaussian import GaussianTaskInference, MomentAccumulator
from ibpwf.models import mlp


def drawn(task: int, count: int, apart: float, seed: int = 0) -> Tensor:
    """φ of a made-up task: 30 numbers that fill 12 directions, float32."""
    shape = torch.Generator().manual_seed(1)
    room = torch.randn(12, 30, generator=shape)
    own = torch.Generator().manual_seed(100 + task)
    mixing = torch.randn(12, 12, generator=own) * torch.logspace(-2, 0, 12)
    mean = torch.randn(12, generator=own) * apart
    rows = torch.randn(count, 12, generator=torch.Generator().manual_seed(1000 * seed + task))
    return (rows @ mixing + mean) @ room


def taught(tasks: int, apart: float, per_task: int = 1) -> GaussianTaskInference:
    model = GaussianTaskInference(1e-4)
    for task in range(tasks):
        groups = []
        for part in drawn(task, 200 * per_task, apart).chunk(per_task):
            sums = MomentAccumulator()
            sums.add(part)
            groups.append(sums.finish())
        if model.absolute_ridge is None:
            model.set_scale(groups)
        for group in groups:
            model.add(task, group)
    return model


@pytest.mark.parametrize("per_task", [1, 3])
@pytest.mark.parametrize("apart", [0.0, 0.1, 1.0, 30.0])
def test_probabilities_are_those_of_the_whole_computation(apart: float, per_task: int) -> None:
    model = taught(20, apart, per_task)
    phi = torch.cat([drawn(task, 10, apart, seed=1) for task in range(20)])
    whole = model.task_log_probabilities(phi, 20).exp()
    quick = model.task_probabilities(phi, 20)
    torch.testing.assert_close(quick, whole, rtol=1e-9, atol=1e-17)
    assert torch.equal(quick.argmax(1), whole.argmax(1))
    assert model._screen is not None


def test_no_group_that_is_dropped_could_have_mattered() -> None:
    for apart in (0.0, 0.3, 3.0):
        model = taught(25, apart)
        phi = torch.cat([drawn(task, 8, apart, seed=2) for task in range(25)]).double()
        model.task_probabilities(phi, 25)
        assert model._screen is not None
        left = model._screen.survivors(model._screen.place(phi))
        scores = model.group_scores(phi)
        below = scores - scores.amax(1, keepdim=True)
        assert bool(left.gather(1, scores.argmax(1, keepdim=True)).all())
        assert float(below[~left].max()) < -screening.LOST


def test_tasks_far_apart_leave_one_candidate_a_row() -> None:
    model = taught(25, 30.0)
    phi = torch.cat([drawn(task, 8, 30.0, seed=2) for task in range(25)]).double()
    model.task_probabilities(phi, 25)
    assert model._screen is not None
    assert model._screen.survivors(model._screen.place(phi)).sum(1).double().mean() < 1.2


@pytest.mark.parametrize("scale", [1e10, 1e25, 1e38])
def test_inputs_that_float32_has_no_room_for_are_answered_in_float64(scale: float) -> None:
    model = taught(12, 1.0)
    phi = drawn(3, 5, 1.0, seed=4).double() * scale
    whole = model.task_log_probabilities(phi, 12).exp()
    quick = model.task_probabilities(phi, 12)
    assert torch.equal(quick.argmax(1), whole.argmax(1))
    torch.testing.assert_close(quick.sum(1), torch.ones(5, dtype=torch.float64))


def test_a_task_whose_rounding_errors_outweigh_the_ridge_is_not_screened() -> None:
    model = taught(6, 1.0)
    sums = MomentAccumulator()
    sums.add(drawn(6, 200, 1.0).double() * 1e8)
    model.add(6, sums.finish())
    phi = torch.cat([drawn(2, 5, 1.0, 1).double(), drawn(6, 5, 1.0, 1).double() * 1e8])
    whole = model.task_log_probabilities(phi, 7).exp()
    torch.testing.assert_close(model.task_probabilities(phi, 7), whole, rtol=1e-12, atol=0)
    assert model._screen is None


def test_identical_tasks_stay_as_probable_as_each_other() -> None:
    model = GaussianTaskInference(1e-4)
    for task in range(8):
        sums = MomentAccumulator()
        sums.add(drawn(0, 200, 1.0))
        group = sums.finish()
        if not task:
            model.set_scale([group])
        model.add(task, group)
    torch.testing.assert_close(
        model.task_probabilities(drawn(0, 6, 1.0, 1), 8), torch.full((6, 8), 0.125).double(), rtol=1e-9, atol=0
    )


def test_a_forgotten_and_a_new_task_are_seen_at_once() -> None:
    model = taught(9, 1.0)
    phi = torch.cat([drawn(task, 4, 1.0, seed=1) for task in range(9)])
    assert model.task_probabilities(phi, 9).argmax(1).tolist() == [t for t in range(9) for _ in range(4)]
    model.forget(4)
    told = model.task_probabilities(phi, 8)
    torch.testing.assert_close(told, model.task_log_probabilities(phi, 8).exp(), rtol=1e-9, atol=1e-17)
    assert told[20:].argmax(1).tolist() == [t for t in range(4, 8) for _ in range(4)]
    assert model.task_probabilities(phi[:0], 8).shape == (0, 8)


def test_the_frame_is_orthonormal() -> None:
    model = taught(6, 1.0)
    means, whiten, constant = model.prepared()
    pooled = torch.stack([group.covariance for group in model.groups]).mean(0)
    assert model.absolute_ridge is not None
    screen = Screen.of(means, whiten, constant, pooled, model.absolute_ridge)
    assert screen is not None
    assert screen.basis.shape == (30, 12)
    factor = screen.whole.matrix.double()
    frames = screen.frames.double().view(12, 6, -1).permute(1, 0, 2)
    q = torch.linalg.solve_triangular(factor, frames, upper=False)
    eye = torch.eye(q.shape[2], dtype=torch.float64).expand(6, -1, -1)
    torch.testing.assert_close(q.transpose(1, 2) @ q, eye, rtol=0, atol=1e-3)


def test_rows_are_grouped_by_value_in_order() -> None:
    found = rows_by_value(torch.tensor([5, 0, 5, 2, 0]))
    assert [(value, rows.tolist()) for value, rows in found] == [(0, [1, 4]), (2, [3]), (5, [0, 2])]
    assert rows_by_value(torch.zeros(0, dtype=torch.long)) == []


def test_a_tasks_network_holds_the_composed_tensors_themselves() -> None:
    net = mlp(6, [5], 3)
    model = factorize(net, alpha=3.0)
    task = model.start_task(2, torch.Generator().manual_seed(0))
    model.finish_task(task, 0.5)
    ready = model.ready(0)
    for name, value in ready.state_dict().items():
        assert value.data_ptr() == model.state(0)[name].data_ptr()
    assert type(ready) is type(net)
    assert not ready.training
    x = torch.rand(4, 6)
    assert torch.equal(model.logits(x, 0), model.merge(0)(x).detach())
    assert model.logits(x, -1).shape == (4, 2)
    assert math.isfinite(float(model.logits(x, 0).sum()))
