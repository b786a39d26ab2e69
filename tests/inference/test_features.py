"""φ(x) against the same layers called by hand, and what a forward pass must leave behind: nothing."""

from __future__ import annotations

import copy
from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ibpwf import Learner, Settings
from ibpwf.errors import InputError
from ibpwf.inference.features.layer import check_layers, features, first_layer


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
    with pytest.raises(InputError, match=r"unknown layer of the features 'cnv'\. Did you mean 'conv'"):
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


# Layers of transformers, and of networks with layouts of their own


class Patches(nn.Module):
    """Attention of torch's over patches; tokens come first or second."""

    def __init__(self, batch_first: bool = True) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.stem = nn.Conv2d(1, 6, 2, stride=2)
        self.drop = nn.Dropout(0.5)
        self.block = nn.TransformerEncoderLayer(6, 2, 8, batch_first=batch_first)
        self.attention = nn.MultiheadAttention(6, 3, batch_first=batch_first)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.drop(self.stem(x).flatten(2).transpose(1, 2))
        tokens = self.block(tokens if self.batch_first else tokens.transpose(0, 1))
        mixed = self.attention(tokens, tokens, tokens)[0]
        out: Tensor = self.head(mixed.mean(1 if self.batch_first else 0))
        return out


@pytest.mark.parametrize("rows", [1, 2, 5, 9])  # nine tokens: as many as rows once
@pytest.mark.parametrize("batch_first", [True, False])
def test_a_transformers_layers_are_averaged_over_tokens_whichever_dimension_they_have(
    batch_first: bool, rows: int
) -> None:
    torch.manual_seed(3)
    net = Patches(batch_first)
    state = task_state(net)
    by_hand = loaded(net, state)
    x = torch.randn(rows, 1, 6, 6, generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        stem = by_hand.stem(x).flatten(2).transpose(1, 2)
        block = by_hand.block(stem if batch_first else stem.transpose(0, 1))
        mixed = by_hand.attention(block, block, block)[0]
    tokens = 1 if batch_first else 0
    expected = {
        "drop": stem.mean(1),
        "block": block.mean(tokens),
        "attention": mixed.mean(tokens),
        "stem": by_hand.stem(x).mean((2, 3)),
    }
    for names in (["drop"], ["block"], ["attention"], ["stem", "attention", "block"]):
        got = features(net, state, names, x)
        torch.testing.assert_close(got, torch.cat([expected[n] for n in names], 1), rtol=1e-4, atol=1e-5)


class ChannelsLast(nn.Module):
    """As in ConvNeXt and Swin: linear layers on N×H×W×C between convolutions on N×C×H×W."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 7, 3)
        self.act = nn.ReLU()
        self.mix = nn.Sequential(nn.LayerNorm(7), nn.Linear(7, 5), nn.GELU())
        self.back = nn.Identity()
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.mix(self.act(self.conv(x)).permute(0, 2, 3, 1))
        out: Tensor = self.head(self.back(h.permute(0, 3, 1, 2)).mean((2, 3)))
        return out


def test_modules_without_channels_of_their_own_are_read_like_the_layer_before_them() -> None:
    net = ChannelsLast()
    state = task_state(net)
    by_hand = loaded(net, state)
    x = torch.randn(4, 1, 6, 8)
    with torch.no_grad():
        active = by_hand.conv(x).relu()
        mixed = by_hand.mix(active.permute(0, 2, 3, 1))
    expected = {"act": active.mean((2, 3)), "mix": mixed.mean((1, 2)), "mix.2": mixed.mean((1, 2))}
    expected["back"] = expected["mix"]
    for name, value in expected.items():
        torch.testing.assert_close(features(net, state, [name], x), value)


class Windows(nn.Module):
    """A layer that sees four windows of every input as rows of their own, and one that gives no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.named, self.head = nn.Linear(2, 5), nn.Identity(), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x.reshape(-1, 2)).reshape(len(x), -1, 5).mean(1)
        out: Tensor = self.head(self.named({"hidden": h})["hidden"])
        return out


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("inner", r"'inner' gives an output of shape \(12, 5\) for 3 inputs, not one row per input"),
        ("named", "'named' gives a dict and no tensor"),
    ],
)
def test_a_layer_that_does_not_give_a_row_per_input_is_refused_by_name(name: str, message: str) -> None:
    net = Windows()
    with pytest.raises(InputError, match=message):
        features(net, dict(net.state_dict()), [name], torch.randn(3, 8))
    assert hooks(net) == 0


def test_a_learner_infers_tasks_from_the_layers_that_its_settings_name() -> None:
    x = torch.randn(40, 1, 6, 6, generator=torch.Generator().manual_seed(5))
    y = torch.arange(40) % 2
    base = Settings(alpha=4.0, epochs=1, finetune_epochs=1, batch_size=8)
    sizes = {}
    for layers in ("auto", ("attention",), ("stem", "block")):
        torch.manual_seed(0)
        learner = Learner(Patches(), base.replace(**{"inference.features.layers": layers}), device="cpu")
        learner.learn(x, y)
        learner.learn(x + 3, y)
        sizes[layers] = len(learner.method.inference.groups[0].mean)
        assert float((learner.predict(x).task == 0).double().mean()) > 0.9
        assert float((learner.predict(x + 3).task == 1).double().mean()) > 0.9
    assert sizes == {"auto": 6, ("attention",): 6, ("stem", "block"): 12}
    with pytest.raises(InputError, match=r"unknown layer of the features 'blok'\. Did you mean 'block'"):
        Learner(Patches(), base.replace(**{"inference.features.layers": ("blok",)}))


@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_factor_features_are_the_inputs_projected_on_the_first_tasks_factors(kind: str) -> None:
    torch.manual_seed(0)
    if kind == "linear":
        net: nn.Module = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 4))
        x = torch.randn(30, 6)
    else:
        convolution = nn.Conv2d(2, 3, 3, padding=1, stride=2)
        net = nn.Sequential(convolution, nn.ReLU(), nn.Flatten(), nn.Linear(27, 4))
        x = torch.randn(30, 2, 6, 6)
    base = Settings(alpha=8.0, epochs=2, finetune_epochs=1, batch_size=10, **{"inference.features": "factors"})
    learner = Learner(net, base)
    learner.learn(x, torch.arange(30) % 2)
    learner.learn(x + 1, torch.arange(30) % 2 + 2)
    factors, strength = learner.model.selected_factors(0, "0")
    assert factors.a.shape[1] > (4 if kind == "linear" else 3)  # more factors than outputs
    projected = x if kind == "linear" else F.unfold(x, 3, padding=1, stride=2).mean(2)
    expected = projected @ factors.a * strength
    torch.testing.assert_close(learner.method.features(x), expected, rtol=1e-4, atol=1e-5)
    assert learner.predict(x).task.shape == (30,)


def test_factor_features_are_refused_where_there_are_none() -> None:
    net = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(64, 2))
    learner = Learner(net, Settings(epochs=1, **{"inference.features": "factors"}))
    with pytest.raises(InputError, match="features is 'factors', but '0' is no factorized"):
        learner.learn(torch.randn(8, 2, 6, 6), torch.arange(8) % 2)
    assert not learner.tasks
    with pytest.raises(InputError, match=r"layers is \['0', '2'\]"):
        Learner(net, Settings(**{"inference.features": "factors", "inference.features.layers": ("0", "2")}))
