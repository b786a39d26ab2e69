"""One run as the report shows it, and how it is read from a run folder or from a result file alone.

A file that is missing, cut or foreign is noted in `problems` and left out. Only a folder in which neither
`result.json` nor `config.json` can be read is no run at all: that is a `StoreError`.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ibpwf.errors import IBPWFError, StoreError
from ibpwf.factors.model import FactorModel
from ibpwf.lab.evaluation.metrics import Matrix
from ibpwf.lab.experiments.compare import command_of
from ibpwf.lab.experiments.result import SCHEMA, per_seed
from ibpwf.lab.experiments.run_config import RunConfig
from ibpwf.lab.report.records import MISFITS, Spread, Tree, read_record, record
from ibpwf.learner import load
from ibpwf.storage.files import read_bytes
from ibpwf.storage.folder import MANIFEST

ASKED = ("scenario", "method", "preset", "seeds")
PARTS = ("active", "new", "reused", "total")


def mean_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


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
        return max((k + 1 for row in self.rows for k, value in enumerate(row) if value is not None), default=0)


@dataclass
class Run:
    """One run: the fields of its result.json, or of its config.json and rows where it is not `finished`."""

    folder: Path
    about: Tree
    finished: bool
    progress: dict[int, int]
    name: str = ""  # of a result kept without its folder
    epochs: list[Tree] = field(default_factory=list)
    scores: Scores | None = None
    alpha: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        return self.name or f"{self.about.scenario}, {self.about.method}, preset {self.about.preset}"

    @property
    def measures(self) -> dict[str, Spread]:
        names = ("forgetting", "backward_transfer", "forward_transfer")
        about = self.about if self.finished else Tree()
        found = {**about.get("accuracy", {}), "task-inference": about.get("task_inference")}
        return {k: v for k, v in (found | {n: about.get(n) for n in names}).items() if v is not None}

    @property
    def paper(self) -> dict[str, Spread]:
        return {name: value for name, value in (self.about.get("paper") or {}).items() if value is not None}

    @property
    def layers(self) -> list[str]:
        """Layer names in the network's order."""
        return list(dict.fromkeys(name for seed in self.about.factors or () for use in seed.per_task for name in use))

    @property
    def source(self) -> str:
        """The files that the numbers come from."""
        return f"{self.name}.json" if self.name else "result.json" if self.finished else "seed-*/rows.json"

    def machine(self) -> str:
        """Versions and machine, as recorded."""
        env = self.about.get("environment") or {}
        versions = [f"{name} {env[name]}" for name in ("ibpwf", "python", "torch") if env.get(name)]
        machine = [str(env[name]) for name in ("device", "system", "machine") if env.get(name)]
        machine += [f"{env[name]} {name}" for name in ("cores", "threads") if env.get(name)]
        return "; ".join(", ".join(part) for part in (versions, machine) if part)

    def classes_each(self) -> int | None:
        """How many classes a task has, where all have as many."""
        counts = {len(task.classes or ()) for task in self.about.tasks}
        return counts.pop() if len(counts) == 1 else None

    def means_so_far(self, seed: int) -> list[float | None]:
        """The mean accuracy of a seed's finished tasks, task given and task inferred."""
        found = [entry for entry in self.about.matrix if entry.seed == seed]
        return [mean_of(found[0][key][-1]) if found and found[0].get(key) else None for key in ("task", "class")]

    def task_names(self) -> list[str]:
        return [str(task.name) for task in self.about.tasks]

    def chance(self, measure: str) -> float | None:
        """What guessing gives, in percent. A class is a task and a label, as the record counts it."""
        sizes = [len(task.classes) for task in self.about.tasks if task.classes]
        if not sizes or len(sizes) != len(self.about.tasks):
            return None
        task = statistics.fmean(100 / size for size in sizes)
        return {"task": task, "class": 100 / sum(sizes), "task-inference": 100 / len(sizes)}.get(measure)

    def mean_matrix(self, key: str) -> Matrix:
        """The accuracy matrix, each entry the mean over the seeds that have it."""
        matrices = [entry[key] for entry in self.about.matrix if entry.get(key)]
        size = max(map(len, matrices), default=0)
        rows = ([matrix[i] for matrix in matrices if i < len(matrix)] for i in range(size))
        return [[mean_of([row[j] for row in found if j < len(row)]) for j in range(size)] for found in rows]

    def uncertainty(self) -> list[tuple[list[float], float | None]]:
        """After every task that all seeds have learned: the entropy of every test set, and the AUROC; means."""
        seeds = [
            seed.per_task for seed in self.about.get("uncertainty") or () if seed.per_task and all(seed.per_task)
        ]
        return [
            ([statistics.fmean(one) for one in zip(*(u.entropy for u in moment), strict=True)],
             mean_of([u.get("auroc") for u in moment]))
            for moment in zip(*seeds, strict=False)
        ]  # fmt: skip

    def moments_apart(self) -> tuple[int, int]:
        """After how many tasks every learned test set has a lower entropy than any other, and of how many."""
        found = [(row[: t + 1], row[t + 1 :]) for t, (row, _) in enumerate(self.uncertainty()) if row[t + 1 :]]
        return sum(max(seen) < min(unseen) for seen, unseen in found), len(found)

    def mean_use(self, layer: str) -> list[Tree]:
        """Factor use of a layer per task, the mean over the seeds that got that far."""
        seeds = [seed.per_task for seed in self.about.factors]
        moments = ([s[t][layer] for s in seeds if t < len(s) and layer in s[t]] for t in range(max(map(len, seeds))))
        return [
            Tree({part: statistics.fmean(use[part] for use in uses) for part in PARTS}) for uses in moments if uses
        ]

    def resume_command(self) -> str:
        """The command that goes on with an unfinished run."""
        config = RunConfig.from_stored({**self.about, "tasks": self.about.asked_tasks}, {})
        return f"{command_of(config, self.folder)} --resume"


def expand(folder: Path) -> list[Path]:
    """The run folders meant by a path: itself, or the run folders directly inside it."""

    def is_run(path: Path) -> bool:
        return (path / "result.json").exists() or (path / "config.json").exists()

    try:
        if is_run(folder) or not folder.is_dir():
            return [folder]
        return sorted(child for child in folder.iterdir() if child.is_dir() and is_run(child)) or [folder]
    except OSError:  # said properly when it is read
        return [folder]


def read_result(path: Path) -> Run:
    """A finished run's result."""
    about = record_of_run(path, *ASKED, "tasks", "accuracy", "matrix", "command", schema=SCHEMA)
    run = Run(path.parent, about, True, dict.fromkeys(about.seeds, len(about.tasks)), path.stem)
    about.setdefault("factors", [])
    for name in ("accuracy", "paper"):
        if not isinstance(about.get(name) or {}, dict):
            raise StoreError(f"{path.name}: field '{name}' is {str(about[name])[:60]!r}: an object is expected.")
    _take_alpha(run, (about.get("settings") or {}).get("alpha"))
    return run


def record_of_run(path: Path, *fields: str, schema: int | None = None) -> Tree:
    found = read_record(path, *fields, schema=schema)
    if not isinstance(found.seeds, list) or not all(type(seed) is int and seed >= 0 for seed in found.seeds):
        raise StoreError(f"{path.name}: field 'seeds' is {str(found.seeds)[:60]}; whole numbers are expected.")
    return found


def read_run(folder: Path) -> Run:
    """Everything the report can learn from a run folder."""
    if not folder.is_dir():
        raise StoreError(f"{folder} is not a folder. Give the --out folder of `ibpwf run`.")
    problems = []
    if (folder / "result.json").exists():
        try:
            run = read_result(folder / "result.json")
            run.name = ""
        except MISFITS as error:
            problems.append(f"{error} The result is left out.")
            run = _unfinished(folder, problems)
    else:
        run = _unfinished(folder, problems)
    run.problems = problems
    for read in (_read_epochs, _read_models):
        try:
            read(run)
        except MISFITS as error:
            problems.append(f"{error}.")
    return run


def _unfinished(folder: Path, problems: list[str]) -> Run:
    """What the seeds of an unfinished run have stored so far."""
    if not (folder / "config.json").exists():
        raise StoreError(
            " ".join([*problems, f"{folder} is not a run folder: it has neither result.json nor config.json."])
        )
    about = record_of_run(folder / "config.json", *ASKED)
    records = []
    for seed in about.seeds:
        place = folder / f"seed-{seed}" / "rows.json"
        if place.exists():
            try:
                found = read_record(place, "rows")
                record(per_seed([found]), place.name)
                records.append(found)
            except MISFITS as error:
                problems.append(f"{place.parent.name}/rows.json: {error!r} Seed {seed} is left out.")
    longest: list[Tree] = max((one.rows for one in records), key=len, default=[])
    tasks = [Tree(name=row.task, classes=None) for row in longest]
    about = Tree(about | record(per_seed(records), "rows.json"), tasks=tasks, asked_tasks=about.get("tasks"))
    run = Run(folder, about, False, dict.fromkeys(about.seeds, 0) | {r.seed: len(r.rows) for r in records})
    _take_alpha(run, (about.get("settings") or {}).get("alpha"))
    return run


def _read_epochs(run: Run) -> None:
    """Epoch lines; of a task that was begun twice (a run resumed), the later lines count."""
    try:
        lines = read_bytes(run.folder / "metrics.jsonl").split(b"\n")
    except StoreError as error:
        run.problems.append(f"metrics.jsonl: {error} No learning curves are drawn.")
        return
    found: dict[tuple[Any, ...], Tree] = {}
    bad = 0
    for line in filter(None, map(bytes.strip, lines)):
        try:
            epoch = record(json.loads(line), "a line")
            if epoch.get("finished") is None:
                place = int(epoch.seed), int(epoch.task_number), str(epoch.phase), int(epoch.epoch)
                found[place] = Tree(epoch, loss=float(epoch.loss), extra=float(epoch.extra))
        except MISFITS:
            bad += 1
    run.epochs = list(found.values())
    if bad:
        run.problems.append(f"metrics.jsonl: {bad} damaged line{'s' * (bad > 1)} left out of the learning curves.")


def _take_alpha(run: Run, alpha: Any) -> None:
    """One for all layers, or each layer's ('auto' and patterns are resolved in a model)."""
    named = alpha if isinstance(alpha, dict) else dict.fromkeys(run.layers, alpha)
    run.alpha |= {layer: float(value) for layer, value in named.items() if type(value) in (int, float)}


def _read_models(run: Run) -> None:
    """α per layer, classes, and the factor scores of the first layer, from the first seed whose model can be read."""
    for seed in run.about.seeds:
        place = f"seed-{seed}/model"
        if not run.layers or not (run.finished or (run.folder / place / MANIFEST).exists()):
            continue
        try:
            learner = load(run.folder / place, device="cpu")
        except (IBPWFError, *MISFITS) as error:
            run.problems.append(f"{place}: {error} Its factor scores are left out.")
            continue
        for task, known in zip(run.about.tasks, learner.tasks, strict=False):
            task["classes"] = task.classes or list(known.classes)
        model = getattr(learner.method, "model", None)
        if model is not None:  # a method with factors
            run.scores = learned_scores(model, seed)
            of_layer = getattr(model.prior, "alpha_of", None)  # the IBP's; constant growth expects nothing
            run.alpha |= {name: float(of_layer(d.shape)) for name, d in model.layers.items() if of_layer}
        return


def learned_scores(model: FactorModel, seed: int) -> Scores:
    """The locked factor scores of a model's first layer."""
    layer, dictionary = next(iter(model.layers.items()))
    rows = []
    for task in model.tasks:
        strength, used = task.vectors[layer].strength.tolist(), task.selected[layer].tolist()
        rows.append([value if chosen else None for value, chosen in zip(strength, used, strict=True)])
    return Scores(seed, layer, rows, [frozenset(block.positions.tolist()) for block in dictionary.blocks])
