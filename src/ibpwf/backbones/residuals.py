"""ResNet-50 (He et al., 2016) as Keras has it: a stride of 2 is in a block's first convolution, and convolutions have
biases of their own beside batch normalization.

Its published weights are raw numbers, one layer after another in the order of Keras' names, cut into files.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ibpwf.backbones.backbone import StagedNetwork
from ibpwf.errors import DataError

EXPANSION = 4
"""A block gives so many times the channels that it calculates with."""


@dataclass(frozen=True)
class ResidualPlan:
    """Blocks of each stage, and the channels that the first calculates with; each later stage has twice as many."""

    blocks: tuple[int, ...] = (3, 4, 6, 3)
    channels: int = 64
    classes: int = 1000
    epsilon: float = 1e-3

    @property
    def widths(self) -> tuple[int, ...]:
        """Features after every stage."""
        return tuple(self.channels * 2**stage * EXPANSION for stage in range(len(self.blocks)))


RESNET_50 = ResidualPlan()


class ConvNorm(nn.Module):
    """A convolution and its batch normalization."""

    def __init__(self, plan: ResidualPlan, inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, dtype=torch.float32)
        self.norm = nn.BatchNorm2d(outputs, eps=plan.epsilon, dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.conv(x))
        return out


class Bottleneck(nn.Module):
    """Three convolutions, added to what came in, or to a projection of it where a stage begins."""

    def __init__(self, plan: ResidualPlan, inputs: int, channels: int, stride: int, *, begins: bool) -> None:
        super().__init__()
        outputs = channels * EXPANSION
        self.first = ConvNorm(plan, inputs, channels, stride=stride)
        self.second = ConvNorm(plan, channels, channels, 3)
        self.third = ConvNorm(plan, channels, outputs)
        self.projection = ConvNorm(plan, inputs, outputs, stride=stride) if begins else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.third(F.relu(self.second(F.relu(self.first(x)))))
        return F.relu(out + (x if self.projection is None else self.projection(x)))


class ResidualNetwork(StagedNetwork):
    """All but the classifier."""

    places = True

    def __init__(self, plan: ResidualPlan = RESNET_50) -> None:
        super().__init__()
        self.stem = ConvNorm(plan, 3, plan.channels, 7, 2)
        inputs, made = plan.channels, []
        for stage, count in enumerate(plan.blocks):
            blocks, channels = [], plan.channels * 2**stage
            for number in range(count):
                stride = 2 if stage and not number else 1
                blocks.append(Bottleneck(plan, inputs, channels, stride, begins=not number))
                inputs = channels * EXPANSION
            made.append(nn.Sequential(*blocks))
        self.levels = nn.ModuleList(made)

    def stages(self, x: Tensor) -> Iterator[Tensor]:
        x = F.max_pool2d(F.relu(self.stem(x)), 3, 2, padding=1)
        for level in self.levels:
            x = level(x)
            yield x


PARTS = {"first": "2a", "second": "2b", "third": "2c", "projection": "1"}
CONVOLUTION = ("kernel", "bias")
NORMALIZATION = ("gamma", "beta", "moving_mean", "moving_variance")


def published_layers(plan: ResidualPlan) -> dict[str, tuple[int, ...]]:
    """The published tensors by Keras' names, in their order, with their shapes there."""
    layers: dict[str, dict[str, tuple[int, ...]]] = {}
    net = ResidualNetwork(plan)
    for place, (convolution, normalization) in _names(net).items():
        layer = net.get_submodule(place)
        assert isinstance(layer, ConvNorm)
        outputs, inputs, height, width = layer.conv.weight.shape
        layers[convolution] = dict(zip(CONVOLUTION, ((height, width, inputs, outputs), (outputs,)), strict=True))
        layers[normalization] = dict.fromkeys(NORMALIZATION, (outputs,))
    features = plan.widths[-1]
    layers["fc1000"] = dict(zip(CONVOLUTION, ((features, plan.classes), (plan.classes,)), strict=True))
    return {f"{name}/{part}": shape for name in sorted(layers) for part, shape in layers[name].items()}


def _names(net: ResidualNetwork) -> dict[str, tuple[str, str]]:
    """Our layers, and what Keras calls their convolution and normalization: stages count from 2, blocks from a."""
    found = {"stem": ("conv1", "bn_conv1")}
    for stage, level in enumerate(net.levels):
        assert isinstance(level, nn.Sequential)
        for number, block in enumerate(level):
            for part, branch in PARTS.items():
                if getattr(block, part) is not None:
                    name = f"{stage + 2}{chr(ord('a') + number)}_branch{branch}"
                    found[f"levels.{stage}.{number}.{part}"] = (f"res{name}", f"bn{name}")
    return found


def read_published(pieces: Sequence[bytes | bytearray], plan: ResidualPlan = RESNET_50) -> dict[str, Tensor]:
    """The published tensors out of the raw numbers of all files."""
    layers, numbers = published_layers(plan), np.frombuffer(b"".join(pieces), dtype="<f4")
    if len(numbers) != sum(map(math.prod, layers.values())):
        raise DataError(f"the weights have {len(numbers):,} numbers, which are not those of this network.")
    found, start = {}, 0
    for name, shape in layers.items():
        size = math.prod(shape)
        found[name] = torch.from_numpy(numbers[start : start + size].astype(np.float32)).reshape(shape)
        start += size
    return found


def with_weights(published: dict[str, Tensor], plan: ResidualPlan = RESNET_50) -> ResidualNetwork:
    """The network with published weights. They were trained on images whose channels are blue, green and red; here
    the first convolution takes them as red, green and blue."""
    net = ResidualNetwork(plan)
    state = {}
    for place, (convolution, normalization) in _names(net).items():
        kernel = published[f"{convolution}/kernel"].permute(3, 2, 0, 1)
        state[f"{place}.conv.weight"] = kernel.flip(1) if place == "stem" else kernel
        state[f"{place}.conv.bias"] = published[f"{convolution}/bias"]
        ours = ("weight", "bias", "running_mean", "running_var")
        for mine, theirs in zip(ours, NORMALIZATION, strict=True):
            state[f"{place}.norm.{mine}"] = published[f"{normalization}/{theirs}"]
        state[f"{place}.norm.num_batches_tracked"] = torch.tensor(0)
    net.load_state_dict(state)
    return net
