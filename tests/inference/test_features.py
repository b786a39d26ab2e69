"""φ(x) against the same layers called by hand, and what a forward pass must leave behind: nothing."""

from __future__ import annotations

import copy
from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn

from ibpwf.errors import InputError
from ibpwf.inference.features import check_layers, features, first_layer


class Net(nn.Module):
    """Counts how far its forward pass gets."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, 6)
        self.drop = nn.Dropout(0.5)
        self.unused = nn.Linear(2, 2)
        self.head = nn.Linear(6, 3)
        self.passed: list[str] = []

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.conv(x)).relu().mean((2, 3))
        self.passed.append("convolution")
        h = self.drop(self.fc(h).relu())
        self.passed.append("hidden layer")
        out: Tensor = self.head(h)
        self.passed.append("head")
        return out


def task_state(net: nn.Module, seed: int = 1) -> dict[str, Tensor]:
    """Weights that are not the network's own."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.rand(value.shape, generator=generator) + 0.5 if value.is_floating_point() else value
        for name, value in net.state_dict().items()
    }


def loaded(net: nn.Module, state: dict[str, Tensor]) -> nn.Module:
    other = copy.deepcopy(net)
    other.load_state_dict(state)
    return other.eval()


X = torch.randn(5, 1, 6, 7, generator=torch.Generator().manual_seed(2))


def test_a_linear_layer_gives_its_output_before_the_activation_under_the_tasks_weights() -> None:
    net = nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3))
    x = torch.randn(9, 7)
    state = task_state(net)
    got = features(net, state, ["0"], x)
    torch.testing.assert_close(got, x @ state["0.weight"].T + state["0.bias"])
    assert bool((got < 0).any())


def test_a_convolution_is_averaged_over_space() -> None:
    net = Net()
    state = task_state(net)
    expected = loaded(net, state).conv(X)
    total = torch.zeros(5, 4)
    for row in range(4):
        for column in range(5):
            total += expected[:, :, row, column]
    torch.testing.assert_close(features(net, state, ["conv"], X), total / 20)


def test_several_layers_are_joined_in_the_order_they_are_named() -> None:
    net = Net()
    state = task_state(net)
    by_hand = loaded(net, state)
    conv = by_hand.norm(by_hand.conv(X))
    expected = {"norm": conv.mean((2, 3)), "fc": by_hand.fc(conv.relu().mean((2, 3)))}
    for names in (["norm", "fc"], ["fc", "norm"], ["fc", "fc"]):
        torch.testing.assert_close(features(net, state, names, X), torch.cat([expected[n] for n in names], dim=1))


def test_layers_over_tokens_are_averaged_over_the_tokens_not_over_their_features() -> None:
    net = nn.Sequential(
        OrderedDict(
            embed=nn.Embedding(11, 6),
            norm=nn.LayerNorm(6),
            fc=nn.Linear(6, 5),
            flat=nn.Flatten(),
            head=nn.Linear(20, 3),
        )
    )
    tokens = torch.randint(0, 11, (8, 4))
    state = task_state(net)
    by_hand = loaded(net, state)
    embedded = by_hand.embed(tokens)
    normed = by_hand.norm(embedded)
    expected = torch.cat([embedded.mean(1), normed.mean(1), by_hand.fc(normed).mean(1)], dim=1)
    torch.testing.assert_close(features(net, state, ["embed", "norm", "fc"], tokens), expected)


def test_a_convolution_over_a_sequence_is_averaged_over_the_sequence() -> None:
    net = nn.Sequential(nn.Conv1d(2, 3, 4), nn.Flatten(), nn.Linear(15, 3))
    x = torch.randn(6, 2, 8)
    state = task_state(net)
    torch.testing.assert_close(features(net, state, ["0"], x), loaded(net, state)[0](x).mean(2))


@pytest.mark.parametrize(
    ("names", "reached"),
    [
        (["conv"], []),
        (["fc"], ["convolution"]),
        (["fc", "conv"], ["convolution"]),
        (["head"], ["convolution", "hidden layer"]),
    ],
)
def test_the_forward_pass_stops_once_every_layer_has_answered(names: list[str], reached: list[str]) -> None:
    net = Net()
    features(net, task_state(net), names, X)
    assert net.passed == reached


def test_dropout_and_batch_statistics_play_no_part() -> None:
    net = Net().train()
    state = task_state(net)
    before = {name: value.clone() for name, value in state.items()}
    first, again = (features(net, state, ["head"], X) for _ in range(2))
    assert torch.equal(first, again)
    torch.testing.assert_close(features(net, state, ["head"], X[:1]), first[:1])
    assert all(torch.equal(value, before[name]) for name, value in state.items())


def hooks(net: nn.Module) -> int:
    return sum(len(module._forward_hooks) for module in net.modules())


def test_hooks_weights_and_gradients_leave_no_trace() -> None:
    net = Net()
    own = copy.deepcopy(net.state_dict())
    got = features(net, task_state(net), ["conv", "fc"], X)
    assert hooks(net) == 0
    assert not got.requires_grad
    assert all(torch.equal(value, own[name]) for name, value in net.state_dict().items())


def test_hooks_and_weights_are_put_back_when_the_forward_pass_fails() -> None:
    net = Net()
    own = copy.deepcopy(net.state_dict())
    with pytest.raises(RuntimeError):
        features(net, task_state(net), ["conv", "fc"], torch.randn(5, 3, 6, 7))  # three channels for one
    assert hooks(net) == 0
    assert all(torch.equal(value, own[name]) for name, value in net.state_dict().items())


def test_a_layer_that_never_runs_is_named() -> None:
    net = Net()
    with pytest.raises(InputError, match="'unused' gives no output"):
        features(net, task_state(net), ["conv", "unused"], X)
    assert hooks(net) == 0


def test_an_unknown_layer_is_refused_with_the_nearest_name() -> None:
    check_layers(Net(), ["conv", "head"])
    with pytest.raises(InputError, match=r"unknown inference_layer 'cnv'\. Did you mean 'conv'"):
        check_layers(Net(), ["head", "cnv"])


def test_the_first_layer_is_the_first_with_a_weight_matrix() -> None:
    assert first_layer(Net()) == "conv"
    assert first_layer(nn.Sequential(nn.BatchNorm1d(4), nn.PReLU(), nn.Sequential(nn.Linear(4, 2)))) == "2.0"
    with pytest.raises(InputError, match="no layer with a weight"):
        first_layer(nn.Sequential(nn.BatchNorm1d(4), nn.ReLU()))


def test_the_first_layer_is_not_one_that_attention_reads_without_running_it() -> None:
    net = nn.Sequential(
        nn.TransformerEncoderLayer(6, 2, 8, batch_first=True, dropout=0.0), nn.Flatten(), nn.Linear(18, 3)
    )
    assert first_layer(net) == "0.linear1"
    x = torch.randn(4, 3, 6)
    assert features(net, dict(net.state_dict()), ["0.linear1"], x).shape == (4, 8)
