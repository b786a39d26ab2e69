"""Gradient episodic memory: the projected step against its definition, and GEM on digits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from digit_tasks import data_of, learn, same, stored
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor
from torch.nn import functional as F

from ibpwf.errors import TrainingError
from ibpwf.lab.data.tasks import Scenario, Task
from ibpwf.lab.methods.dense import Problem
from ibpwf.lab.methods.finetune import Adam
from ibpwf.lab.methods.gem import GEM, GEMSettings, dual, turning_weights
from ibpwf.training.loop import Training
from ibpwf.training.method import TaskData

SMALL: dict[str, Any] = {"hidden": (24,), "epochs": 2, "batch_size": 32, "learning_rate": 0.01}


def gem(setting: str, **changes: Any) -> GEM:
    return GEM(Problem((64,), 10, setting), GEMSettings(**{**SMALL, "memory_size": 60, **changes}), seed=3)


def accuracy(method: Any, task: Task) -> float:
    answer = method.predict(task.test.x, None, marginal=False, posterior_samples=0, seed=0)
    return float((answer.labels == task.test.y).double().mean())


def gradients(seed: int, tasks: int, size: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(size, generator=generator, dtype=dtype),
        torch.randn(tasks, size, generator=generator, dtype=dtype),
    )


def project(gradient: Tensor, old: Tensor, margin: float = 0.0) -> Tensor:
    """g̃ for a gradient g and the earlier tasks' gradients, the rows of `old`; g itself if it harms none of them."""
    exact = old.double()
    weights = turning_weights(exact @ exact.T, exact @ gradient.double(), margin, gradient.dtype)
    return gradient if weights is None else gradient + weights.to(gradient) @ old


def nearest_allowed(aim: np.ndarray, old: np.ndarray) -> np.ndarray:
    """min ½‖aim − z‖² subject to old @ z ≥ 0, over z itself, by sequential quadratic programming."""
    found = minimize(
        lambda z: 0.5 * np.sum((z - aim) ** 2),
        aim,
        jac=lambda z: z - aim,
        constraints={"type": "ineq", "fun": lambda z: old @ z, "jac": lambda z: old},
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-12},
    )
    return np.asarray(found.x)


@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 40), st.floats(0, 2))
@example(6275, 5, 5, 0.0)  # gradients that are nearly, and in float32 quite, in one space of four dimensions
@settings(max_examples=150, deadline=None)
def test_no_old_gradient_is_left_at_more_than_ninety_degrees(seed, tasks, size, margin):
    gradient, old = gradients(seed, tasks, size)
    turned = project(gradient, old, margin)
    scale = old.norm(dim=1) * (gradient.norm() + (1 + margin) * old.norm())
    assert bool((old @ turned >= -1e-9 * scale).all())


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(2, 12), st.sampled_from([0.0, 0.5]))
@settings(max_examples=60, deadline=None)
def test_the_projection_is_the_nearest_allowed_step_found_by_brute_force(seed, tasks, size, margin):
    gradient, old = gradients(seed, tasks, size)
    if bool((old @ gradient >= 0).all()):
        gradient = -gradient
    aim = (gradient + margin * old.sum(0)).numpy()
    found = project(gradient, old, margin).numpy()
    expected = nearest_allowed(aim, old.numpy())
    assert (old.numpy() @ found).min() >= -1e-9
    assert np.linalg.norm(found - aim) <= np.linalg.norm(expected - aim) + 1e-6
    assert found == pytest.approx(expected, abs=1e-3)


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(2, 30), st.floats(0, 2))
@settings(max_examples=60, deadline=None)
def test_a_gradient_that_harms_no_task_is_left_as_it_is(seed, tasks, size, margin):
    gradient, old = gradients(seed, tasks, size)
    old = old * torch.sign(old @ gradient)[:, None]
    assert project(gradient, old, margin) is gradient


def test_one_task_gives_the_textbook_projection():
    gradient, old = torch.tensor([1.0, -1.0]), torch.tensor([[0.0, 2.0]])
    assert project(gradient, old, 0.0).tolist() == pytest.approx([1.0, 0.0])
    # With margin ½, v = max(½, the v that just meets the constraint): both are ½ here, so nothing changes ...
    assert project(gradient, old, 0.5).tolist() == pytest.approx([1.0, 0.0])
    # ... and a margin of 1 goes on past it.
    assert project(gradient, old, 1.0).tolist() == pytest.approx([1.0, 1.0])


@given(st.integers(0, 10_000), st.integers(1, 8), st.integers(1, 30), st.floats(0, 2))
@example(1333, 6, 6, 0.0)  # gradients that are nearly, and in float32 quite, in one plane
@example(2, 7, 7, 0.0)
@settings(max_examples=100, deadline=None)
def test_the_dual_solution_meets_its_optimality_conditions(seed, tasks, size, margin):
    gradient, old = gradients(seed, tasks, size)
    gram, products = old @ old.T, old @ gradient
    v = dual(gram, products, margin, gradient.dtype)
    derivative = gram @ v + products
    scale = float(gram.abs().max() * (1 + v.abs().max()) + products.abs().max())
    assert bool((v >= margin).all())
    assert bool((derivative >= -1e-9 * scale).all())
    assert float((derivative * (v - margin)).abs().max()) <= 1e-8 * scale * (1 + float(v.max()))


@given(st.integers(0, 1000), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_parallel_and_vanishing_old_gradients_do_no_harm(seed, margin):
    gradient, old = gradients(seed, 3, 2000, torch.float32)
    near = old[:1] * (1 + 1e-7)
    rows = torch.cat([old, old[:1], 3 * old[1:2], near, torch.zeros(1, 2000)])
    turned = project(gradient, rows, margin)
    angles = (rows @ turned) / (rows.norm(dim=1) * turned.norm()).clamp(min=1e-30)
    assert bool((angles >= -1e-4).all())


def test_opposite_old_gradients_leave_only_what_is_square_to_both():
    old = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    assert project(torch.tensor([3.0, 2.0]), old, 0.5).tolist() == pytest.approx([0.0, 2.0], abs=1e-6)


def test_a_gradient_that_is_not_a_number_is_left_to_the_training_loop():
    gradient, old = torch.tensor([-1.0, 1.0]), torch.tensor([[1.0, 0.0], [torch.nan, 0.0]])
    assert project(gradient, old, 0.5) is gradient


@pytest.mark.parametrize("margin", [0.0, 0.5])
@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-14, 1e-6])
def test_a_task_with_hardly_a_gradient_does_not_upset_the_step(size: float, margin: float):
    gradient, old = gradients(5, 3, 40, torch.float32)
    old[1] *= size
    turned = project(gradient, old, margin)
    assert bool(torch.isfinite(turned).all())
    assert float(turned.norm()) <= float((gradient + margin * old.sum(0)).norm()) * (1 + 1e-5)
    assert float((old[[0, 2]] @ turned).min()) >= -1e-4


@pytest.mark.parametrize("setting", ["task", "class"])
def test_after_the_backward_pass_no_tasks_stored_loss_rises_along_the_step(setting, digits: Scenario):
    method = learn(gem(setting), *digits[:2])
    data = data_of(digits[2])
    method.begin_task(data)
    method.loss(data.x[:32], data.y[:32])[0].backward()
    before = torch.cat([p.grad.flatten() for p in method.net.parameters()])
    method.after_backward()
    method.on_host()
    after = torch.cat([p.grad.flatten() for p in method.net.parameters()])
    assert not torch.equal(before, after)
    for task in range(2):  # the loss on each task's examples, in its own outputs, written out
        rows = method.examples.task == task
        columns = slice(0, 6) if setting == "class" else slice(2 * task, 2 * task + 2)
        target = method.examples.y[rows] + (2 * task if setting == "class" else 0)
        method.net.zero_grad()
        F.cross_entropy(method.net(method.examples.x[rows])[:, columns], target).backward()
        old_gradient = torch.cat([p.grad.flatten() for p in method.net.parameters()])
        assert float(old_gradient @ after) >= -1e-6
        assert float(old_gradient @ after) > float(old_gradient @ before)


def test_gem_remembers_what_fine_tuning_forgets(digits: Scenario):
    ours = learn(gem("class", epochs=4), *digits[:3])
    plain = learn(
        Adam(Problem((64,), 10, "class"), Adam.settings_type(**{**SMALL, "epochs": 4}), seed=3), *digits[:3]
    )
    assert accuracy(plain, digits[0]) < 0.5
    assert accuracy(ours, digits[0]) > 0.85


def test_a_step_that_blows_up_ends_in_a_training_error_and_keeps_earlier_tasks(digits: Scenario):
    method = learn(gem("class"), digits[0])
    before = stored(method)
    data = data_of(digits[1])
    broken = TaskData(data.name, data.index, data.classes, data.x * 1e38, data.y, data.seed)
    with pytest.raises(TrainingError):
        list(Training(method.fork(), broken).run())
    assert same(stored(method), before)


@pytest.mark.parametrize("setting", ["task", "class"])
def test_the_gradients_of_earlier_tasks_are_those_of_autograd_one_task_at_a_time(digits, setting):
    method = learn(gem(setting, memory_size=61), *digits[:2])
    method.current = data_of(digits[2])
    method.prepare(method.task)
    inputs, labels = method.task.x[:32], method.task.y[:32]
    method.net.zero_grad()
    method.loss(inputs, labels).total.backward()
    method.after_backward()
    parameters = list(method.net.parameters())
    for row, part in zip(method._gradients, method._stored, strict=False):
        expected = torch.autograd.grad(method.stored_loss(*part), parameters)
        assert torch.allclose(row, torch.cat([g.flatten() for g in expected]), rtol=1e-4, atol=1e-7)
    exact = method._gradients.double()
    found = method._products
    assert torch.allclose(found, exact @ exact[:-1].T, rtol=1e-6, atol=1e-9)
