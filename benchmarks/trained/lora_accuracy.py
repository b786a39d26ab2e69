"""Split CIFAR-10 from EfficientNet-Lite0 with the task given: factors chosen by the prior beside LoRA of fixed ranks.

Both train for as many epochs, on images moved and mirrored alike, with the same optimizer, rate, schedule and batch
size, and look at an image once. LoRA has an adapter and a head for every task. What a task adds is counted, so that
equals in size can be compared. While ranks are being chosen, factors come and go from batch to batch; that takes one
epoch here, and the choice is learned so much faster than all else that it is settled by then.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ibpwf import Settings
from ibpwf.device import choose_device
from ibpwf.lab import scenario
from ibpwf.lab.data.tasks import Scenario, Task
from ibpwf.training.augment import CropAndFlip
from ibpwf.training.phase import Phase, learning_rate_at
from trained import cifar10
from trained.images import VALIDATION, Progress, added, factor_layers, learner, network, percent
from trained.lora_layers import Batches, adapter_size, made_by, recorded, with_lora

SETTINGS = cifar10.SETTINGS.replace(
    turns=1,
    second_opinion=False,
    inference="gaussian",
    router_ridge="auto",
    features="random",
    random_features=16,
    patch_filters="small",
    backbone_projection=0,
    held_out=0.0,
    selection_rate=50.0,
    epochs=1,
    finetune_epochs=5,
    batch_size=256,
)
ROWS = 500


def measure(seed: int, asked: argparse.Namespace) -> dict[str, Any]:
    settings = SETTINGS.replace(**asked.changes)
    share = VALIDATION if asked.validation else 0.0
    stream = scenario("split-cifar10", tasks=asked.tasks, examples=asked.examples, validation=share, seed=seed)
    found: dict[str, Any] = {"lora_by": made_by(), "settings": settings.to_json()}
    net = network(settings, asked.size, asked.norms)
    layers = factor_layers(net, asked.layers)
    base = sum(parameter.numel() for parameter in net.get_submodule("backbone").parameters())
    for alpha in asked.alphas:
        found |= factor_tasks(settings.replace(alpha=alpha), stream, seed, asked)
        print({name: value for name, value in found.items() if isinstance(value, float)}, flush=True)
    for rank in asked.ranks:
        ranks = dict.fromkeys(layers, rank)
        where = (seed, asked.validation, choose_device(asked.device))
        own = [lora_task(net, ranks, task, settings, where) for task in stream]
        head = 2 * (net.get_submodule("head").get_parameter("weight").shape[1] + 1)
        found[f"LoRA {rank}"] = sum(own) / len(own)
        found[f"LoRA {rank}, per cent of the base"] = 100 * (adapter_size(net, ranks) + head) / base
        found[f"LoRA {rank} by task"] = own
        print({name: value for name, value in found.items() if isinstance(value, float)}, flush=True)
    return found


def factor_tasks(settings: Settings, stream: Scenario, seed: int, asked: argparse.Namespace) -> dict[str, Any]:
    """Accuracy, size and ranks of tasks whose prior has this α."""
    made, right = learner(settings, seed, asked), []
    for task in stream:
        made.learn(task.train.x.to(made.device), task.train.y, name=task.name, callbacks=[Progress()])
        x, y = _tests(task, asked.validation, made.device)
        labels = torch.cat([made.predict(part, task=task.name).labels for part in torch.split(x, ROWS)])
        right.append(percent(labels == y))
    sizes, name = added(made), f"factors, α = {settings.alpha:g}"
    return {
        name: sum(right) / len(right),
        f"{name}, per cent of the base": sum(task["percent"] for task in sizes) / len(sizes),
        f"{name}, mean rank": sum(statistics.fmean(task["ranks"].values()) for task in sizes) / len(sizes),
        f"{name} by task": right,
        f"{name}, ranks": [task["ranks"] for task in sizes],
    }


def _tests(task: Task, validation: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    part = task.validation if validation else task.test
    assert part is not None
    return part.x.to(device), part.y.to(device)


def lora_task(
    net: nn.Module,
    ranks: dict[str, int],
    task: Task,
    settings: Settings,
    where: tuple[int, bool, torch.device],
) -> float:
    """Per cent of a task's tests that LoRA of these ranks, trained on it alone, answers rightly."""
    seed, validation, device = where
    torch.manual_seed(seed)
    adapted = with_lora(net, ranks, "head").to(device).train()
    x, y = task.train.x.to(device), (task.train.y == task.classes[1]).long().to(device)
    moved = CropAndFlip(torch.Generator(device).manual_seed(seed))
    trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    rounded = x.is_cuda and settings.precision == "bfloat16"
    optimizer = torch.optim.Adam(trained, lr=float(settings.learning_rate), fused=True)
    epochs, started = int(settings.epochs) + int(settings.finetune_epochs), time.perf_counter()
    phase = Phase("lora", epochs, int(settings.batch_size), float(settings.learning_rate), schedule=settings.schedule)
    batches = Batches(x, y, min(phase.batch_size, len(y)), seed)
    recording: nn.Module | None = None
    for epoch in range(epochs):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(phase, epoch)
        for order in batches.epoch():
            given = x.index_select(0, order)
            given = (moved(given) if settings.augment == "crop-flip" else given).contiguous(
                memory_format=torch.channels_last
            )
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.bfloat16, cache_enabled=False) if rounded else nullcontext():
                recording = recorded(adapted, given) if recording is None else recording
                loss = F.cross_entropy(recording(given), y.index_select(0, order))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    tests, labels = _tests(task, validation, device)
    adapted.eval()
    with torch.no_grad():
        answers = torch.cat([adapted(part).argmax(1) for part in torch.split(tests, ROWS)])
    right = percent(torch.tensor(task.classes, device=device)[answers] == labels)
    print(f"  LoRA {next(iter(ranks.values()))} {task.name}: {right:.2f} %, {time.perf_counter() - started:.1f} s")
    return right
