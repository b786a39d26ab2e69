"""One sequence across data sets: is each task as good as learned alone, and does any change afterwards?

Images: Split MNIST, Fashion-MNIST and CIFAR-10, 15 tasks of two classes in one learner beside EfficientNet-Lite0, all
as color images of 32×32 pixels from 0 to 1. Texts: 20 topics of Reuters in 10 tasks, small perceptrons on what
MiniLM-L6 makes of them. The task is given. A task alone is learned by a new learner with the same seed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from record import Clock, percent
from torch import Tensor
from torch.nn import functional as F

from ibpwf import Learner
from ibpwf.device import choose_device
from ibpwf.lab import scenario
from trained import images, lora, texts

DATA_SETS = ("mnist", "fashion-mnist", "cifar10")
SIDE = 32
IMAGES = lora.ACCURACY.replace(
    alpha=3.0,
    selection_rate=10.0,
    augment="none",
    mirror=False,
    epochs=2,
    finetune_epochs=4,
    **{"input.mean": (0.0,), "input.std": (1.0,)},
)
TEXTS = texts.EXPERTS.replace(schedule="cosine", weight_decay=0.03)
"""Chosen on held-out texts. Without decay a network fits the few texts of a task perfectly in many ways, and two
seeds of one task alone answer as differently as a task alone and in the sequence."""
ROWS = 500


@dataclass(frozen=True)
class TaskRows:
    name: str
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def measure(seed: int, asked: argparse.Namespace) -> dict[str, Any]:
    if asked.of == "images":
        settings = IMAGES.replace(**asked.changes)
        tasks = image_tasks(seed, asked)
        found = compared(tasks, lambda: images.learner(settings, seed, asked))
    else:
        settings = TEXTS.replace(**asked.changes)
        device = choose_device(asked.device)
        tasks = text_tasks(seed, asked, device)
        found = compared(tasks, lambda: texts.made_learner(settings, seed, str(device)))
    return {**found, "of": asked.of, "settings": settings.to_json()}


def compared(tasks: list[TaskRows], new: Callable[[], Learner]) -> dict[str, Any]:
    """All tasks in one learner, and each in one of its own."""
    together, before = new(), []
    for task in tasks:
        _learn(together, task)
        before.append(logits_of(together, task))
    rows, changed = [], 0
    for number, task in enumerate(tasks):
        after = logits_of(together, task)
        changed += not torch.equal(after, before[number])
        alone = new()
        _learn(alone, task)
        last, own = (right(found, task) for found in (after, logits_of(alone, task)))
        first = right(before[number], task)
        rows.append({"task": task.name, "together": last, "alone": own, "forgotten": first - last})
        print(rows[-1], flush=True)
    return {
        "together": sum(row["together"] for row in rows) / len(rows),
        "alone": sum(row["alone"] for row in rows) / len(rows),
        "most_forgotten": max(row["forgotten"] for row in rows),
        "tasks_whose_logits_changed": changed,
        "tasks": rows,
    }


def _learn(made: Learner, task: TaskRows) -> None:
    x, y = task.train
    made.learn(x.to(made.device), y, task=task.name, callbacks=[Clock(shown=True)])


def logits_of(made: Learner, task: TaskRows) -> Tensor:
    parts = torch.split(task.test[0].to(made.device), ROWS)
    return torch.cat([made.logits(part, task.name) for part in parts]).cpu()


def right(logits: Tensor, task: TaskRows) -> float:
    return percent(torch.unique(task.train[1])[logits.argmax(1)] == task.test[1])


def image_tasks(seed: int, asked: argparse.Namespace) -> list[TaskRows]:
    made = []
    for name in DATA_SETS:
        stream = scenario(
            f"split-{name}",
            tasks=asked.tasks,
            examples=asked.examples,
            validation=images.VALIDATION if asked.validation else 0.0,
            seed=seed,
            flatten=False,
            normalize=False,
        )
        for task in stream:
            both = ((task.train.x, task.train.y), images.tests_of(task, asked.validation, torch.device("cpu")))
            train, test = ((_colored(x), y) for x, y in both)
            made.append(TaskRows(f"{name} {task.name}", train, test))
    return made


def _colored(x: Tensor) -> Tensor:
    """N×3×32×32, with a border of black around smaller images."""
    border = (SIDE - x.shape[-1]) // 2
    return F.pad(x, (border,) * 4).expand(-1, 3, -1, -1).contiguous()


def text_tasks(seed: int, asked: argparse.Namespace, device: torch.device) -> list[TaskRows]:
    found = texts.read_texts(device)
    train, test = texts.split(found, seed, asked)
    made = []
    for task in range(asked.tasks or texts.TOPICS // texts.OF_A_TASK):
        own = found.topics // texts.OF_A_TASK == task
        parts = [(found.features[rows & own], found.topics[rows & own]) for rows in (train, test)]
        made.append(TaskRows(texts.task_name(found, task), *parts))
    return made
