"""Whole runs: the paper's experiments from start to end on a GPU, images a second beside a plain ResNet-20, and on a
CPU several seeds at once beside as many times one seed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor
from torch.nn import functional as F

from ibpwf.data.rows import IndexedRows
from ibpwf.lab.bench.measure import Row, Setup, milliseconds, ratio, take_turns
from ibpwf.lab.bench.steps import elbo_step, method_of, repeat
from ibpwf.lab.data import fetching
from ibpwf.lab.experiments.run import run
from ibpwf.lab.experiments.run_config import RunConfig
from ibpwf.models import resnet20
from ibpwf.training.method import TaskData
from ibpwf.training.objective import Fit, Loss
from ibpwf.training.phase import Phase
from ibpwf.training.step import make_step


def _whole(setup: Setup, config: RunConfig, what: str, limit: float) -> Row:
    with TemporaryDirectory() as folder:
        name = f"{config.scenario}_{config.method}_{config.preset}"  # as `reproduce` calls it
        out = (setup.runs or Path(folder)) / name
        seeds = "" if len(config.seeds) == 1 else f" --seeds {len(config.seeds)}"
        command = f"ibpwf run {config.scenario} --preset {config.preset}{seeds} --out {out}"
        started = time.perf_counter()
        result = run(config, out, command=command)
        seconds = time.perf_counter() - started
    accuracy = result["accuracy"]["task"]["mean"]
    spent = result["seconds"]
    detail = (
        f"training {spent['train']:.0f} s, evaluation {spent['eval']:.0f} s; accuracy with the task given "
        f"{accuracy:.2f} %"
    )
    return Row(config.scenario, what, seconds, seconds, seconds, limit, unit="s", detail=detail)


def _config(setup: Setup, scenario: str, seeds: int) -> RunConfig:
    return RunConfig(scenario, seeds=tuple(range(seeds)), device=setup.device.type, models=setup.runs is not None)


def split_mnist(setup: Setup) -> list[Row]:
    config = _config(setup, "split-mnist", 10)
    return [_whole(setup, config, "Split MNIST, preset paper, 10 seeds, whole run", 45.0)]


def permuted_mnist(setup: Setup) -> list[Row]:
    config = _config(setup, "permuted-mnist", 10)
    return [_whole(setup, config, "Permuted MNIST, preset paper, 10 tasks × 20 epochs, 10 seeds, whole run", 240.0)]


def split_cifar10(setup: Setup) -> list[Row]:
    config = _config(setup, "split-cifar10", 1)
    whole = _whole(setup, config, "Split CIFAR-10, ResNet-20, 160 epochs × 5 tasks, one seed", 300.0)
    return [*images_per_second(setup), whole]


def images_per_second(setup: Setup) -> list[Row]:
    """A step of the factorised ResNet-20 beside one of the dense ResNet-20, recorded the same way, batch 128."""
    steps, batch = 40, 128
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch * steps, 3, 32, 32, generator=generator).to(setup.device)
    y = torch.randint(0, 2, (batch * steps,), generator=generator).to(setup.device)
    ours = [method_of("split-cifar10", resnet20(classes=2), setup.device) for _ in range(2)]
    net = resnet20(classes=2).to(setup.device)

    def loss(rows: Tensor, labels: Tensor) -> Loss:
        return Loss(F.cross_entropy(net(rows), labels))

    fit = Fit(list(net.parameters()), loss, buffers=list(net.buffers()), bfloat16=ours[0].bfloat16)
    dense = make_step(fit, Phase("dense", 1, batch), IndexedRows(x, y))
    data = TaskData("task", 0, (0, 1), x, y, 0)
    first, later = (repeat(elbo_step(method, data, task), steps) for task, method in enumerate(ours))
    times = take_turns({"dense": repeat(dense, steps), "first task": first, "later task": later}, setup)
    found = []
    for side in ("first task", "later task"):
        what = f"images/s, factorised ÷ dense ResNet-20, {side}, both recorded, in {ours[0].settings.precision}"
        row = ratio("split-cifar10", what, times["dense"], times[side], 0.6, detail=milliseconds(times, steps))
        found.append(replace(row, at_least=True))
    return found


SEEDS = 5


class _OnTheWall(Setup):
    """Programs side by side are what is measured here: time on the wall."""

    def seconds(self) -> float:
        return time.perf_counter()


def five_seeds(setup: Setup) -> list[Row]:
    """Split MNIST, preset paper but for fewer epochs; split digits where MNIST is not to be had, in turns then."""
    scenario = "split-mnist" if fetching.is_cached("mnist") and not setup.quick else "split-digits"

    def seeds(count: int) -> Callable[[], None]:
        changes = {"epochs": 1, "finetune_epochs": 1} if scenario == "split-mnist" else {"epochs": 3}
        config = RunConfig(scenario, seeds=tuple(range(count)), changes=changes, device=setup.device.type)

        def whole() -> None:
            with TemporaryDirectory() as folder:
                run(config, Path(folder) / "run")

        return whole

    clock = _OnTheWall(setup.device, setup.quick)
    real = scenario == "split-mnist"
    times = take_turns({"together": seeds(SEEDS), "one": seeds(1)}, clock, 1 if real else 2, warm=real)
    what = f"{SEEDS} seeds of {scenario} together ÷ {SEEDS} × one seed"
    return [ratio("seeds", what, times["together"], times["one"], 0.65, per=SEEDS, detail=milliseconds(times))]
