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
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ibpwf.errors import StoreError
from ibpwf.lab.data.catalog import preprocessing
from ibpwf.lab.data.tasks import Scenario
from ibpwf.lab.evaluation.evaluate import score, zero_shot
from ibpwf.lab.evaluation.uncertainty import seen_and_unseen
from ibpwf.lab.experiments.network import build_network
from ibpwf.lab.experiments.replicas import take_turns
from ibpwf.lab.experiments.result import make_result
from ibpwf.lab.experiments.run_config import RunConfig
from ibpwf.lab.experiments.run_folder import check_folder, remove_models, remove_run
from ibpwf.lab.experiments.side_by_side import side_by_side, threads, workers_for
from ibpwf.lab.methods import method_named
from ibpwf.learner import Learner, TaskLearner, choose_device, load
from ibpwf.settings import Settings
from ibpwf.storage.files import append_jsonl, read_json, read_jsonl, write_json, write_text
from ibpwf.storage.folder import MANIFEST, lock_folder
from ibpwf.training.callbacks import Callback, EpochEnd
from ibpwf.training.phase import Phase, make_optimizer


@dataclass(frozen=True)
class Events:
    """What a display may listen to."""

    epoch: Callable[[str, EpochEnd], None] = lambda training, progress: None
    task: Callable[[str, dict[str, Any]], None] = lambda training, row: None
    phase: Callable[[str], None] = lambda text: None
    fetched: Callable[[str, int, int | None], None] = lambda label, done, total: None


def new_learner(config: RunConfig, seed: int, stream: Scenario, answers: tuple[str, ...]) -> TaskLearner:
    """A learner that has learnt nothing yet."""
    method, settings = method_named(config.method), config.settings(answers[0])
    if isinstance(settings, Settings):
        net = build_network(config.network_spec(), stream, seed)
        return Learner(net, settings, seed=seed, device=config.device)
    configuration = {
        "input_shape": list(stream.input_shape),
        "outputs": sum(len(task.classes) for task in stream),
        "setting": answers[0],
        "settings": settings.to_json(),
        "seed": seed,
    }
    return TaskLearner(method.create(configuration, choose_device(config.device)), seed=seed)


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
    planned = [Planned(config, out, command)]
    return run_together(planned, events=events, resume=resume, overwrite=overwrite, open_writer=open_writer)[0]


@dataclass(frozen=True)
class Planned:
    """A run, where it goes, and the command that would make it alone."""

    config: RunConfig
    out: Path
    command: str


def run_together(
    planned: Sequence[Planned],
    *,
    events: Events | None = None,
    resume: bool = False,
    overwrite: bool = False,
    open_writer: Callable[[Path], Any] | None = None,
) -> list[dict[str, Any]]:
    """Several runs at once on one device: the learners of all runs and seeds take turns, task by task.

    Each run has its folder and its result as if it had run alone. Learners that train together would be lost
    together, so their models are kept until the run has finished, also those of a run that is not to store them.
    """
    events = events or Events()
    for one in planned:
        check_folder(one.out, one.config.to_json(), resume=resume, overwrite=overwrite)
    device = choose_device(planned[0].config.device)
    # Before anything is written or removed: data that cannot be had, too many tasks, settings that do not fit.
    streams: dict[tuple[str, int | None, int | None, int], Scenario] = {}
    for config in (one.config for one in planned):
        events.phase(f"{config.scenario}: reading the data")
        for seed in config.seeds:
            key = config.scenario, config.tasks, config.examples, seed
            if key not in streams:
                stream = config.stream(seed, events.fetched)
                # Once, and not anew for every task and learner.
                streams[key] = stream.to(device) if device.type == "cuda" else stream
        first = streams[config.scenario, config.tasks, config.examples, config.seeds[0]]
        new_learner(config, config.seeds[0], first, config.trainings()[0])
    # torch loads its compiler with the first optimiser, for seconds; that is no training time.
    make_optimizer(Phase("none", 0, 1), [nn.Parameter(torch.zeros(1))])
    with contextlib.ExitStack() as closing:
        going = []
        for one in planned:
            closing.enter_context(lock_folder(one.out))
            if overwrite:
                remove_run(one.out)
            write_json(one.out / "config.json", one.config.to_json())
            writer = None
            if open_writer is not None:
                writer = open_writer(one.out / "tensorboard")
                closing.callback(writer.close)
            asked = one.config
            mine = [streams[asked.scenario, asked.tasks, asked.examples, seed] for seed in asked.seeds]
            going.append(_Run(one, mine, events, writer, keep=one.config.models or len(planned) > 1))
        small = device.type == "cpu" and all(one.config.is_small() for one in planned)
        behind = going[0].behind() if small and len(going) == 1 and open_writer is None else []
        workers = workers_for(len(behind), sum(map(_examples, behind)))
        if workers:
            _in_workers(planned[0], behind, workers, events)
            going[0].write_result()
        else:
            with threads(1 if small else None):
                _in_turns(going, device)
        return [finished.result for finished in going]


class _Run:
    """One run among those that go on together: its trainings, and its result once all tasks are learnt."""

    def __init__(
        self, planned: Planned, streams: Sequence[Scenario], events: Events, writer: Any, *, keep: bool
    ) -> None:
        self.planned, self.streams = planned, streams
        self.result: dict[str, Any] = {}
        config, out = planned.config, planned.out
        note = partial(append_jsonl, out / "metrics.jsonl")
        self.trainings = [
            _Training(config, seed, answers, stream, out, events, note, writer, keep=keep)
            for seed, stream in zip(config.seeds, streams, strict=True)
            for answers in config.trainings()
        ]
        _drop_unfinished(out / "metrics.jsonl", {one.name: len(one.rows) for one in self.trainings})

    def behind(self) -> list[_Training]:
        """Those that have tasks left to learn."""
        return [one for one in self.trainings if len(one.rows) < len(one.stream)]

    def write_result(self) -> None:
        """Once the last task is done; models that were kept for a resumed run alone are removed after that."""
        if self.result or self.behind():
            return
        config, out = self.planned.config, self.planned.out
        records = [one.record for one in self.trainings]
        self.result = make_result(config, self.streams[0], records, self.planned.command)
        write_json(out / "result.json", self.result)
        if not config.models:
            remove_models(out)


def _in_turns(going: Sequence[_Run], device: torch.device) -> None:
    """Task after task, the trainings of all runs: on a GPU at the same time, on a CPU one after another."""
    for number in range(max(len(one.streams[0]) for one in going)):
        behind = [training for one in going for training in one.trainings if len(training.rows) == number]
        behind = [training for training in behind if number < len(training.stream)]
        started = time.perf_counter()
        take_turns([training.learn_steps(number) for training in behind], device)
        seconds = (time.perf_counter() - started) / max(len(behind), 1)
        for training in behind:
            training.finish(number, seconds)
        for finished in going:
            finished.write_result()


def _in_workers(planned: Planned, behind: Sequence[_Training], workers: int, events: Events) -> None:
    """Every training from where it is to its end, in worker processes."""
    config, out = planned.config, planned.out

    def told(message: Mapping[str, Any]) -> None:
        if message["kind"] == "line":
            append_jsonl(out / "metrics.jsonl", message["line"])
        elif message["kind"] == "epoch":
            events.epoch(message["training"], EpochEnd(**message["progress"]))
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
        one.rows = read_json(one.folder / "rows.json")["rows"]


def train_on(
    config: RunConfig,
    seed: int,
    answers: tuple[str, ...],
    out: Path,
    tasks: int,
    tell: Callable[[dict[str, Any]], object],
) -> None:
    """So many tasks of one training from where it is, in a worker process that tells the run about it."""
    stream = config.stream(seed)

    def epoch(name: str, progress: EpochEnd) -> None:
        tell({"kind": "epoch", "training": name, "progress": asdict(progress)})

    def task(name: str, row: dict[str, Any]) -> None:
        tell({"kind": "row", "training": name, "row": row})

    events = Events(epoch, task)

    def note(line: dict[str, Any]) -> None:
        tell({"kind": "line", "line": line})

    one = _Training(config, seed, answers, stream, out, events, note, keep=config.models)
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
    lines = read_jsonl(metrics)
    kept = [line for line in lines if line["task_number"] < finished.get(line.get("training", ""), len(lines))]
    if len(kept) < len(lines):
        write_text(metrics, "".join(json.dumps(line) + "\n" for line in kept))


class _Training(Callback):
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
        *,
        keep: bool,
    ) -> None:
        self.keep = keep
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
        if (self.folder / "model" / MANIFEST).exists():
            learner = load(self.folder / "model", device=self.config.device)
            there = self.folder / "rows.json"
            rows = read_json(there)["rows"] if there.exists() else []
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
        yield from self.learner.learn_steps(task.train.x, task.train.y, name=task.name, callbacks=[self])

    def epoch_end(self, progress: EpochEnd) -> None:
        number = len(self.learner.tasks)
        self.samples += progress.samples
        self.epochs += 1
        self.events.epoch(self.name, progress)
        line = {"seed": self.seed, "training": self.name, "task_number": number, **asdict(progress)}
        line["extra"] = line.pop("penalty")
        self.note(line)
        if self.writer is not None:
            step = number * 1000 + self.epochs  # TensorBoard's axis: the task in thousands, then the epoch
            for key in ("loss", "penalty", "active", "new", "reused"):
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
            row["uncertainty"] = seen_and_unseen(self.learner, [task.test.x for task in self.stream])
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
        write_json(self.folder / "rows.json", self.record)
        if self.keep:
            accuracy = row.get("task_accuracy", row.get("class_accuracy"))
            if accuracy is not None:
                self.learner.note_accuracy(number, accuracy[number])
            extra = {"preprocessing": preprocessing(self.config.scenario)}
            self.learner.save(self.folder / "model", extra=extra)
        self.events.task(self.name, row)
