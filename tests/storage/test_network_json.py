"""A network described as JSON comes back as the same network, and nothing else can be built."""

from __future__ import annotations

import copy
import json
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ibpwf import models
from ibpwf.errors import InputError, StoreError
from ibpwf.storage import network_json
from ibpwf.storage.network_json import build, check_same, describe, signature


def again(net: nn.Module) -> nn.Module:
    """The network after its description has been through JSON, with the weights carried over."""
    spec = describe(net)
    assert spec is not None
    other = build(json.loads(json.dumps(spec)))
    check_same(other, json.loads(json.dumps(signature(net))))
    other.load_state_dict(net.state_dict())
    return other


def same_output(net: nn.Module, x: Tensor) -> bool:
    other = again(net)
    return torch.equal(net.eval()(x), other.eval()(x))


images = torch.randn(2, 3, 8, 8)
rows = torch.randn(2, 3, 8)
flat = torch.randn(2, 8)
volumes = torch.randn(2, 1, 4, 4, 4)

LEAVES: list[tuple[Callable[[], nn.Module], Tensor]] = [
    (lambda: nn.Linear(8, 3), flat),
    (lambda: nn.Linear(8, 3, bias=False), flat),
    (lambda: nn.Conv1d(3, 6, 3, stride=2, padding=1, groups=3), rows),
    (lambda: nn.Conv2d(3, 4, (3, 1), dilation=2, padding="same", padding_mode="reflect"), images),
    (lambda: nn.Conv2d(3, 4, 3, bias=False), images),
    (lambda: nn.Conv3d(1, 2, 3, padding=1), volumes),
    (lambda: nn.BatchNorm1d(8, eps=1e-3, momentum=None), flat),
    (lambda: nn.BatchNorm2d(3, affine=False), images),
    (lambda: nn.BatchNorm2d(3, track_running_stats=False), images),
    (lambda: nn.BatchNorm3d(1), volumes),
    (lambda: nn.LayerNorm(8), flat),
    (lambda: nn.LayerNorm((8, 8), eps=1e-4, bias=False), images),
    (lambda: nn.LayerNorm(8, elementwise_affine=False), flat),
    (lambda: nn.GroupNorm(3, 3, affine=False), images),
    (lambda: nn.InstanceNorm1d(3, affine=True), rows),
    (lambda: nn.InstanceNorm2d(3, track_running_stats=True), images),
    (lambda: nn.InstanceNorm3d(1, affine=True), volumes),
    (lambda: nn.ReLU(inplace=False), flat),
    (lambda: nn.ReLU6(), flat),
    (lambda: nn.Hardswish(), flat),
    (lambda: nn.Mish(), flat),
    (lambda: nn.GELU(approximate="tanh"), flat),
    (lambda: nn.SiLU(), flat),
    (lambda: nn.Tanh(), flat),
    (lambda: nn.Sigmoid(), flat),
    (lambda: nn.LeakyReLU(0.3), flat),
    (lambda: nn.ELU(0.5), flat),
    (lambda: nn.Softplus(2.0, 10.0), flat),
    (lambda: nn.Identity(), flat),
    (lambda: nn.Dropout(0.25), flat),
    (lambda: nn.Dropout2d(0.1), images),
    (lambda: nn.Flatten(start_dim=2), images),
    (lambda: nn.Unflatten(1, (2, 4)), flat),
    (lambda: nn.MaxPool1d(2, padding=1, ceil_mode=True), rows),
    (lambda: nn.MaxPool2d((2, 3), stride=1), images),
    (lambda: nn.AvgPool1d(2), rows),
    (lambda: nn.AvgPool2d(2, count_include_pad=False, divisor_override=3), images),
    (lambda: nn.AdaptiveAvgPool1d(2), rows),
    (lambda: nn.AdaptiveAvgPool2d((None, 2)), images),
    (lambda: nn.AdaptiveAvgPool2d([1, 1]), images),  # type: ignore[arg-type]
    (lambda: nn.MaxPool3d(2, stride=1), volumes),
    (lambda: nn.AvgPool3d((2, 1, 2)), volumes),
    (lambda: nn.AdaptiveAvgPool3d((1, 2, None)), volumes),
    (lambda: nn.AdaptiveMaxPool2d(2), images),
    (lambda: nn.Embedding(5, 3, padding_idx=0, max_norm=1.0), torch.tensor([0, 4, 2])),
]


@pytest.mark.parametrize(("make", "x"), LEAVES)
def test_every_leaf_comes_back_with_its_arguments(make: Callable[[], nn.Module], x: Tensor) -> None:
    net = nn.Sequential(make())
    assert repr(again(net)).replace("[", "(").replace("]", ")") == repr(net).replace("[", "(").replace("]", ")")
    assert same_output(net, x)


def test_every_leaf_named_is_tried_above() -> None:
    assert {type(make()).__name__ for make, _ in LEAVES} == set(network_json._LEAVES)


@pytest.mark.parametrize(
    ("make", "x"),
    [
        (lambda: models.mlp(8, [5, 4], 3, activation="gelu"), flat),
        (lambda: models.resnet(8, width=4, classes=5), images),
        (lambda: models.resnet20(2), images),
        (lambda: models.vit_tiny(8, 4, width=12, depth=2, heads=3), images),
    ],
)
def test_every_builder_comes_back(make: Callable[[], nn.Module], x: Tensor) -> None:
    net = make()
    assert "builder" in (describe(net) or {})
    assert same_output(net, x)
    assert describe(copy.deepcopy(net)) == describe(net)
    assert same_output(nn.Sequential(OrderedDict(body=net)), x)


def test_nested_and_named_sequentials_come_back() -> None:
    inner = nn.Sequential(OrderedDict(conv=nn.Conv2d(3, 4, 3), act=nn.ReLU()))
    net = nn.Sequential(OrderedDict(body=inner, out=nn.Sequential(nn.Flatten(), nn.Linear(144, 2))))
    assert list(again(net).state_dict()) == [
        "body.conv.weight",
        "body.conv.bias",
        "out.1.weight",
        "out.1.bias",
    ]
    assert same_output(net, images)
    assert describe(nn.Sequential()) == {"sequential": []}


def test_a_changed_mlp_is_described_as_it_is_now() -> None:
    net = models.mlp(4, [3], 2)
    net.head = nn.Linear(3, 7)
    spec = describe(net)
    assert spec is not None
    assert "sequential" in spec
    assert signature(build(spec)) == signature(net)


def test_a_changed_resnet_or_transformer_is_not_described() -> None:
    net = models.resnet(8, width=4)
    net.head = nn.Linear(16, 7)
    assert describe(net) is None
    vit = models.vit_tiny(8, 4, width=12, depth=1, heads=3)
    vit.blocks[0].attention.heads = 2  # type: ignore[union-attr, assignment]
    assert describe(vit) is None


class Custom(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class Linear(nn.Linear):
    """Bears the name of a torch module without being it."""


def tied() -> nn.Module:
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.ReLU(), layer)


def hooked() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 3))
    net[0].register_forward_hook(lambda module, args, output: 2 * output)
    return net


def replaced() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 3))
    net.forward = lambda x: x  # type: ignore[method-assign, assignment]
    return net


def deep() -> nn.Module:
    net = nn.Sequential(nn.ReLU())
    for _ in range(60):
        net = nn.Sequential(net)
    return net


@pytest.mark.parametrize(
    "make",
    [
        Custom,
        lambda: nn.Sequential(Custom()),
        lambda: nn.Sequential(Linear(2, 2)),
        lambda: nn.Sequential(nn.LSTM(2, 2)),
        lambda: nn.Sequential(nn.Linear(2, 2).double()),
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))),
        lambda: nn.Sequential(nn.Embedding(3, 2, norm_type=float("inf"))),
        tied,
        hooked,
        replaced,
        deep,
    ],
)
def test_what_would_not_come_back_is_not_described(make: Callable[[], nn.Module]) -> None:
    assert describe(make()) is None


def test_describing_leaves_the_random_numbers_alone() -> None:
    net = models.mlp(4, [3], 2)
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    describe(net)
    assert torch.equal(torch.rand(3), expected)


def test_numpy_numbers_are_numbers() -> None:
    net = models.mlp(np.int64(4), [np.int32(3)], 2)  # type: ignore[arg-type, list-item]
    assert describe(net) == describe(models.mlp(4, [3], 2))


def test_a_builder_of_the_user_can_be_registered_once() -> None:
    @network_json.register_builder("test-twice")
    def twice(width: int, names: tuple[str, ...] = ("a",)) -> nn.Module:
        return nn.Sequential(OrderedDict((name, nn.Linear(width, width)) for name in names))

    spec = describe(twice(2, ("x", "y")))
    assert spec == {"builder": "test-twice", "arguments": {"width": 2, "names": ["x", "y"]}}
    assert list(dict(build(spec).named_children())) == ["x", "y"]
    with pytest.raises(InputError, match="'test-twice' is registered already"):
        network_json.register_builder("test-twice")(models.resnet)
    with pytest.raises(InputError, match="positional-only"):
        network_json.register_builder("test-args")(lambda *args: nn.ReLU())


def test_a_builder_given_what_json_cannot_hold_leaves_no_stamp() -> None:
    @network_json.register_builder("test-plain")
    def wrap(inner: Any) -> nn.Module:
        result: nn.Module = inner
        return result

    assert describe(wrap(Custom())) is None
    assert describe(wrap(models.resnet(8, width=4))) is None


LINEAR = {"module": "Linear", "arguments": {"in_features": 2, "out_features": 2}}
nested: Any = LINEAR
for _ in range(3000):
    nested = {"sequential": [["0", nested]]}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (None, "network is a NoneType"),
        ("os.system", "network is a str"),
        ({}, "needs a module"),
        ({"module": "Linear"}, "'module'"),
        ({**LINEAR, "extra": 1}, "needs a module"),
        ({"module": "os.system", "arguments": {}}, "network.module is 'os.system'; known: Linear"),
        ({"module": "Sequential", "arguments": {}}, "'Sequential'; known"),
        ({"module": "Module", "arguments": {}}, "'Module'; known"),
        ({"module": ["Linear"], "arguments": {}}, r"is \['Linear'\]; known"),
        ({"module": "Linear", "arguments": []}, "arguments is a list"),
        ({"module": "Linear", "arguments": {}}, "do not make a Linear"),
        ({"module": "Linear", "arguments": {"in_features": "2", "out_features": 2}}, "do not make a Linear"),
        ({"module": "Linear", "arguments": {"in_features": -1, "out_features": 2}}, "do not make a Linear"),
        ({"module": "Linear", "arguments": {"in_features": 2**62, "out_features": 2**62}}, "do not make"),
        ({"module": "Linear", "arguments": {"in_features": 2, "out_features": {"a": 1}}}, "something else"),
        ({"module": "ReLU", "arguments": {"device": "meta"}}, "unknown field 'device'"),
        ({"module": "Linear", "arguments": {"dtype": "x"}}, "unknown field 'dtype'"),
        ({"module": "Embedding", "arguments": {"_weight": 1}}, "unknown field '_weight'"),
        ({"module": "Identity", "arguments": {"args": 1}}, "unknown field 'args'"),
        ({"builder": "__import__", "arguments": {}}, "'__import__', which is not registered"),
        ({"builder": 3, "arguments": {}}, "not registered"),
        ({"builder": "mlp", "arguments": {}}, "do not make a 'mlp'"),
        ({"builder": "mlp", "arguments": {"x": 1}}, "unknown field 'x'"),
        ({"builder": "mlp", "arguments": {"inputs": 1, "hidden": "9", "outputs": 1}}, "hidden is '9'"),
        ({"builder": "resnet", "arguments": {"depth": 9}}, "depth is 9"),
        ({"sequential": {}}, "is a dict instead of a list"),
        ({"sequential": [LINEAR]}, r"network.sequential\[0\] is not a pair"),
        ({"sequential": [["a", LINEAR], ["a", LINEAR]]}, "'a' a second time"),
        ({"sequential": [["a.b", LINEAR]]}, "'a.b', which no module"),
        ({"sequential": [["", LINEAR]]}, "'', which no module"),
        ({"sequential": [["forward", LINEAR]]}, "'forward', which no module"),
        ({"sequential": [["a", {"sequential": [["b", 1]]}]]}, "network.a.b is a int"),
        (nested, "nested more than"),
    ],
)
def test_a_hostile_or_damaged_description_is_refused(spec: Any, words: str) -> None:
    with pytest.raises(StoreError, match=words):
        build(spec)


junk = st.recursive(
    st.none() | st.integers(-3, 9) | st.floats() | st.sampled_from(["module", "Linear", "mlp", "forward", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["module", "builder", "arguments", "sequential", "inputs"]), inner)
    ),
    max_leaves=8,
)


@given(junk)
@settings(max_examples=80, deadline=None)
def test_junk_builds_a_network_or_is_refused(spec: Any) -> None:
    try:
        net = build(spec)
    except StoreError:
        return
    assert isinstance(net, nn.Module)


def test_the_signature_is_that_of_the_state_dict() -> None:
    assert signature(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))) == [
        ["0.weight", [2, 3], "float32"],
        ["0.bias", [2], "float32"],
        ["1.weight", [2], "float32"],
        ["1.bias", [2], "float32"],
        ["1.running_mean", [2], "float32"],
        ["1.running_var", [2], "float32"],
        ["1.num_batches_tracked", [], "int64"],
    ]


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (
            nn.Sequential(nn.Linear(3, 5)),
            r"'0.weight' has shape \[5, 3\] .* \[2, 3\] and float32 in the saved",
        ),
        (nn.Sequential(nn.Linear(3, 2).double()), "dtype float64"),
        (nn.Sequential(nn.Linear(3, 2, bias=False)), "saved network has '0.bias'"),
        (nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)), "given network has '1.weight'"),
    ],
)
def test_the_first_difference_is_named(net: nn.Module, words: str) -> None:
    expected = signature(nn.Sequential(nn.Linear(3, 2)))
    check_same(nn.Sequential(nn.Linear(3, 2)), expected)
    with pytest.raises(StoreError, match=words):
        check_same(net, expected)


@pytest.mark.parametrize("expected", [None, [1], [["a", [1]]], [[1, [1], "float32"]], {"a": 1}])
def test_a_damaged_signature_is_refused(expected: Any) -> None:
    with pytest.raises(StoreError, match=r"signature\[0\]"):
        check_same(nn.Linear(1, 1), expected)
