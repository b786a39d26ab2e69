"""The importances are what their papers say: against loops, finite differences and a closed form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from three_tasks import SETTINGS, columns, double, fisher_by_loops, learn, make, task
from torch import Tensor, nn

from ibpwf.lab.methods import penalties
from ibpwf.lab.methods.dense import Problem
from ibpwf.lab.methods.penalties import EWC, L2, MAS, SI, OnlineEWC, SISettings
from ibpwf.training.method import TaskData
from ibpwf.training.objective import Loss


@pytest.mark.parametrize("setting", SETTINGS)
def test_fisher_information_is_that_of_a_loop_over_examples_and_labels(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = make(EWC, setting)
    learn(method, task(0))
    method.begin_task(task(1))
    x = task(1).x
    truth = fisher_by_loops(method.net, x, columns(setting, 1))
    assert (method.fisher(x) - truth).abs().sum() < 1e-4 * truth.sum()
    monkeypatch.setattr(penalties, "NEGLIGIBLE", -1.0)
    torch.testing.assert_close(method.fisher(x).double(), truth, rtol=1e-4, atol=1e-9)


def test_labels_that_hardly_count_are_left_out_of_a_confident_network_s_fisher_information(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trained, method, x = make(EWC, epochs=60), make(EWC), task(0).x
    learn(trained, task(0))
    method.net.load_state_dict(trained.net.state_dict())
    method.begin_task(task(0))
    computed: list[int] = []
    exact = penalties.gradient_sum

    def counted(net: Any, value: Any, size: Any, x: Tensor, *others: Tensor) -> Tensor:
        computed.append(len(x))
        return exact(net, value, size, x, *others)

    monkeypatch.setattr(penalties, "gradient_sum", counted)
    truth = fisher_by_loops(method.net, x, slice(0, 2))
    assert (method.fisher(x) - truth).abs().sum() < 1e-3 * truth.sum()
    assert computed[0] < 0.8 * 2 * len(x)


def test_fisher_information_uses_at_most_the_given_number_of_examples() -> None:
    data = task(0)
    all_of_them, more, few, few_again, others = (make(EWC, fisher_samples=n) for n in (40, 1000, 6, 6, 6))
    for method in (all_of_them, more, few, few_again):
        learn(method, data)
    learn(others, task(0, seed=1))
    truth = fisher_by_loops(more.net, data.x, slice(0, 2))
    torch.testing.assert_close(more.importance.double(), truth, rtol=1e-2, atol=1e-3 * truth.max().item())
    assert torch.equal(more.importance, all_of_them.importance)
    assert not torch.allclose(few.importance, more.importance)
    assert torch.equal(few.importance, few_again.importance)
    assert not torch.equal(few.some_examples(data, 6), few.some_examples(task(0, seed=1), 6))


def test_true_labels_play_no_part_in_the_fisher_information() -> None:
    data, method = task(0), make(EWC)
    method.begin_task(data)
    told = method.importance_of(data)
    lied = method.importance_of(TaskData(data.name, 0, data.classes, data.x, 1 - data.y, 0))
    assert torch.equal(told, lied)


@pytest.mark.parametrize("setting", SETTINGS)
def test_mas_is_the_mean_absolute_gradient_of_the_squared_norm_by_finite_differences(setting: str) -> None:
    method = make(MAS, setting)
    learn(method, task(0))
    data = task(1, examples=10)
    method.begin_task(data)
    importance = method.importance_of(data)
    twin, head, step = double(method.net), columns(setting, 1), 1e-6

    def norms() -> Tensor:
        return twin(data.x.double())[:, head].square().sum(1).detach()

    gradients = []
    for p in twin.parameters():
        for i in range(p.numel()):
            flat = p.data.view(-1)
            flat[i] += step
            above = norms()
            flat[i] -= 2 * step
            below = norms()
            flat[i] += step
            gradients.append(((above - below) / (2 * step)).abs().mean())
    torch.testing.assert_close(importance.double(), torch.stack(gradients), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", [EWC, OnlineEWC, MAS, SI])
def test_in_the_task_setting_other_tasks_outputs_have_no_importance(kind: type[L2]) -> None:
    method = make(kind)
    learn(method, task(0))
    bias = method.importance[-6:]
    assert (bias[:2] > 0).all()
    assert (bias[2:] == 0).all()


class Bowls(SI):
    """SI on ½ Σ h (θ − m)², a bowl per task: gradient descent in it has a closed form."""

    curvature, floor = torch.tensor([0.5, 1.0, 2.0]), torch.tensor([[1.0, -1.0, 0.5], [0.0, 2.0, -0.5]])

    def build(self) -> nn.Module:
        return nn.Linear(3, 1, bias=False)

    def loss(self, x: Tensor, y: Tensor) -> Loss:
        away, penalty = self.position() - self.floor[self.task.index], self.penalty(x, x)
        return Loss(0.5 * (self.curvature * away.square()).sum() + penalty, penalty)


def bowl(index: int) -> TaskData:
    return TaskData(f"bowl {index}", index, (index,), torch.zeros(10, 3), torch.zeros(10, dtype=torch.long), 0)


def bowls(epochs: int = 5, rate: float = 0.1, **changes: Any) -> Bowls:
    """Five steps an epoch of plain gradient descent."""
    settings = SISettings(epochs=epochs, batch_size=2, learning_rate=rate, optimizer="sgd", **changes)
    return Bowls(Problem((3,), 2, "task"), settings)


def test_si_path_integral_in_a_bowl_is_the_geometric_series() -> None:
    """θ − m shrinks by r = 1 − ηh a step, so ω = Σ_k η (h e_k)² = h e_0² (1 − r^2K) / (2 − ηh)."""
    method, rate = bowls(), 0.1
    start = method.position().detach()
    learn(method, bowl(0))
    h = Bowls.curvature
    left = (1 - rate * h) ** 25  # five epochs of five steps
    away = start - Bowls.floor[0]
    omega = h * away.square() * (1 - left.square()) / (2 - rate * h)
    torch.testing.assert_close(method.position().detach(), Bowls.floor[0] + left * away)
    torch.testing.assert_close(method.path, omega)
    moved = (1 - left) * away
    torch.testing.assert_close(method.importance, omega / (moved.square() + 0.1))


def test_si_path_integral_of_small_steps_is_the_fall_of_the_loss() -> None:
    method = bowls(epochs=100, rate=4e-3)
    start = method.position().detach()
    learn(method, bowl(0))

    def loss(position: Tensor) -> Tensor:
        return 0.5 * (Bowls.curvature * (position - Bowls.floor[0]).square()).sum()

    fall = loss(start) - loss(method.position().detach())
    torch.testing.assert_close(method.path.sum(), fall, rtol=5e-3, atol=0)


def test_si_leaves_the_penalty_out_of_the_path_integral() -> None:
    """The second bowl, with the penalty's pull, followed step by step for each parameter on its own."""
    coefficient, rate = 0.7, 0.1
    method = bowls(coefficient=coefficient)
    learn(method, bowl(0))
    first, anchor = method.importance.double(), method.anchor.double()
    learn(method, bowl(1))
    for i in range(3):
        h, m = Bowls.curvature[i].double(), Bowls.floor[1, i].double()
        here, omega = anchor[i].clone(), 0.0
        for _ in range(25):
            of_task = h * (here - m)
            step = -rate * (of_task + 2 * coefficient * first[i] * (here - anchor[i]))
            omega -= of_task * step
            here = here + step
        assert method.position()[i].item() == pytest.approx(here.item(), rel=1e-5)
        assert method.path[i].item() == pytest.approx(omega.item(), rel=1e-4)
        expected = first[i] + max(omega, 0) / ((here - anchor[i]) ** 2 + 0.1)
        assert method.importance[i].item() == pytest.approx(expected.item(), rel=1e-4)


def test_si_gives_no_importance_to_parameters_that_raised_the_loss() -> None:
    method = bowls()
    method.begin_task(bowl(0))
    method.path.copy_(torch.tensor([-1.0, 0.0, 1.0]))
    torch.testing.assert_close(method.importance_of(bowl(0)), torch.tensor([0.0, 0.0, 10.0]))


def test_l2_holds_all_parameters_alike_after_any_number_of_tasks() -> None:
    method = make(L2)
    learn(method, task(0), task(1), task(2))
    assert torch.equal(method.importance, torch.ones(6 * 5 + 5 + 5 * 6 + 6))
