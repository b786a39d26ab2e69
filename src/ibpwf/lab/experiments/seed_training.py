"""One seed of a run: its learner, what was measured after each task, and its part of the run folder."""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ibpwf.device import choose_device
from ibpwf.errors import StoreError
from ibpwf.lab.data.catalog import preprocessing
from ibpwf.lab.data.tasks import Scenario
from ibpwf.lab.evaluation.evaluate import score, zero_shot
from ibpwf.lab.evaluation.metrics import calibration_error
from ibpwf.lab.evaluation.uncertainty import novelty_found, seen_and_unseen
from ibpwf.lab.experiments.network import build_network
from ibpwf.lab.experiments.run_config import RunConfig
from ibpwf.lab.methods import method_named
from ibpwf.learner import Learner
from ibpwf.settings import Settings
from ibpwf.storage.files import append_jsonl, read_json, write_json
from ibpwf.storage.folder import MANIFEST, open_folder
from ibpwf.storage.model_folder import KIND, whole_folder
from ibpwf.training.callbacks import Callback, EpochEnd, StepEnd, TaskStart
from ibpwf.training.environment import prepared_to_train

EVERY = 0.3
"""Seconds between two looks at a loss inside an epoch: each look waits for the device."""


class RunCallback:
    """What can be seen of a run, of all its trainings; override what you want to see. Where seeds train in other
    processes, the calls are made in this one. `training` is the name of a training, such as seed-0."""

    def say(self, text: str) -> None: ...

    def fetched(self, label: str, done: int, total: int | None) -> None:
        """Data on its way."""

    def queued(self, training: str, done: int, tasks: int) -> None:
        """Where workers train: it waits for one, with so many of its tasks done."""

    def task_start(self, training: str, task: str, epochs: int) -> None:
        """Also when a task is begun again, because its worker was lost."""

    def step_end(self, training: str, epochs: float, loss: float) -> None:
        """Now and then inside an epoch: how many epochs of the task are done, and the last step's loss."""

    def epoch_end(self, training: str, epoch: EpochEnd) -> None: ...

    def task_end(self, training: str, row: dict[str, Any]) -> None:
        """A task counts: what was measured after it."""

    @property
    def watches_steps(self) -> bool:
        return type(self).step_end is not RunCallback.step_end


def new_learner(config: RunConfig, seed: int, stream: Scenario, answers: tuple[str, ...]) -> Learner[Any]:
    """A learner that has learned nothing yet."""
    method, settings = method_named(config.method), config.settings(answers[0])
    if isinstance(settings, Settings):
        net = build_network(config.network_spec(), stream, seed)
        return Learner(net, settings, seed=seed, device=config.device, distributed="auto")
    configuration = {
        "input_shape": list(stream.input_shape),
        "outputs": sum(len(task.classes) for task in stream),
        "setting": answers[0],
        "settings": settings.to_json(),
        "seed": seed,
    }
    return Learner(method.create(configuration, choose_device(config.device)), seed=seed)


class SeedTraining(Callback):
    """One seed's learner (for one setting, where a method is trained for each), its rows so far and its folder.

    As a callback it writes every epoch to metrics.jsonl and counts samples. `keep` says whether the model is stored
    after each task; `callbacks` see the training too.
    """

    def __init__(
        self, config: RunConfig, out: Path, seed: int, answers: tuple[str, ...], stream: Scenario, watch: RunCallback
    ) -> None:
        self.config, self.out, self.seed, self.answers = config, out, seed, answers
        self.stream, self.watch, self.keep = stream, watch, config.models
        one_of_many = not method_named(config.method).serves_both
        self.name = f"seed-{seed}" + (f"-{answers[0]}" if one_of_many else "")
        self.folder = out / self.name
        self.learner, self.rows = self._resume_or_start()
        self.callbacks: list[Callback] = [self, *([_Steps(self)] if watch.watches_steps else [])]
        self.before: float | None = None
        self.samples = self.epochs = 0

    @property
    def record(self) -> dict[str, Any]:
        return {"seed": self.seed, "answers": list(self.answers), "rows": self.rows}

    @property
    def tasks_left(self) -> int:
        return len(self.stream) - len(self.rows)

    @property
    def examples_left(self) -> int:
        """How many examples are still to be passed, every epoch counted."""
        sizes = [len(task.train) for task in self.stream[len(self.rows) :]]
        return sum(size * self.config.epochs(size) for size in sizes)

    def _resume_or_start(self) -> tuple[Learner[Any], list[dict[str, Any]]]:
        there = self.folder / "rows.json"
        rows = read_json(there)["rows"] if there.exists() else []
        if not (self.folder / "model" / MANIFEST).exists():
            done = not self.config.models and len(rows) == len(self.stream)  # and there is no model to be had
            return new_learner(self.config, self.seed, self.stream, self.answers), rows if done else []
        learner = self._stored()
        if len(rows) < len(learner.tasks):
            raise StoreError(
                f"{there} has {len(rows)} rows for {len(learner.tasks)} learnt tasks; "
                "restore it from a copy, or start again with --overwrite."
            )
        return learner, rows[: len(learner.tasks)]

    def _stored(self) -> Learner[Any]:
        """The learner in the folder. A model folder is data and names no module to import; the run does."""
        model = self.folder / "model"
        settings = self.config.settings()
        if isinstance(settings, Settings):
            parts = [self.config.method, *settings.to_json().values()]
            on_base = settings.base == "frozen"  # which a folder leaves out, and a run makes again
            if not on_base and not any(isinstance(part, str) and ":" in part for part in parts):
                return Learner.load(model, device=self.config.device, distributed="auto")
        with whole_folder(model):
            learner = new_learner(self.config, self.seed, self.stream, self.answers)
            return learner.restore(open_folder(model, kind=KIND))

    def release(self) -> None:
        """Let go of what was learned, once its rows are all that is asked for."""
        self.learner = new_learner(self.config, self.seed, self.stream, self.answers)

    def begin(self, number: int) -> Generator[None, None, object]:
        """The steps in which task `number` is learned."""
        task = self.stream[number]
        self.samples = self.epochs = 0
        self.before = zero_shot(self.learner, task.classes, task.test.x, task.test.y)
        return self.learner.learn_steps(task.train.x, task.train.y, task=task.name, callbacks=self.callbacks)

    def task_start(self, task: TaskStart) -> None:
        self.watch.task_start(self.name, task.task, task.epochs)

    def epoch_end(self, epoch: EpochEnd) -> None:
        self.samples += epoch.samples
        self.epochs += 1
        line = asdict(epoch)
        line["extra"] = line.pop("penalty")
        self._note(len(self.learner.tasks), line)
        self.watch.epoch_end(self.name, epoch)

    def _note(self, number: int, line: dict[str, Any]) -> None:
        line = {"seed": self.seed, "training": self.name, "task_number": number, **line}
        append_jsonl(self.out / "metrics.jsonl", line)

    def finish(self, number: int, seconds: float) -> None:
        """Evaluate all tasks learned so far, then store the row, then the model: that makes the task count.
        `seconds` is this seed's share of the time that all seeds trained together."""
        method = self.learner.method
        with prepared_to_train(method.template, method.device):
            row = self._measured(number, seconds)
        self.rows.append(row)
        self._note(number, {"finished": row})
        self.folder.mkdir(exist_ok=True)
        write_json(self.folder / "rows.json", self.record)
        if self.keep:
            accuracy = row.get("task_accuracy", row.get("class_accuracy"))
            if accuracy is not None:
                self.learner.note_accuracy(number, accuracy[number])
            extra = {"preprocessing": preprocessing(self.config.scenario)}
            self.learner.save(self.folder / "model", extra=extra)
        self.watch.task_end(self.name, row)

    def _measured(self, number: int, seconds: float) -> dict[str, Any]:
        started = time.perf_counter()
        seen, method = self.stream[: number + 1], self.learner.method
        scores = [score(self.learner, task.index, task.test.x, task.test.y, self.answers) for task in seen]
        row: dict[str, Any] = {"task": seen[-1].name}
        if "task" in self.answers:
            row["task_accuracy"] = [s.task for s in scores]
        if "class" in self.answers:
            row["class_accuracy"] = [s.class_ for s in scores]
            row["task_inference"] = [s.task_inference for s in scores]
            tests = [task.test.x for task in self.stream]
            row["uncertainty"] = seen_and_unseen(self.learner, tests)
            row["novelty"] = novelty_found(self.learner, tests)
        row["calibration_error"] = {
            setting: calibration_error(
                torch.cat([s.sure[setting][0] for s in scores]), torch.cat([s.sure[setting][1] for s in scores])
            )
            for setting in self.answers
        }
        return row | {
            "before": self.before,
            "factors": method.use(number),
            "parameters": method.parameter_count(),
            "memory": method.memory(),
            "samples": self.samples or len(seen[-1].train),
            "seconds": {"train": seconds, "eval": time.perf_counter() - started},
        }


class _Steps(Callback):
    """Tells a run's display now and then how far an epoch is."""

    step_interval = EVERY

    def __init__(self, training: SeedTraining) -> None:
        self.training, self.loss = training, math.nan

    def step_end(self, step: StepEnd) -> None:
        if self.training.learner.device.type == "cpu":  # a GPU would have to be waited for
            self.loss = step.loss
        part = step.step / step.steps if step.steps else 0.0
        self.training.watch.step_end(self.training.name, self.training.epochs + part, self.loss)

    def epoch_end(self, epoch: EpochEnd) -> None:
        self.loss = epoch.loss
