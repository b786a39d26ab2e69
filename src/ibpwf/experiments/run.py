"""Run a method over a scenario for several seeds and keep the record: the run folder.

    DIR/config.json            what was asked for
    DIR/metrics.jsonl          a line per epoch and per finished task
    DIR/seed-S/rows.json       accuracies after every finished task of a seed (resume reads it)
    DIR/seed-S/model/          the model after the last finished task
    DIR/result.json            the whole result, written last

A run that was interrupted goes on after the last finished task.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ibpwf import models, store
from ibpwf.data.scenarios import scenario as make_scenario
from ibpwf.data.tasks import Scenario
from ibpwf.errors import InputError, StoreError, unknown
from ibpwf.evaluation.evaluate import score, zero_shot
from ibpwf.experiments.presets import Preset, preset
from ibpwf.experiments.result import make_result
from ibpwf.learner import Learner, choose_device
from ibpwf.settings import Settings
from ibpwf.training.loop import Progress
from ibpwf.training.replicas import take_turns

METHODS = ("ibpwf",)


@dataclass(frozen=True)
class RunConfig:
    """What to run. `changes` override the preset's settings; `tasks` shortens the scenario."""

    scenario: str
    method: str = "ibpwf"
    preset: str = "paper"
    seeds: tuple[int, ...] = (0,)
    changes: dict[str, Any] = field(default_factory=dict)
    tasks: int | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise unknown("method", self.method, METHODS)
        if not self.seeds or len(set(self.seeds)) != len(self.seeds) or min(self.seeds) < 0:
            raise InputError(f"seeds are {list(self.seeds)}; give different whole numbers from 0.")
        self.settings()
        choose_device(self.device)

    def chosen(self) -> Preset:
        return preset(self.scenario, self.preset)

    def settings(self) -> Settings:
        return self.chosen().make_settings().replace(**self.changes)

    def to_json(self) -> dict[str, Any]:
        chosen = self.chosen()
        return {
            **asdict(self),
            "seeds": list(self.seeds),
            "network": chosen.network,
            "settings": self.settings().to_json(),
            "note": chosen.note,
        }


@dataclass(frozen=True)
class Events:
    """What a display may listen to."""

    epoch: Callable[[int, Progress], None] = lambda seed, progress: None
    task: Callable[[int, dict[str, Any]], None] = lambda seed, row: None
    phase: Callable[[str], None] = lambda text: None


def build_network(spec: dict[str, Any], stream: Scenario, seed: int) -> nn.Module:
    """The preset's network for a scenario; its own initial values depend on the seed alone."""
    arguments = {key: value for key, value in spec.items() if key != "builder"}
    widest = max(len(task.classes) for task in stream)
    outputs = max(stream.n_classes, widest)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if spec["builder"] == "mlp":
            inputs = 1
            for size in stream.input_shape:
                inputs *= size
            return models.mlp(inputs, arguments["hidden"], outputs)
        return models.resnet20(classes=outputs)


def prepare_folder(out: Path, config: RunConfig, *, resume: bool, overwrite: bool) -> None:
    """Make the run folder, or check that the one there may be used."""
    there = out / "config.json"
    if overwrite and there.exists():
        remove_run(out)
    elif there.exists():
        if not resume:
            raise InputError(
                f"{out} holds a run already; choose another --out, go on with --resume, "
                "or replace it with --overwrite."
            )
        old = store.read_json(there)
        new = config.to_json()
        for key in ("scenario", "method", "preset", "settings", "tasks"):
            if old.get(key) != new[key]:
                raise InputError(
                    f"{out} was started with {key} = {old.get(key)!r}, now {key} = {new[key]!r}; "
                    "resume with the same choices or use another --out."
                )
    elif out.exists() and any(out.iterdir()):
        raise InputError(f"{out} is not empty and holds no run; choose another --out.")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot make the folder {out}: {error.strerror}; choose another --out.") from None
    store.write_json(there, config.to_json())


def remove_run(out: Path) -> None:
    """Remove the files of an old run, and nothing a user may have put beside them."""
    for name in ("config.json", "result.json", "metrics.jsonl", "report.html"):
        (out / name).unlink(missing_ok=True)
    for folder in [*out.glob("seed-*"), out / "tensorboard"]:
        if folder.is_dir():
            shutil.rmtree(folder)


def run(
    config: RunConfig,
    out: Path,
    *,
    command: str,
    events: Events | None = None,
    resume: bool = False,
    overwrite: bool = False,
    writer: Any = None,
) -> dict[str, Any]:
    """Run every seed, write the run folder, return the result."""
    events = events or Events()
    prepare_folder(out, config, resume=resume, overwrite=overwrite)
    with store.lock_folder(out):
        events.phase(f"{config.scenario}: reading the data")
        seeds = [_SeedRun(config, seed, out, events, writer) for seed in config.seeds]
        for number in range(len(seeds[0].stream)):
            behind = [one for one in seeds if len(one.rows) == number]
            started = time.perf_counter()
            take_turns([one.learn_steps(number) for one in behind], choose_device(config.device))
            seconds = (time.perf_counter() - started) / max(len(behind), 1)
            for one in behind:
                one.finish(number, seconds)
        result = make_result(config, seeds[0].stream, [one.record for one in seeds], command)
        store.write_json(out / "result.json", result)
    return result


class _SeedRun:
    """One seed's learner, its rows so far and its folder."""

    def __init__(self, config: RunConfig, seed: int, out: Path, events: Events, writer: Any) -> None:
        self.config, self.seed, self.out, self.events, self.writer = config, seed, out, events, writer
        self.stream = make_scenario(config.scenario, tasks=config.tasks, seed=seed)
        self.folder = out / f"seed-{seed}"
        self.learner, self.rows = self._resume_or_start()
        self.before: float | None = None

    @property
    def record(self) -> dict[str, Any]:
        return {"seed": self.seed, "rows": self.rows}

    def _resume_or_start(self) -> tuple[Learner, list[dict[str, Any]]]:
        if (self.folder / "model" / store.MANIFEST).exists():
            learner = Learner.load(self.folder / "model", device=self.config.device)
            rows_file = self.folder / "rows.json"
            rows = store.read_json(rows_file)["rows"][: len(learner.tasks)] if rows_file.exists() else []
            if len(learner.tasks) - len(rows) <= 1:
                return learner, rows
        net = build_network(self.config.chosen().network, self.stream, self.seed)
        return Learner(net, self.config.settings(), seed=self.seed, device=self.config.device), []

    def learn_steps(self, number: int) -> Generator[None, None, None]:
        """Learn task `number`, unless a killed run had stored the model already and only the row is missing."""
        task = self.stream[number]
        if len(self.learner.tasks) == number:
            self.before = zero_shot(self.learner, task.classes, task.test.x, task.test.y)
            yield from self.learner.learn_steps(task.train.x, task.train.y, name=task.name, progress=self._told)

    def _told(self, progress: Progress) -> None:
        number = len(self.learner.tasks)
        self.events.epoch(self.seed, progress)
        line = {"seed": self.seed, "task_number": number, **asdict(progress)}
        store.append_jsonl(self.out / "metrics.jsonl", line)
        if self.writer is not None:
            step = _step_of(progress, number, self.config)
            for key in ("loss", "extra", "active", "new", "reused"):
                self.writer.add_scalar(f"seed-{self.seed}/{key}", getattr(progress, key), step)

    def finish(self, number: int, seconds: float) -> None:
        """Evaluate all tasks learnt so far, then store the model, then the row. `seconds` is this seed's share of
        the time that all seeds trained together."""
        started = time.perf_counter()
        seen = self.stream[: number + 1]
        scores = [score(self.learner, task.index, task.test.x, task.test.y) for task in seen]
        row = {
            "task": seen[-1].name,
            "task_accuracy": [s.task for s in scores],
            "class_accuracy": [s.class_ for s in scores],
            "task_inference": [s.task_inference for s in scores],
            "before": self.before,
            "factors": {name: asdict(use) for name, use in self.learner.model.use(number).items()},
            "parameters": self.learner.model.parameters(),
            "examples": len(seen[-1].train),
            "seconds": {"train": seconds, "eval": time.perf_counter() - started},
        }
        self.rows.append(row)
        self.learner.save(self.folder / "model")
        store.write_json(self.folder / "rows.json", self.record)
        store.append_jsonl(self.out / "metrics.jsonl", {"seed": self.seed, "task_number": number, "finished": row})
        self.events.task(self.seed, row)


def _step_of(progress: Progress, number: int, config: RunConfig) -> int:
    """A running epoch number over tasks and phases, for TensorBoard's axis."""
    settings = config.settings()
    done = number * (settings.epochs + settings.finetune_epochs)
    return done + progress.epoch + (settings.epochs if progress.phase == "finetune" else 0)
