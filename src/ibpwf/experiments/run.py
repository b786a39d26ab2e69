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
from collections.abc import Callable
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
        seeds = []
        for seed in config.seeds:
            events.phase(f"seed {seed}: data")
            stream = make_scenario(config.scenario, tasks=config.tasks, seed=seed)
            seeds.append(_run_seed(config, seed, stream, out, events, writer))
        result = make_result(config, stream, seeds, command)
        store.write_json(out / "result.json", result)
    return result


def _run_seed(
    config: RunConfig, seed: int, stream: Scenario, out: Path, events: Events, writer: Any
) -> dict[str, Any]:
    """One seed, task after task, storing model and rows after each."""
    folder = out / f"seed-{seed}"
    learner, record = _resume_or_start(config, seed, stream, folder)
    for task in stream[len(record["rows"]) :]:
        started = time.perf_counter()
        train, test = task.train, task.test
        before = zero_shot(learner, task.classes, test.x, test.y)

        def told(progress: Progress, number: int = task.index) -> None:
            events.epoch(seed, progress)
            line = {"seed": seed, "task_number": number, **asdict(progress)}
            store.append_jsonl(out / "metrics.jsonl", line)
            if writer is not None:
                step = _step_of(progress, number, config)
                for key in ("loss", "extra", "active", "new", "reused"):
                    writer.add_scalar(f"seed-{seed}/{key}", getattr(progress, key), step)

        if len(learner.tasks) == len(record["rows"]):  # else: killed between storing the model and the row
            learner.learn(train.x, train.y, name=task.name, progress=told)
        trained = time.perf_counter()
        scores = [score(learner, other.index, other.test.x, other.test.y) for other in stream[: task.index + 1]]
        row = {
            "task": task.name,
            "task_accuracy": [s.task for s in scores],
            "class_accuracy": [s.class_ for s in scores],
            "task_inference": [s.task_inference for s in scores],
            "before": before,
            "factors": {name: asdict(use) for name, use in learner.model.use(task.index).items()},
            "parameters": learner.model.parameters(),
            "examples": len(train),
            "seconds": {"train": trained - started, "eval": time.perf_counter() - trained},
        }
        record["rows"].append(row)
        learner.save(folder / "model")
        store.write_json(folder / "rows.json", record)
        store.append_jsonl(out / "metrics.jsonl", {"seed": seed, "task_number": task.index, "finished": row})
        events.task(seed, row)
    return record


def _step_of(progress: Progress, number: int, config: RunConfig) -> int:
    """A running epoch number over tasks and phases, for TensorBoard's axis."""
    settings = config.settings()
    done = number * (settings.epochs + settings.finetune_epochs)
    return done + progress.epoch + (settings.epochs if progress.phase == "finetune" else 0)


def _resume_or_start(config: RunConfig, seed: int, stream: Scenario, folder: Path) -> tuple[Learner, dict[str, Any]]:
    if (folder / "model" / store.MANIFEST).exists():
        learner = Learner.load(folder / "model", device=config.device)
        record = store.read_json(folder / "rows.json") if (folder / "rows.json").exists() else None
        rows = (record or {}).get("rows", [])[: len(learner.tasks)]
        if len(learner.tasks) - len(rows) <= 1:
            return learner, {"seed": seed, "rows": rows}
    net = build_network(config.chosen().network, stream, seed)
    return Learner(net, config.settings(), seed=seed, device=config.device), {"seed": seed, "rows": []}
