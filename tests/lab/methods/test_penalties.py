"""The penalty is the sum it claims to be, and nothing is lost on the way to disk or through a task that broke off."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from three_tasks import SMALL, columns, fisher_by_loops, learn, make, parameters, task
from torch import Tensor

from ibpwf.lab.methods.dense import DenseMethod, Problem
from ibpwf.lab.methods.penalties import (
    EWC,
    L2,
    MAS,
    SI,
    OnlineEWC,
)
from ibpwf.training.loop import Training
from ibpwf.training.method import TaskData

METHODS = [L2, EWC, OnlineEWC, SI, MAS]


@pytest.mark.parametrize("kind", METHODS)
def test_penalty_and_its_gradient_are_those_of_a_loop_over_parameters(kind: type[L2]) -> None:
    method = make(kind, coefficient=3.0)
    size, generator = len(method.position()), torch.Generator().manual_seed(1)
    importance, anchor = torch.rand(size, generator=generator), torch.randn(size, generator=generator)
    method.load_kept({"importance": importance, "anchor": anchor})
    penalty = method.penalty(torch.zeros(1, 6), torch.zeros(1, 6))
    penalty.backward()
    value, at = 0.0, 0
    for p in method.net.parameters():
        for number, gradient in zip(p.detach().flatten().tolist(), p.grad.flatten().tolist(), strict=True):
            away = number - anchor[at].item()
            value += 3.0 * importance[at].item() * away**2
            assert gradient == pytest.approx(2 * 3.0 * importance[at].item() * away, rel=1e-5)
            at += 1
    assert at == size
    assert penalty.item() == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("kind", METHODS)
def test_there_is_no_penalty_in_the_first_task(kind: type[L2]) -> None:
    held, free = make(kind, coefficient=1e3), make(kind, coefficient=0.0)
    for method in (held, free):
        learn(method, task(0))
    assert torch.equal(held.position(), free.position())
    for method in (held, free):
        learn(method, task(1))
    assert not torch.equal(held.position(), free.position())


def stations(method: EWC) -> list[tuple[Tensor, Tensor]]:
    """Learn three tasks; each task's Fisher information by loops, and where it ended."""
    found = []
    for index in range(3):
        learn(method, task(index))
        fisher = fisher_by_loops(method.net, task(index).x, columns("task", index))
        found.append((fisher, parameters(method.net)))
    return found


def test_ewc_pulls_as_one_term_per_old_task_would() -> None:
    method = make(EWC, coefficient=5.0)
    old = stations(method)

    def terms() -> float:
        return sum(5.0 * (f * (parameters(method.net) - anchor).square()).sum().item() for f, anchor in old)

    values, expected = [], []
    for seed in range(2):
        with torch.no_grad():
            for p in method.net.parameters():
                p += 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(seed))
        penalty = method.penalty(torch.zeros(1, 6), torch.zeros(1, 6))
        gradients = torch.autograd.grad(penalty, list(method.net.parameters()))
        values.append(penalty.item())
        expected.append(terms())
        truth = sum(2 * 5.0 * f * (parameters(method.net) - anchor) for f, anchor in old)
        flat = torch.cat([g.flatten() for g in gradients]).double()
        torch.testing.assert_close(flat, truth, rtol=1e-2, atol=1e-3 * truth.abs().max().item())
    assert values[1] - values[0] == pytest.approx(expected[1] - expected[0], rel=1e-2)


def test_online_ewc_forgets_old_information_by_gamma_and_anchors_at_the_last_task() -> None:
    method = make(OnlineEWC, gamma=0.5)
    (first, _), (second, _), (third, end) = stations(method)
    truth = 0.25 * first + 0.5 * second + third
    torch.testing.assert_close(method.importance.double(), truth, rtol=1e-2, atol=1e-3 * truth.max().item())
    assert torch.equal(method.anchor.double(), end)


def test_importances_of_mas_add_up() -> None:
    method = make(MAS)
    learn(method, task(0))
    first = method.importance.clone()
    learn(method, task(1))
    method.classes.pop()
    method.begin_task(task(1))
    torch.testing.assert_close(method.importance, first + method.importance_of(task(1)))


@pytest.mark.parametrize("kind", METHODS)
def test_a_held_network_stays_nearer_to_the_old_task(kind: type[L2]) -> None:
    held, free = make(kind, coefficient=10.0, epochs=10), make(kind, coefficient=0.0, epochs=10)
    outputs = []
    for method in (held, free):
        learn(method, task(0))
        old = method.net(task(0).x)[:, :2].detach()
        learn(method, task(1), task(2))
        outputs.append((method.net(task(0).x)[:, :2].detach() - old).square().mean())
    assert outputs[0] < 0.5 * outputs[1]


# What survives


def snapshot(method: DenseMethod) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    content, files = method.state()
    return json.loads(json.dumps(content)), {
        file: {name: tensor.clone() for name, tensor in tensors.items()} for file, tensors in files.items()
    }


def same(one: DenseMethod, other: DenseMethod) -> bool:
    (content, files), (content2, files2) = snapshot(one), snapshot(other)
    assert {file: list(tensors) for file, tensors in files.items()} == {f: list(t) for f, t in files2.items()}
    return content == content2 and all(
        torch.equal(tensor, files2[file][name]) for file, tensors in files.items() for name, tensor in tensors.items()
    )


@pytest.mark.parametrize("kind", METHODS)
def test_nothing_is_kept_when_the_importance_cannot_be_computed(
    kind: type[L2], monkeypatch: pytest.MonkeyPatch
) -> None:
    method, undisturbed = make(kind), make(kind)
    for one in (method, undisturbed):
        learn(one, task(0))

    def out_of_memory(data: TaskData) -> Tensor:
        raise MemoryError

    fork = method.fork()
    monkeypatch.setattr(fork, "importance_of", out_of_memory)
    with pytest.raises(MemoryError):
        learn(fork, task(1))
    assert same(method, undisturbed)


@pytest.mark.parametrize("kind", METHODS)
def test_a_step_changes_only_parameters_and_listed_buffers_and_those_in_place(kind: type[L2]) -> None:
    """What a recorded CUDA graph needs: it replays on the same memory, and a warm-up is put back."""
    method = make(kind)
    learn(method, task(0))
    steps = Training(method, task(1)).run()
    next(steps)
    tensors = {name: value for name, value in vars(method).items() if isinstance(value, Tensor)}
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    listed = {tensor.data_ptr() for tensor in method.buffers()}
    next(steps)
    for name, tensor in tensors.items():
        assert vars(method)[name] is tensor
        assert torch.equal(tensor, before[name]) != (tensor.data_ptr() in listed), name
    steps.close()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", METHODS)
def test_a_recorded_step_does_what_a_plain_step_does(kind: type[L2]) -> None:
    positions = []
    for capturable in (True, False):
        one = type("One", (kind,), {"capturable": capturable, "tf32": False})
        method = one(Problem((6,), 6, "class"), kind.settings_type(**SMALL), device="cuda")
        for index in range(3):
            data = task(index)
            learn(method, TaskData(data.name, index, data.classes, data.x.cuda(), data.y.cuda(), 0))
        positions.append(torch.stack([method.position().detach(), method.importance]))
    torch.testing.assert_close(positions[0], positions[1], rtol=1e-3, atol=1e-5)


# Settings
