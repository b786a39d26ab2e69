"""Const-WF: ν factors for the first task, ω more for each next, all of them read, the old ones never changed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from digit_tasks import learn
from torch import Tensor

from ibpwf.errors import InputError
from ibpwf.lab.data.tasks import Scenario, Task
from ibpwf.lab.methods.const_wf import ConstWF, ConstWFSettings
from ibpwf.lab.methods.dense import Problem

NU, OMEGA = 12, 5
SMALL = ConstWFSettings(hidden=(32,), nu=NU, omega=OMEGA, epochs=4, learning_rate=0.01)


def fresh(settings: ConstWFSettings = SMALL) -> ConstWF:
    return ConstWF(Problem((64,), 10, "class"), settings, seed=5)


def answer(method: ConstWF, task: Task, *, known: bool) -> Tensor:
    t = torch.full((len(task.test.y),), task.index) if known else None
    return method.predict(task.test.x, t, marginal=not known, posterior_samples=0, seed=0).probabilities


def accuracy(method: ConstWF, tasks: Sequence[Task], *, known: bool) -> float:
    right = []
    for task in tasks:
        t = torch.full((len(task.test.y),), task.index) if known else None
        right.append(
            method.predict(task.test.x, t, marginal=False, posterior_samples=0, seed=0).labels == task.test.y
        )
    return torch.cat(right).double().mean().item()


@pytest.fixture(scope="module")
def taught(digits: Scenario) -> ConstWF:
    return learn(fresh(), *digits[:3])


def test_every_layer_has_nu_factors_and_omega_more_with_each_next_task(taught: ConstWF) -> None:
    for number in range(3):
        for use in taught.model.use(number).values():
            assert use.total == NU + number * OMEGA
            assert use.active == use.total, "a task reads all factors there are"
            assert use.new == (OMEGA if number else NU)


def test_a_task_answers_with_the_sum_of_all_its_factors_weighted_by_its_strengths(
    taught: ConstWF, digits: Scenario
) -> None:
    task = taught.model.tasks[1]
    h = digits[1].test.x.double().numpy()
    for name in ("hidden1", "head"):
        blocks = taught.model.layers[name].blocks[:2]
        weight = np.zeros((h.shape[1], blocks[0].b.shape[1]))
        for block in blocks:
            for k, position in enumerate(block.positions.tolist()):
                strength = task.vectors[name].strength[position].item()
                weight += strength * np.outer(block.a[:, k].double().numpy(), block.b[k].double().numpy())
        h = h @ weight + task.own[f"{name}.bias"].double().numpy()
        if name == "hidden1":
            h = np.maximum(h, 0)
    own = np.exp(h[:, :2]) / np.exp(h[:, :2]).sum(1, keepdims=True)
    np.testing.assert_allclose(answer(taught, digits[1], known=True)[:, 2:4].numpy(), own, atol=1e-5)


def test_later_tasks_leave_factors_and_answers_of_earlier_ones_as_they_are_to_the_bit(digits: Scenario) -> None:
    method = learn(fresh(), *digits[:1])
    layers = method.model.layers
    before = {name: (d.blocks[0].a.clone(), d.blocks[0].b.clone()) for name, d in layers.items()}
    answered = answer(method, digits[0], known=True)
    right = accuracy(method, digits[:1], known=True)
    learn(method, digits[1], digits[2])
    for name, (a, b) in before.items():
        assert torch.equal(layers[name].blocks[0].a, a)
        assert torch.equal(layers[name].blocks[0].b, b)
    assert torch.equal(answer(method, digits[0], known=True)[:, :2], answered)
    assert accuracy(method, digits[:1], known=True) == right


def test_one_training_answers_both_settings(taught: ConstWF, digits: Scenario) -> None:
    assert accuracy(taught, digits[:3], known=True) > 0.95
    assert accuracy(taught, digits[:3], known=False) > 0.8


def test_without_the_buffet_there_is_nothing_uncertain_about_the_selection(taught: ConstWF, digits: Scenario) -> None:
    t = torch.zeros(len(digits[0].test.y), dtype=torch.long)
    drawn = taught.predict(digits[0].test.x, t, marginal=False, posterior_samples=5, seed=1)
    np.testing.assert_allclose(drawn.probabilities, answer(taught, digits[0], known=True), atol=1e-5)


def test_with_no_new_factors_a_task_learns_by_its_strengths_alone(digits: Scenario) -> None:
    method = learn(fresh(SMALL.replace(nu=40, omega=0, epochs=8)), *digits[:2])
    assert all(use.new == 0 and use.total == 40 for use in method.model.use(1).values())
    assert accuracy(method, [digits[1]], known=True) > 0.85


def test_nothing_is_stored_of_a_selection_that_needs_no_learning(taught: ConstWF) -> None:
    names = {name.rpartition("/")[2] for name in taught.state()[1]["task-0000"] if name.startswith("posterior/")}
    assert names == {"strength", "selected"}


def test_memory_counts_the_factors_and_the_statistics_of_features(taught: ConstWF) -> None:
    factors, strengths = NU + 2 * OMEGA, 3 * NU + 3 * OMEGA
    numbers = factors * (64 + 32) + factors * (32 + 10) + 2 * strengths + 3 * (32 + 10)
    assert taught.memory() == {"factors and tasks": 4 * numbers, "feature statistics": 3 * 8 * (32 + 32 * 32)}


def test_forgetting_a_task_is_rejected(taught: ConstWF) -> None:
    with pytest.raises(InputError, match="const-wf"):
        taught.forget(0)


def test_a_task_with_more_classes_than_the_shared_head_is_refused_and_forgotten(digits: Scenario) -> None:
    method = ConstWF(Problem((64,), 1, "class"), SMALL)
    with pytest.raises(InputError, match="heads='per-task'"):
        learn(method, *digits[:1])
    assert method.network is None
    assert method.classes == []
