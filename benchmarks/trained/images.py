"""Split CIFAR-10, five tasks of two classes, from EfficientNet-Lite0: the base frozen, each task its factors."""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from record import Clock, percent
from torch import Tensor, nn

from ibpwf import Learner, Settings, backbones, factorize
from ibpwf.lab import scenario
from ibpwf.lab.data.catalog import CIFAR10
from ibpwf.lab.data.tasks import Scenario, Task

BACKBONE = "efficientnet-lite0"
LAYERS = ("pointwise", "late")
"""Factors in all convolutions but those within single channels; in those of the last three stages."""
LATE_STAGES = ("backbone.net.levels.5", "backbone.net.levels.6", "backbone.net.levels.7")
ROWS_ASKED = 2048
VALIDATION = 0.1
"""Share of the training images that are held out to choose settings by."""

SETTINGS = Settings(
    base="frozen",
    heads="per-task",
    alpha=0.66,
    selection_rate=10.0,
    turns=4,
    mirror=True,
    augment="crop-flip",
    epochs=2,
    finetune_epochs=6,
    batch_size=64,
    learning_rate=3e-3,
    schedule="cosine",
    precision="bfloat16",
    inference="router",
    validation_fraction=0.03,
    **{
        "inference.experts": "all",
        "inference.features": "patches+backbone+adapted",
        "inference.features.patches.filters": "large",
        "inference.features.patches.mirror": True,
        "inference.features.backbone.depths": (5, 6, 7, 8),
        "inference.features.backbone.grid": (3, 3, 3, 1),
        "inference.features.backbone.projection": 32_000,
        "inference.features.backbone.mirror": True,
        "inference.features.adapted.layers": LATE_STAGES,
        "inference.features.adapted.mirror": True,
        "inference.ridge": 0.01,
        "inference.precision": "mixed",
        "inference.second_opinion": True,
        "input.mean": CIFAR10.mean,
        "input.std": CIFAR10.std,
    },
)


def network(settings: Settings, size: int) -> nn.Sequential:
    """Lite0 for images that come as the settings say; all is frozen but factors, heads and the statistics of batch
    normalization."""
    assert settings.input.mean != "auto"
    assert settings.input.std != "auto"
    scale = {"image_mean": settings.input.mean, "image_std": settings.input.std}
    return backbones.image_classifier(backbones.load(BACKBONE), 2, size=size, **scale).requires_grad_(False)


def factor_layers(net: nn.Module, layers: str) -> list[str]:
    """The names of the convolutions that get factors."""
    names = [name for name, module in net.named_modules() if isinstance(module, nn.Conv2d) and module.groups == 1]
    return [name for name in names if layers != "late" or name.startswith(LATE_STAGES)]


def learner(settings: Settings, seed: int, asked: argparse.Namespace) -> Learner:
    net = network(settings, asked.size)
    model = factorize(net, include=factor_layers(net, asked.layers), **settings.factorization)
    return Learner(model, settings, seed=seed, device=asked.device)


def added(learner: Learner) -> list[dict[str, Any]]:
    """What each task added to the base: ranks by layer, trained parameters, and with statistics all it keeps."""
    model = learner.model
    base, fixed = base_size(model.net), model.fixed_tensors()
    found = []
    for number, task in enumerate(model.tasks):
        use = model.use(number)
        factors = sum(use[name].new * (d.inputs + d.outputs) for name, d in model.layers.items())
        own = {name: tensor.numel() for name, tensor in task.own.items() if name not in fixed}
        statistics = sum(size for name, size in own.items() if "running_" in name or "num_batches" in name)
        kept = factors + sum(each.active for each in use.values()) + sum(own.values())
        found.append(
            {
                "ranks": {name: each.active for name, each in use.items()},
                "new": {name: each.new for name, each in use.items()},
                "percent": 100 * (kept - statistics) / base,
                "percent_with_statistics": 100 * kept / base,
            }
        )
    return found


def base_size(net: nn.Module) -> int:
    """Trained numbers of the base, without a head and the statistics of its normalization."""
    return sum(parameter.numel() for parameter in net.get_submodule("backbone").parameters())


def tests_of(task: Task, validation: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    """What a task is measured with."""
    part = task.validation if validation else task.test
    assert part is not None
    return part.x.to(device), part.y.to(device)


def learn(made: Learner, task: Task) -> float:
    """Seconds of learning a task whose images are on the device already."""
    x = task.train.x.to(made.device)
    started = time.perf_counter()
    made.learn(x, task.train.y, task=task.name, callbacks=[Clock(shown=True)])
    if x.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - started


def right_given(made: Learner, task: Task, validation: bool) -> Tensor:
    """Which rows of a task are answered rightly by whom it is given."""
    x, y = tests_of(task, validation, made.device)
    return torch.cat([made.predict(rows, task=task.name).labels for rows in torch.split(x, ROWS_ASKED)]) == y


def measure(seed: int, asked: argparse.Namespace) -> dict[str, Any]:
    settings = SETTINGS.replace(**asked.changes)
    share = VALIDATION if asked.validation else 0.0
    stream = scenario("split-cifar10", tasks=asked.tasks, examples=asked.examples, validation=share, seed=seed)
    made = learner(settings, seed, asked)
    seconds = [learn(made, task) for task in stream]
    found, tasks = answers(made, stream, asked.validation), added(made)
    return {
        **found,
        "seconds_of_learning": sum(seconds),
        "percent_added": sum(task["percent"] for task in tasks) / len(tasks),
        "percent_added_with_statistics": sum(task["percent_with_statistics"] for task in tasks) / len(tasks),
        "most_percent_added": max(task["percent"] for task in tasks),
        "mean_rank": sum(sum(task["ranks"].values()) / len(task["ranks"]) for task in tasks) / len(tasks),
        "tasks": [{"name": task.name, "classes": list(task.classes)} for task in stream],
        "added": tasks,
        "settings": settings.to_json(),
    }


def answers(made: Learner, stream: Scenario, validation: bool) -> dict[str, Any]:
    """All ways of answering, from one look at the rows: router and experts say something of every class of the tasks
    that the settings would have asked."""
    tests = [tests_of(task, validation, made.device) for task in stream]
    x, y = torch.cat([rows for rows, _ in tests]), list[Tensor]()
    for task, (_, labels) in zip(stream, tests, strict=True):
        order = torch.tensor(task.classes, device=made.device)
        y.append((labels.unsqueeze(1) == order).long().argmax(1) + sum(len(t.classes) for t in stream[: len(y)]))
    column, tasks = torch.cat(y), torch.repeat_interleave(torch.tensor([len(labels) for labels in y])).to(x.device)
    method = made.method
    parts = [method.class_scores(rows, method.inference.experts_asked) for rows in torch.split(x, ROWS_ASKED)]
    router_scores = torch.cat([part.router for part in parts])
    expert_scores = torch.cat([part.experts for part in parts if part.experts is not None])
    owner = torch.repeat_interleave(torch.tensor(parts[0].widths)).to(x.device)
    router, experts = method.fusion_weights()
    best = torch.cat([part.joint(router, experts) for part in parts]).argmax(1)
    by_expert = own_scores(made, x, tasks, expert_scores, owner).argmax(1) == column
    return {
        "class": percent(best == column),
        "given": percent(torch.cat([right_given(made, task, validation) for task in stream])),
        "given_by_experts_alone": percent(by_expert),
        "task_inferred": percent(owner[best] == tasks),
        "router_alone": percent(router_scores.argmax(1) == column),
        "experts_alone": percent(expert_scores.argmax(1) == column),
        "class_by_task": [percent((best == column)[tasks == task]) for task in range(len(stream))],
        "weights": {"router": router, "experts": experts},
    }


def own_scores(made: Learner, x: Tensor, tasks: Tensor, known: Tensor, owner: Tensor) -> Tensor:
    """What each row's own expert says of its classes, -inf for all others; those that were not asked are now."""
    found = known.masked_fill(owner != tasks.unsqueeze(1), -torch.inf)
    silent = found.amax(1) == -torch.inf
    for task in range(int(owner[-1]) + 1):
        rows = (silent & (tasks == task)).nonzero().flatten()
        for some in torch.split(rows, ROWS_ASKED):
            columns = (owner == task).nonzero().flatten()
            found[some.unsqueeze(1), columns] = made.method.logits(x[some], task).to(found)
    return found
