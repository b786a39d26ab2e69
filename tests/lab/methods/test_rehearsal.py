"""Naive rehearsal: stored examples are answered in their own heads, and what was learned is less forgotten."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from digit_tasks import data_of, learn, same, stored
from torch.nn import functional as F

from ibpwf.errors import InputError
from ibpwf.lab.data.tasks import Scenario, Task
from ibpwf.lab.methods.dense import DenseMethod, Problem
from ibpwf.lab.methods.finetune import Adam
from ibpwf.lab.methods.rehearsal import Rehearsal
from ibpwf.training.loop import Training

SMALL: dict[str, Any] = {"hidden": (24,), "epochs": 2, "batch_size": 32, "learning_rate": 0.01}


def make(kind: type[DenseMethod], setting: str, seed: int = 3, **changes: Any) -> DenseMethod:
    settings = kind.settings_type().replace(**{**SMALL, **changes})
    return kind(Problem((64,), 10, setting), settings, seed=seed)


def rehearsal(setting: str, size: int = 60, **changes: Any) -> Rehearsal:
    method = make(Rehearsal, setting, memory_size=size, **changes)
    assert isinstance(method, Rehearsal)
    return method


def accuracy(method: DenseMethod, task: Task) -> float:
    given = None if method.problem.setting == "class" else torch.full((len(task.test.y),), task.index)
    answer = method.predict(task.test.x, given, marginal=False, posterior_samples=0, seed=0)
    return float((answer.labels == task.test.y).double().mean())


@pytest.mark.parametrize("setting", ["task", "class"])
def test_a_stored_example_is_answered_among_its_own_tasks_outputs_or_all_seen_so_far(setting, digits: Scenario):
    method = learn(rehearsal(setting), *digits[:2])
    method.begin_task(data_of(digits[2]))
    memory = method.examples
    rows = torch.tensor([0, 40, 3, 59, 31, 8])
    found = method.stored_loss(memory.x[rows], memory.y[rows], memory.task[rows]).detach()
    by_hand = []
    for row in rows.tolist():
        task, label = int(memory.task[row]), int(memory.y[row])
        scores = method.net(memory.x[row]).detach()
        scores = scores[:6] if setting == "class" else scores[2 * task : 2 * task + 2]
        place = label + 2 * task if setting == "class" else label
        by_hand.append(math.log(float(scores.exp().sum())) - float(scores[place]))
    assert float(found) == pytest.approx(sum(by_hand) / len(by_hand), rel=1e-5)


def test_in_the_task_setting_replay_moves_the_heads_of_earlier_tasks_alone(digits: Scenario):
    method = learn(rehearsal("task"), *digits[:2])
    method.begin_task(data_of(digits[2]))
    method.penalty(torch.zeros(32, 64), torch.zeros(32, 10)).backward()
    moved = method.net.head.weight.grad.abs().sum(1) > 0
    assert moved.tolist() == [True] * 4 + [False] * 6


def test_in_the_class_setting_replay_pushes_the_new_classes_down(digits: Scenario):
    method = learn(rehearsal("class"), *digits[:2])
    method.begin_task(data_of(digits[2]))
    method.penalty(torch.zeros(32, 64), torch.zeros(32, 10)).backward()
    gradient = method.net.head.bias.grad
    assert bool((gradient[4:6] > 0).all())  # less loss with a lower score
    assert bool((gradient[6:] == 0).all())  # not seen yet


def test_the_loss_is_that_of_the_new_examples_plus_that_of_the_drawn_ones(digits: Scenario):
    method = learn(rehearsal("class"), *digits[:2])
    data = data_of(digits[2])
    method.begin_task(data)
    x, y = data.x[:32], data.y[:32]
    loss, extra, accuracy = (part.detach() for part in method.loss(x, y))
    drawn = method.examples.draw(32, data.generator("rehearsal"))
    old = method.stored_loss(*drawn).detach()
    new = F.cross_entropy(method.net(x).detach()[:, :6], y + 4)
    assert float(loss) == pytest.approx(float(new + old), rel=1e-6)
    assert float(extra) == pytest.approx(float(old), rel=1e-6)
    right = method.net(x)[:, :6].argmax(1) == y + 4
    assert float(accuracy) == pytest.approx(float(right.double().mean()))


def test_the_first_task_is_learned_as_by_plain_fine_tuning(digits: Scenario):
    ours = learn(rehearsal("class"), digits[0])
    plain = learn(make(Adam, "class"), digits[0])
    assert same(dict(ours.net.state_dict()), dict(plain.net.state_dict()))


def test_rehearsal_remembers_what_fine_tuning_forgets(digits: Scenario):
    ours = learn(rehearsal("class", epochs=4), *digits[:3])
    plain = learn(make(Adam, "class", epochs=4), *digits[:3])
    assert accuracy(plain, digits[0]) < 0.5
    assert accuracy(ours, digits[0]) > 0.85


def test_memory_counts_the_bytes_of_the_examples(digits: Scenario):
    method = rehearsal("class", size=60)
    assert method.memory()["examples"] == 0
    learn(method, digits[0])
    assert method.memory()["examples"] == 60 * (64 * 4 + 8 + 8)  # float32 values, two int64 labels
    learn(method, digits[1])
    assert method.memory()["examples"] == 60 * (64 * 4 + 8 + 8)
    assert method.memory()["network"] == 4 * (64 * 24 + 24 + 24 * 10 + 10)


def test_a_memory_larger_than_the_data_is_refused_before_training(digits: Scenario):
    method = rehearsal("class", size=400)
    before = stored(method)
    with pytest.raises(InputError, match=r"memory_size is 400.*give at most"):
        next(Training(method, data_of(digits[0])).run())
    assert same(stored(method), before)
    with pytest.raises(InputError, match="memory_size is 0; give at least 1"):
        rehearsal("class", size=0)
