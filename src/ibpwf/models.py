"""Networks to start from: a multilayer perceptron, the CIFAR ResNets and a small vision transformer.

Each is a plain torch module that the library can also describe as JSON (see `architecture`), so a saved
model that uses one is loaded without naming its network again. Any other torch network works as well.
"""

from __future__ import annotations

import itertools
import numbers
from collections import OrderedDict
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ibpwf.dispatch import reference
from ibpwf.errors import InputError, unknown
from ibpwf.limits import check_layer
from ibpwf.storage.network_json import builder
from ibpwf.table_encoding import TableEncoding

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
}


def _positive(model: str, **fields: object) -> None:
    for name, value in fields.items():
        if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < 1:
            raise InputError(f"{model}: {name} is {value!r}; give a whole number of at least 1.")


@builder
def mlp(inputs: int, hidden: Sequence[int], outputs: int, activation: str = "relu") -> nn.Sequential:
    """A multilayer perceptron on flat inputs: `hidden1`, `relu1`, `hidden2`, ..., `head`."""
    _positive("mlp", inputs=inputs, outputs=outputs)
    if isinstance(hidden, str) or not isinstance(hidden, Sequence):
        raise InputError(f"mlp: hidden is {hidden!r}; give a list of layer widths, such as [256, 256].")
    _positive("mlp", **{f"hidden[{index}]": width for index, width in enumerate(hidden)})
    if activation not in ACTIVATIONS:
        raise unknown("activation", activation, ACTIVATIONS)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for before, width in itertools.pairwise([inputs, *hidden, outputs]):
        check_layer(before, width, "mlp")
    before = inputs
    for index, width in enumerate(hidden, start=1):
        layers[f"hidden{index}"] = nn.Linear(before, width, dtype=torch.float32)
        layers[f"{activation}{index}"] = ACTIVATIONS[activation]()
        before = width
    layers["head"] = nn.Linear(before, outputs, dtype=torch.float32)
    return nn.Sequential(layers)


# ----------------------------------------------------------------------------------------------- ResNet


@builder
def table_network(
    inputs: int,
    columns: Sequence[int],
    hidden: Sequence[int],
    outputs: int,
    bins: int = 16,
    dropout: float = 0.1,
) -> nn.Sequential:
    """A perceptron on the numbers of a table: `encode`, which knows the scale of each task's rows and cuts what is in
    `columns` into intervals (`table_encoding`), and dropout behind every hidden layer."""
    _positive("table_network", inputs=inputs, outputs=outputs, bins=bins)
    _positive("table_network", **{f"hidden[{index}]": width for index, width in enumerate(hidden)})
    if not all(0 <= column < inputs for column in columns):
        raise InputError(f"table_network: columns is {list(columns)!r}; give numbers of columns below {inputs}.")
    if not 0 <= dropout < 1:
        raise InputError(f"table_network: dropout is {dropout!r}; give a share from 0 to below 1.")
    encode = TableEncoding(inputs, columns, bins)
    layers: OrderedDict[str, nn.Module] = OrderedDict(encode=encode)
    before = encode.outputs
    for index, width in enumerate(hidden, start=1):
        check_layer(before, width, "table_network")
        layers[f"hidden{index}"] = nn.Linear(before, width, dtype=torch.float32)
        layers[f"relu{index}"] = nn.ReLU()
        layers[f"dropout{index}"] = nn.Dropout(dropout)
        before = width
    layers["head"] = nn.Linear(before, outputs, dtype=torch.float32)
    return nn.Sequential(layers)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut without parameters (option A of He et al., 2016)."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False, dtype=torch.float32)
        self.norm1 = nn.BatchNorm2d(after, dtype=torch.float32)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False, dtype=torch.float32)
        self.norm2 = nn.BatchNorm2d(after, dtype=torch.float32)
        self.stride = stride
        self.padding = after - before

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x[:, :, :: self.stride, :: self.stride]
        if self.padding:  # new channels start from zero, half on either side as in the paper's code
            low = self.padding // 2
            shortcut = F.pad(shortcut, (0, 0, 0, 0, low, self.padding - low))
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(y + shortcut)


class ResNet(nn.Module):
    """The ResNet for small images of He et al. (2016), section 4.2: three stages of basic blocks."""

    def __init__(self, depth: int, width: int, classes: int, in_channels: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(in_channels, width, 3, padding=1, bias=False, dtype=torch.float32)
        self.norm = nn.BatchNorm2d(width, dtype=torch.float32)
        stages = []
        before = width
        for stage in range(3):
            after = width * 2**stage
            blocks = []
            for block in range((depth - 2) // 6):
                blocks.append(BasicBlock(before, after, 2 if stage > 0 and block == 0 else 1))
                before = after
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(before, classes, dtype=torch.float32)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        x = self.stages(x)
        logits: Tensor = self.head(x.mean(dim=(2, 3)))
        return logits


@builder
def resnet(depth: int, width: int = 16, classes: int = 10, in_channels: int = 3) -> ResNet:
    """A CIFAR ResNet of 6n + 2 layers (20, 32, 44, 56, 110); `width` is that of the first stage."""
    _positive("resnet", depth=depth, width=width, classes=classes, in_channels=in_channels)
    if depth < 8 or (depth - 2) % 6:
        raise InputError(f"resnet: depth is {depth}; give 6n + 2, such as 20, 32, 44, 56 or 110.")
    return ResNet(depth, width, classes, in_channels)


@builder
def resnet20(width: int = 16, classes: int = 10, in_channels: int = 3) -> ResNet:
    """ResNet-20, about 0.27 million parameters at its usual width."""
    return resnet(20, width=width, classes=classes, in_channels=in_channels)


class ConvolutionUnit(nn.Module):
    """A 3×3 convolution, batch normalization, ReLU, and where asked a halving of the image."""

    def __init__(self, before: int, after: int, *, halve: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, 3, padding=1, bias=False, dtype=torch.float32)
        self.norm = nn.BatchNorm2d(after, dtype=torch.float32)
        self.halve = halve

    def forward(self, x: Tensor) -> Tensor:
        return normalized(self.conv(x), self.norm, self.halve)


@reference
def normalized(x: Tensor, norm: nn.BatchNorm2d, halve: bool) -> Tensor:
    """What follows the convolution of a `ConvolutionUnit`."""
    x = F.relu(norm(x))
    return F.max_pool2d(x, 2) if halve else x


class ResNet9(nn.Module):
    """Eight convolutions, four of them in two residual pairs, and a head on the largest response of each channel: a
    network made to be trained fast (Coleman et al., DAWNBench, 2018). Its outputs are an eighth of the head's, as
    there: they grow late, and their size then tells known from unknown better."""

    SCALE: ClassVar[float] = 0.125

    def __init__(self, width: int, classes: int, in_channels: int) -> None:
        super().__init__()
        self.stem = ConvolutionUnit(in_channels, width)
        self.stage1 = ConvolutionUnit(width, 2 * width, halve=True)
        self.pair1 = nn.Sequential(ConvolutionUnit(2 * width, 2 * width), ConvolutionUnit(2 * width, 2 * width))
        self.stage2 = ConvolutionUnit(2 * width, 4 * width, halve=True)
        self.stage3 = ConvolutionUnit(4 * width, 8 * width, halve=True)
        self.pair2 = nn.Sequential(ConvolutionUnit(8 * width, 8 * width), ConvolutionUnit(8 * width, 8 * width))
        self.head = nn.Linear(8 * width, classes, dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage1(self.stem(x))
        x = self.stage2(x + self.pair1(x))
        x = self.stage3(x)
        x = x + self.pair2(x)
        logits: Tensor = self.head(x.amax(dim=(2, 3))) * self.SCALE
        return logits


@builder
def resnet9(width: int = 64, classes: int = 10, in_channels: int = 3) -> ResNet9:
    """A residual network of nine layers, 6.6 million parameters at its usual width, for images from 8×8."""
    _positive("resnet9", width=width, classes=classes, in_channels=in_channels)
    return ResNet9(width, classes, in_channels)


# --------------------------------------------------------------------------------------------- ViT-Tiny


class Attention(nn.Module):
    """Self-attention with several heads; its weights are two plain linear layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, dtype=torch.float32)
        self.out = nn.Linear(width, width, dtype=torch.float32)

    def extra_repr(self) -> str:
        return f"heads={self.heads}"  # no weight shows it, and `describe` compares what is printed

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        split = self.qkv(x).reshape(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return out


class Block(nn.Module):
    """A transformer block that normalises first: attention, then a two-layer perceptron."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, dtype=torch.float32)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, dtype=torch.float32)
        self.up = nn.Linear(width, 4 * width, dtype=torch.float32)
        self.down = nn.Linear(4 * width, width, dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return out


class ViT(nn.Module):
    """A vision transformer (Dosovitskiy et al., 2021) with a class token and learnt positions."""

    def __init__(
        self, image: int, patch: int, width: int, depth: int, heads: int, classes: int, in_channels: int
    ) -> None:
        super().__init__()
        self.image = image
        self.stem = nn.Conv2d(in_channels, width, patch, stride=patch, dtype=torch.float32)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width, dtype=torch.float32))
        self.positions = nn.Parameter(torch.zeros(1, (image // patch) ** 2 + 1, width, dtype=torch.float32))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, dtype=torch.float32)
        self.head = nn.Linear(width, classes, dtype=torch.float32)
        nn.init.trunc_normal_(self.class_token, std=0.02)
        nn.init.trunc_normal_(self.positions, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-2:] != (self.image, self.image):
            size = " x ".join(map(str, x.shape[-2:]))
            raise InputError(f"vit_tiny: images of {size} pixels given; resize them to {self.image} x {self.image}.")
        x = self.stem(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        x = self.norm(self.blocks(x))
        logits: Tensor = self.head(x[:, 0])
        return logits


@builder
def vit_tiny(
    image: int = 32,
    patch: int = 4,
    width: int = 192,
    depth: int = 6,
    heads: int = 3,
    classes: int = 10,
    in_channels: int = 3,
) -> ViT:
    """A small vision transformer for square images."""
    _positive("vit_tiny", image=image, patch=patch, width=width, depth=depth, heads=heads, classes=classes)
    _positive("vit_tiny", in_channels=in_channels)
    if image % patch:
        raise InputError(f"vit_tiny: patch is {patch}, which does not divide image = {image}.")
    if width % heads:
        raise InputError(f"vit_tiny: heads is {heads}, which does not divide width = {width}.")
    return ViT(image, patch, width, depth, heads, classes, in_channels)
