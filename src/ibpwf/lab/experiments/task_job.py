"""One task of one training as a job that any process on any machine can do: it gets all it needs and gives back all
it has made, and touches no file that others see.

So a job that was lost with its worker is done again by another from the same start, to the same bits; one that two
workers have done, since the first was only thought to be lost, counts once; and workers need no folder in common.
Whoever hands the jobs out is the only one to write to the run folder.
"""

from __future__ import annotations

import contextlib
import json
import platform
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ibpwf import __version__
from ibpwf.device import choose_device
from ibpwf.errors import IBPWFError, InputError, StoreError
from ibpwf.lab.data.tasks import Scenario
from ibpwf.lab.experiments.executors import Chain, Engine, side_by_side, tell
from ibpwf.lab.experiments.replicas import take_turns
from ibpwf.lab.experiments.result import environment
from ibpwf.lab.experiments.run_config import RunConfig
from ibpwf.lab.experiments.seed_training import RunCallback, SeedTraining
from ibpwf.storage.files import append_jsonl, decode_tensors, read_bytes, read_jsonl, write_json
from ibpwf.storage.folder import MANIFEST, FileEntry, open_folder, save_folder
from ibpwf.training.callbacks import EpochEnd
from ibpwf.training.phase import Phase, make_optimizer

if TYPE_CHECKING:
    from ibpwf.lab.experiments.run import Run

Files = dict[str, bytes]


@dataclass(frozen=True)
class DoneTask:
    """What a job gives back: the lines it has measured, the row, and the files of the model that are new."""

    lines: list[dict[str, Any]]
    row: dict[str, Any]
    model: Files
    environment: dict[str, Any]

    def take(self, training: SeedTraining) -> None:
        """Into the run folder: lines, then the row, then the model, which makes the task count."""
        for line in self.lines:
            append_jsonl(training.out / "metrics.jsonl", line)
        record = {**training.record, "rows": [*training.rows, self.row]}
        training.folder.mkdir(exist_ok=True)
        write_json(training.folder / "rows.json", record)
        _store(training.folder / "model", self.model)
        training.rows.append(self.row)


@dataclass(frozen=True)
class TaskJob:
    """The next task of one training, whose rows and model so far are these; `place` is its number among all that
    are trained."""

    place: int
    name: str
    config: RunConfig
    seed: int
    answers: tuple[str, ...]
    rows: list[dict[str, Any]]
    model: Files
    steps: bool
    version: str = __version__

    def __call__(self) -> DoneTask:
        if self.version != __version__:
            raise InputError(
                f"a worker on {platform.node()} has ibpwf {__version__}, and {self.version} hands out the work; "
                "install the same version on both."
            )
        with tempfile.TemporaryDirectory(prefix="ibpwf-") as place, quiet():
            return self._done(Path(place))

    def _done(self, out: Path) -> DoneTask:
        self._lay_out(out / self.name)
        stream = _stream(self.config, self.seed)
        training = SeedTraining(self.config, out, self.seed, self.answers, stream, _TellTheRun(self))
        number = len(training.rows)
        # torch loads its compiler with the first optimizer, for seconds; that is no training time.
        make_optimizer(Phase("none", 0, 1), [nn.Parameter(torch.zeros(1))])
        started = time.perf_counter()
        take_turns([training.begin(number)], training.learner.device)
        training.finish(number, time.perf_counter() - started)
        model = {name: data for name, data in read_model(training.folder).items() if name not in self.model}
        manifest = read_bytes(training.folder / "model" / MANIFEST)
        lines = read_jsonl(out / "metrics.jsonl")
        return DoneTask(lines, training.rows[-1], {**model, MANIFEST: manifest}, environment(self.config.device))

    def _lay_out(self, folder: Path) -> None:
        """The training's folder as it is where the run is."""
        if not self.rows:
            return
        (folder / "model").mkdir(parents=True)
        write_json(folder / "rows.json", {"seed": self.seed, "answers": list(self.answers), "rows": self.rows})
        for name, data in self.model.items():
            (folder / "model" / name).write_bytes(data)


def train_in_workers(runs: Sequence[Run], engine: Engine) -> None:
    """Every training of the runs from where it is to its end. A run that fails has its `error`, and does not stop the
    others."""
    going = [one for one in runs if one.error is None]
    for one in going:
        one.write_result()  # of one that was finished but for this
    behind = [(one, training) for one in going for training in one.trainings if training.tasks_left]
    if not behind:
        return

    def told(message: tuple[int, int, str, tuple[Any, ...]]) -> None:
        place, number, name, what = message
        one, training = behind[place]
        if number == len(training.rows):  # not from a worker that was thought to be lost
            seen = [EpochEnd(**fields) for fields in what] if name == "epoch_end" else what
            getattr(one.watch, name)(training.name, *seen)

    chains = [_tasks_of(place, one, training, going) for place, (one, training) in enumerate(behind)]
    try:
        side_by_side(chains, engine, told)
    except IBPWFError as error:
        if all(one.error is not error for one in going):
            raise


def _tasks_of(place: int, one: Run, training: SeedTraining, runs: Sequence[Run]) -> Chain:
    config = one.config.replace(models=True)  # which are removed from the run folder in the end, if not asked for
    while training.tasks_left and one.error is None:
        one.watch.queued(training.name, len(training.rows), len(training.stream))
        model = read_model(training.folder) if training.rows else {}
        known = training.seed, training.answers, [*training.rows], model
        try:
            done: DoneTask = yield TaskJob(place, training.name, config, *known, one.watch.watches_steps)
            done.take(training)
        except IBPWFError as error:
            if one.error is None:
                one.fail(error)
            if all(other.result or other.error for other in runs):
                raise  # nobody is left to go on
            return
        one.environment = done.environment
        one.watch.task_end(training.name, done.row)
    if one.error is None:
        one.write_result()


def read_model(training: Path) -> Files:
    """The files of a stored model, by name."""
    opened = open_folder(training / "model")
    names = [MANIFEST, *(entry.file for entry in opened.files.values())]
    return {name: read_bytes(opened.path / name) for name in names}


def _store(folder: Path, files: Files) -> None:
    """Save a model as the worker did, from the files that are not there yet."""
    manifest = json.loads(files[MANIFEST])
    entries = {name: FileEntry.model_validate(entry) for name, entry in manifest["files"].items()}
    new = {
        name: decode_tensors(files[entry.file], folder / entry.file) if entry.file in files else {}
        for name, entry in entries.items()
    }
    there = {name: entry for name, entry in entries.items() if entry.file not in files}
    saved = save_folder(
        folder,
        kind=manifest["kind"],
        content=manifest["content"],
        files=new,
        unchanged=there,
    )
    if saved.sha256 != manifest["sha256"]:
        raise StoreError(f"{str(folder)!r} was changed by somebody else meanwhile; start again with --overwrite.")


_kept: tuple[tuple[Any, ...], Scenario] | None = None  # what the last job of this process has read


def _stream(config: RunConfig, seed: int) -> Scenario:
    """The tasks as a seed sees them; jobs that follow one another in a worker read them once."""
    global _kept
    key = (*config.stream_key(seed), config.device)
    if _kept is None or _kept[0] != key:
        _kept = None  # two at a time may not fit
        stream, device = config.stream(seed), choose_device(config.device)
        _kept = key, stream.to(device) if device.type == "cuda" else stream
    return _kept[1]


class _TellTheRun(RunCallback):
    """In a worker: everything is seen where the run is, told in numbers and text alone."""

    def __init__(self, job: TaskJob) -> None:
        self.job = job

    @property
    def watches_steps(self) -> bool:
        return self.job.steps

    def _tell(self, name: str, training: str, *what: Any) -> None:
        tell((self.job.place, len(self.job.rows), name, what))

    def task_start(self, *what: Any) -> None:
        self._tell("task_start", *what)

    def step_end(self, *what: Any) -> None:
        self._tell("step_end", *what)

    def epoch_end(self, training: str, epoch: EpochEnd) -> None:
        self._tell("epoch_end", training, asdict(epoch))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Accuracies are measured and shown after every task: no warning about a task that was hardly learned."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "task '.*' was hardly learned")
        yield
