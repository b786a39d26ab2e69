"""An adapter of the benchmark beside LoRA is counted as the factors of a task are."""

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
LAYERS = ("backbone.net.stem.conv", "backbone.net.levels.1.0.layers.0.conv", "backbone.net.levels.1.0.layers.2.conv")


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(BENCHMARKS)
    yield importlib.import_module("trained.lora")
    for name in [name for name in sys.modules if name.partition(".")[0] in ("trained", "record")]:
        del sys.modules[name]


def network() -> nn.Sequential:
    """A small network of the kind of EfficientNet-Lite0."""
    torch.manual_seed(0)
    inner = InvertedResidualNetwork(PLAN)
    backbone = Backbone("small", "", inner, ImageInput(16, (0.0,) * 3, (1.0,) * 3), PLAN.widths)  # type: ignore[arg-type]
    net = nn.Sequential(OrderedDict(backbone=backbone, head=nn.Linear(backbone.width, 2)))
    return net.eval().requires_grad_(False)


def test_an_adapter_is_counted_as_the_factors_of_a_task_are(part: ModuleType) -> None:
    net = network()
    model = factorize(net, include=list(LAYERS), base="frozen", heads="per-task")
    counted = sum(3 * (one.inputs + one.outputs) for one in model.layers.values())
    assert part.adapter_size(net, dict.fromkeys(LAYERS, 3)) == counted


def test_what_lora_trains_is_its_adapters_and_the_head(part: ModuleType) -> None:
    imported("peft")
    net, ranks = network(), dict.fromkeys(LAYERS, 2)
    adapted = part.with_lora(net, ranks, "head")
    trained = sum(parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad)
    head = sum(parameter.numel() for parameter in net.get_submodule("head").parameters())
    assert trained == part.adapter_size(net, ranks) + head
