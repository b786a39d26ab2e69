"""Tasks that are out of the question are left out early: the answers are those of the whole computation."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ibpwf.dispatch import accelerated
from ibpwf.factors.factorize import factorize
from ibpwf.fast import pairs, screening
from ibpwf.fast.inferring import screen_of
from ibpwf.fast.screening import Screen
from ibpwf.inference.base import Features, infer_tasks
from ibpwf.inference.gaussian import Gaussian, MomentAccumulator
from ibpwf.inference.prediction import rows_by_value
from ibpwf.models import mlp


class Given(Features):
    """φ(x) = x."""

    def __call__(self, x: Tensor) -> Tensor:
        return x


def quick(model: Gaussian, phi: Tensor) -> Tensor:
    return infer_tasks(model, Given(), phi)


def whole(model: Gaussian, phi: Tensor) -> Tensor:
    with accelerated(False):
        return infer_tasks(model, Given(), phi)


def drawn(task: int, count: int, apart: float, seed: int = 0) -> Tensor:
    """φ of a made-up task: 30 numbers that fill 12 directions, float32."""
    shape = torch.Generator().manual_seed(1)
    room = torch.randn(12, 30, generator=shape)
    own = torch.Generator().manual_seed(100 + task)
    mixing = torch.randn(12, 12, generator=own) * torch.logspace(-2, 0, 12)
    mean = torch.randn(12, generator=own) * apart
    rows = torch.randn(count, 12, generator=torch.Generator().manual_seed(1000 * seed + task))
    return (rows @ mixing + mean) @ room


def taught(tasks: int, apart: float, per_task: int = 1) -> Gaussian:
    model = Gaussian(ridge=1e-4)
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


@settings(max_examples=25, deadline=None)
@given(tasks=st.integers(4, 12), log_apart=st.floats(-3, 2), per_task=st.integers(1, 3), seed=st.integers(1, 1000))
def test_tasks_that_overlap_and_that_do_not_are_told_apart_as_by_the_reference(
    tasks: int, log_apart: float, per_task: int, seed: int
) -> None:
    apart = 10**log_apart
    model = taught(tasks, apart, per_task)
    phi = torch.cat([drawn(task, 6, apart, seed) for task in range(tasks)])
    torch.testing.assert_close(quick(model, phi), whole(model, phi), rtol=1e-8, atol=1e-17)


@settings(max_examples=25, deadline=None)
@given(
    tasks=st.integers(4, 40),
    log_apart=st.floats(-3, 2),
    coordinates=st.integers(1, 12),
    at_once=st.sampled_from([1, 1_000, 2**20]),
    padded=st.sampled_from([0, 4]),
    seed=st.integers(1, 1000),
)
def test_many_tasks_are_told_apart_as_by_the_reference_however_few_coordinates_come_first(
    tasks: int, log_apart: float, coordinates: int, at_once: int, padded: int, seed: int
) -> None:
    apart = 10**log_apart
    phi = torch.cat([drawn(task, 3, apart, seed) for task in range(tasks)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(screening, "COORDINATES", coordinates)
        patch.setattr(screening, "AT_ONCE", at_once)
        patch.setattr(pairs, "COPIED", at_once)
        patch.setattr(pairs, "PADDED", padded)
        model = taught(tasks, apart)
        found = quick(model, phi)
        prepared = screen_of(model)
        assert prepared.screen is not None
        assert len(prepared.screen.offsets) == tasks * coordinates
        left = prepared.screen.survivors(prepared.screen.place(phi.double()))
    truth = whole(model, phi)
    torch.testing.assert_close(found, truth, rtol=1e-8, atol=1e-17)
    assert float(truth[~left].max() if bool((~left).any()) else 0.0) < 1e-19


@pytest.mark.parametrize("apart", [0.0, 0.3, 3.0])
def test_a_hundred_tasks_and_more_are_told_apart_as_by_the_reference(apart: float) -> None:
    model = taught(130, apart)
    phi = torch.cat([drawn(task, 3, apart, seed=3) for task in range(130)])
    found, truth = quick(model, phi), whole(model, phi)
    torch.testing.assert_close(found, truth, rtol=1e-9, atol=1e-17)
    assert torch.equal(found.argmax(1), truth.argmax(1))


@pytest.mark.parametrize("per_task", [1, 3])
@pytest.mark.parametrize("apart", [0.0, 0.1, 1.0, 30.0])
def test_probabilities_are_those_of_the_whole_computation(apart: float, per_task: int) -> None:
    model = taught(20, apart, per_task)
    phi = torch.cat([drawn(task, 10, apart, seed=1) for task in range(20)])
    found, truth = quick(model, phi), whole(model, phi)
    torch.testing.assert_close(found, truth, rtol=1e-9, atol=1e-17)
    assert torch.equal(found.argmax(1), truth.argmax(1))
    assert screen_of(model).screen is not None


def test_no_group_that_is_dropped_could_have_mattered() -> None:
    for apart in (0.0, 0.3, 3.0):
        model = taught(25, apart)
        phi = torch.cat([drawn(task, 8, apart, seed=2) for task in range(25)]).double()
        screen = screen_of(model).screen
        assert screen is not None
        left = screen.survivors(screen.place(phi))
        scores = model.group_scores(phi)
        below = scores - scores.amax(1, keepdim=True)
        assert bool(left.gather(1, scores.argmax(1, keepdim=True)).all())
        assert float(below[~left].max()) < -screening.NEGLIGIBLE_NATS


def test_tasks_far_apart_leave_one_candidate_a_row() -> None:
    model = taught(25, 30.0)
    phi = torch.cat([drawn(task, 8, 30.0, seed=2) for task in range(25)]).double()
    screen = screen_of(model).screen
    assert screen is not None
    assert screen.survivors(screen.place(phi)).sum(1).double().mean() < 1.2


@pytest.mark.parametrize("scale", [1e10, 1e25, 1e38])
def test_inputs_that_float32_has_no_room_for_are_answered_in_float64(scale: float) -> None:
    model = taught(12, 1.0)
    phi = drawn(3, 5, 1.0, seed=4).double() * scale
    found = quick(model, phi)
    assert torch.equal(found.argmax(1), whole(model, phi).argmax(1))
    torch.testing.assert_close(found.sum(1), torch.ones(5, dtype=torch.float64))


def test_a_task_whose_rounding_errors_outweigh_the_ridge_is_not_screened() -> None:
    model = taught(6, 1.0)
    sums = MomentAccumulator()
    sums.add(drawn(6, 200, 1.0).double() * 1e8)
    model.add(6, sums.finish())
    phi = torch.cat([drawn(2, 5, 1.0, 1).double(), drawn(6, 5, 1.0, 1).double() * 1e8])
    torch.testing.assert_close(quick(model, phi), whole(model, phi), rtol=1e-12, atol=0)
    assert screen_of(model).screen is None


def test_identical_tasks_stay_as_probable_as_each_other() -> None:
    model = Gaussian(ridge=1e-4)
    for task in range(8):
        sums = MomentAccumulator()
        sums.add(drawn(0, 200, 1.0))
        group = sums.finish()
        if not task:
            model.set_scale([group])
        model.add(task, group)
    torch.testing.assert_close(
        quick(model, drawn(0, 6, 1.0, 1)), torch.full((6, 8), 0.125).double(), rtol=1e-9, atol=0
    )


def test_a_forgotten_and_a_new_task_are_seen_at_once() -> None:
    model = taught(9, 1.0)
    phi = torch.cat([drawn(task, 4, 1.0, seed=1) for task in range(9)])
    assert quick(model, phi).argmax(1).tolist() == [t for t in range(9) for _ in range(4)]
    model.forget(4)
    told = quick(model, phi)
    torch.testing.assert_close(told, whole(model, phi), rtol=1e-9, atol=1e-17)
    assert told[20:].argmax(1).tolist() == [t for t in range(4, 8) for _ in range(4)]
    assert quick(model, phi[:0]).shape == (0, 8)


def test_the_frame_is_orthonormal() -> None:
    model = taught(6, 1.0)
    means, whiten, constant = model.prepared()
    pooled = torch.stack([group.covariance for group in model.groups]).mean(0)
    assert model.absolute_ridge is not None
    screen = Screen.of(means, whiten, constant, pooled, model.absolute_ridge)
    assert screen is not None
    assert screen.basis.shape == (30, 12)
    factor = screen.whole.matrix.double()
    frames = screen.frames.double().view(12, -1, 6).permute(2, 0, 1)
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
    model.finish_task(task)
    ready = model.ready(0)
    for name, value in ready.state_dict().items():
        assert value.data_ptr() == model.state(0)[name].data_ptr()
    assert type(ready) is type(net)
    assert not ready.training
    x = torch.rand(4, 6)
    assert torch.equal(model.logits(x, 0), model.merge(0)(x).detach())
    assert model.logits(x, -1).shape == (4, 2)
    assert math.isfinite(float(model.logits(x, 0).sum()))
