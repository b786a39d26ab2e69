"""Predictive entropy and mutual information against one network per draw, and sums written out in numpy."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats
from torch import Tensor, nn

from ibpwf import factorize
from ibpwf.inference.uncertainty import entropy, sampled_probabilities

DRAWS = 12


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.conv(x)).relu().mean((2, 3)))
        return out


class Recurrent(nn.Module):
    """torch cannot run several draws of an LSTM in one pass."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.head = nn.Linear(3, 6), nn.LSTM(6, 5, batch_first=True), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(self.embed(x))[0][:, -1])
        return out


NETS = [
    pytest.param(
        lambda: nn.Sequential(nn.Linear(7, 6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 4)), (9, 7), id="mlp"
    ),
    pytest.param(ConvNet, (9, 1, 5, 5), id="convolution with BatchNorm"),
    pytest.param(Recurrent, (9, 4, 3), id="LSTM"),
]


def states(net: nn.Module) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        {
            name: value + torch.rand(value.shape, generator=generator) if value.is_floating_point() else value
            for name, value in net.state_dict().items()
        }
        for _ in range(DRAWS)
    ]


@pytest.mark.parametrize(("build", "shape"), NETS)
def test_all_draws_at_once_equal_one_network_per_draw(build: object, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    net = build()  # type: ignore[operator]
    drawn = states(net)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    answers = []
    for state in drawn:
        one = copy.deepcopy(net)
        one.load_state_dict(state)
        answers.append(special.softmax(one.eval()(x).detach().double().numpy(), axis=1))
    expected = sum(answers) / DRAWS
    single = sum(stats.entropy(answer, axis=1) for answer in answers) / DRAWS
    stacked = {name: torch.stack([state[name] for state in drawn]) for name in drawn[0]}
    for chunk in (512, 4):
        mean, spread = sampled_probabilities(net, stacked, x, chunk=chunk)
        np.testing.assert_allclose(mean.numpy(), expected, atol=1e-6)
        np.testing.assert_allclose(spread.numpy(), single, atol=1e-5)
        assert mean.dtype == torch.float64


def test_a_tasks_posterior_draws_give_entropy_and_mutual_information_as_a_plain_loop_does() -> None:
    torch.manual_seed(0)
    model = factorize(ConvNet(), alpha=6)
    network = model.start_task(3, torch.Generator().manual_seed(2))
    with torch.no_grad():
        network.posterior.strength.mul_(10)
        network.posterior.logit.fill_(0.3)
    model.finish_task(network)
    x = torch.randn(20, 1, 5, 5)
    drawn = model.sampled_states(0, 30, torch.Generator().manual_seed(3))
    mean, single = sampled_probabilities(model.net, drawn, x, logits=lambda of, rows: of(rows)[:, :3])
    assert mean.shape == (20, 3)
    information = entropy(mean) - single
    for row in range(20):
        answers = []
        for draw in range(30):
            net = ConvNet()
            net.load_state_dict({name: value[draw] for name, value in drawn.items()})
            answers.append(special.softmax(net.eval()(x[row : row + 1])[0, :3].detach().double().numpy()))
        p = np.mean(answers, axis=0)
        assert float(information[row]) == pytest.approx(
            -sum(q * math.log(q) for q in p) + np.mean([sum(q * math.log(q) for q in a) for a in answers]), abs=1e-5
        )
    assert bool((information > 1e-3).any()), "weights that are uncertain make answers uncertain"


@given(st.lists(st.floats(0, 50), min_size=1, max_size=8).filter(lambda w: sum(w) > 0.1))
@settings(max_examples=100, deadline=None)
def test_entropy_is_scipys(weights: list[float]) -> None:
    p = np.array(weights) / sum(weights)
    assert float(entropy(torch.tensor(p))) == pytest.approx(stats.entropy(p), abs=1e-12)


@pytest.mark.parametrize("classes", [2, 5, 100])
def test_the_entropy_of_a_uniform_answer_is_log_c_and_of_a_certain_one_zero(classes: int) -> None:
    uniform = torch.full((3, classes), 1 / classes, dtype=torch.float64)
    np.testing.assert_allclose(entropy(uniform).numpy(), math.log(classes), rtol=1e-12)
    assert entropy(torch.eye(classes)).tolist() == [0.0] * classes


def linear(weights: Tensor) -> tuple[nn.Module, dict[str, Tensor]]:
    net = nn.Linear(weights.shape[2], weights.shape[1], bias=False)
    return net, {"weight": weights}


def test_draws_that_agree_leave_no_mutual_information() -> None:
    weights = torch.randn(1, 4, 3).expand(DRAWS, 4, 3)
    mean, single = sampled_probabilities(*linear(weights), torch.randn(6, 3))
    np.testing.assert_allclose((entropy(mean) - single).numpy(), 0.0, atol=1e-12)


def test_draws_that_are_certain_of_different_classes_leave_nothing_but_mutual_information() -> None:
    weights = 1000.0 * torch.eye(4).unsqueeze(2)  # draw m is certain of class m
    mean, single = sampled_probabilities(*linear(weights), torch.ones(2, 1))
    np.testing.assert_allclose(mean.numpy(), 0.25)
    np.testing.assert_allclose(entropy(mean).numpy(), math.log(4), rtol=1e-12)
    assert single.tolist() == [0.0, 0.0]


@given(st.integers(0, 10_000), st.floats(0.01, 100))
@settings(max_examples=40, deadline=None)
def test_mutual_information_is_never_negative(seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(DRAWS, 4, 3, generator=generator) * scale
    mean, single = sampled_probabilities(*linear(weights), torch.randn(6, 3, generator=generator))
    assert float((entropy(mean) - single).min()) >= -1e-12
    assert bool((entropy(mean) <= math.log(4) + 1e-12).all())
