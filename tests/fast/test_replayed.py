"""A pass over rows of several tasks as a CUDA graph."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn

from ibpwf import factorize
from ibpwf.dispatch import accelerated, stand_ins
from ibpwf.factors.model import FactorModel
from ibpwf.fast import replayed
from ibpwf.fast.mixed import in_one_pass
from ibpwf.models import mlp

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
TASKS = 5


def taught(device: str, net: nn.Module | None = None) -> FactorModel:
    torch.manual_seed(0)
    model = factorize(net or mlp(12, [16, 16], 3), base="frozen", heads="per-task").to(device)
    for task in range(TASKS):
        generator = torch.Generator().manual_seed(task)
        begun = model.start_task(3, generator)
        with torch.no_grad():
            for parameter in begun.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn(parameter.shape, generator=generator).to(device) * 0.3)
            begun.posterior.logit.fill_(2.0)
        model.finish_task(begun)
    return model


def batch(rows: int, seed: int, device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tasks = torch.cat([torch.arange(TASKS), torch.randint(TASKS, (rows - TASKS,), generator=generator)])
    return torch.randn(rows, 12, generator=generator).to(device), tasks.to(device)


def answers(model: FactorModel, x: Tensor, tasks: Tensor) -> Tensor:
    found = model.mixed_logits(x, tasks)
    assert found is not None
    return found


def recordings(model: FactorModel) -> replayed.Recordings | None:
    (network,) = model._mixed.values()
    assert network is not None
    return replayed._recordings.get(network.net)


def test_on_a_cpu_a_pass_is_taken_plainly() -> None:
    model = taught("cpu")
    x, tasks = batch(20, 0, "cpu")
    with accelerated(False):
        plain = answers(model, x, tasks)
    assert torch.equal(answers(model, x, tasks), plain)
    assert stand_ins(in_one_pass) == [replayed.replayed]
    assert recordings(model) is None


class Mixed(nn.Module):
    """A convolution, normalizations and a dense layer, whose numbers are each task's own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4)
        self.hidden, self.last, self.head = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.last(self.hidden(self.norm(self.stem(x)).mean((2, 3))).relu()))
        return out


@pytest.mark.parametrize("most", [replayed.LOOKED_UP, 10])
@pytest.mark.parametrize("kind", ["perceptron", "layers of all kinds"])
def test_what_is_looked_up_at_once_is_what_each_layer_would_look_up(
    kind: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replayed, "LOOKED_UP", most)
    model = taught("cpu") if kind == "perceptron" else taught("cpu", Mixed())
    x, tasks = batch(20, 0, "cpu") if kind == "perceptron" else (torch.randn(20, 1, 5, 5), torch.arange(20) % TASKS)
    plain = answers(model, x, tasks)
    (network,) = model._mixed.values()
    assert network is not None
    table = replayed.Table.of(network.net, len(x))
    assert (table.values is None) == (most == 10)
    assert len(table.names) == (0 if most == 10 else 4 if kind == "perceptron" else 8)
    found = table.passed(network.net, x, tasks)
    if most == 10:
        assert torch.equal(found, plain)
    else:  # a CPU by itself has rows in the order of tasks, and adds up in another
        torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-6)


@gpu
def test_every_batch_of_a_shape_has_the_answers_of_a_plain_pass() -> None:
    model = taught("cuda")
    for number, rows in enumerate([20, 20, 33, 20, 20, 33, 7, 33, 8, 9, *[10, 11, 12] * 4, 20, 33, 33, 33, 20]):
        x, tasks = batch(rows, number, "cuda")
        with accelerated(False):
            plain = answers(model, x, tasks)
        assert torch.equal(answers(model, x, tasks), plain), f"batch {number}"
    kept = recordings(model)
    assert kept is not None
    assert not kept.failed
    assert [shape[0][0] for shape in kept.of_shape] == [10, 11, 12, 33]


@gpu
def test_what_was_recorded_in_inference_mode_is_asked_outside_of_it() -> None:
    model = taught("cuda")
    x, tasks = batch(20, 0, "cuda")
    with accelerated(False):
        plain = answers(model, x, tasks)
    with torch.inference_mode():
        for _ in range(5):
            assert torch.equal(answers(model, x, tasks), plain)
    assert torch.equal(answers(model, x, tasks), plain)
    assert recordings(model) is not None


@gpu
def test_threads_have_each_their_own_answers() -> None:
    model = taught("cuda")
    batches = [batch(40, number, "cuda") for number in range(8)]
    with accelerated(False):
        plain = [answers(model, *one) for one in batches]
    wrong: list[int] = []

    def ask(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            for _ in range(50):
                if not torch.equal(answers(model, *batches[number]), plain[number]):
                    wrong.append(number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@gpu
def test_a_network_that_looks_at_its_numbers_is_asked_plainly() -> None:
    class Looks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if float(x.sum()) > 0 else x * 3

    model, (given, tasks) = taught("cuda"), batch(20, 0, "cuda")
    before = [answers(model, given, tasks) for _ in range(5)][-1]
    net, places = Looks(), torch.zeros(4, dtype=torch.long, device="cuda")
    for number in range(6):
        x = torch.randn(4, 2, generator=torch.Generator().manual_seed(number)).cuda()
        assert torch.equal(in_one_pass(net, x, places), x * 2 if float(x.sum()) > 0 else x * 3)
    assert replayed._recordings[net].failed
    assert len(torch.unique(torch.randn(9, device="cuda"))) == 9, "random numbers go on"
    assert torch.equal(answers(model, given, tasks), before), "and so do other networks"
