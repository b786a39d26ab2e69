"""Split CIFAR-10, five tasks of two classes, from EfficientNet-Lite0: the base frozen, each task its factors."""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from torch import Tensor

from ibpwf import Learner, Settings
from ibpwf.lab import scenario
from ibpwf.lab.data.catalog import CIFAR10
from ibpwf.lab.data.tasks import Scenario, Task
from trained.images import (
    LATE_STAGES,
    LAYERS,
    NORMS,
    ROWS_ASKED,
    VALIDATION,
    Progress,
    added,
    base_size,
    learner,
    percent,
    rows_of,
)

__all__ = ["LAYERS", "NORMS", "SETTINGS", "measure"]

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
    experts="all",
    features="patches+backbone+adapted",
    inference_layers=LATE_STAGES,
    patch_filters="large",
    backbone_depths=(5, 6, 7, 8),
    backbone_grid=(3, 3, 3, 1),
    backbone_projection=32_000,
    router_ridge=0.01,
    router_precision="mixed",
    held_out=0.03,
    second_opinion=True,
    image_mean=CIFAR10.mean,
    image_std=CIFAR10.std,
)
WEIGHTS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0)


def measure(seed: int, asked: argparse.Namespace) -> dict[str, Any]:
    settings = SETTINGS.replace(**asked.changes)
    stream = scenario(
        "split-cifar10",
        tasks=asked.tasks,
        examples=asked.examples,
        validation=VALIDATION if asked.validation else 0.0,
        seed=seed,
    )
    made = learner(settings, seed, asked)
    if made.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = [learn(made, task.train.x, task.train.y, task.name) for task in stream]
    peak = torch.cuda.max_memory_allocated() if made.device.type == "cuda" else None
    started = time.perf_counter()
    found = answers(made, stream, asked.validation)
    tasks = added(made)
    return {
        **found,
        "seconds_of_learning": sum(seconds),
        "seconds_of_answering": time.perf_counter() - started,
        "percent_added": sum(task["percent"] for task in tasks) / len(tasks),
        "percent_added_with_statistics": sum(task["percent_with_statistics"] for task in tasks) / len(tasks),
        "most_percent_added": max(task["percent"] for task in tasks),
        "mean_rank": sum(sum(task["ranks"].values()) / len(task["ranks"]) for task in tasks) / len(tasks),
        "peak_bytes": peak,
        "base_parameters": base_size(made.model),
        "seconds_by_task": seconds,
        "tasks": [{"name": task.name, "classes": list(task.classes)} for task in stream],
        "added": tasks,
        "settings": settings.to_json(),
    }


def learn(made: Learner, x: Tensor, y: Tensor, name: str) -> float:
    """Seconds of learning a task whose images are on the device already."""
    x = x.to(made.device)
    started = time.perf_counter()
    made.learn(x, y, name=name, callbacks=[Progress()])
    if x.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - started


def answers(made: Learner, stream: Scenario, validation: bool) -> dict[str, Any]:
    """All ways of answering, from one look at the rows: router and experts say something of every class of the tasks
    that the settings would have asked."""
    x, y, tasks = rows_of(stream, validation, made.device)
    method = made.method
    parts = [method.class_scores(rows, method.settings.experts) for rows in torch.split(x, ROWS_ASKED)]
    router_scores = torch.cat([part.router for part in parts])
    expert_scores = torch.cat([part.experts for part in parts if part.experts is not None])
    widths = torch.tensor(parts[0].widths, device=y.device)
    owner = torch.repeat_interleave(torch.arange(len(widths), device=y.device), widths)
    router, experts = method.fusion_weights()
    best = torch.cat([part.joint(router, experts) for part in parts]).argmax(1)
    by_expert = own_scores(made, x, tasks, expert_scores, owner).argmax(1) == y
    given = torch.cat([right_given(made, x[tasks == number], task, validation) for number, task in enumerate(stream)])
    sweep = [
        {"weight": weight, "class": percent(torch.cat([p.joint(router, weight) for p in parts]).argmax(1) == y)}
        for weight in WEIGHTS
    ]
    return {
        "class": percent(best == y),
        "given": percent(given),
        "given_by_experts_alone": percent(by_expert),
        "task_inferred": percent(owner[best] == tasks),
        "router_alone": percent(router_scores.argmax(1) == y),
        "experts_alone": percent(expert_scores.argmax(1) == y),
        "experts_asked": float((expert_scores > -torch.inf)[:, (widths.cumsum(0) - 1)].sum(1).float().mean()),
        "given_by_task": [percent(given[tasks == task]) for task in range(len(widths))],
        "given_by_task_by_experts_alone": [percent(by_expert[tasks == task]) for task in range(len(widths))],
        "class_by_task": [percent((best == y)[tasks == task]) for task in range(len(widths))],
        "weights": {"router": router, "experts": experts},
        "fits": [[one.router, one.experts, one.alone] for one in method.calibrations if one is not None],
        "sweep": sweep,
    }


def right_given(made: Learner, x: Tensor, task: Task, validation: bool) -> Tensor:
    """Which rows of a task are answered rightly by whom it is told."""
    part = task.validation if validation else task.test
    assert part is not None
    told = [made.predict(rows, task=task.name).labels for rows in torch.split(x, ROWS_ASKED)]
    return torch.cat(told) == part.y.to(x.device)


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
