"""Tasks with factors beside LoRA by peft, on the same networks and rows: what training costs, and what it reaches.

Cost: a task's training on as many batches, LoRA with the mean of the ranks that the prior chose. Accuracy: Split
CIFAR-10 from EfficientNet-Lite0 with the task given. Both train for as many epochs, on images moved and mirrored
alike, with the same optimizer, rate, schedule and batch size, and look at an image once. What a task adds is counted,
so that equals in size can be compared. While ranks are being chosen, factors come and go from batch to batch; that
takes one epoch here, and the choice is learned so much faster than all else that it is settled by then.
"""

from __future__ import annotations

import argparse
import copy
import gc
import importlib.metadata
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from record import Clock, percent
from torch import Tensor, nn
from torch.nn import functional as F

from ibpwf import Learner, Settings, backbones, factorize
from ibpwf.backbones.sentence_encoder import EncoderSize, SentenceEncoder
from ibpwf.device import choose_device
from ibpwf.lab import scenario
from ibpwf.lab.data.tasks import Scenario, Task
from ibpwf.training.augment import CropAndFlip
from ibpwf.training.phase import Phase, learning_rate_at
from trained import images

COST = Settings(
    base="frozen",
    heads="per-task",
    epochs=4,
    finetune_epochs=2,
    batch_size=64,
    learning_rate=1e-3,
    precision="bfloat16",
    **{"inference.features": "random", "inference.features.width": 16},
)
ACCURACY = images.SETTINGS.replace(
    turns=1,
    inference="gaussian",
    validation_fraction=0.0,
    selection_rate=50.0,
    epochs=1,
    finetune_epochs=5,
    batch_size=256,
    **{"inference.features": "random", "inference.features.width": 16},
)
LENGTH, STEPS, ROWS = 128, 60, 500
Moved = Callable[[Tensor], Tensor]


class EncodedText(nn.Module):
    """A sentence encoder with random weights and a head: a BERT of 12 layers, 384 wide."""

    def __init__(self, size: EncoderSize) -> None:
        super().__init__()
        self.encoder, self.head = SentenceEncoder(size), nn.Linear(size.width, 4)

    def forward(self, x: Tensor) -> Tensor:
        *_, last = self.encoder.stages(x)
        out: Tensor = self.head(last)
        return out


def encoder(small: bool) -> tuple[nn.Module, list[str], Tensor]:
    size = EncoderSize(layers=2 if small else 12)
    net = EncodedText(size)
    names = [name for name, module in net.named_modules() if isinstance(module, nn.Linear) and name != "head"]
    return net, names, torch.randint(1, size.vocabulary, (1, LENGTH)).float()


def convolutions(small: bool) -> tuple[nn.Module, list[str], Tensor]:
    net = backbones.image_classifier(backbones.load(images.BACKBONE), 4, size=64 if small else 128)
    return net, images.factor_layers(net, "pointwise"), torch.rand(1, 3, 32, 32)


NETWORKS = {"encoder": encoder, "efficientnet-lite0": convolutions}


def with_lora(net: nn.Module, ranks: Mapping[str, int], head: str) -> nn.Module:
    """A copy of a network whose layers of these names have adapters of these ranks (scaling 1), to train with its
    head; all else is as frozen as it is."""
    from peft import LoraConfig, get_peft_model

    patterns = {f"^{name}$": rank for name, rank in ranks.items()}
    config = LoraConfig(
        r=1,
        lora_alpha=1,
        rank_pattern=patterns,
        alpha_pattern=patterns,
        target_modules=list(ranks),
        modules_to_save=[head],
        lora_dropout=0.0,
    )
    adapted: nn.Module = get_peft_model(copy.deepcopy(net), config)  # type: ignore[arg-type]
    return adapted


def adapter_size(net: nn.Module, ranks: Mapping[str, int]) -> int:
    """Numbers of adapters of these ranks, without a head."""
    shapes = ((net.get_parameter(f"{name}.weight"), rank) for name, rank in ranks.items())
    return sum(rank * (weight.shape[0] + weight[0].numel()) for weight, rank in shapes)


def train(adapted: nn.Module, x: Tensor, y: Tensor, settings: Settings, seed: int, moved: Moved) -> Iterator[float]:
    """Training with LoRA as users of peft write it (autocast, Adam, a loop), for as many epochs as ours; the seconds
    of each."""
    parameters = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=float(settings.learning_rate), fused=True)
    epochs, size = int(settings.epochs) + int(settings.finetune_epochs), min(int(settings.batch_size), len(y))
    phase = Phase("lora", epochs, size, float(settings.learning_rate), schedule=settings.schedule)
    rounded, generator = x.is_cuda and settings.precision == "bfloat16", torch.Generator().manual_seed(seed)
    for epoch in range(epochs):
        started = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(phase, epoch)
        order = torch.randperm(len(y), generator=generator)[: len(y) // size * size].to(x.device)
        for rows in order.view(-1, size):
            given = moved(x.index_select(0, rows))
            if given.is_cuda and given.dim() == 4:
                given = given.contiguous(memory_format=torch.channels_last)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.bfloat16) if rounded else nullcontext():
                loss = F.cross_entropy(adapted(given), y.index_select(0, rows))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        if x.is_cuda:
            torch.cuda.synchronize()
        yield time.perf_counter() - started


def measure_cost(seed: int, asked: argparse.Namespace) -> dict[str, Any]:
    settings, device = COST.replace(**asked.changes), choose_device(asked.device)
    found: dict[str, Any] = {"lora_by": f"peft {importlib.metadata.version('peft')}", "settings": settings.to_json()}
    for name in asked.networks:
        torch.manual_seed(seed)
        net, layers, example = NETWORKS[name](asked.examples is not None)
        net.requires_grad_(False)
        rows = asked.examples or STEPS * int(settings.batch_size)
        x = example.expand(rows, *example.shape[1:]).clone().to(device)
        x += torch.randint(0, 2, x.shape, device=device) if name == "encoder" else torch.rand_like(x)
        y = torch.arange(rows, device=device) % 4
        clear(x)
        learner = Learner(
            factorize(net, include=layers, **settings.factorization), settings, seed=seed, device=device
        )
        clock = Clock()
        learner.learn(x, y, callbacks=[clock])
        phases = {phase: clock.seconds(phase) for phase in dict.fromkeys(clock.phases)}
        ours = sum(settled(each) * len(each) for each in phases.values()) / len(clock.ends)
        use, memory = learner.model.use(0), peak(x)
        ranks = {layer: each.active for layer, each in use.items()}
        mean = statistics.fmean(ranks.values())
        del learner
        clear(x)
        adapted = with_lora(net, dict.fromkeys(layers, max(1, round(mean))), "head").to(device).train()
        theirs = settled(list(train(adapted, x, y, settings, seed, lambda rows: rows)))
        found |= {f"{name} time_ratio": ours / theirs, f"{name} mean_rank": mean, f"{name} ranks": ranks}
        if device.type == "cuda":
            found[f"{name} memory_ratio"] = memory / peak(x)
        print(name, {key: value for key, value in found.items() if isinstance(value, float)}, flush=True)
    return found


def settled(seconds: list[float]) -> float:
    """Of an epoch, once everything is warm (in the first one a step is recorded); the quickest, which nothing else
    disturbed."""
    return min(seconds[1:] or seconds)


def clear(x: Tensor) -> None:
    """Let go of what earlier trainings left."""
    gc.collect()
    if x.is_cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak(x: Tensor) -> float:
    return float(torch.cuda.max_memory_allocated()) if x.is_cuda else 0.0


def measure_accuracy(seed: int, asked: argparse.Namespace) -> dict[str, Any]:
    settings, device = ACCURACY.replace(**asked.changes), choose_device(asked.device)
    share = images.VALIDATION if asked.validation else 0.0
    stream = scenario("split-cifar10", tasks=asked.tasks, examples=asked.examples, validation=share, seed=seed)
    found: dict[str, Any] = {"lora_by": f"peft {importlib.metadata.version('peft')}", "settings": settings.to_json()}
    net = images.network(settings, asked.size)
    layers, base = images.factor_layers(net, asked.layers), images.base_size(net)
    for alpha in asked.alphas:
        found |= factor_tasks(settings.replace(alpha=alpha), stream, seed, asked)
    for rank in asked.ranks:
        ranks = dict.fromkeys(layers, rank)
        own = [lora_task(net, ranks, task, settings, seed, asked.validation, device) for task in stream]
        head = 2 * (net.get_submodule("head").get_parameter("weight").shape[1] + 1)
        found[f"LoRA {rank}"] = sum(own) / len(own)
        found[f"LoRA {rank}, per cent of the base"] = 100 * (adapter_size(net, ranks) + head) / base
        print({name: value for name, value in found.items() if isinstance(value, float)}, flush=True)
    return found


def factor_tasks(settings: Settings, stream: Scenario, seed: int, asked: argparse.Namespace) -> dict[str, Any]:
    """Accuracy, size and ranks of tasks whose prior has this α."""
    made, right = images.learner(settings, seed, asked), []
    for task in stream:
        images.learn(made, task)
        right.append(percent(images.right_given(made, task, asked.validation)))
    sizes, name = images.added(made), f"factors, α = {settings.alpha:g}"
    return {
        name: statistics.fmean(right),
        f"{name}, per cent of the base": statistics.fmean(task["percent"] for task in sizes),
        f"{name}, mean rank": statistics.fmean(statistics.fmean(task["ranks"].values()) for task in sizes),
    }


def lora_task(
    net: nn.Module,
    ranks: dict[str, int],
    task: Task,
    settings: Settings,
    seed: int,
    validation: bool,
    device: torch.device,
) -> float:
    """Per cent of a task's tests that LoRA of these ranks, trained on it alone, answers rightly."""
    torch.manual_seed(seed)
    adapted = with_lora(net, ranks, "head").to(device).train()
    x, y = task.train.x.to(device), (task.train.y == task.classes[1]).long().to(device)
    crop = CropAndFlip(torch.Generator(device).manual_seed(seed))
    for _ in train(adapted, x, y, settings, seed, crop if settings.augment == "crop-flip" else lambda rows: rows):
        pass
    tests, labels = images.tests_of(task, validation, device)
    adapted.eval()
    with torch.no_grad():
        found = torch.cat([adapted(part).argmax(1) for part in torch.split(tests, ROWS)])
    return percent(torch.tensor(task.classes, device=device)[found] == labels)
