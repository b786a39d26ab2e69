"""Batch normalization by the rows of all processes; here they are threads."""

from __future__ import annotations

import contextlib
import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ibpwf.distributed import Group
from ibpwf.training.batch_norm import by_all_rows, norms_of

SIZE = 3
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Threads(Group):
    """A process that is a thread: sums go through a place that all see."""

    def __init__(self, rank: int, place: dict[int, Tensor], barrier: threading.Barrier) -> None:
        super().__init__(rank, SIZE)
        self.place, self.barrier, self.sums = place, barrier, 0

    def gathered(self, tensor: Tensor) -> Tensor:
        self.sums += 1
        self.place[self.rank] = tensor
        self.barrier.wait(120)
        rows = torch.stack([self.place[rank] for rank in range(SIZE)])
        self.barrier.wait(120)
        return rows


def learned(net: nn.Module, x: Tensor, y: Tensor, weight: float = 1.0) -> list[Tensor]:
    """Outputs, and gradients of inputs and parameters, weighted as in the sum over all processes."""
    x = x.detach().requires_grad_()
    out = net(x)
    ((out - y) ** 2).mean().backward()
    gradients = [one.grad for one in (x, *net.parameters())]
    return [out.detach(), *(weight * gradient for gradient in gradients if gradient is not None)]


def in_threads(net: nn.Module, x: Tensor, y: Tensor, batches: int) -> tuple[list[nn.Module], list[list[Tensor]]]:
    """Each thread's network, and what it found in the last batch."""
    place: dict[int, Tensor] = {}
    barrier = threading.Barrier(SIZE)
    nets = [copy.deepcopy(net) for _ in range(SIZE)]

    def work(rank: int) -> list[Tensor]:
        group, found = Threads(rank, place, barrier), []
        for batch in range(batches):
            mine, wanted, weight = group.part(x[batch], y[batch])
            nets[rank].zero_grad()
            norms = norms_of([nets[rank]])
            with by_all_rows(norms, group, weight):
                found = learned(nets[rank], mine, wanted, weight)
        assert group.sums == 2 * batches * len(norms)
        return found

    with ThreadPoolExecutor(SIZE) as pool:
        return nets, list(pool.map(work, range(SIZE)))


KINDS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "rows": (nn.BatchNorm1d(4), (4,)),
    "series, plain mean": (nn.BatchNorm1d(4, momentum=None), (4, 5)),
    "images": (nn.BatchNorm2d(4, momentum=0.3, eps=1e-2), (4, 3, 3)),
    "volumes, not affine": (nn.BatchNorm3d(4, affine=False), (4, 2, 3, 2)),
    "nothing kept": (nn.BatchNorm2d(4, track_running_stats=False), (4, 3, 3)),
    "nothing kept, not in training": (nn.BatchNorm1d(4, track_running_stats=False).eval(), (4,)),
}


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_parts_are_normalized_as_the_whole(kind: str, last: bool) -> None:
    chance = torch.Generator().manual_seed(0)
    norm, shape = KINDS[kind]
    norm = copy.deepcopy(norm)
    for parameter in norm.parameters():
        nn.init.uniform_(parameter, 0.5, 2, generator=chance)
    x = 3 * torch.randn(2, 7, *shape, generator=chance) + 20  # far from 0: sums of squares would cancel
    y = torch.randn(2, 7, *shape, generator=chance)
    if last and len(shape) == 3:
        x = x.movedim(2, -1).contiguous().movedim(-1, 2)
    nets, parts = in_threads(norm, x, y, batches=2)
    for batch in range(2):
        norm.zero_grad()
        whole = learned(norm, x[batch], y[batch])
    for number in range(2):  # outputs, and gradients of inputs
        torch.testing.assert_close(torch.cat([part[number] for part in parts]), whole[number], rtol=1e-4, atol=2e-5)
    for number in range(2, len(whole)):
        torch.testing.assert_close(
            torch.stack([part[number] for part in parts]).sum(0), whole[number], rtol=1e-4, atol=2e-5
        )
    for net in nets:
        for name, buffer in norm.named_buffers():
            torch.testing.assert_close(net.get_buffer(name), buffer, rtol=1e-5, atol=1e-5)
            assert torch.equal(net.get_buffer(name), nets[0].get_buffer(name))


class Alone(Group):
    """All rows are here. (Threads cannot wait for each other in a GPU's backward pass: it is one for all.)"""

    def gathered(self, tensor: Tensor) -> Tensor:
        return tensor.unsqueeze(0)


@pytest.mark.parametrize("kind", KINDS)
def test_all_rows_on_one_device_are_normalized_as_torch_does(kind: str) -> None:
    norm, shape = KINDS[kind]
    norm = copy.deepcopy(norm).to(DEVICE)
    other = copy.deepcopy(norm)
    x, y = (torch.randn(7, *shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE) for seed in range(2))
    whole = learned(norm, x, y)
    with by_all_rows(norms_of([other]), Alone(0, 1), 1.0):
        found = learned(other, x, y)
    assert len(found) == len(whole)
    for one, two in zip(found, whole, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=2e-5)
    for name, buffer in norm.named_buffers():
        torch.testing.assert_close(other.get_buffer(name), buffer, rtol=1e-5, atol=1e-5)


def test_a_network_is_as_before_once_the_step_is_over() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    norms, before = norms_of([net]), [set(vars(module)) for module in net]
    seen = []
    with contextlib.suppress(KeyboardInterrupt), by_all_rows(norms, Group(0, 2), 0.5):
        seen.append(type(net[1]))
        raise KeyboardInterrupt
    assert nn.BatchNorm1d not in seen
    assert type(net[1]) is nn.BatchNorm1d
    assert [set(vars(module)) for module in net] == before


def test_statistics_that_are_kept_still_are_used() -> None:
    norm = nn.BatchNorm1d(2).eval()
    x = torch.randn(5, 2)
    with by_all_rows([norm], Group(0, 2), 0.5):  # a sum over processes would fail: there are none
        assert torch.equal(norm(x), nn.BatchNorm1d(2).eval()(x))


def test_a_normalization_of_another_kind_is_left_alone() -> None:
    class WithReLU(nn.BatchNorm1d):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input).relu()

    class Renamed(nn.BatchNorm1d):
        pass

    own: list[Any] = [WithReLU(2), Renamed(2), nn.LayerNorm(2)]
    assert norms_of([nn.Sequential(*own)]) == [own[1]]


def test_a_compiled_network_sees_all_rows() -> None:
    x, y = torch.randn(1, 7, 3), torch.randn(1, 7, 4)
    plain = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.Tanh())
    whole = learned(plain, x[0], y[0])
    sums = []
    net = copy.deepcopy(plain)
    compiled = torch.compile(net, backend="eager")
    assert len(norms_of([compiled])) == 1

    class Whole(Group):
        """The process that has all rows, among others that have none."""

        def gathered(self, tensor: Tensor) -> Tensor:
            sums.append(len(tensor))
            return torch.stack([tensor, torch.zeros_like(tensor)])

    with by_all_rows(norms_of([net]), Whole(0, 2), 1.0):
        found = learned(compiled, x[0], y[0])
    assert sums == [9, 2]
    for one, other in zip(found, whole, strict=True):
        torch.testing.assert_close(one, other)
