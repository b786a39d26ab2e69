"""Run a method over a scenario for several seeds and keep the record: the run folder.

    DIR/config.json            what was asked for
    DIR/metrics.jsonl          a line per epoch and per finished task
    DIR/seed-S/rows.json       accuracies after every finished task of a seed (resume reads it)
    DIR/seed-S/model/          the model after the last finished task (unless models are not to be stored)
    DIR/result.json            the whole result, written last

A task is finished once its model is stored; its row and its metrics are written before that. A run that was
interrupted goes on after the last finished task, and drops what it had written of the next one.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ibpwf import models, store
from ibpwf.data.scenarios import scenario as make_scenario
from ibpwf.data.tasks import Scenario
from ibpwf.errors import InputError, StoreError
from ibpwf.evaluation.evaluate import score, zero_shot
from ibpwf.experiments.presets import Preset, preset
from ibpwf.experiments.result import make_result
from ibpwf.experiments.side_by_side import side_by_side, threads, workers_for
from ibpwf.learner import Learner, TaskLearner, choose_device, load
from ibpwf.methods import method_named
from ibpwf.settings import FrozenSettings, Settings
from ibpwf.training.loop import Progress
from ibpwf.training.phase import Phase, make_optimizer
from ibpwf.training.replicas import take_turns


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
    models: bool = True  # whether to store the models; without them a resumed seed starts anew

    def __post_init__(self) -> None:
        method_named(self.method)
        if not self.seeds or len(set(self.seeds)) != len(self.seeds) or min(self.seeds) < 0:
            raise InputError(f"seeds are {list(self.seeds)}; give different whole numbers from 0.")
        self.settings()
        choose_device(self.device)

    def chosen(self) -> Preset:
        return preset(self.scenario, self.preset, self.method)

    def settings(self, setting: str | None = None) -> FrozenSettings:
        """Of the method, and for one setting where that has its own; `changes` hold in both."""
        return self.chosen().make_settings(self.method, setting).replace(**self.changes)

    def settings_for(self) -> dict[str, dict[str, Any]]:
        """What is not as in `settings()` where a method is trained for one setting alone."""
        common = self.settings().to_json()
        special = {}
        for setting in self.chosen().settings_for:
            own = self.settings(setting).to_json()
            special[setting] = {name: value for name, value in own.items() if value != common[name]}
        return {setting: values for setting, values in special.items() if values}

    def trainings(self) -> tuple[tuple[str, ...], ...]:
        """What each training of a seed answers: one for both settings, or one for each the method can do."""
        method = method_named(self.method)
        return (method.answers,) if method.serves_both else tuple((setting,) for setting in method.answers)

    def to_json(self) -> dict[str, Any]:
        chosen = self.chosen()
        return {
            **asdict(self),
            "seeds": list(self.seeds),
            "network": chosen.network,
            "settings": self.settings().to_json(),
            "settings_for": self.settings_for(),
            "note": chosen.note,
        }


@dataclass(frozen=True)
class Events:
    """What a display may listen to."""

    epoch: Callable[[str, Progress], None] = lambda training, progress: None
    task: Callable[[str, dict[str, Any]], None] = lambda training, row: None
    phase: Callable[[str], None] = lambda text: None
    fetched: Callable[[str, int, int | None], None] = lambda label, done, total: None


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


def new_learner(config: RunConfig, seed: int, stream: Scenario, answers: tuple[str, ...]) -> TaskLearner:
    """A learner that has learnt nothing yet."""
    method, settings = method_named(config.method), config.settings(answers[0])
    if isinstance(settings, Settings):
        net = build_network(config.chosen().network, stream, seed)
        return Learner(net, settings, seed=seed, device=config.device)
    configuration = {
        "input_shape": list(stream.input_shape),
        "outputs": sum(len(task.classes) for task in stream),
        "setting": answers[0],
        "settings": settings.to_json(),
        "seed": seed,
    }
    return TaskLearner(method.create(configuration, choose_device(config.device)), seed=seed)


def check_folder(out: Path, config: RunConfig, *, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that the run may not use. Nothing is written or removed."""
    if resume and overwrite:
        raise InputError("--resume and --overwrite were both given; choose one.")
    if not out.exists() or (overwrite and (out / "config.json").exists()):
        return
    if not out.is_dir():
        raise InputError(f"{out} is a file; choose a folder as --out.")
    if not (out / "config.json").exists():
        if any(path.name != store.LOCK for path in out.iterdir()):
            raise InputError(f"{out} is not empty and holds no run; choose another --out.")
        return
    if not resume:
        raise InputError(
            f"{out} holds a run already; choose another --out, go on with --resume, or replace it with --overwrite."
        )
    old, new = store.read_json(out / "config.json"), config.to_json()
    for key, was, now in _differences(old, new):
        raise InputError(
            f"{out} was started with {key} = {was!r}, now {key} = {now!r}; "
            "resume with the same choices or use another --out."
        )


def _differences(old: dict[str, Any], new: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """What must stay the same in a resumed run and does not; more seeds may be added."""
    for key in ("scenario", "method", "preset", "tasks", "network"):
        if old.get(key) != new[key]:
            yield key, old.get(key), new[key]
    before = old.get("settings", {})
    for key, now in new["settings"].items():
        if before.get(key) != now:
            yield key, before.get(key), now
    if old.get("settings_for", {}) != new["settings_for"]:
        yield "settings_for", old.get("settings_for", {}), new["settings_for"]


OURS = (
    *("config.json", "result.json", "metrics.jsonl", "report.html", "tensorboard/events.out.tfevents.*"),
    *("seed-[0-9]*/rows.json", "seed-[0-9]*/model/*.safetensors"),
    *(f"seed-[0-9]*/model/{name}" for name in (store.MANIFEST, store.LOCK)),
)


def remove_run(out: Path) -> None:
    """Remove the files of an old run, and nothing a user may have put beside them."""
    for pattern in OURS:
        for path in out.glob(pattern):
            path.unlink()
    for pattern in ("seed-[0-9]*/model", "seed-[0-9]*", "tensorboard"):
        for folder in out.glob(pattern):
            with contextlib.suppress(OSError):  # something of the user's is in it
                folder.rmdir()


def run(
    config: RunConfig,
    out: Path,
    *,
    command: str,
    events: Events | None = None,
    resume: bool = False,
    overwrite: bool = False,
    open_writer: Callable[[Path], Any] | None = None,
) -> dict[str, Any]:
    """Run every seed, write the run folder, return the result.

    `open_writer` is given the folder for TensorBoard's events and returns its `SummaryWriter`.
    """
    events = events or Events()
    check_folder(out, config, resume=resume, overwrite=overwrite)
    events.phase(f"{config.scenario}: reading the data")
    # Before anything is written or removed: data that cannot be had, too many tasks, settings that do not fit.
    streams = [
        make_scenario(config.scenario, tasks=config.tasks, seed=seed, progress=events.fetched)
        for seed in config.seeds
    ]
    device = choose_device(config.device)
    if device.type == "cuda":  # once, and not anew for every task and learner
        streams = [stream.to(device) for stream in streams]
    new_learner(config, config.seeds[0], streams[0], config.trainings()[0])
    # torch loads its compiler with the first optimiser, for seconds; that is no training time.
    make_optimizer(Phase("none", 0, 1), [nn.Parameter(torch.zeros(1))])
    with store.lock_folder(out), contextlib.ExitStack() as closing:
        if overwrite:
            remove_run(out)
        store.write_json(out / "config.json", config.to_json())
        writer = None
        if open_writer is not None:
            writer = open_writer(out / "tensorboard")
            closing.callback(writer.close)
        metrics = out / "metrics.jsonl"
        trainings = [
            _Training(config, seed, answers, stream, out, events, partial(store.append_jsonl, metrics), writer)
            for seed, stream in zip(config.seeds, streams, strict=True)
            for answers in config.trainings()
        ]
        _drop_unfinished(metrics, {one.name: len(one.rows) for one in trainings})
        small = device.type == "cpu" and config.chosen().network["builder"] == "mlp"
        behind = [one for one in trainings if len(one.rows) < len(one.stream)]
        workers = workers_for(len(behind), sum(_examples(one) for one in behind)) if small and writer is None else 0
        if workers:
            _in_workers(config, behind, workers, out, events)
        else:
            with threads(1 if small else None):
                _in_turns(trainings, device)
        result = make_result(config, streams[0], [one.record for one in trainings], command)
        store.write_json(out / "result.json", result)
    return result


def _in_turns(trainings: Sequence[_Training], device: torch.device) -> None:
    """Task after task, all trainings: on a GPU at the same time, on a CPU one after another."""
    for number in range(len(trainings[0].stream)):
        behind = [one for one in trainings if len(one.rows) == number]
        started = time.perf_counter()
        take_turns([one.learn_steps(number) for one in behind], device)
        seconds = (time.perf_counter() - started) / max(len(behind), 1)
        for one in behind:
            one.finish(number, seconds)


def _in_workers(config: RunConfig, behind: Sequence[_Training], workers: int, out: Path, events: Events) -> None:
    """Every training from where it is to its end, in worker processes."""

    def told(message: Mapping[str, Any]) -> None:
        if message["kind"] == "line":
            store.append_jsonl(out / "metrics.jsonl", message["line"])
        elif message["kind"] == "epoch":
            events.epoch(message["training"], Progress(**message["progress"]))
        else:
            events.task(message["training"], message["row"])

    here = {**asdict(config), "device": "cpu"}
    chains = []
    for one in behind:
        job = {"config": here, "seed": one.seed, "answers": one.answers, "out": str(out)}
        left = len(one.stream) - len(one.rows)
        # Task by task where the next worker finds a stored model to go on from.
        chains.append([{**job, "tasks": 1}] * left if config.models else [{**job, "tasks": left}])
    side_by_side(chains, workers, told)
    for one in behind:
        one.rows = store.read_json(one.folder / "rows.json")["rows"]


def train_on(
    config: RunConfig,
    seed: int,
    answers: tuple[str, ...],
    out: Path,
    tasks: int,
    tell: Callable[[dict[str, Any]], object],
) -> None:
    """So many tasks of one training from where it is, in a worker process that tells the run about it."""
    stream = make_scenario(config.scenario, tasks=config.tasks, seed=seed)

    def epoch(name: str, progress: Progress) -> None:
        tell({"kind": "epoch", "training": name, "progress": asdict(progress)})

    def task(name: str, row: dict[str, Any]) -> None:
        tell({"kind": "row", "training": name, "row": row})

    events = Events(epoch, task)
    one = _Training(config, seed, answers, stream, out, events, lambda line: tell({"kind": "line", "line": line}))
    for number in range(len(one.rows), len(one.rows) + tasks):
        started = time.perf_counter()
        for _ in one.learn_steps(number):
            pass
        one.finish(number, time.perf_counter() - started)


def _examples(one: _Training) -> int:
    """About how many examples a training has still to pass, every epoch counted."""
    settings = one.config.settings(one.answers[0]).to_json()
    epochs = settings.get("epochs", 1) + settings.get("finetune_epochs", 0)
    return int(sum(len(task.train) for task in one.stream[len(one.rows) :]) * epochs)


def _drop_unfinished(metrics: Path, finished: dict[str, int]) -> None:
    """Leave out the lines of tasks that will be learnt again, so that none is there twice."""
    if not metrics.exists():
        return
    lines = store.read_jsonl(metrics)
    kept = [line for line in lines if line["task_number"] < finished.get(line.get("training", ""), len(lines))]
    if len(kept) < len(lines):
        store.write_text(metrics, "".join(json.dumps(line) + "\n" for line in kept))


class _Training:
    """One seed's learner (for one setting, where a method is trained for each), its rows so far and its folder."""

    def __init__(
        self,
        config: RunConfig,
        seed: int,
        answers: tuple[str, ...],
        stream: Scenario,
        out: Path,
        events: Events,
        note: Callable[[dict[str, Any]], object],
        writer: Any = None,
    ) -> None:
        self.config, self.seed, self.answers, self.stream = config, seed, answers, stream
        self.events, self.note, self.writer = events, note, writer
        one_of_many = not method_named(config.method).serves_both
        self.name = f"seed-{seed}" + (f"-{answers[0]}" if one_of_many else "")
        self.folder = out / self.name
        self.learner, self.rows = self._resume_or_start()
        self.before: float | None = None
        self.samples = 0
        self.epochs = 0

    @property
    def record(self) -> dict[str, Any]:
        return {"seed": self.seed, "answers": list(self.answers), "rows": self.rows}

    def _resume_or_start(self) -> tuple[TaskLearner, list[dict[str, Any]]]:
        if (self.folder / "model" / store.MANIFEST).exists():
            learner = load(self.folder / "model", device=self.config.device)
            there = self.folder / "rows.json"
            rows = store.read_json(there)["rows"] if there.exists() else []
            if len(rows) < len(learner.tasks):
                raise StoreError(
                    f"{there} has {len(rows)} rows for {len(learner.tasks)} learnt tasks; "
                    "restore it from a copy, or start again with --overwrite."
                )
            return learner, rows[: len(learner.tasks)]
        return new_learner(self.config, self.seed, self.stream, self.answers), []

    def learn_steps(self, number: int) -> Generator[None, None, None]:
        """Learn task `number`, pausing after every step."""
        task = self.stream[number]
        self.samples = self.epochs = 0
        self.before = zero_shot(self.learner, task.classes, task.test.x, task.test.y)
        yield from self.learner.learn_steps(task.train.x, task.train.y, name=task.name, progress=self._told)

    def _told(self, progress: Progress) -> None:
        number = len(self.learner.tasks)
        self.samples += progress.samples
        self.epochs += 1
        self.events.epoch(self.name, progress)
        line = {"seed": self.seed, "training": self.name, "task_number": number, **asdict(progress)}
        self.note(line)
        if self.writer is not None:
            step = number * 1000 + self.epochs  # TensorBoard's axis: the task in thousands, then the epoch
            for key in ("loss", "extra", "active", "new", "reused"):
                self.writer.add_scalar(f"{self.name}/{key}", getattr(progress, key), step)

    def finish(self, number: int, seconds: float) -> None:
        """Evaluate all tasks learnt so far, then store the row, then the model: that makes the task count.
        `seconds` is this seed's share of the time that all seeds trained together."""
        started = time.perf_counter()
        seen = self.stream[: number + 1]
        scores = [score(self.learner, task.index, task.test.x, task.test.y, self.answers) for task in seen]
        row: dict[str, Any] = {"task": seen[-1].name}
        if "task" in self.answers:
            row["task_accuracy"] = [s.task for s in scores]
        if "class" in self.answers:
            row["class_accuracy"] = [s.class_ for s in scores]
            row["task_inference"] = [s.task_inference for s in scores]
        method = self.learner.method
        row |= {
            "before": self.before,
            "factors": method.use(number),
            "parameters": method.parameter_count(),
            "memory": method.memory(),
            "samples": self.samples or len(seen[-1].train),
            "seconds": {"train": seconds, "eval": time.perf_counter() - started},
        }
        self.rows.append(row)
        line = {"seed": self.seed, "training": self.name, "task_number": number, "finished": row}
        self.note(line)
        self.folder.mkdir(exist_ok=True)
        store.write_json(self.folder / "rows.json", self.record)
        if self.config.models:
            self.learner.save(self.folder / "model")
        self.events.task(self.name, row)
