"""What the benchmarks of trained networks compare with is what it is said to be."""

from __future__ import annotations

import importlib
import sys
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from ibpwf import factorize
from ibpwf.backbones.backbone import Backbone, ImageInput
from ibpwf.backbones.inverted_residuals import InvertedResidualNetwork, Plan, Stage
from zoos import imported

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
PLAN = Plan((Stage(1, 8, 1, 2, 3), Stage(2, 8, 2, 1, 3)), same_padding=True, epsilon=1e-3)


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Where LoRA is written out."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    yield importlib.import_module("trained.lora_layers")
    for name in [name for name in sys.modules if name.partition(".")[0] == "trained"]:
        del sys.modules[name]


def network() -> nn.Sequential:
    """A small network of the kind of EfficientNet-Lite0."""
    torch.manual_seed(0)
    inner = InvertedResidualNetwork(PLAN)
    backbone = Backbone("small", "", inner, ImageInput(16, (0.0,) * 3, (1.0,) * 3), PLAN.widths)  # type: ignore[arg-type]
    net = nn.Sequential(OrderedDict(backbone=backbone, head=nn.Linear(backbone.width, 2)))
    return net.eval().requires_grad_(False)


LAYERS = ("backbone.net.stem.conv", "backbone.net.levels.1.0.layers.0.conv", "backbone.net.levels.1.0.layers.2.conv")


def test_lora_written_out_is_that_of_peft(part: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    imported("peft")
    part.has_peft.cache_clear()
    assert part.made_by().startswith("peft ")
    net, x = network(), torch.randn(3, 3, 16, 16)
    theirs = part.with_lora(net, dict.fromkeys(LAYERS, 2), "head").eval()
    monkeypatch.setattr(part, "has_peft", lambda: False)
    ours = part.with_lora(net, dict.fromkeys(LAYERS, 2), "head").eval()
    assert part.trained_numbers(ours) == part.trained_numbers(theirs)
    generator = torch.Generator().manual_seed(1)
    state = theirs.state_dict()
    for name, parameter in ours.named_parameters():
        if "lora_" not in name:
            continue
        values = torch.randn(parameter.shape, generator=generator)
        layer, _, rest = name.partition(".lora_")
        own = f"base_model.model.{layer}.lora_{rest[0].upper()}.default.weight"
        assert state[own].shape == parameter.shape
        with torch.no_grad():
            parameter.copy_(values)
            state[own].copy_(values)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)
        assert float((ours(x) - net(x)).abs().max()) > 0.01


def test_an_adapter_is_counted_as_the_factors_of_a_task_are(part: ModuleType) -> None:
    net = network()
    model = factorize(net, include=list(LAYERS), base="frozen", heads="per-task")
    counted = sum(3 * (one.inputs + one.outputs) for one in model.layers.values())
    assert part.adapter_size(net, dict.fromkeys(LAYERS, 3)) == counted
