"""Which measurements there are, where each can be made, and making them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ibpwf.errors import unknown
from ibpwf.lab.bench import many_tasks, memory, runs, steps
from ibpwf.lab.bench.measure import Row, Setup


@dataclass(frozen=True)
class Measurement:
    """A named group of rows; `device` is "cpu", "cuda" or "any"."""

    name: str
    summary: str
    device: str
    make: Callable[[Setup], list[Row]]


MEASUREMENTS = (
    Measurement("step", "ELBO step beside a dense step", "cpu", steps.cpu_step),
    Measurement("seeds", "5 seeds together beside 5 × one", "cpu", runs.five_seeds),
    Measurement("prediction", "prediction after 1, 10 and 100 tasks", "any", many_tasks.prediction),
    Measurement("late-tasks", "training task 100 beside task 10", "any", many_tasks.cost_of_late_tasks),
    Measurement("memory", "bytes of a task, the optimiser, the peak", "any", memory.memory),
    Measurement("step-gpu", "ELBO step beside a dense step", "cuda", steps.gpu_step),
    Measurement("split-mnist", "Split MNIST, 10 seeds, whole run", "cuda", runs.split_mnist),
    Measurement("permuted-mnist", "Permuted MNIST, 10 seeds, whole run", "cuda", runs.permuted_mnist),
    Measurement("split-cifar10", "Split CIFAR-10, whole run and images/s", "cuda", runs.split_cifar10),
)


def chosen(only: list[str] | None) -> list[Measurement]:
    names = [measurement.name for measurement in MEASUREMENTS]
    for name in only or []:
        if name not in names:
            raise unknown("measurement in --only", name, names)
    return [measurement for measurement in MEASUREMENTS if not only or measurement.name in only]


def runs_on(measurement: Measurement, device: torch.device) -> bool:
    return measurement.device in ("any", device.type)


def measured(measurement: Measurement, setup: Setup) -> dict[str, Any]:
    """The rows of one measurement as JSON, or why it was not made here."""
    entry: dict[str, Any] = {"name": measurement.name, "summary": measurement.summary, "rows": []}
    if not runs_on(measurement, setup.device):
        wanted = "a GPU" if measurement.device == "cuda" else "a CPU: --device cpu"
        return {**entry, "skipped": f"needs {wanted}"}
    with setup.one_thread():
        return {**entry, "rows": [row.to_json() for row in measurement.make(setup)]}
