"""What the report knows of one run, and how it is read from a run folder.

A file that is missing, cut or foreign is noted in `problems` and left out. Only a folder in which neither
`result.json` nor `config.json` can be read is no run at all: that is a `StoreError`, which the page's maker reports.
"""

from __future__ import annotations

import json
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import torch
from pydantic import ValidationError

from ibpwf.errors import StoreError
from ibpwf.lab.evaluation.metrics import Matrix
from ibpwf.lab.experiments.result import SCHEMA
from ibpwf.lab.report.records import (
    Config,
    Description,
    Epoch,
    LayerUse,
    Result,
    Rows,
    Spread,
    Task,
    Uncertainty,
    Use,
    check_schema,
    validated,
)
from ibpwf.storage.files import read_bytes, read_json
from ibpwf.storage.folder import MANIFEST, OpenedFolder, open_folder


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


@dataclass
class Run:
    """One run. Without a `result` it is unfinished: it has what its finished tasks left."""

    folder: Path
    about: Description
    result: Result | None = None
    shortened: int | None = None
    tasks: list[Task] = field(default_factory=list)
    matrices: dict[str, list[Matrix]] = field(default_factory=dict)
    factors: list[list[LayerUse]] = field(default_factory=list)
    uncertainty: list[list[Uncertainty]] = field(default_factory=list)  # of the seeds that have it
    epochs: list[Epoch] = field(default_factory=list)
    scores: Scores | None = None
    alpha: dict[str, float] = field(default_factory=dict)
    progress: dict[int, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    name: str = ""  # of a result kept without its folder

    @property
    def title(self) -> str:
        return self.name or f"{self.about.scenario}, {self.about.method}, preset {self.about.preset}"

    @property
    def measures(self) -> dict[str, Spread]:
        return self.result.measures() if self.result else {}

    @property
    def paper(self) -> dict[str, Spread]:
        return self.result.paper.named() if self.result and self.result.paper else {}

    @property
    def layers(self) -> list[str]:
        """Layer names in the network's order."""
        return list(dict.fromkeys(name for seed in self.factors for use in seed for name in use))

    @property
    def records(self) -> str:
        """The files that accuracies come from."""
        return "result.json" if self.result else "seed-*/rows.json"

    def machine(self) -> str:
        """Versions and machine, as recorded."""
        env = (self.result.environment if self.result else None) or {}
        versions = [f"{name} {env[name]}" for name in ("ibpwf", "python", "torch") if env.get(name)]
        machine = [str(env[name]) for name in ("device", "system", "machine") if env.get(name)]
        machine += [f"{env[name]} {name}" for name in ("cores", "threads") if env.get(name)]
        return "; ".join(", ".join(part) for part in (versions, machine) if part)

    def classes_each(self) -> int | None:
        """How many classes a task has, where all have as many."""
        counts = {len(task.classes or ()) for task in self.tasks}
        return counts.pop() if len(counts) == 1 else None

    def means_so_far(self, seed: int) -> list[float | None]:
        """The mean accuracy of a seed's finished tasks, task given and task inferred."""
        begun = [one for one in self.about.seeds if self.progress.get(one)]
        if seed not in begun:
            return [None, None]
        return [_mean((self.matrices[key][begun.index(seed)] or [[]])[-1]) for key in ("task", "class")]

    def moments_apart(self) -> tuple[int, int]:
        """After how many tasks every learnt test set has a lower entropy than any other, and of how many."""
        found = [(row[: t + 1], row[t + 1 :]) for t, row in enumerate(self.mean_entropies()) if row[t + 1 :]]
        return sum(max(seen) < min(unseen) for seen, unseen in found), len(found)

    def task_name(self, number: int) -> str:
        return self.tasks[number].name if number < len(self.tasks) else str(number + 1)

    def task_names(self, count: int) -> list[str]:
        return [self.task_name(t) for t in range(count)]

    def chance(self, measure: str) -> float | None:
        """What guessing gives, in percent. A class is a task and a label, as the record counts it."""
        sizes = [len(task.classes) for task in self.tasks if task.classes]
        if not sizes or len(sizes) != len(self.tasks):
            return None
        return {
            "task": statistics.fmean(100 / size for size in sizes),
            "class": 100 / sum(sizes),
            "task-inference": 100 / len(sizes),
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
        moments = zip(*self.uncertainty, strict=False)
        return [
            [statistics.fmean(column) for column in zip(*(u.entropy for u in moment), strict=True)]
            for moment in moments
        ]

    def mean_aurocs(self) -> list[float | None]:
        return [_mean([u.auroc for u in moment]) for moment in zip(*self.uncertainty, strict=False)]

    def mean_use(self, layer: str) -> list[Use]:
        """Factor use of a layer per task, the mean over the seeds that got that far."""
        found = []
        for t in range(max((len(seed) for seed in self.factors), default=0)):
            uses = [seed[t][layer] for seed in self.factors if t < len(seed) and layer in seed[t]]
            if uses:
                found.append(Use(**{p: statistics.fmean(getattr(u, p) for u in uses) for p in Use.model_fields}))
        return found

    def resume_command(self) -> str:
        """The command that goes on with an unfinished run."""
        about, seeds = self.about, self.about.seeds
        words = ["ibpwf", "run", about.scenario, "--method", about.method, "--preset", about.preset]
        if seeds == list(range(len(seeds))) and len(seeds) > 1:
            words += ["--seeds", str(len(seeds))]
        elif len(seeds) == 1:
            words += ["--seed", str(seeds[0])]
        words += [] if self.shortened is None else ["--tasks", str(self.shortened)]
        for name, value in (about.changes or {}).items():
            words += ["--set", f"{name}={json.dumps(value)}"]
        return shlex.join([*words, "--out", str(self.folder), "--resume"])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def expand(folder: Path) -> list[Path]:
    """The run folders meant by a path: itself, or the run folders directly inside it."""
    try:
        if _is_run(folder) or not folder.is_dir():
            return [folder]
        return sorted(child for child in folder.iterdir() if child.is_dir() and _is_run(child)) or [folder]
    except OSError:  # said properly when it is read
        return [folder]


def _is_run(folder: Path) -> bool:
    return (folder / "result.json").exists() or (folder / "config.json").exists()


def read_run(folder: Path) -> Run:
    """Everything the report can learn from a run folder."""
    if not folder.is_dir():
        raise StoreError(f"{folder} is not a folder. Give the --out folder of `ibpwf run`.")
    if not _is_run(folder):
        raise StoreError(f"{folder} is not a run folder: it has neither result.json nor config.json.")
    run, damaged = None, []
    if (folder / "result.json").exists():
        try:
            run = _finished(folder / "result.json")
        except StoreError as error:
            damaged.append(f"{error} The result is left out.")
    if run is None:
        if not (folder / "config.json").exists():
            raise StoreError(" ".join([*damaged, f"{folder} has no config.json either."]))
        run = _unfinished(folder)
        run.problems += damaged
    _read_epochs(run)
    _read_model(run)
    return run


def read_result_file(path: Path) -> Run:
    """A result that was kept without its run folder: no learning curves, no factor scores."""
    run = _finished(path)
    run.name = path.stem
    _take_plain_alpha(run)
    return run


def _finished(path: Path) -> Run:
    content = read_json(path)
    check_schema(content, SCHEMA, path.name)
    result = validated(Result, content, path.name)
    run = Run(path.parent, result, result, tasks=result.tasks)
    run.matrices = {
        "task": [seed.task for seed in result.matrix if seed.task is not None],
        "class": [seed.class_ for seed in result.matrix if seed.class_ is not None],
    }
    run.factors = [seed.per_task for seed in result.factors or []]
    for seed in result.uncertainty or []:
        known = [moment for moment in seed.per_task if moment is not None]
        _take_uncertainty(run, known if len(known) == len(seed.per_task) else [], path.name)
    run.progress = dict.fromkeys(result.seeds, len(result.tasks))
    return run


def _take_uncertainty(run: Run, moments: list[Uncertainty], where: str) -> None:
    """One seed's entropies after each task; a seed without them is left out."""
    if not moments:
        return
    width = len((run.uncertainty[0] if run.uncertainty else moments)[0].entropy)
    if any(len(moment.entropy) != width for moment in moments) or len(moments) > width:
        raise StoreError(f"{where}: field 'entropy' is not a number of nats for each of the tasks.")
    run.uncertainty.append(moments)


def _unfinished(folder: Path) -> Run:
    """What the seeds of an unfinished run have stored so far."""
    config = validated(Config, read_json(folder / "config.json"), "config.json")
    run = Run(folder, config, shortened=config.tasks, matrices={"task": [], "class": []})
    for seed in config.seeds:
        place = f"seed-{seed}/rows.json"
        run.progress[seed] = 0
        if not (folder / place).exists():
            continue
        try:
            rows = validated(Rows, read_json(folder / place), place).rows
            _take_uncertainty(run, [row.uncertainty for row in rows if row.uncertainty is not None], place)
        except StoreError as error:
            run.problems.append(f"{error} Seed {seed} is left out.")
            continue
        run.progress[seed] = len(rows)
        for key, accuracies in (
            ("task", [row.task_accuracy for row in rows]),
            ("class", [row.class_accuracy for row in rows]),
        ):
            run.matrices[key].append([[*known, *([None] * (len(rows) - len(known)))] for known in accuracies])
        run.factors.append([row.factors or {} for row in rows])
        if len(rows) > len(run.tasks):
            run.tasks = [Task(name=row.task) for row in rows]
    return run


def _read_epochs(run: Run) -> None:
    """Epoch lines; of a task that was begun twice (a run resumed), the later lines count."""
    try:
        lines = read_bytes(run.folder / "metrics.jsonl").split(b"\n")
    except StoreError as error:
        run.problems.append(f"metrics.jsonl: {error} No learning curves are drawn.")
        return
    found: dict[tuple[int, int, str, int], Epoch] = {}
    bad = 0
    for line in lines:
        try:
            content = json.loads(line) if line.strip() else {"finished": True}
            if isinstance(content, dict) and content.get("finished") is not None:
                continue
            epoch = Epoch.model_validate(content)
        except (ValueError, RecursionError, ValidationError):
            bad += 1
            continue
        found[epoch.seed, epoch.task, epoch.phase, epoch.epoch] = epoch
    run.epochs = list(found.values())
    if bad:
        run.problems.append(f"metrics.jsonl: {bad} damaged line{'s' * (bad > 1)} left out of the learning curves.")


def _read_model(run: Run) -> None:
    """α per layer and the factor scores of the first layer, from the first seed whose model can be read."""
    _take_plain_alpha(run)
    for seed in run.about.seeds:
        place = f"seed-{seed}/model"
        if not (run.result and run.layers) and not (run.folder / place / MANIFEST).exists():
            continue
        try:
            opened = open_folder(run.folder / place)
            _take_alpha(run, opened.content)
            _take_classes(run, opened.content)
            run.scores = _scores(opened, seed)
        except StoreError as error:
            run.problems.append(f"{place}: {error} Its factor scores are left out.")
            continue
        return


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _take_plain_alpha(run: Run) -> None:
    alpha = (run.about.settings or {}).get("alpha")
    if _is_number(alpha):
        run.alpha = {layer: float(alpha) for layer in run.layers}


def _inside(content: Any, *names: str) -> Any:
    """What lies in objects inside each other; None where one is missing."""
    for name in names:
        content = content.get(name) if isinstance(content, dict) else None
    return content


def _take_alpha(run: Run, content: Any) -> None:
    """The model has α resolved per layer ('auto' and patterns are worked out); without it no expectation is drawn."""
    found = _inside(content, "configuration", "settings", "alpha")
    if isinstance(found, dict):
        run.alpha |= {layer: float(value) for layer, value in found.items() if _is_number(value)}


def _take_classes(run: Run, content: Any) -> None:
    """The classes of an unfinished run's tasks."""
    tasks = _inside(content, "tasks")
    if run.result or not isinstance(tasks, list) or len(tasks) < len(run.tasks):
        return
    classes = [_inside(task, "classes") for task in tasks]
    if not all(isinstance(one, list) for one in classes):
        raise StoreError("the classes of its tasks are not lists.")
    run.tasks = [Task(name=task.name, classes=one) for task, one in zip(run.tasks, classes, strict=False)]


def _scores(opened: OpenedFolder, seed: int) -> Scores | None:
    layers = _inside(opened.content, "configuration", "layers") or _inside(opened.content, "layers")
    rows: list[list[float | None]] = []
    new: list[frozenset[int]] = []
    layer = ""
    for name in sorted(name for name in opened.files if name.startswith("task-")):
        tensors = opened.tensors(name)
        block = name.replace("task-", "factors-")
        tensors |= opened.tensors(block) if block in opened.files else {}
        names = layers if isinstance(layers, list) else []
        layer = layer or next((str(each) for each in names if f"posterior/{each}/strength" in tensors), "")
        if not layer:
            return None  # a method without factors
        strength, selected = (tensors.get(f"posterior/{layer}/{part}") for part in ("strength", "selected"))
        positions = tensors.get(f"factors/{layer}/positions", torch.empty(0, dtype=torch.long))
        if strength is None or selected is None or strength.shape != selected.shape:
            raise StoreError(f"{name} does not hold the strengths and selection of layer '{layer}'.")
        if not bool(torch.isfinite(strength.double()).all()):
            raise StoreError(f"{name} holds strengths that are not numbers.")
        values, chosen = strength.double().flatten().tolist(), selected.bool().flatten().tolist()
        rows.append([value if used else None for value, used in zip(values, chosen, strict=True)])
        new.append(frozenset(int(k) for k in positions.flatten().tolist()))
    return Scores(seed, layer, rows, new) if rows else None
