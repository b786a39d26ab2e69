"""LwF distils what the old network answered, no more and no less, and keeps nothing besides the network."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from three_tasks import SETTINGS, learn, task
from torch import Tensor, nn

from ibpwf.lab.methods.dense import Problem
from ibpwf.lab.methods.lwf import LwF, LwFSettings
from ibpwf.training.loop import Training
from ibpwf.training.method import TaskData


def make(setting: str, **changes: Any) -> LwF:
    small = {"hidden": (5,), "epochs": 3, "batch_size": 8, "learning_rate": 0.01}
    return LwF(Problem((6,), 6, setting), LwFSettings(**{**small, **changes}))


def third_task(setting: str, disturbed: float = 0.0, **changes: Any) -> LwF:
    """Two tasks learned, the third begun, the network moved away from the old one by some noise."""
    method = make(setting, **changes)
    learn(method, task(0), task(1))
    method.begin_task(task(2))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in method.net.parameters():
            p += disturbed * torch.randn(p.shape, generator=generator)
    return method


def softmax(numbers: list[float]) -> list[float]:
    powers = [math.exp(number) for number in numbers]
    return [power / sum(powers) for power in powers]


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
@pytest.mark.parametrize("setting", SETTINGS)
def test_distillation_is_the_divergence_written_out_by_hand(setting: str, temperature: float) -> None:
    method = third_task(setting, 0.5, temperature=temperature, coefficient=0.3)
    x = task(2).x[:4]
    old_outputs, new_outputs = method.previous(x).tolist(), method.net(x).tolist()
    # (what the old network chooses among, what the new one chooses among)
    heads = [(range(2), range(2)), (range(2, 4), range(2, 4))] if setting == "task" else [(range(4), range(6))]
    total = 0.0
    for old, new in zip(old_outputs, new_outputs, strict=True):
        for old_head, new_head in heads:
            p = softmax([old[c] / temperature for c in old_head])
            q = softmax([new[c] / temperature for c in new_head])
            total += sum(a * math.log(a / b) for a, b in zip(p, q, strict=False)) / len(x)
    expected = 0.3 * temperature**2 * total
    assert expected > 0.01
    assert method.penalty(x, method.net(x)).item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_loss_is_cross_entropy_plus_distillation(setting: str) -> None:
    method = third_task(setting, 0.5)
    x, y = task(2).x, task(2).y
    head = slice(4, 6) if setting == "task" else slice(0, 6)
    outputs = method.net(x)[:, head]
    right = outputs.log_softmax(1)[range(40), y + (0 if setting == "task" else 4)]
    loss, shown, accuracy = method.loss(x, y)
    assert shown.item() == pytest.approx(method.penalty(x, method.net(x)).item())
    assert loss.item() == pytest.approx(shown.item() - right.mean().item(), rel=1e-5)
    assert accuracy.item() == pytest.approx((outputs.argmax(1) == y + (0 if setting == "task" else 4)).float().mean())


def gradient(method: LwF) -> Tensor:
    x = task(2).x
    outputs = method.net(x).detach().requires_grad_()
    return torch.autograd.grad(method.penalty(x, outputs), outputs)[0]


def test_distillation_has_no_gradient_where_new_and_old_network_agree() -> None:
    assert gradient(third_task("task")).abs().max() < 1e-7
    assert gradient(third_task("task", 0.5)).abs().max() > 1e-4


def test_distillation_pulls_only_at_outputs_of_old_tasks_in_the_task_setting() -> None:
    gradients = gradient(third_task("task", 0.5))
    assert (gradients[:, 4:] == 0).all()
    assert (gradients[:, :4] != 0).any(0).all()


def test_in_the_class_setting_agreeing_networks_only_take_probability_from_the_new_classes() -> None:
    """∂/∂logit = λ T (q − p) / N, with q = (1 − m) p on the old classes where m is the new ones' probability."""
    method = third_task("class")
    q = (method.net(task(2).x) / 2).softmax(1).detach()
    m = q[:, 4:].sum(1, keepdim=True)
    expected = 2 / 40 * torch.cat([-m * q[:, :4] / (1 - m), q[:, 4:]], 1)
    torch.testing.assert_close(gradient(method), expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_old_network_does_not_move_while_the_new_one_learns(setting: str) -> None:
    method = make(setting)
    learn(method, task(0))
    before = [p.detach().clone() for p in method.net.parameters()]
    steps = Training(method, task(1)).run()
    for _ in range(7):
        next(steps)
    assert all(torch.equal(p, q) for p, q in zip(method.previous.parameters(), before, strict=True))
    assert not any(torch.equal(p, q) for p, q in zip(method.net.parameters(), before, strict=True))
    steps.close()


def test_the_old_network_is_asked_as_in_testing_even_with_dropout() -> None:
    class Dropping(LwF):
        def build(self) -> nn.Module:
            return nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 6))

    method = Dropping(Problem((6,), 6, "task"), LwFSettings(epochs=1))
    learn(method, task(0))
    method.begin_task(task(1))
    x = task(1).x
    assert method.net.training
    assert torch.equal(method.previous(x), method.previous(x))


def test_without_distillation_it_is_fine_tuning_and_with_it_old_answers_change_less() -> None:
    changes = []
    for coefficient in (0.0, 5.0):
        method = make("task", coefficient=coefficient, epochs=10)
        learn(method, task(0))
        old = method.net(task(0).x)[:, :2].softmax(1).detach()
        learn(method, task(1), task(2))
        changes.append((method.net(task(0).x)[:, :2].softmax(1).detach() - old).square().mean())
    assert changes[1] < 0.5 * changes[0]


def weights(method: LwF) -> Tensor:
    return torch.cat([p.detach().flatten() for p in method.net.parameters()])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_recorded_step_does_what_a_plain_step_does(setting: str) -> None:
    found = []
    for capturable in (True, False):
        one = type("One", (LwF,), {"capturable": capturable, "tf32": False})
        method = one(Problem((6,), 6, setting), make(setting).settings, device="cuda")
        for index in range(3):
            data = task(index)
            learn(method, TaskData(data.name, index, data.classes, data.x.cuda(), data.y.cuda(), 0))
        found.append(weights(method))
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-5)
