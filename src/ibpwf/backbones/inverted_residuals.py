"""Networks of inverted residuals: MobileNetV2 (Sandler et al., 2018) and EfficientNet-Lite0, its searched sibling
without what phones are slow at (squeeze and excitation, swish)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ibpwf.backbones.backbone import StagedNetwork
from ibpwf.dispatch import reference

STEM, HEAD = 32, 1280
CLIPPED_AT = 6.0


class Stage(NamedTuple):
    """Blocks of one width: each makes its input `expansion` times as wide, looks at `kernel` × `kernel` places of
    each channel, and goes back to `channels`. The first has the stride."""

    expansion: int
    channels: int
    blocks: int
    stride: int
    kernel: int


@dataclass(frozen=True)
class Plan:
    """`same_padding` is TensorFlow's, by which a stride of 2 pads more behind than before; otherwise both alike."""

    stages: tuple[Stage, ...]
    same_padding: bool
    epsilon: float

    @property
    def widths(self) -> tuple[int, ...]:
        """Features at each depth: after every stage, and after the last, wide layer."""
        return (*(stage.channels for stage in self.stages), HEAD)


EFFICIENTNET_LITE0 = Plan(
    (
        Stage(1, 16, 1, 1, 3),
        Stage(6, 24, 2, 2, 3),
        Stage(6, 40, 2, 2, 5),
        Stage(6, 80, 3, 2, 3),
        Stage(6, 112, 3, 1, 5),
        Stage(6, 192, 4, 2, 5),
        Stage(6, 320, 1, 1, 3),
    ),
    same_padding=True,
    epsilon=1e-3,
)

MOBILENET_V2 = Plan(
    (
        Stage(1, 16, 1, 1, 3),
        Stage(6, 24, 2, 2, 3),
        Stage(6, 32, 3, 2, 3),
        Stage(6, 64, 4, 2, 3),
        Stage(6, 96, 3, 1, 3),
        Stage(6, 160, 3, 2, 3),
        Stage(6, 320, 1, 1, 3),
    ),
    same_padding=False,
    epsilon=1e-5,
)


class ConvNorm(nn.Module):
    """A convolution, its batch normalization and, unless it is `linear`, ReLU6."""

    def __init__(
        self,
        plan: Plan,
        inputs: int,
        outputs: int,
        kernel: int = 1,
        stride: int = 1,
        *,
        depthwise: bool = False,
        linear: bool = False,
    ) -> None:
        super().__init__()
        self.same_padding = plan.same_padding and stride > 1
        self.kernel, self.stride = kernel, stride  # a layer of peft's in the convolution's place does not know them
        padding = 0 if self.same_padding else kernel // 2
        groups = inputs if depthwise else 1
        self.conv = nn.Conv2d(
            inputs, outputs, kernel, stride, padding, groups=groups, bias=False, dtype=torch.float32
        )
        self.norm = nn.BatchNorm2d(outputs, eps=plan.epsilon, dtype=torch.float32)
        self.linear = linear

    def forward(self, x: Tensor) -> Tensor:
        if self.same_padding:
            x = pad_same(x, self.kernel, self.stride)
        return clipped_norm(self.conv(x), self.norm, self.linear)


@reference
def clipped_norm(x: Tensor, norm: nn.Module, linear: bool) -> Tensor:
    """Normalized, and unless `linear` from 0 to 6."""
    out: Tensor = norm(x)
    return out if linear else F.relu6(out)


def pad_same(x: Tensor, kernel: int, stride: int) -> Tensor:
    """Zeros around images so that ⌈size / stride⌉ places come out; an odd one goes behind."""
    down, across = (max((-(-size // stride) - 1) * stride + kernel - size, 0) for size in x.shape[2:])
    return F.pad(x, (across // 2, across - across // 2, down // 2, down - down // 2))


class InvertedResidual(nn.Module):
    def __init__(self, plan: Plan, inputs: int, stage: Stage, stride: int) -> None:
        super().__init__()
        wide = inputs * stage.expansion
        layers = [ConvNorm(plan, inputs, wide)] if stage.expansion > 1 else []
        layers.append(ConvNorm(plan, wide, wide, stage.kernel, stride, depthwise=True))
        layers.append(ConvNorm(plan, wide, stage.channels, linear=True))
        self.layers = nn.Sequential(*layers)
        self.adds = stride == 1 and inputs == stage.channels

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return x + out if self.adds else out


class InvertedResidualNetwork(StagedNetwork):
    """All but the classifier."""

    places = True

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.stem = ConvNorm(plan, 3, STEM, 3, 2)
        inputs, made = STEM, []
        for stage in plan.stages:
            blocks = []
            for number in range(stage.blocks):
                blocks.append(InvertedResidual(plan, inputs, stage, 1 if number else stage.stride))
                inputs = stage.channels
            made.append(nn.Sequential(*blocks))
        self.levels = nn.ModuleList([*made, ConvNorm(plan, inputs, HEAD)])

    def stages(self, x: Tensor) -> Iterator[Tensor]:
        x = self.stem(x)
        for level in self.levels:
            x = level(x)
            yield x


def with_weights(plan: Plan, weights: Mapping[str, Tensor], classifier: str) -> InvertedResidualNetwork:
    """The network with published weights. Whatever their names, they come layer by layer, convolution before
    normalization, as ours do; those of the `classifier` are left out."""
    net = InvertedResidualNetwork(plan)
    given = [tensor for name, tensor in weights.items() if not name.startswith(classifier)]
    net.load_state_dict(dict(zip(net.state_dict(), given, strict=True)))
    return net
