"""Networks that nobody here wrote: each learns two tasks, forgets nothing, and takes its merged weights back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ibpwf import Learner, Settings
from ibpwf.errors import InputError

CLASSES, ROWS = 3, 24


@dataclass(frozen=True)
class Wild:
    """A network of a zoo: its name there, its size made small, and the images it takes."""

    zoo: str
    name: str
    pixels: int = 32
    options: dict[str, Any] = field(default_factory=dict)

    def build(self, zoos: dict[str, ModuleType]) -> nn.Module:
        if self.zoo not in zoos:
            pytest.skip(f"{self.zoo} is not installed")
        torch.manual_seed(0)
        if self.zoo == "timm":
            net: nn.Module = zoos["timm"].create_model(self.name, num_classes=CLASSES, **self.options)
        else:
            net = getattr(zoos["torchvision"], self.name)(num_classes=CLASSES, **self.options)
        return net

    def __str__(self) -> str:
        return f"{self.zoo} {self.name}"


PATCHES = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}
ATTENDING = {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 24, "mlp_dim": 48}
WILD = [
    Wild("timm", "test_resnet"),
    Wild("timm", "test_nfnet"),  # convolutions that standardise their weights themselves
    Wild("timm", "mobilenetv3_small_050"),  # depthwise convolutions, and a Linear layer of timm's own
    Wild("timm", "test_efficientnet"),
    Wild("timm", "test_efficientnet", options={"pad_type": "same"}),  # convolutions that pad for themselves
    Wild("timm", "convnext_atto", options={"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)}),
    Wild("timm", "edgenext_xx_small"),  # depthwise convolutions and attention over channels
    Wild("timm", "vit_tiny_patch16_224", options=PATCHES),
    Wild("timm", "deit_tiny_distilled_patch16_224", options=PATCHES),  # two heads, averaged
    Wild("timm", "beit_base_patch16_224", options=PATCHES),  # layer scale, and attention that reads qkv's weight
    Wild("timm", "cait_xxs24_224", options=PATCHES),
    Wild(
        "timm",
        "swin_tiny_patch4_window7_224",
        options={"img_size": 32, "window_size": 4, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4)},
    ),
    Wild("torchvision", "squeezenet1_1", pixels=48),  # ends in a convolution
    Wild("torchvision", "mnasnet0_5"),
    Wild("torchvision", "VisionTransformer", options=ATTENDING),  # torch's own attention
]


def examples(pixels: int, shift: float = 0.0) -> tuple[Tensor, Tensor]:
    """Images whose classes differ in brightness."""
    y = torch.arange(ROWS) % CLASSES
    noise = torch.randn(ROWS, 3, pixels, pixels, generator=torch.Generator().manual_seed(int(10 * shift)))
    return noise * 0.5 + (y - 1.0).view(-1, 1, 1, 1) + shift, y


@pytest.mark.parametrize("wild", WILD, ids=str)
def test_a_network_of_a_zoo_learns_two_tasks_forgets_nothing_and_takes_its_weights_back(
    zoo: dict[str, ModuleType], wild: Wild, tmp_path: Path
) -> None:
    net = wild.build(zoo)
    settings = Settings(alpha=4.0, epochs=2, finetune_epochs=1, batch_size=8, learning_rate=3e-3)
    learner = Learner(net, settings, device="cpu")
    x, y = examples(wild.pixels)
    learner.learn(x, y)
    first = learner.logits(x, 0)
    learner.learn(*examples(wild.pixels, shift=2.0))
    assert torch.equal(learner.logits(x, 0), first)
    layers = [m for m in net.modules() if isinstance(m, nn.Linear | nn.Conv2d | nn.MultiheadAttention)]
    assert len(learner.model.layers) == len(layers), "every one of them is factorised"
    own = wild.build(zoo)
    own.load_state_dict(learner.merge(0).state_dict())
    with torch.no_grad():
        torch.testing.assert_close(own.eval()(x), first, rtol=1e-6, atol=1e-6)
    learner.save(tmp_path / "model")
    again = Learner.load(tmp_path / "model", net=wild.build(zoo), device="cpu")
    assert torch.equal(again.logits(x, 0), first)
    assert torch.equal(again.logits(x, 1), learner.logits(x, 1))


@pytest.mark.parametrize("name", ["test_efficientnet", "test_vit2"])
def test_a_trained_network_of_a_zoo_is_where_the_first_task_starts(zoo: dict[str, ModuleType], name: str) -> None:
    wild = Wild("timm", name, options={"img_size": 32} if "vit" in name else {})
    net = wild.build(zoo).eval()
    learner = Learner(net, Settings(init="pretrained"), device="cpu")
    x, _ = examples(32)
    with torch.no_grad():
        torch.testing.assert_close(learner.model.fitted_network()(x), net(x), rtol=1e-4, atol=1e-5)
    assert max(fit.relative_error for fit in learner.model.fits().values()) < 1e-6


def test_weights_that_layers_share_and_heads_that_are_averaged_are_refused_by_name(
    zoo: dict[str, ModuleType],
) -> None:
    options = {"img_size": 32, "embed_dims": (8, 8, 8, 8), "serial_depths": (1, 1, 1, 1)}
    with pytest.raises(
        InputError, match=r"layer 'cpe1.proj' shares its weight with 'serial_blocks1.0.cpe.proj.weight'"
    ):
        Learner(Wild("timm", "coat_lite_tiny", options=options).build(zoo))
    two_heads = Wild("timm", "deit_tiny_distilled_patch16_224", options=PATCHES).build(zoo)
    with pytest.raises(InputError, match="head is 'head_dist' with 3 outputs, but the network's outputs do not come"):
        Learner(two_heads, Settings(heads="per-task"), device="cpu").learn(*examples(32))
