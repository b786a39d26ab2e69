"""Which layers `factorize` takes, with which settings, and what it refuses, always in the user's words."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from ibpwf import factorize
from ibpwf.errors import InputError


class Net(nn.Module):
    """A bit of everything, some of it not to be factorised."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.body = nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 20))
        self.up = nn.ConvTranspose2d(6, 6, 1)
        self.attention = nn.MultiheadAttention(20, 2, batch_first=True)
        self.head = nn.Linear(20, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(self.up(self.norm(self.stem(x))).mean((2, 3))).unsqueeze(1)
        out: Tensor = self.head(self.attention(h, h, h)[0].squeeze(1))
        return out


ATTENTION = ["attention.in_proj_weight", "attention.out_proj"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["stem", "body.0", "body.2", *ATTENTION, "head"]),
        ({"heads": "per-task"}, ["stem", "body.0", "body.2", *ATTENTION]),
        ({"heads": "per-task", "head": "body.2"}, ["stem", "body.0", *ATTENTION, "head"]),
        ({"include": "body.*"}, ["body.0", "body.2"]),
        ({"include": ["stem", "head"]}, ["stem", "head"]),
        ({"include": "Linear"}, ["body.0", "body.2", "head"]),
        ({"include": "attention"}, ATTENTION),
        ({"include": "MultiheadAttention"}, ATTENTION),
        ({"include": "*.out_proj"}, ATTENTION[1:]),
        ({"exclude": "Conv*"}, ["body.0", "body.2", *ATTENTION, "head"]),
        ({"exclude": ["head", "body.0", "attention"]}, ["stem", "body.2"]),
        ({"exclude": ["head", "attention.*"]}, ["stem", "body.0", "body.2"]),
        ({"include": "Linear", "exclude": "body.*"}, ["head"]),
        ({"include": "Linear", "heads": "per-task"}, ["body.0", "body.2"]),
    ],
)
def test_layers_are_chosen_by_name_or_type(options: dict[str, Any], expected: list[str]) -> None:
    assert list(factorize(Net(), **options).layers) == expected


def test_the_last_linear_layer_is_the_head_unless_another_is_named() -> None:
    assert factorize(Net()).head == "head"
    assert factorize(Net(), head="body.0").head == "body.0"


@pytest.mark.parametrize(
    ("alpha", "expected"),
    [
        (7, [7, 7, 7, 7, 7, 7]),
        ("auto", [4, 4, 10, 10, 10, 4]),  # half the rank of 9×6, 6×40, 40×20, 20×60, 20×20, 20×5, but at least 4
        ({"Linear": 30.0, "stem": 2.5}, [2.5, 30, 30, 10, 10, 30]),
        ({"body.*": 9, "Linear": 3}, [4, 9, 9, 10, 10, 3]),
        ({"Linear": 3, "body.*": 9}, [4, 3, 3, 10, 10, 3]),  # the first pattern that fits
        ({"*": 3, "body.2": 9}, [3, 3, 9, 3, 3, 3]),  # but a layer's own name goes before any pattern
        ({"body.2": "auto", "*": 6}, [6, 6, 10, 6, 6, 6]),
        ({"MultiheadAttention": 8, "attention.out_proj": 5}, [4, 4, 10, 8, 5, 4]),
    ],
)
def test_alpha_is_one_number_or_goes_by_the_first_pattern_that_fits(alpha: Any, expected: list[float]) -> None:
    assert list(factorize(Net(), alpha=alpha).prior.alpha.values()) == expected


@pytest.mark.parametrize(
    ("cap", "expected"),
    [
        (None, [None] * 6),
        (12, [12] * 6),
        ({"Linear": 8}, [None, 8, 8, None, None, 8]),
        ({"stem": 3, "*": 50}, [3, 50, 50, 50, 50, 50]),
        ({"attention": 7}, [None, None, None, 7, 7, None]),
    ],
)
def test_max_factors_is_one_number_or_goes_by_pattern(cap: Any, expected: list[int | None]) -> None:
    model = factorize(Net(), max_factors=cap)
    assert [model.prior.cap_of(dictionary.shape) for dictionary in model.layers.values()] == expected


def test_a_dictionary_has_the_shape_of_its_layers_matrix() -> None:
    shapes = {name: (d.inputs, d.outputs) for name, d in factorize(Net()).layers.items()}
    plain = {"stem": (9, 6), "body.0": (6, 40), "body.2": (40, 20), "head": (20, 5)}
    assert shapes == plain | {"attention.in_proj_weight": (20, 60), "attention.out_proj": (20, 20)}


def test_an_attention_with_other_keys_and_values_has_a_dictionary_per_projection() -> None:
    net = nn.ModuleDict({"attention": nn.MultiheadAttention(8, 2, kdim=6, vdim=5), "head": nn.Linear(8, 3)})
    shapes = {name: (d.inputs, d.outputs) for name, d in factorize(net).layers.items()}
    projections = {f"attention.{name}_proj_weight": (size, 8) for name, size in (("q", 8), ("k", 6), ("v", 5))}
    assert shapes == {**projections, "attention.out_proj": (8, 8), "head": (8, 3)}


def test_a_type_stands_for_the_types_derived_from_it() -> None:
    net = three(Scaled(6, 6))
    assert list(factorize(net, include="Linear").layers) == ["0", "2", "4"]
    assert list(factorize(net, include="Scaled").layers) == ["0"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": "both"}, "heads is 'both'; choose"),
        ({"init": "trained"}, "init is 'trained'; choose 'random' or 'pretrained'"),
        ({"head": "stem"}, "head is 'stem'; name one of the Linear layers: body.0, body.2, head"),
        ({"alpha": 0}, "alpha is 0"),
        ({"alpha": -3.0}, "alpha is -3"),
        ({"alpha": math.nan}, "alpha is nan"),
        ({"alpha": {"head": 0.0}}, "alpha is"),
        ({"alpha": "big"}, "alpha is 'big'"),
        ({"alpha": True}, "alpha is True"),
        ({"alpha": {"haed": 3.0}}, "unknown layer in alpha 'haed'. Did you mean 'head'"),
        ({"max_factors": 0}, "max_factors is 0"),
        ({"max_factors": 2.5}, "max_factors is 2.5"),
        ({"max_factors": math.nan}, "max_factors is nan"),
        ({"max_factors": {"bdy.*": 4}}, "unknown layer in max_factors 'bdy"),
        ({"include": ["stem", "boddy"]}, "unknown layer in include 'boddy'"),
        ({"exclude": "Conv1d"}, "unknown layer in exclude 'Conv1d'"),
        ({"include": ["stem", "norm"]}, "include has 'norm', which fits 'norm', a BatchNorm2d: only Linear"),
        ({"include": "ConvTranspose2d"}, "fits 'up', a ConvTranspose2d: only Linear.*Take it out of include"),
        ({"alpha": {"up": 3.0}}, "alpha has 'up', which fits 'up', a ConvTranspose2d"),
        ({"exclude": "*"}, "no layer of net is left to factorize"),
        ({"include": "head", "heads": "per-task"}, "no layer of net is left to factorize"),
        ({"strength_std": 0.0}, "strength_std is 0"),
        ({"strength_std": math.inf}, "strength_std is inf"),
    ],
)
def test_what_does_not_fit_is_refused_by_name_and_value(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        factorize(Net(), **options)


def test_something_that_is_no_network_or_has_no_linear_layer_is_refused() -> None:
    with pytest.raises(InputError, match="net is a list"):
        factorize([nn.Linear(2, 2)])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no Linear or convolution layer"):
        factorize(nn.Sequential(nn.BatchNorm2d(2), nn.Flatten()))


@pytest.mark.parametrize("heads", ["shared", "per-task"])
def test_a_network_without_a_linear_layer_may_end_in_a_convolution(heads: str) -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = factorize(net, heads=heads, alpha=4)
    assert model.head == "2"
    x = torch.randn(3, 1, 6, 6)
    for task, outputs in enumerate((5, 3)):
        model.finish_task(model.start_task(outputs, torch.Generator().manual_seed(task)))
        assert model.logits(x, task).shape == (3, outputs)
        torch.testing.assert_close(model.merge(task)(x), model.logits(x, task))


class Scaled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, 3 * self.weight, self.bias)


def three(first: nn.Module, last: nn.Module | None = None) -> nn.Sequential:
    return nn.Sequential(first, nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), last or nn.Linear(6, 4))


def tied() -> nn.Sequential:
    net = three(nn.Linear(6, 6))
    net[2].weight = net[0].weight
    return net


def twice() -> nn.Sequential:
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(6, 4))


UNSUITABLE = [
    pytest.param(tied, "layer '0' shares its weight with '2.weight'", id="tied weights"),
    pytest.param(twice, "layer '0' shares its weight with '2.weight'", id="one layer under two names"),
    pytest.param(
        lambda: three(parametrizations.weight_norm(nn.Linear(6, 6))),
        "layer '0' computes its weight",
        id="parametrised",
    ),
    pytest.param(lambda: three(nn.LazyLinear(6)), "layer '0' is lazy", id="lazy"),
    pytest.param(lambda: three(nn.Linear(6, 6)).double(), "layer '0' has weights of torch.float64", id="float64"),
]


@pytest.mark.parametrize(("build", "message"), UNSUITABLE)
def test_a_layer_whose_weight_cannot_be_replaced_is_refused_before_any_training(build: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        factorize(build())


@pytest.mark.parametrize("build", [tied, twice, lambda: three(Scaled(6, 6))])
def test_such_layers_may_be_excluded_and_are_then_the_tasks_own(build: Any) -> None:
    net = build()
    model = factorize(net, exclude=["0", "2"])
    network = model.start_task(4, torch.Generator().manual_seed(0))
    model.finish_task(network)
    x = torch.randn(5, 6)
    hidden = net[:4](x)
    weight = model.state(0)["4.weight"]
    torch.testing.assert_close(model.logits(x, 0), F.linear(hidden, weight, net[4].bias))
    torch.testing.assert_close(model.merge(0)(x), model.logits(x, 0))


def test_a_shared_head_that_computes_its_weight_may_be_excluded_too() -> None:
    net = three(nn.Linear(6, 6), parametrizations.weight_norm(nn.Linear(6, 4)))
    model = factorize(net, exclude="4")
    model.finish_task(model.start_task(3, torch.Generator().manual_seed(0)))
    x = torch.randn(5, 6)
    assert model.logits(x, 0).shape == (5, 3)
    merged = model.merge(0)
    torch.testing.assert_close(merged(x), model.logits(x, 0))
    net.load_state_dict(merged.state_dict())
    torch.testing.assert_close(net(x)[:, :3], model.logits(x, 0))


def test_the_users_network_is_never_touched() -> None:
    torch.manual_seed(0)
    net = Net()
    net.stem.weight.requires_grad_(False)
    net.norm.eval()
    modules = dict(net.named_modules())
    before = copy.deepcopy(net.state_dict())
    model = factorize(net, heads="per-task")
    network = model.start_task(3, torch.Generator().manual_seed(1))
    optimizer = torch.optim.SGD(network.trainable(posterior=True), lr=0.1)
    (network(torch.randn(8, 1, 5, 5)).square().sum() + network.kl()).backward()
    optimizer.step()
    model.finish_task(network)
    model.logits(torch.randn(2, 1, 5, 5), 0)
    assert dict(net.named_modules()) == modules
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert net.training
    assert not net.norm.training
    assert [name for name, p in net.named_parameters() if not p.requires_grad] == ["stem.weight"]
    assert all(p.grad is None for p in net.parameters())
