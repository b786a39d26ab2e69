"""What the three programs measured share: arguments, data, the clock and the JSON they print.

Each runs one job and prints one line of JSON. With `--serve` it takes jobs, one line of JSON each, from standard
input instead, so that starting the interpreter is paid for once and nobody's first step is cold.

Needs torch and NumPy alone: both interpreters read this file.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from settings import WAYS, Training
from torch import Tensor


@dataclass(frozen=True)
class Job:
    """What to run: an entry of the comparison, a seed, and for Avalanche the way it is used."""

    method: str
    seed: int = 0
    way: str = "documented"


@dataclass(frozen=True)
class Task:
    """Images as float rows and labels counted from 0 within the task."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


class Clock:
    """Seconds spent inside `with clock.running():`, in all: on the wall, and of this process."""

    def __init__(self) -> None:
        self.seconds = self.cpu_seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.seconds += time.perf_counter() - wall
        self.cpu_seconds += time.process_time() - cpu


Answer = Callable[[Tensor, int], Tensor]
Learn = Callable[[Job, list[Task], Training, Clock], Answer]


def read_tasks(path: str) -> list[Task]:
    with np.load(path, allow_pickle=False) as arrays:
        count = len(arrays.files) // 4
        names = ("x", "y", "test_x", "test_y")
        return [Task(*(torch.from_numpy(arrays[f"{name}{task}"]) for name in names)) for task in range(count)]


def measured(
    job: Job, tasks: list[Task], training: Training, learn: Learn, versions: dict[str, str]
) -> dict[str, Any]:
    """Learn all tasks and say how fast and how well. Samples are the new tasks' examples in full batches."""
    clock = Clock()
    answer = learn(job, tasks, training, clock)
    with torch.no_grad():
        right = [(answer(task.test_x, number) == task.test_y).double().mean() for number, task in enumerate(tasks)]
    samples = training.epochs * sum(len(t.y) // training.batch_size * training.batch_size for t in tasks)
    return {
        "accuracy": [round(100 * float(r), 4) for r in right],
        "seconds": round(clock.seconds, 4),
        "cpu_seconds": round(clock.cpu_seconds, 4),
        "samples": samples,
        "samples_per_second": round(samples / clock.seconds, 1),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, **versions},
    }


def main(description: str, methods: list[str], learn: Learn, **versions: str) -> None:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", required=True, metavar="FILE.npz", help="the tasks, as compare.py writes them")
    parser.add_argument("--method", choices=methods, default=methods[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--way", choices=WAYS, default=WAYS[0], help="for Avalanche: how it is used")
    parser.add_argument("--epochs", type=int, default=Training.epochs)
    parser.add_argument("--threads", type=int, default=1, help="threads torch may use (1)")
    parser.add_argument("--serve", action="store_true", help="take jobs from standard input, one line of JSON each")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    tasks, training = read_tasks(given.data), Training(epochs=given.epochs)
    one = Job(given.method, given.seed, given.way)
    for job in (Job(**json.loads(line)) for line in sys.stdin) if given.serve else [one]:
        sys.stdout.write(json.dumps(measured(job, tasks, training, learn, versions)) + "\n")
        sys.stdout.flush()
