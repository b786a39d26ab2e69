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
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ibpwf.device import choose_device
from ibpwf.distributed import Group, join
from ibpwf.errors import IBPWFError, InputError
from ibpwf.lab.data.tasks import Scenario, Task
from ibpwf.lab.experiments.executors import Engine, Processes, workers_for
from ibpwf.lab.experiments.replicas import take_turns
from ibpwf.lab.experiments.result import make_result
from ibpwf.lab.experiments.run_config import RunConfig
from ibpwf.lab.experiments.run_folder import check_folder, drop_unfinished, remove_models, remove_run
from ibpwf.lab.experiments.seed_training import RunCallback, SeedTraining, new_learner
from ibpwf.lab.experiments.task_job import quiet, train_in_workers
from ibpwf.launched import started_as
from ibpwf.method import IBPWF
from ibpwf.storage.files import write_json
from ibpwf.storage.folder import lock_folder
from ibpwf.training.callbacks import TensorBoard
from ibpwf.training.environment import is_small
from ibpwf.training.phase import Phase, make_optimizer

FILLS_A_GPU = 4_000_000
"""Parameters of a network from which on seeds are not trained at the same time: above the perceptrons and small
residual networks, which gain by it, and below `resnet9`, which keeps a card busy alone."""


@dataclass
class Run:
    """What to run, where it goes, the command that would make it alone, who sees it, and who is told of its end; then
    its trainings and its result, or why there is none. `environment` is that of workers, where such have trained."""

    config: RunConfig
    out: Path
    command: str = ""
    watch: RunCallback = field(default_factory=RunCallback)
    ended: Callable[[Run], None] = field(default=lambda one: None)
    trainings: list[SeedTraining] = field(default_factory=list, init=False)
    result: dict[str, Any] = field(default_factory=dict, init=False)
    error: IBPWFError | None = field(default=None, init=False)
    environment: dict[str, Any] | None = field(default=None, init=False)

    def write_result(self) -> None:
        """Once the last task is done; models that were kept for a resumed run alone are removed after that."""
        if self.result or any(one.tasks_left for one in self.trainings):
            return
        records = [one.record for one in self.trainings]
        self.result = make_result(self.config, self.trainings[0].stream, records, self.command)
        if self.environment is not None:
            self.result["environment"] = self.environment
        write_json(self.out / "result.json", self.result)
        if not self.config.models:
            remove_models(self.out)
        self.ended(self)

    def fail(self, error: IBPWFError) -> None:
        """It ends here, and others that run beside it do not."""
        self.error = error
        self.ended(self)


def run(
    config: RunConfig, out: Path, *, command: str = "", watch: RunCallback | None = None, **options: Any
) -> dict[str, Any]:
    """Run every seed, write the run folder, return the result. `options` are those of `run_all`."""
    one = Run(config, out, command, watch or RunCallback())
    run_all([one], **options)
    if one.error is not None:
        raise one.error
    return one.result


def run_all(
    runs: Sequence[Run],
    *,
    engine: Engine | None = None,
    resume: bool = False,
    overwrite: bool = False,
    tensorboard: bool = False,
) -> list[dict[str, Any]]:
    """Several runs at once, each with its folder and its result as if it had run alone.

    With an `engine` its workers each take the next task of any training; a run that fails has its `error` and an
    empty result, and does not stop the others. Without one, the learners of all runs and seeds take turns on this
    device, task by task; learners that train together would be lost together, so their models are kept until the run
    has finished, also those of a run that is not to store them.
    """
    device, open_writer = choose_device(runs[0].config.device), _summary_writer() if tensorboard else None
    if engine is not None:
        if started_as() is not None:
            raise InputError("torchrun's processes learn one task together and workers learn many; use one of them.")
        engine.check()
    group = join("auto", runs[0].config.device) if engine is None else None
    streams: Streams = {}
    with contextlib.ExitStack() as held, quiet():
        if group is not None and not group.alone:
            _share(runs, group, held)
        # Before anything is written or removed: data that cannot be had, too many tasks, settings that do not fit.
        narrow = [_checked(one, streams, engine, device, resume, overwrite) for one in runs]
        for one in runs:
            if one.error is None:
                _begin(one, streams, held, overwrite, engine)
        if engine is None:
            # torch loads its compiler with the first optimizer, for seconds; that is no training time.
            make_optimizer(Phase("none", 0, 1), [nn.Parameter(torch.zeros(1))])
            for one in runs:
                writer = open_writer(one.out / "tensorboard") if open_writer and (not group or group.writes) else None
                for training in one.trainings:
                    training.keep = one.config.models or len(runs) > 1
                    training.callbacks += [TensorBoard(writer, training.name)] if writer else []
                if writer is not None:
                    held.callback(writer.close)
            alone = len(runs) == 1 and started_as() is None and open_writer is None and all(narrow)
            behind = [training for training in runs[0].trainings if training.tasks_left]
            examples = sum(one.examples_left for one in behind)
            workers = workers_for(len(behind), examples) if alone and device.type == "cpu" else 0
            if workers:
                train_in_workers(runs, Processes(workers))
                if runs[0].error is not None:
                    raise runs[0].error
            else:
                _in_turns(runs, device)
        else:
            train_in_workers(runs, engine)
        return [one.result for one in runs]


def _share(runs: Sequence[Run], group: Group, held: contextlib.ExitStack) -> None:
    """Let torchrun's processes learn together, and the first of them write."""
    for one in runs:
        if one.config.method != IBPWF.name:
            raise InputError(
                f"method '{one.config.method}' is trained by one process; start it without torchrun, or run ibpwf."
            )
        one.out = held.enter_context(group.folder(one.out))


def _checked(
    one: Run, streams: Streams, engine: Engine | None, device: torch.device, resume: bool, overwrite: bool
) -> bool:
    """Read a run's tasks and make its first learner; whether that is a small network. The tasks of an engine's run
    are read without their examples, and what is wrong with it is its `error`."""
    config = one.config
    try:
        check_folder(one.out, config, resume=resume, overwrite=overwrite)
        one.watch.say(f"{config.scenario}: reading the data")
        for seed in config.seeds:
            if config.stream_key(seed) not in streams:
                stream = config.stream(seed, one.watch.fetched)
                here = outline(stream) if engine else stream.to(device) if device.type == "cuda" else stream
                streams[config.stream_key(seed)] = here
        first = streams[config.stream_key(config.seeds[0])]
        return is_small(new_learner(config, config.seeds[0], first, config.trainings()[0]).method.template)
    except IBPWFError as error:
        if engine is None:
            raise
        one.fail(error)
        return False


Streams = dict[tuple[Any, ...], Scenario]


def outline(stream: Scenario) -> Scenario:
    """The tasks without their examples, which only those who train need: a scenario of zeros."""
    zeros = torch.zeros(1, *stream.input_shape)
    tasks = []
    for task in stream:
        one = zeros, torch.tensor([task.classes[0]])
        tasks.append(Task(task.name, one, one, classes=task.classes))
    return Scenario(stream.name, tasks, seed=stream.seed, input_shape=stream.input_shape, n_classes=stream.n_classes)


def _begin(one: Run, streams: Streams, held: contextlib.ExitStack, overwrite: bool, engine: Engine | None) -> None:
    """Take the run's folder, and every seed's training as far as that has it, for each of the settings where the
    method is trained for one."""
    config = one.config
    try:
        held.enter_context(lock_folder(one.out))
        if overwrite:
            remove_run(one.out)
        write_json(one.out / "config.json", config.to_json())
        one.trainings = [
            SeedTraining(config, one.out, seed, answers, streams[config.stream_key(seed)], one.watch)
            for seed in config.seeds
            for answers in config.trainings()
        ]
        finished = {training.name: len(training.rows) for training in one.trainings}
        drop_unfinished(one.out / "metrics.jsonl", finished)
    except IBPWFError as error:
        if engine is None:
            raise
        one.fail(error)


def _summary_writer() -> Callable[[Path], Any]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError("--tensorboard needs the tensorboard package: pip install 'ibpwf[tensorboard]'.") from None
    return lambda folder: SummaryWriter(log_dir=str(folder))


def _in_turns(runs: Sequence[Run], device: torch.device) -> None:
    """Task after task, the trainings of all runs: on a GPU at the same time, on a CPU one after another. A network
    that fills a GPU by itself learns all its tasks before the next seed begins, which takes the memory of one."""
    everyone = [training for one in runs for training in one.trainings if training.tasks_left]
    large = [training for training in everyone if fills_a_gpu(training, device)]
    small = [training for training in everyone if training not in large]
    for group in [small, *([training] for training in large)]:
        for number in range(max((len(training.stream) for training in group), default=0)):
            ready = [training for training in group if len(training.rows) == number < len(training.stream)]
            started = time.perf_counter()
            take_turns([training.begin(number) for training in ready], device)
            seconds = (time.perf_counter() - started) / max(len(ready), 1)
            for training in ready:
                training.finish(number, seconds)
            for one in runs:
                one.write_result()
        if len(everyone) > 1 and group is not small:
            group[0].release()
    for one in runs:
        one.write_result()


def fills_a_gpu(training: SeedTraining, device: torch.device) -> bool:
    """Whether a step of the network leaves no room for that of another."""
    parameters = training.learner.method.template.parameters()
    return device.type == "cuda" and sum(parameter.numel() for parameter in parameters) > FILLS_A_GPU
