"""Products of locked and free factors in one operation, against the reference: values, gradients, blocks of eight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ibpwf import Learner, Settings, factorize
from ibpwf.dispatch import accelerated
from ibpwf.factors.dictionary import FactorBlock
from ibpwf.factors.layers import (
    FactorConv,
    FactorLayer,
    FactorLinear,
    FactorWeight,
    assign_scores,
    layer_product,
    layer_weight,
)
from ibpwf.fast import products
from ibpwf.fast.products import Joined, ScoreOrder

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INPUTS, OUTPUTS = 5, 3


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64).to(DEVICE)


def linear(outputs: int = OUTPUTS) -> nn.Module:
    return nn.Linear(INPUTS, outputs)


def convolution() -> nn.Module:
    return nn.Conv2d(2, 4, 3)


def attention() -> nn.Module:
    return nn.MultiheadAttention(4, 2)


KINDS: dict[str, Callable[[], tuple[type[FactorLayer], nn.Module, str]]] = {
    "Linear": lambda: (FactorLinear, linear(), "weight"),
    "wide Linear": lambda: (FactorLinear, linear(2 * INPUTS), "weight"),
    "Conv2d": lambda: (FactorConv, convolution(), "weight"),
    "attention": lambda: (FactorWeight, attention(), "in_proj_weight"),
}


def layer_of(kind: str, locked_at: list[int], free_at: list[int], seed: int = 0) -> FactorLayer:
    """A layer of random factors in float64, laid out as acceleration being on or off has it."""
    make, original, name = KINDS[kind]()
    weight = original.get_parameter(name).double().to(DEVICE)
    inputs, outputs = weight[0].numel(), len(weight)
    at = [torch.tensor(sticks, dtype=torch.long, device=DEVICE) for sticks in (locked_at, free_at)]
    locked = FactorBlock(
        random(inputs, len(locked_at), seed=seed), random(len(locked_at), outputs, seed=seed + 1), at[0]
    )
    bias = None if make is FactorWeight else random(outputs, seed=seed + 2)
    layer = make(original, locked, weight, None if bias is None else nn.Parameter(bias))
    layer.set_free(random(len(free_at), inputs, seed=seed + 3), random(len(free_at), outputs, seed=seed + 4), at[1])
    return layer


@st.composite
def sticks(draw: Any) -> tuple[list[int], list[int]]:
    """Sticks in any order, some locked, some free; perhaps none of a kind."""
    order = draw(st.permutations(range(9)))
    locked = draw(st.integers(0, 5))
    free = draw(st.integers(0 if locked else 1, 9 - locked))
    return order[:locked], order[locked : locked + free]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20, deadline=None)
@given(at=sticks(), seed=st.integers(0, 1000))
def test_values_and_gradients_are_the_references(kind: str, at: tuple[list[int], list[int]], seed: int) -> None:
    found = []
    for accelerate in (True, False):
        with accelerated(accelerate):
            layer = layer_of(kind, *at, seed)
            assert (layer.layout is not None) == accelerate
            scores = random(1, 9, seed=seed + 5).requires_grad_()
            assign_scores(scores, [layer])
            x = random(2, 3, layer.inputs, seed=seed + 6).requires_grad_()
            weight = layer_weight(layer)
            loss = (weight * random(*weight.shape, seed=seed + 7)).tanh().sum()
            y = layer_product(layer, x)
            loss = loss + y.tanh().sum()
            leaves = [scores, x, layer.free_a, layer.free_b, *([] if layer.bias is None else [layer.bias])]
            found.append([weight.detach(), y.detach(), *torch.autograd.grad(loss, leaves)])
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("kind", ["Linear", "Conv2d"])
@pytest.mark.parametrize("at", [([0, 3], [1, 2]), ([], [0, 1]), ([2, 0], [])])
def test_a_whole_layer_gives_what_the_reference_layer_gives(kind: str, at: tuple[list[int], list[int]]) -> None:
    found = []
    for accelerate in (True, False):
        with accelerated(accelerate):
            layer = layer_of(kind, *at)
            assign_scores(random(1, 5, seed=1), [layer])
            found.append(layer(random(4, 5, seed=2) if kind == "Linear" else random(4, 2, 5, 6, seed=2)))
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


def test_the_weights_of_attention_are_lent_as_the_reference_lends_them() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True), nn.Flatten(), nn.Linear(18, 3)
    )
    x, found = torch.randn(4, 3, 6, generator=seeded(1)), []
    for accelerate in (True, False):
        with accelerated(accelerate):
            model = factorize(net, alpha=4.0)
            for task in range(2):
                network = model.start_task(3, seeded(task))
                network.noise = seeded(10 + task)
                loss = network(x).square().sum() + network.kl() / 100
                gradients = torch.autograd.grad(loss, network.trainable(posterior=True))
                model.finish_task(network)
            found.append([loss.detach(), *gradients, model.logits(x, 0), model.logits(x, 1)])
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("at", [([0, 3, 4], [1, 2, 5]), ([0, 1], [])])
def test_gradients_agree_with_finite_differences(at: tuple[list[int], list[int]]) -> None:
    layer = layer_of("Linear", *at)
    x = random(2, 3, INPUTS, seed=8).requires_grad_()
    parts = {name: part.detach().clone().requires_grad_() for name, part in layer.named_parameters()}

    def through(x: Tensor, scores: Tensor, *values: Tensor) -> Tensor:
        layer.scores = scores
        replaced = dict(zip(parts, values, strict=True))
        with torch.nn.utils.stateless._reparametrize_module(layer, replaced):
            return products.joined_product(layer, x).tanh()

    scores = random(len(layer.places), seed=7).requires_grad_()
    assert torch.autograd.gradcheck(through, (x, scores, *parts.values()))


def test_scores_are_dealt_to_the_factors_of_each_layer_and_gradients_come_back_to_their_sticks() -> None:
    places = [torch.tensor(sticks, device=DEVICE) for sticks in ([2, 0, -1, 3], [1, -1])]
    order = ScoreOrder(places, 5)
    numbers = random(2, 5).requires_grad_()
    first, second = order(numbers)
    assert torch.equal(first[[0, 1, 3]], numbers[0, [2, 0, 3]])
    assert torch.equal(second[:1], numbers[1, [1]])
    (gradient,) = torch.autograd.grad(first[[0, 1, 3]] @ random(3, seed=1) + second[0] * 7, numbers)
    expected = torch.zeros(2, 5, dtype=torch.float64, device=DEVICE)
    expected[0, [2, 0, 3]] = random(3, seed=1)
    expected[1, 1] = 7
    assert torch.equal(gradient, expected)
    assert order.fits(places, 5)
    assert not order.fits([places[0], places[1].clone()], 5), "other factors, even at the same sticks"
    assert not order.fits(places, 6)


def test_factors_in_stick_order_need_no_dealing() -> None:
    numbers = random(2, 3)
    for got, expected in zip(ScoreOrder([torch.arange(3, device=DEVICE)] * 2, 3)(numbers), numbers, strict=True):
        assert torch.equal(got, expected)
        assert got.data_ptr() == expected.data_ptr()


@settings(max_examples=30, deadline=None)
@given(at=st.lists(sticks(), min_size=1, max_size=4))
def test_several_layers_get_the_scores_that_the_reference_gives_them(at: list[tuple[list[int], list[int]]]) -> None:
    scores, found = random(len(at), 9), []
    for accelerate in (True, False):
        with accelerated(accelerate):
            layers = [layer_of("Linear", *each) for each in at]
            leaf = scores.clone().requires_grad_()
            assign_scores(leaf, layers)
            by_stick = []
            for layer in layers:
                there = layer.places >= 0
                by_stick.append(dict(zip(layer.places[there].tolist(), layer.scores[there].tolist(), strict=True)))
            total = sum(((layer.scores * (layer.places + 2))[layer.places >= 0]).sum() for layer in layers)
            found.append((by_stick, torch.autograd.grad(total, leaf)[0]))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])


def in_eights(layer: FactorLayer) -> None:
    """The layout that a GPU gets, on any device: blocks filled up with zeros to a multiple of eight."""
    products.joined_layout(layer)
    joined = layer.layout
    locked, free = len(layer.locked_at), len(layer.free_at)
    start = -(-locked // 8) * 8
    stop = start - (-free // 8) * 8
    a, b = joined.a.new_zeros(stop, layer.inputs), joined.b.new_zeros(stop, layer.outputs)
    places = layer.free_at.new_full((stop,), -1)
    for whole, parts in ((a, joined.a), (b, joined.b), (places, layer.places)):
        first = joined.free.start
        whole[:locked], whole[start : start + free] = parts[:locked], parts[first : first + free]
    layer.locked_a, layer.locked_b = a[:locked], b[:locked]
    layer.free_a.data, layer.free_b.data = a[start : start + free], b[start : start + free]
    layer.layout, layer.places = Joined(a, b, slice(start, stop)), places


@pytest.fixture
def eights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ibpwf.factors.layers.arrange", in_eights)


@pytest.mark.usefixtures("eights")
def test_filled_up_factors_stay_zero_whatever_an_optimizer_does() -> None:
    layer = layer_of("Linear", [0, 1, 4], [2, 3])
    assert layer.places.tolist() == [0, 1, 4, -1, -1, -1, -1, -1, 2, 3, -1, -1, -1, -1, -1, -1]
    layer.scores = torch.ones(16, dtype=torch.float64, device=DEVICE)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1, weight_decay=0.1)
    before = layer.locked_a.clone()
    for seed in range(3):
        optimizer.zero_grad()
        (layer(random(4, INPUTS, seed=seed)).square().sum() + layer.weight.square().sum()).backward()
        optimizer.step()
    whole = products._factors(layer)
    assert not whole.a[3:8].any()
    assert not whole.b[10:].any()
    assert torch.equal(whole.a[8:10], layer.free_a), "the optimizer moved the very numbers that are multiplied"
    assert torch.equal(whole.a[:3], before)


def answers() -> list[Tensor]:
    """What a learner of three tasks gives."""
    x = torch.randn(120, 6, generator=seeded())
    y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 2))
    options = Settings(alpha=6.0, epochs=4, finetune_epochs=3, batch_size=20, learning_rate=0.01)
    learner = Learner(net, options, seed=3)
    for task in range(3):
        learner.learn(x, (y >> (task % 2)) & 1)
    return [learner.logits(x, task) for task in range(3)]


@pytest.mark.filterwarnings("ignore:task .* was hardly learned")
def test_a_learner_with_filled_up_factors_learns_the_same(request: pytest.FixtureRequest) -> None:
    plain = answers()
    request.getfixturevalue("eights")
    for got, expected in zip(answers(), plain, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("move", [lambda layer: layer.double(), lambda layer: layer.to("cpu", torch.float64)])
def test_a_layer_that_was_moved_still_multiplies_what_its_optimizer_moves(
    move: Callable[[FactorLinear], FactorLinear],
) -> None:
    locked = FactorBlock(torch.ones(INPUTS, 1), torch.ones(1, OUTPUTS), torch.tensor([0]))
    layer = FactorLinear(nn.Linear(INPUTS, OUTPUTS), locked, torch.empty(OUTPUTS, INPUTS), None)
    layer.set_free(torch.ones(1, INPUTS), torch.ones(1, OUTPUTS), torch.tensor([1]))
    parameter = layer.free_a
    move(layer)
    assert layer.free_a is parameter, "an optimizer that holds it must not lose it"
    layer.scores = torch.ones(2, dtype=torch.float64)
    with torch.no_grad():
        parameter.mul_(3)
    x = torch.ones(1, INPUTS, dtype=torch.float64)
    assert float(layer(x)[0, 0].detach()) == INPUTS + 3 * INPUTS
    assert products._factors(layer) is layer.layout, "in one piece of memory"
