"""Run a learner over test sets: task given, task inferred, and before a task is learnt."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ibpwf.learner import Learner


@dataclass(frozen=True)
class TaskScore:
    """Percentages on one task's test set."""

    task: float
    class_: float
    task_inference: float


def percent(right: Tensor) -> float:
    return 100.0 * float(right.double().mean())


def score(learner: Learner, number: int, x: Tensor, y: Tensor) -> TaskScore:
    """Incremental task (task given), incremental class (task and label must both be right: a class is a task and
    a label) and task inference, on the test set of task `number`."""
    truth = y.to(learner.device)
    given = learner.predict(x, task=number)
    inferred = learner.predict(x)
    right_task = inferred.task == number
    return TaskScore(
        task=percent(given.labels == truth),
        class_=percent(right_task & (inferred.labels == truth)),
        task_inference=percent(right_task),
    )


def zero_shot(learner: Learner, classes: tuple[int, ...], x: Tensor, y: Tensor) -> float | None:
    """Accuracy on a task not learnt yet, under the latest task's parameters, its classes taken in order.

    None before the first task, or when the numbers of classes differ.
    """
    if not learner.tasks or len(learner.tasks[-1].classes) != len(classes):
        return None
    answers = learner.logits(x, len(learner.tasks) - 1).argmax(1).cpu()
    return percent(torch.tensor(classes)[answers] == y)
