"""What the report knows of one run: plain data, read from the run folder by `reading`."""

from __future__ import annotations

import json
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ibpwf.lab.evaluation.metrics import Matrix
from ibpwf.lab.experiments.paper import tolerance

MEASURES = {
    "task": "accuracy, task given (incremental task)",
    "class": "accuracy, task inferred (incremental class)",
    "task-inference": "task inference",
    "forgetting": "forgetting",
    "backward_transfer": "backward transfer",
    "forward_transfer": "forward transfer",
}
POINTS = ("forgetting", "backward_transfer", "forward_transfer")  # differences of percentages


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over seeds, as the record has them."""

    mean: float
    std: float | None

    def shown(self, digits: int = 2) -> str:
        mean = f"{self.mean:.{digits}f}"
        mean = mean.removeprefix("-") if float(mean) == 0 else mean
        return mean if self.std is None else f"{mean} ± {self.std:.{digits}f}"


@dataclass(frozen=True)
class Task:
    """A task's name and how many classes it has (None: not recorded)."""

    name: str
    classes: int | None


@dataclass(frozen=True)
class Use:
    """Factors of one layer for one task."""

    active: float
    new: float
    reused: float
    total: float


@dataclass(frozen=True)
class Epoch:
    """One line of metrics.jsonl."""

    seed: int
    task: int
    phase: str
    epoch: int
    epochs: int
    loss: float
    extra: float


@dataclass(frozen=True)
class Scores:
    """λ of one layer per task in stick order: None where a task does not use the factor; and which it opened."""

    seed: int
    layer: str
    rows: list[list[float | None]]
    new: list[frozenset[int]]

    @property
    def width(self) -> int:
        """Factors up to the last one in use."""
        used = [k for row in self.rows for k, value in enumerate(row) if value is not None]
        return max(used) + 1 if used else 0


LayerUse = dict[str, Use]


@dataclass
class Run:
    """One run folder. A run without `result.json` is unfinished: it has what its finished tasks left."""

    folder: Path
    scenario: str
    method: str
    preset: str
    finished: bool = False
    tasks: list[Task] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    changes: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    network: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    shortened: int | None = None
    measures: dict[str, Spread] = field(default_factory=dict)
    paper: dict[str, Spread] = field(default_factory=dict)
    matrices: dict[str, list[Matrix]] = field(default_factory=dict)
    factors: list[list[LayerUse]] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    scores: Scores | None = None
    entropies: list[list[list[float]]] = field(default_factory=list)  # per seed, after each task, each test set
    aurocs: list[list[float | None]] = field(default_factory=list)  # per seed, after each task
    alpha: dict[str, float] = field(default_factory=dict)
    parameters: Spread | None = None
    train_seconds: float | None = None
    samples_per_second: float | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    command: str = ""
    commit: str | None = None
    progress: dict[int, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    name: str = ""  # of a result kept without its folder

    @property
    def title(self) -> str:
        return self.name or f"{self.scenario}, {self.method}, preset {self.preset}"

    @property
    def layers(self) -> list[str]:
        """Layer names in the network's order."""
        return list(dict.fromkeys(name for seed in self.factors for use in seed for name in use))

    def task_name(self, number: int) -> str:
        return self.tasks[number].name if number < len(self.tasks) else str(number + 1)

    def chance(self, measure: str) -> float | None:
        """What guessing gives, in percent. A class is a task and a label, as the record counts it."""
        sizes = [task.classes for task in self.tasks]
        known = [size for size in sizes if size]
        if not known or len(known) != len(sizes):
            return None
        return {
            "task": statistics.fmean(100 / size for size in known),
            "class": 100 / sum(known),
            "task-inference": 100 / len(known),
        }.get(measure)

    def mean_matrix(self, key: str) -> Matrix:
        """The accuracy matrix, each entry the mean over the seeds that have it."""
        matrices = self.matrices.get(key, [])
        size = max((len(matrix) for matrix in matrices), default=0)
        mean: Matrix = []
        for i in range(size):
            rows = [matrix[i] for matrix in matrices if i < len(matrix)]
            mean.append([_mean([row[j] for row in rows if j < len(row)]) for j in range(size)])
        return mean

    def mean_entropies(self) -> list[list[float]]:
        """Entropy of every test set after every task that all seeds have learnt, the mean over seeds."""
        rows = zip(*self.entropies, strict=False)
        return [[statistics.fmean(column) for column in zip(*row, strict=True)] for row in rows]

    def mean_aurocs(self) -> list[float | None]:
        return [_mean(column) for column in zip(*self.aurocs, strict=False)]

    def mean_use(self, layer: str) -> list[Use]:
        """Factor use of a layer per task, the mean over the seeds that got that far."""
        result = []
        for t in range(max((len(seed) for seed in self.factors), default=0)):
            uses = [seed[t][layer] for seed in self.factors if t < len(seed) and layer in seed[t]]
            if uses:
                parts = ("active", "new", "reused", "total")
                result.append(Use(*(statistics.fmean(getattr(use, part) for use in uses) for part in parts)))
        return result

    def resume_command(self) -> str:
        """The command that goes on with an unfinished run."""
        words = ["ibpwf", "run", self.scenario, "--method", self.method, "--preset", self.preset]
        if self.seeds == list(range(len(self.seeds))) and len(self.seeds) > 1:
            words += ["--seeds", str(len(self.seeds))]
        elif len(self.seeds) == 1:
            words += ["--seed", str(self.seeds[0])]
        if self.shortened is not None:
            words += ["--tasks", str(self.shortened)]
        for name, value in self.changes.items():
            words += ["--set", f"{name}={json.dumps(value)}"]
        return shlex.join([*words, "--out", str(self.folder), "--resume"])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def reached(ours: Spread, paper: Spread) -> bool:
    """Our mean is better than the paper's, or below it by no more than the tolerance."""
    return ours.mean >= paper.mean - tolerance(paper.std)
