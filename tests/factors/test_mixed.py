"""Rows of several tasks in one pass, compared with each task's own network."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from ibpwf import Learner, Settings
from ibpwf.factors.model import FactorModel
from ibpwf.factors.row_tasks import RowTasks
from ibpwf.fast import mixed as module
from ibpwf.fast import mixed_layers
from ibpwf.models import mlp, vit_tiny

CLASSES = (2, 3, 2, 4)


class Convolutions(nn.Module):
    """Convolutions with stride and padding, batch and group normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 6, 3, padding=1, bias=False)
        self.batch = nn.BatchNorm2d(6)
        self.second = nn.Conv2d(6, 8, 3, stride=2, padding=1, padding_mode="reflect")
        self.group = nn.GroupNorm(2, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.batch(self.first(x)))
        h = torch.relu(self.group(self.second(h)))
        logits: Tensor = self.head(h.mean((2, 3)))
        return logits


class Windows(nn.Module):
    """Its inner layer sees four rows for each of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(16, 8), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.inner(x.reshape(-1, 16)))
        logits: Tensor = self.head(h.reshape(-1, 32))
        return logits


def network(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "mlp":
        return nn.Sequential(nn.Flatten(), mlp(64, [20, 16], 4))
    if kind == "vit":
        return vit_tiny(image=8, patch=4, width=12, depth=2, heads=3, classes=4, in_channels=1)
    if kind == "windows":
        return nn.Sequential(nn.Flatten(), Windows())
    if kind == "attention":
        return Attentive()
    return Convolutions()


class Attentive(nn.Module):
    """Torch's own attention reads its weights itself."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = x.flatten(1, 2)
        h, _ = self.attention(h, h, h, need_weights=False)
        logits: Tensor = self.head(h.mean(1))
        return logits


def rows(task: int, count: int = 40) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(task)
    x = torch.randn(count, 1, 8, 8, generator=generator)
    return x, torch.arange(count) % CLASSES[task % len(CLASSES)]


def taught(kind: str, heads: str = "per-task", tasks: int = 4) -> Learner:
    settings = Settings(base="frozen", heads=heads, epochs=2, finetune_epochs=1, batch_size=8, learning_rate=0.01)
    settings = settings.replace(**{"inference.features": "random", "inference.features.width": 10})
    learner = Learner(network(kind), settings, seed=2, device="cpu")
    for task in range(tasks):
        learner.learn(*rows(task))
    return learner


def mixture(count: int = 50) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(50)
    return torch.randn(count, 1, 8, 8, generator=generator), torch.randint(0, 4, (count,), generator=generator)


@pytest.mark.parametrize("kind", ["mlp", "convolutions", "vit"])
@pytest.mark.parametrize("heads", ["shared", "per-task"])
def test_a_mixed_batch_is_answered_as_each_task_alone_would_in_one_pass(
    kind: str, heads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = taught(kind, heads)
    x, task = mixture()
    expected = [learner.logits(x[place : place + 1], int(task[place]))[0] for place in range(len(x))]
    found = learner.model.mixed_logits(x, task)
    assert found is not None
    for row, own in enumerate(expected):
        torch.testing.assert_close(found[row, : len(own)], own, rtol=1e-4, atol=1e-5)

    def refuse(*_: object) -> Tensor:
        raise AssertionError("a task was asked alone")

    alone = [learner.predict(x[place : place + 1], int(task[place])) for place in range(len(x))]
    monkeypatch.setattr(FactorModel, "logits", refuse)
    answer = learner.predict(x, task=task)
    assert answer.labels.tolist() == [int(one.labels[0]) for one in alone]
    expected_p = torch.cat([one.probabilities for one in alone])
    torch.testing.assert_close(answer.probabilities, expected_p, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["mlp", "vit"])
@pytest.mark.parametrize("counts", [(5, 5, 5), (1, 7, 4), (0, 9, 2), (1, 0, 0)])
def test_rows_with_their_own_factors_and_heads_alone_are_answered_the_same(
    kind: str, counts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In as many steps as can be, as many rows of each task or not, in any order."""
    monkeypatch.setattr(mixed_layers, "ROWS_OF_A_STEP", 1)
    monkeypatch.setattr(mixed_layers, "HEADS_FOR_ONE", 0)
    learner = Learner(
        network(kind),
        Settings(base="frozen", heads="per-task", epochs=2, finetune_epochs=1, batch_size=8, learning_rate=0.01),
        seed=2,
        device="cpu",
    )
    for number in range(3):
        x, y = rows(number)
        learner.learn(x, y % 2)
    task = torch.arange(3).repeat_interleave(torch.tensor(counts))
    task = task[torch.randperm(len(task), generator=torch.Generator().manual_seed(1))]
    x = mixture(len(task))[0]
    net = module.mixed(learner.model, [0, 1, 2])
    assert net is not None
    asked = []
    head = next(layer for layer in net.net.modules() if isinstance(layer, mixed_layers.MixedHeads))
    plain = head._by_task
    monkeypatch.setattr(head, "_by_task", lambda *given: asked.append(1) or plain(*given))
    found = net(x, task)
    assert found is not None
    assert asked
    for row, number in enumerate(task.tolist()):
        torch.testing.assert_close(found[row], learner.logits(x[row : row + 1], number)[0], rtol=1e-4, atol=1e-5)


def test_tokens_that_all_tasks_share_can_be_mixed() -> None:
    net = network("vit")
    for name, parameter in net.named_parameters():
        parameter.requires_grad_("token" not in name and "positions" not in name)
    learner = Learner(net, Settings(base="frozen", heads="per-task", epochs=1, finetune_epochs=1), device="cpu")
    for task in range(3):
        learner.learn(*rows(task))
    x, task = mixture()
    found = learner.model.mixed_logits(x, task.clamp(max=2))
    assert found is not None
    for row, number in enumerate(task.clamp(max=2).tolist()):
        own = learner.logits(x[row : row + 1], number)[0]
        torch.testing.assert_close(found[row, : len(own)], own, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["windows", "attention"])
def test_what_cannot_be_mixed_is_asked_task_by_task(kind: str) -> None:
    learner = taught(kind)
    x, task = mixture()
    assert learner.model.mixed_logits(x, task) is None
    answer = learner.predict(x, task=task)
    for number in range(4):
        at = task == number
        assert torch.equal(answer.labels[at], learner.predict(x[at], number).labels)


def test_on_a_cpu_tasks_are_asked_one_after_another_where_that_takes_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 4 tasks, 5 tokens each: the factors' products are counted beside those of small calls."""
    learner, (x, task) = taught("vit"), mixture()
    model = learner.model
    together = learner.predict(x, task=task)
    assert model.mixed_logits(x, task, if_cheaper=True) is not None
    sizes = [(one.locked * (one.inputs + one.outputs), one.inputs * one.outputs) for one in model.layers.values()]
    tokens = {name: 4 if name == "stem" else 5 for name in model.layers}
    by_factors = sum(tokens[name] * size for name, (size, _) in zip(model.layers, sizes, strict=True))
    weights = sum(weight for _, weight in sizes)
    least = 50 * by_factors / 4 / weights  # rows that a call would have to be worth
    monkeypatch.setattr(module, "NUMBERS_OF_A_CALL", 0)
    for times, cheaper in ((0.99, False), (1.01, True)):
        model._mixed.clear()
        monkeypatch.setattr(module, "ROWS_OF_A_CALL", times * least)
        assert (model.mixed_logits(x, task, if_cheaper=True) is not None) is cheaper
        assert model.mixed_logits(x, task) is not None
        answer = learner.predict(x, task=task)
        assert torch.equal(answer.labels, together.labels)
        torch.testing.assert_close(answer.probabilities, together.probabilities, rtol=0, atol=1e-5)


@pytest.mark.parametrize("tasks", [(0, 1, 2, 3), (1, 3), (2,)])
def test_the_factors_of_several_tasks_are_those_of_each(tasks: tuple[int, ...]) -> None:
    model = taught("mlp").model
    for layer in model.layers:
        factors, scores = module.read_by_any(model, tasks, layer)
        places = {int(at): place for place, at in enumerate(factors.positions)}
        assert scores.shape == (len(tasks), len(places))
        assert len({int(at) for task in tasks for at in model.selected_factors(task, layer)[0].positions}) == len(
            places
        )
        for row, task in enumerate(tasks):
            own, strength = model.selected_factors(task, layer)
            columns = [places[int(at)] for at in own.positions]
            assert torch.equal(factors.a[:, columns], own.a)
            assert torch.equal(factors.b[columns], own.b)
            assert torch.equal(scores[row, columns], strength)
            assert int((scores[row] != 0).sum()) == int((strength != 0).sum())


def test_a_mixture_gives_the_same_bits_after_another_task() -> None:
    learner = taught("convolutions", tasks=3)
    x, task = mixture()
    task = task.clamp(max=2)
    before = learner.predict(x, task=task).probabilities
    learner.learn(*rows(3))
    after = learner.predict(x, task=task).probabilities
    assert torch.equal(after[:, : before.shape[1]], before)
    assert not bool(after[:, before.shape[1] :].any())


def test_a_forgotten_task_is_gone_from_the_mixture() -> None:
    learner = taught("mlp")
    x, task = mixture()
    learner.predict(x, task=task)
    learner.forget(0)
    task = task.clamp(max=2)
    answer = learner.predict(x, task=task)
    for number in range(3):
        at = task == number
        assert torch.equal(answer.labels[at], learner.predict(x[at], number).labels)


def test_without_a_base_tasks_are_asked_one_by_one() -> None:
    learner = Learner(network("mlp"), Settings(epochs=1, finetune_epochs=1, heads="per-task"), device="cpu")
    for task in range(2):
        learner.learn(*rows(task))
    x, task = mixture()
    assert learner.model.mixed_logits(x, task.clamp(max=1)) is None


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(1, 12))
def test_every_row_finds_its_task_whatever_their_number_and_order(tasks: list[int], rows: int) -> None:
    of = RowTasks.of(torch.tensor(tasks, dtype=torch.long))
    assert of.numbers == tuple(sorted(set(tasks)))
    assert of.tasks.tolist() == [of.numbers[place] for place in of.place.tolist()] == tasks
    parts = of.split(rows)
    assert [task for part in parts for task in part.tasks.tolist()] == tasks
    assert all(len(part) <= rows and set(part.numbers) == set(part.tasks.tolist()) for part in parts)
    assert of.called([100 - number for number in range(41)]).tasks.tolist() == [100 - task for task in tasks]
