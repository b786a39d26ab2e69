"""Weights that a module reads itself: attention's projections and layers with a forward pass of their own, against
the same network with those weights put in place by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ibpwf import factorize
from ibpwf.factors.layers import FactorWeight
from ibpwf.factors.task_network import TaskNetwork

ROWS, TOKENS = 5, 4


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Attending(nn.Module):
    """Self-attention over tokens, then a head."""

    def __init__(self, **options: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, **options)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x if self.attention.batch_first else x.transpose(0, 1)
        mixed = self.attention(tokens, tokens, tokens)[0]
        out: Tensor = self.head(mixed.mean(1 if self.attention.batch_first else 0))
        return out


class Crossing(nn.Module):
    """Attention from tokens to keys and values of other widths."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.value = nn.Linear(8, 6), nn.Linear(8, 5)
        self.attention = nn.MultiheadAttention(8, 2, kdim=6, vdim=5, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.attention(x, self.key(x), self.value(x), need_weights=False)[0]
        out: Tensor = self.head(mixed.mean(1))
        return out


class Encoding(nn.Module):
    """torch's own transformer layer, whose fast path reads every weight in it directly."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer(x).mean(1))
        return out


class Standardised(nn.Conv1d):
    """A convolution with a forward pass of its own: its weight is standardised first."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2), keepdim=True)
        return F.conv1d(x, weight / (weight.std((1, 2), keepdim=True) + 0.1), self.bias, padding=self.padding)


def own_forward() -> nn.Module:
    return nn.Sequential(Standardised(TOKENS, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3))


def hooked() -> nn.Module:
    net = nn.Sequential(nn.Linear(8, 6), nn.Flatten(), nn.Linear(24, 3))
    net[0].register_forward_hook(lambda module, inputs, output: output.tanh())
    return net


NETS: dict[str, Callable[[], nn.Module]] = {
    "attention": lambda: Attending(batch_first=True),
    "attention, tokens first": lambda: Attending(batch_first=False),
    "attention with extra keys, no bias": lambda: Attending(batch_first=True, add_bias_kv=True, bias=False),
    "attention across": Crossing,
    "transformer layer": Encoding,
    "own forward": own_forward,
    "hook": hooked,
}


def built(name: str) -> nn.Module:
    torch.manual_seed(0)
    return NETS[name]()


def shaken(network: TaskNetwork, seed: int) -> TaskNetwork:
    """Every parameter moved at random, as if training had happened; about half of the factors above κ."""
    generator = seeded(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
        network.posterior.logit.copy_(torch.randn(network.posterior.logit.shape, generator=generator) * 2)
    return network


def by_hand(net: nn.Module, network: TaskNetwork) -> nn.Module:
    """The user's network with Σ_k r_k w_a,k ⊗ w_b,k in place of every factorised weight."""
    plain = copy.deepcopy(net)
    state = plain.state_dict()
    state.update(network.own_state())
    for row, (name, layer) in enumerate(network.factor_layers.items()):
        total = torch.zeros(layer.inputs, layer.outputs, dtype=torch.float64)
        for a, b, at in (
            (layer.locked_a, layer.locked_b, layer.locked_at),
            (layer.free_a, layer.free_b, layer.free_at),
        ):
            for column, k in enumerate(at.tolist()):
                strength = float(network.posterior.strength[row, k].detach())
                total += strength * torch.outer(a[column].detach().double(), b[column].detach().double())
        parameter = name if name in state else f"{name}.weight"
        state[parameter] = total.T.reshape(state[parameter].shape).float()
    plain.load_state_dict(state)
    return plain


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NETS)
def test_a_module_that_reads_its_weights_itself_gets_the_composed_ones(name: str, training: bool) -> None:
    net = built(name)
    model = factorize(net, alpha=4)
    model.finish_task(shaken(model.start_task(3, seeded()), 1))
    network = shaken(model.start_task(3, seeded(2)), 3)
    assert any(isinstance(layer, FactorWeight) for layer in network.factor_layers.values())
    network.fix_selection()
    x = torch.randn(ROWS, TOKENS, 8, generator=seeded(4))
    expected = by_hand(net, network).train(training)(x)
    network.train(training)
    torch.testing.assert_close(network(x), expected, rtol=1e-4, atol=1e-5)
    with torch.no_grad():  # where attention's fast path is taken, when not training
        torch.testing.assert_close(network(x), expected, rtol=1e-4, atol=1e-5)
    model.finish_task(network)
    torch.testing.assert_close(model.logits(x, 1), expected.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.merge(1)(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NETS)
def test_every_free_factor_of_such_a_module_learns_and_its_own_weight_does_not(name: str) -> None:
    model = factorize(built(name), alpha=4)
    network = model.start_task(3, seeded(1))
    network.noise = seeded(2)
    optimizer = torch.optim.SGD(network.trainable(posterior=True), lr=0.1)
    before = {key: value.clone() for key, value in network.network.state_dict().items()}
    loss = network(torch.randn(ROWS, TOKENS, 8, generator=seeded(3))).square().sum() + network.kl()
    loss.backward()
    optimizer.step()
    for layer in network.factor_layers.values():
        assert bool(layer.free_a.grad.any())
        assert bool(layer.free_b.grad.any())
    for layer_name, weight in model.weights.items():
        if not weight.replaceable:
            assert torch.equal(network.network.state_dict()[weight.parameter], before[weight.parameter]), layer_name
            assert weight.parameter not in network.own_state()


def test_a_merged_attention_gives_the_same_answers_on_its_fast_path_and_off_it() -> None:
    model = factorize(Encoding().eval(), alpha=4)
    model.finish_task(shaken(model.start_task(3, seeded()), 1))
    x = torch.randn(ROWS, TOKENS, 8, generator=seeded(5))
    merged = model.merge(0)
    slow = merged(x)  # gradients are wanted: no fast path
    assert slow.requires_grad
    with torch.no_grad():
        fast = merged(x)
    assert torch.equal(fast, model.logits(x, 0))
    torch.testing.assert_close(slow, fast, rtol=1e-5, atol=1e-6)
