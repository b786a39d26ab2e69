"""Products of locked and free factors in one operation: values, gradients, blocks filled up with zeros."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ibpwf import Learner, Settings
from ibpwf.accel import products
from ibpwf.accel.products import Deal
from ibpwf.core import layers
from ibpwf.core.dictionary import FactorBlock
from ibpwf.core.layers import FactorLinear

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INPUTS, OUTPUTS = 5, 3
CASES = [(0, 4, 4), (3, 4, 7), (3, 4, 16), (3, 0, 8), (0, 3, 8)]  # locked, free, rows in all


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64).to(DEVICE)


def joined(locked: int, free: int, rows: int, outputs: int) -> tuple[Tensor, Tensor, slice]:
    """Random factors, locked first, and zeros that fill both kinds up to multiples of eight (if there are any)."""
    start = locked if rows == locked + free else -(-locked // 8) * 8
    a, b = (torch.zeros(rows, width, dtype=torch.float64, device=DEVICE) for width in (INPUTS, outputs))
    for first, count in ((0, locked), (start, free)):
        a[first : first + count] = random(count, INPUTS, seed=first)
        b[first : first + count] = random(count, outputs, seed=first + 1)
    return a, b, slice(start, rows)


@pytest.mark.parametrize("outputs", [OUTPUTS, 2 * INPUTS])
@pytest.mark.parametrize(("locked", "free", "rows"), CASES)
def test_values_and_gradients_are_those_of_the_written_out_product(
    locked: int, free: int, rows: int, outputs: int
) -> None:
    a, b, where = joined(locked, free, rows, outputs)
    mine = slice(where.start, where.start + free)
    scores, x, bias = random(rows, seed=7), random(6, INPUTS, seed=8), random(outputs, seed=9)

    def leaves() -> list[Tensor]:
        return [part.clone().requires_grad_() for part in (scores, a[mine], b[mine], x, bias)]

    def written_out(scores: Tensor, free_a: Tensor, free_b: Tensor, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        whole_a = torch.cat([a[: mine.start], free_a, a[mine.stop :]])
        whole_b = torch.cat([b[: mine.start], free_b, b[mine.stop :]])
        weight = torch.einsum("k,km,kj->mj", scores, whole_b, whole_a)
        return x @ weight.t() + bias, weight

    def ours(scores: Tensor, free_a: Tensor, free_b: Tensor, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        y = products.through(x, scores, free_a, free_b, bias, a, b, where)
        return y, products.weight(scores, free_a, free_b, a, b, where)

    slopes = []
    for product in (ours, written_out):
        parts = leaves()
        y, weight = product(*parts)
        loss = y.square().sum() + (weight * random(outputs, INPUTS, seed=10)).sum()
        slopes.append([y.detach(), weight.detach(), *torch.autograd.grad(loss, parts)])
    for got, expected in zip(*slopes, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("locked", "free", "rows"), CASES[1:4])
def test_gradients_agree_with_finite_differences(locked: int, free: int, rows: int) -> None:
    a, b, where = joined(locked, free, rows, OUTPUTS)
    mine = slice(where.start, where.start + free)
    x = random(2, 3, INPUTS, seed=8).requires_grad_()
    parts = [part.clone().requires_grad_() for part in (random(rows, seed=7), a[mine], b[mine])]

    def through(x: Tensor, scores: Tensor, free_a: Tensor, free_b: Tensor) -> Tensor:
        whole_a, whole_b = a.clone(), b.clone()
        whole_a[mine], whole_b[mine] = free_a.detach(), free_b.detach()
        return products.through(x, scores, free_a, free_b, None, whole_a, whole_b, where).tanh()

    assert torch.autograd.gradcheck(through, (x, *parts))


def test_scores_are_dealt_to_the_factors_of_each_layer_and_slopes_come_back_to_their_sticks() -> None:
    places = [torch.tensor(sticks, device=DEVICE) for sticks in ([2, 0, -1, 3], [1, -1])]
    deal = Deal(places, 5)
    numbers = random(2, 5).requires_grad_()
    first, second = deal(numbers)
    assert torch.equal(first[[0, 1, 3]], numbers[0, [2, 0, 3]])
    assert torch.equal(second[:1], numbers[1, [1]])
    (slope,) = torch.autograd.grad(first[[0, 1, 3]] @ random(3, seed=1) + second[0] * 7, numbers)
    expected = torch.zeros(2, 5, dtype=torch.float64, device=DEVICE)
    expected[0, [2, 0, 3]] = random(3, seed=1)
    expected[1, 1] = 7
    assert torch.equal(slope, expected)
    assert deal.fits(places, 5)
    assert not deal.fits([places[0], places[1].clone()], 5), "other factors, even at the same sticks"
    assert not deal.fits(places, 6)


def test_factors_in_stick_order_need_no_dealing() -> None:
    numbers = random(2, 3)
    for got, expected in zip(Deal([torch.arange(3, device=DEVICE)] * 2, 3)(numbers), numbers, strict=True):
        assert torch.equal(got, expected)
        assert got.data_ptr() == expected.data_ptr()


def eights(device: torch.device) -> int:
    return 8


def test_filled_up_factors_stay_zero_whatever_an_optimiser_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "block_on", eights)
    locked = FactorBlock(random(INPUTS, 3), random(3, OUTPUTS), torch.tensor([0, 1, 4], device=DEVICE))
    layer = FactorLinear(nn.Linear(1, 1), locked, torch.empty(OUTPUTS, INPUTS, dtype=torch.float64), None)
    layer.set_free(random(2, INPUTS), random(2, OUTPUTS), torch.tensor([2, 3], device=DEVICE))
    assert layer.places.tolist() == [0, 1, 4, -1, -1, -1, -1, -1, 2, 3, -1, -1, -1, -1, -1, -1]
    layer.scores = torch.ones(16, dtype=torch.float64, device=DEVICE)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1, weight_decay=0.1)
    before = layer.locked_a.clone()
    for seed in range(3):
        optimizer.zero_grad()
        layer(random(4, INPUTS, seed=seed)).square().sum().backward()
        optimizer.step()
    whole = layer._factors()
    assert not whole.a[3:8].any()
    assert not whole.b[10:].any()
    assert torch.equal(whole.a[8:10], layer.free_a), "the optimiser moved the very numbers that are multiplied"
    assert torch.equal(whole.a[:3], before)


def test_a_learner_with_filled_up_factors_learns_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(120, 6, generator=seeded())
    y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
    settings = Settings(alpha=6.0, epochs=4, finetune_epochs=3, batch_size=20, learning_rate=0.01)

    def answers() -> list[Tensor]:
        net = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 2))
        learner = Learner(net, settings, seed=3)
        for task in range(3):
            rows = (y >> (task % 2)) & 1
            learner.learn(x, rows)
        return [learner.logits(x, task) for task in range(3)]

    torch.manual_seed(0)
    plain = answers()
    monkeypatch.setattr(layers, "block_on", eights)
    torch.manual_seed(0)
    for got, expected in zip(answers(), plain, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("move", [lambda layer: layer.double(), lambda layer: layer.to("cpu", torch.float64)])
def test_a_layer_that_was_moved_still_multiplies_what_its_optimiser_moves(
    move: Callable[[FactorLinear], FactorLinear],
) -> None:
    locked = FactorBlock(torch.ones(INPUTS, 1), torch.ones(1, OUTPUTS), torch.tensor([0]))
    layer = FactorLinear(nn.Linear(INPUTS, OUTPUTS), locked, torch.empty(OUTPUTS, INPUTS), None)
    layer.set_free(torch.ones(1, INPUTS), torch.ones(1, OUTPUTS), torch.tensor([1]))
    parameter = layer.free_a
    move(layer)
    assert layer.free_a is parameter, "an optimiser that holds it must not lose it"
    layer.scores = torch.ones(2, dtype=torch.float64)
    with torch.no_grad():
        parameter.mul_(3)
    x = torch.ones(1, INPUTS, dtype=torch.float64)
    assert float(layer(x)[0, 0].detach()) == INPUTS + 3 * INPUTS
    assert layer._factors() is layer._joined, "in one piece of memory"
