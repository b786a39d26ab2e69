"""Run a learner over test sets: task given, task inferred, and before a task is learnt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ibpwf.learner import Learner

Sure = tuple[Tensor, Tensor]
"""Of every answer its probability, and whether it was right."""


@dataclass(frozen=True)
class TaskScore:
    """Percentages on one task's test set; None for a setting that was not asked for."""

    task: float | None = None
    class_: float | None = None
    task_inference: float | None = None
    sure: dict[str, Sure] = field(default_factory=dict)  # by setting


def percent(right: Tensor) -> float:
    return 100.0 * float(right.double().mean())


def score(
    learner: Learner[Any], number: int, x: Tensor, y: Tensor, settings: Sequence[str] = ("task", "class")
) -> TaskScore:
    """Incremental task (task given), incremental class (task and label must both be right: a class is a task and
    a label) and task inference, on the test set of task `number`."""
    truth = y.to(learner.device)
    task, sure = None, {}
    if "task" in settings:
        given = learner.predict(x, task=number)
        sure["task"] = given.probabilities.amax(1), given.labels == truth
        task = percent(sure["task"][1])
    if "class" not in settings:
        return TaskScore(task, sure=sure)
    inferred = learner.predict(x)
    right_task = inferred.task == number
    of_task = inferred.task_probabilities.gather(1, inferred.task.unsqueeze(1)).flatten()
    sure["class"] = of_task * inferred.probabilities.amax(1), right_task & (inferred.labels == truth)
    return TaskScore(task, percent(sure["class"][1]), percent(right_task), sure)


def zero_shot(learner: Learner[Any], classes: tuple[int, ...], x: Tensor, y: Tensor) -> float | None:
    """Accuracy on a task not learnt yet, under the latest task's parameters, its classes taken in order.

    None before the first task, or when the numbers of classes differ.
    """
    if not learner.tasks or len(learner.tasks[-1].classes) != len(classes):
        return None
    answers = learner.logits(x, len(learner.tasks) - 1).argmax(1)
    return percent(torch.tensor(classes, device=answers.device)[answers] == y.to(answers.device))
