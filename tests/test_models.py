"""The networks have the published sizes, readable names, and refuse arguments that make no sense."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ibpwf import models
from ibpwf.errors import IBPWFError, InputError
from ibpwf.storage.network_json import build, describe


def size(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def test_the_layers_of_an_mlp_are_named() -> None:
    net = models.mlp(4, [5, 6], 3)
    assert list(dict(net.named_children())) == ["hidden1", "relu1", "hidden2", "relu2", "head"]
    assert list(net.state_dict())[::2] == ["hidden1.weight", "hidden2.weight", "head.weight"]
    assert list(dict(models.mlp(4, [], 3).named_children())) == ["head"]
    assert list(dict(models.mlp(4, (5,), 3, "leaky_relu").named_children())) == [
        "hidden1",
        "leaky_relu1",
        "head",
    ]


def test_an_mlp_computes_what_its_formula_says() -> None:
    net = models.mlp(4, [5], 3, activation="tanh").double()
    x = torch.randn(7, 4, dtype=torch.float64)
    w = net.state_dict()
    hidden = torch.tanh(x @ w["hidden1.weight"].T + w["hidden1.bias"])
    torch.testing.assert_close(net(x), hidden @ w["head.weight"].T + w["head.bias"])


@pytest.mark.parametrize("activation", models.ACTIVATIONS)
def test_every_activation_is_used(activation: str) -> None:
    children = dict(models.mlp(2, [3], 2, activation).named_children())
    assert isinstance(children[f"{activation}1"], models.ACTIVATIONS[activation])


@pytest.mark.parametrize(("depth", "millions"), [(20, 0.27), (32, 0.46), (44, 0.66), (56, 0.85), (110, 1.7)])
def test_resnets_have_the_sizes_of_table_6_of_he_et_al(depth: int, millions: float) -> None:
    digits = 1 if depth == 110 else 2
    assert round(size(models.resnet(depth)) / 1e6, digits) == millions


def test_resnet20_has_20_weighted_layers_and_plain_names() -> None:
    net = models.resnet20()
    layers = [name for name, module in net.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    assert len(layers) == 20
    assert layers[:3] == ["stem", "stages.0.0.conv1", "stages.0.0.conv2"]
    assert layers[-1] == "head"
    assert size(net) == 269_722


def test_resnet_halves_the_image_twice_and_gives_one_logit_per_class() -> None:
    net = models.resnet(8, width=4, classes=7, in_channels=1).eval()
    assert net(torch.randn(2, 1, 28, 28)).shape == (2, 7)
    shapes = []
    for stage in net.stages:
        stage.register_forward_hook(lambda module, args, out: shapes.append(tuple(out.shape[1:])))
    net(torch.randn(2, 1, 32, 32))
    assert shapes == [(4, 32, 32), (8, 16, 16), (16, 8, 8)]


def test_a_block_whose_convolutions_give_nothing_passes_its_input_on() -> None:
    block = models.BasicBlock(4, 8, stride=2).eval()
    nn.init.zeros_(block.conv2.weight)
    x = torch.rand(2, 4, 6, 6)
    out = block(x)
    assert torch.equal(out[:, 2:6], x[:, :, ::2, ::2])
    assert not out[:, :2].any()
    assert not out[:, 6:].any()


def test_resnet9_has_nine_weighted_layers_plain_names_and_the_size_it_says() -> None:
    net = models.resnet9()
    layers = {name: module for name, module in net.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)}
    assert list(layers) == [
        *("stem.conv", "stage1.conv", "pair1.0.conv", "pair1.1.conv"),
        *("stage2.conv", "stage3.conv", "pair2.0.conv", "pair2.1.conv", "head"),
    ]
    widths = (64, 128, 128, 128, 256, 512, 512, 512, 10)
    assert [layer.weight.shape[0] for layer in layers.values()] == list(widths)
    before = (3, 64, 128, 128, 128, 256, 512, 512)
    convolutions = sum(9 * one * other for one, other in zip(before, widths, strict=False))
    norms, head = 2 * sum(widths[:-1]), 512 * 10 + 10
    assert size(net) == convolutions + norms + head
    assert f"{size(net) / 1e6:.1f} million parameters" in str(models.resnet9.__doc__)


@pytest.mark.parametrize("side", [8, 28, 32])
@pytest.mark.parametrize("channels", [1, 3])
def test_resnet9_takes_images_of_any_size_from_8_and_halves_them_three_times(channels: int, side: int) -> None:
    net = models.resnet9(width=4, classes=7, in_channels=channels).eval()
    shapes = []
    for stage in (net.stem, net.pair1, net.stage2, net.pair2):
        stage.register_forward_hook(lambda module, args, out: shapes.append(tuple(out.shape[1:])))
    assert net(torch.randn(2, channels, side, side)).shape == (2, 7)
    half, quarter, eighth = side // 2, side // 4, side // 8
    assert shapes == [(4, side, side), (8, half, half), (16, quarter, quarter), (32, eighth, eighth)]


def test_resnet9_computes_what_its_picture_says() -> None:
    torch.manual_seed(0)
    net = models.resnet9(width=4, classes=5, in_channels=1).eval()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.running_mean)  # type: ignore[arg-type]
    net = net.double()
    w = net.state_dict()

    def unit(x: torch.Tensor, name: str) -> torch.Tensor:
        x = F.conv2d(x, w[f"{name}.conv.weight"], padding=1)
        mean, variance = w[f"{name}.norm.running_mean"], w[f"{name}.norm.running_var"]
        x = (x - mean.view(-1, 1, 1)) / (variance.view(-1, 1, 1) + 1e-5).sqrt()
        return (x * w[f"{name}.norm.weight"].view(-1, 1, 1) + w[f"{name}.norm.bias"].view(-1, 1, 1)).clamp(min=0)

    def halved(x: torch.Tensor) -> torch.Tensor:
        return x.unfold(2, 2, 2).unfold(3, 2, 2).amax((4, 5))

    images = torch.randn(3, 1, 16, 16, dtype=torch.float64)
    x = halved(unit(unit(images, "stem"), "stage1"))
    x = halved(unit(x + unit(unit(x, "pair1.0"), "pair1.1"), "stage2"))
    x = halved(unit(x, "stage3"))
    x = (x + unit(unit(x, "pair2.0"), "pair2.1")).flatten(2).amax(2)
    torch.testing.assert_close(net(images), (x @ w["head.weight"].T + w["head.bias"]) / 8)


def test_resnet9_is_described_as_json_and_built_again_with_the_same_bits() -> None:
    net = models.resnet9(4, classes=3, in_channels=1)
    described = describe(net)
    assert described is not None
    arguments = {"width": 4, "classes": 3, "in_channels": 1}
    assert described == {"builder": "resnet9", "arguments": arguments}
    again = build(json.loads(json.dumps(described)))
    assert isinstance(again, models.ResNet9)
    again.load_state_dict(net.state_dict())
    x = torch.randn(2, 1, 8, 8)
    assert torch.equal(again.eval()(x), net.eval()(x))


def test_the_transformer_has_the_published_size_of_vit_tiny() -> None:
    # 5,717,416 parameters at 224 x 224 with 1000 classes: ViT-Ti of timm, DeIT-Ti less its distillation.
    net = models.vit_tiny(image=224, patch=16, width=192, depth=12, heads=3, classes=1000)
    assert size(net) == 5_717_416


def test_attention_agrees_with_that_of_torch() -> None:
    ours = models.Attention(12, 3)
    torchs = nn.MultiheadAttention(12, 3, batch_first=True)
    torchs.load_state_dict(
        {
            "in_proj_weight": ours.qkv.weight,
            "in_proj_bias": ours.qkv.bias,
            "out_proj.weight": ours.out.weight,
            "out_proj.bias": ours.out.bias,
        }
    )
    x = torch.randn(2, 5, 12)
    torch.testing.assert_close(ours(x), torchs(x, x, x, need_weights=False)[0])


def test_without_positions_the_transformer_does_not_see_the_order_of_patches() -> None:
    net = models.vit_tiny(8, 4, width=12, depth=2, heads=3, classes=5).eval()
    x = torch.randn(2, 3, 8, 8)
    turned = x.roll(4, dims=-1)  # swaps whole patches
    assert net(x).shape == (2, 5)
    assert not torch.allclose(net(x), net(turned), atol=1e-4)
    nn.init.zeros_(net.positions)
    torch.testing.assert_close(net(x), net(turned), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "make",
    [lambda: models.resnet(8, width=4), lambda: models.resnet9(4), lambda: models.vit_tiny(8, 4, 12, 1, 3)],
)
def test_every_parameter_gets_a_gradient(make: Any) -> None:
    net = make()
    F.cross_entropy(net(torch.randn(4, 3, 8, 8)), torch.arange(4)).backward()
    assert [name for name, parameter in net.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: models.mlp(0, [3], 2), "mlp: inputs is 0"),
        (lambda: models.mlp(3, [3], True), "mlp: outputs is True"),
        (lambda: models.mlp(3, [3, 2.5], 2), r"mlp: hidden\[1\] is 2.5"),  # type: ignore[list-item]
        (lambda: models.mlp(3, 3, 2), "mlp: hidden is 3"),  # type: ignore[arg-type]
        (lambda: models.mlp(3, "33", 2), "mlp: hidden is '33'"),  # type: ignore[arg-type]
        (lambda: models.mlp(3, [3], 2, "rellu"), "unknown activation 'rellu'.*'relu'"),
        (lambda: models.resnet(19), "depth is 19; give 6n"),
        (lambda: models.resnet(2), "depth is 2; give 6n"),
        (lambda: models.resnet20(width=-1), "width is -1"),
        (lambda: models.resnet9(width=0), "resnet9: width is 0; give a whole number of at least 1"),
        (lambda: models.resnet9(width=64.0), r"resnet9: width is 64\.0"),  # type: ignore[arg-type]
        (lambda: models.resnet9(classes=True), "resnet9: classes is True"),
        (lambda: models.resnet9(in_channels="3"), "resnet9: in_channels is '3'"),  # type: ignore[arg-type]
        (lambda: models.vit_tiny(patch=5), "patch is 5, which does not divide image = 32"),
        (lambda: models.vit_tiny(heads=5), "heads is 5, which does not divide width = 192"),
        (lambda: models.vit_tiny(depth="6"), "depth is '6'"),  # type: ignore[arg-type]
        (lambda: models.vit_tiny(8, 4, 12, 1, 3)(torch.randn(1, 3, 9, 8)), "9 x 8 pixels"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_by_name(make: Any, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        make()
    assert isinstance(caught.value, IBPWFError)
