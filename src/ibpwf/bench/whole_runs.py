"""The paper's experiments from start to end on a GPU, and images a second beside a plain ResNet-20."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor
from torch.nn import functional as F

from ibpwf.bench.measure import Row, Setup, milliseconds, ratio, take_turns
from ibpwf.bench.steps import elbo_step, repeat
from ibpwf.experiments.presets import preset
from ibpwf.experiments.run import RunConfig, run
from ibpwf.factors.model import factorize
from ibpwf.methods.base import TaskData
from ibpwf.methods.ibpwf import IBPWF
from ibpwf.models import resnet20
from ibpwf.settings import Settings
from ibpwf.training.phase import Phase
from ibpwf.training.step import Step


def _whole(name: str, config: RunConfig, what: str, limit: float) -> Row:
    with TemporaryDirectory() as folder:
        started = time.perf_counter()
        result = run(config, Path(folder) / "run", command="")
        seconds = time.perf_counter() - started
    accuracy = result["accuracy"]["task"]["mean"]
    detail = f"accuracy with the task given {accuracy:.2f} %"
    return Row(name, what, seconds, seconds, seconds, limit, unit="s", detail=detail)


def split_mnist(setup: Setup) -> list[Row]:
    config = RunConfig("split-mnist", seeds=tuple(range(10)), device=setup.device.type, models=False)
    return [_whole("split-mnist", config, "Split MNIST, preset paper, 10 seeds, whole run", 45.0)]


def permuted_mnist(setup: Setup) -> list[Row]:
    config = RunConfig("permuted-mnist", seeds=tuple(range(10)), device=setup.device.type, models=False)
    return [_whole("permuted-mnist", config, "Permuted MNIST, preset paper, 10 tasks, 10 seeds, whole run", 240.0)]


def split_cifar10(setup: Setup) -> list[Row]:
    config = RunConfig("split-cifar10", device=setup.device.type, models=False)
    whole = _whole("split-cifar10", config, "Split CIFAR-10, ResNet-20, 160 epochs × 5 tasks, one seed", 300.0)
    return [whole, *images_per_second(setup)]


def images_per_second(setup: Setup) -> list[Row]:
    """A step of the factorised ResNet-20 beside one of the dense ResNet-20, recorded the same way, batch 128."""
    steps, batch = 100, 128
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch * steps, 3, 32, 32, generator=generator).to(setup.device)
    y = torch.randint(0, 2, (batch * steps,), generator=generator).to(setup.device)
    settings = preset("split-cifar10", "paper").make_settings()
    assert isinstance(settings, Settings)
    names = {key: getattr(settings, key) for key in ("alpha", "max_factors", "heads", "strength_std")}
    ours = IBPWF(factorize(resnet20(classes=2), **names).to(setup.device), settings)
    net = resnet20(classes=2).to(setup.device)

    def loss(rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        value = F.cross_entropy(net(rows), labels)
        return value, torch.zeros_like(value)

    dense = Step(Phase("dense", 1, batch), list(net.parameters()), loss, x, y, buffers=list(net.buffers()), tf32=True)
    dense.start_epoch(torch.arange(len(y)))
    data = TaskData("task", 0, (0, 1), x, y, 0)
    sides = {"dense": repeat(dense, steps), "IBP-WF": repeat(elbo_step(ours, data, 0), steps)}
    times = take_turns(sides, setup)
    row = ratio("split-cifar10", "images/s, factorised ÷ dense ResNet-20, both recorded", times["dense"],
                times["IBP-WF"], 0.6, detail=milliseconds(times, steps))  # fmt: skip
    return [Row(**{**{k: v for k, v in row.to_json().items() if k != "met"}, "at_least": True})]
