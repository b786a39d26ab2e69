"""A task in progress, kept on disk every few minutes, so that hours of training outlive a crash.

A checkpoint is a folder of its own (`.in-progress` in the model folder), written whole or not at all like the model
itself. It holds the method's training state, the optimiser's, the random streams and the place in the epoch: going on
from it gives the same bits as never having stopped, on the same machine. It names the data and the model it belongs
to by their digests, and is refused for any others.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ibpwf.errors import InputError, StoreError
from ibpwf.storage import folder as store

if TYPE_CHECKING:
    from ibpwf.training.method import Method
    from ibpwf.training.step import Step

IN_PROGRESS = ".in-progress"
KIND = "ibpwf-task-in-progress"
SCHEMA = 1

ANEW = "To start the task anew, leave resume out."


@dataclass(frozen=True)
class Place:
    """Where training is: the phase, the epoch, and the random numbers that the epoch's order was drawn from."""

    phase: int
    epoch: int
    shuffle: Tensor


@dataclass(frozen=True)
class Resumed:
    """Where a checkpoint was written, and the step's own state then."""

    place: Place
    done: int
    step: dict[str, Tensor]


@dataclass(frozen=True)
class Identity:
    """What a checkpoint belongs to. `data` and `model` are digests."""

    task: str
    serial: int
    data: str
    model: str


class Checkpoint:
    """Writes the task in progress to `MODEL/.in-progress` every so many minutes, and finds it again.

    Once `stop` says so, the task is written at the end of the step and broken off with a KeyboardInterrupt.
    """

    def __init__(
        self,
        model: str | Path,
        identity: Identity,
        *,
        every: float,
        resume: bool,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        self.folder, self.identity = Path(model) / IN_PROGRESS, identity
        self.seconds, self.stop = every * 60, stop
        self.written = time.monotonic()
        if not resume:
            discard(model)
        self.opened = self._found() if resume else None

    def _found(self) -> store.Opened | None:
        """The checkpoint of this task; None where there is none, or only that of a task finished since."""
        if not os.path.lexists(self.folder / store.MANIFEST):
            return None
        opened = _open(self.folder)
        found, mine = _identity(opened), self.identity
        if found.serial < mine.serial:
            return None
        here = f"{str(self.folder)!r} is of task '{found.task}'"
        for field, what in (
            ("task", "its name"),
            ("serial", "the tasks before it"),
            ("model", "the model or a setting"),
        ):
            if getattr(found, field) != getattr(mine, field):
                problem = f"{here} and cannot be resumed as '{mine.task}': {what} is not the same."
                raise InputError(problem, remedy=ANEW)
        if found.data != mine.data:
            raise InputError(f"{here}, begun with other data: x or y is not the same as then.", remedy=ANEW)
        return opened

    def resumed(self, method: Method) -> Resumed | None:
        """Bring a method that has just begun the task to where the checkpoint was written."""
        if self.opened is None:
            return None
        content = self.opened.content
        try:
            method.load_training_state(content["method"], self.opened.tensors("method"))
            tensors = self.opened.tensors("step")
            place = Place(content["phase"], content["epoch"], tensors.pop("shuffle"))
            return Resumed(place, content["done"], tensors)
        except (LookupError, TypeError, ValueError, RuntimeError) as error:
            what = f"{type(error).__name__}: {error}"
            raise StoreError(f"{str(self.folder)!r} cannot be resumed ({what}).", remedy=ANEW) from None

    def step_done(self, method: Method, step: Step, place: Place) -> None:
        """Write a checkpoint if it is time for one, or time to stop."""
        stopping = self.stop is not None and self.stop()
        if not stopping and time.monotonic() - self.written < self.seconds:
            return
        state, tensors = method.training_state()
        content = {
            **vars(self.identity),
            "method": state,
            "phase": place.phase,
            "epoch": place.epoch,
            "done": step.done,
        }
        files = {"method": tensors, "step": {**step.kept(), "shuffle": place.shuffle}}
        if self.opened is None:
            discard(self.folder.parent)  # of a task that is finished
        self.opened = store.save_folder(self.folder, kind=KIND, schema=SCHEMA, content=content, files=files)
        self.written = time.monotonic()
        if stopping:
            raise KeyboardInterrupt


def task_in_progress(model: str | Path) -> Identity | None:
    """The task that was broken off while it was learnt into a model folder, if its checkpoint can be read."""
    try:
        return _identity(_open(Path(model) / IN_PROGRESS))
    except StoreError:
        return None


def _open(folder: Path) -> store.Opened:
    try:
        return store.open_folder(folder, kind=KIND, newest=SCHEMA)
    except StoreError as error:
        raise StoreError(str(error), remedy=ANEW) from None


def _identity(opened: store.Opened) -> Identity:
    try:
        return Identity(*(opened.content[field] for field in Identity.__dataclass_fields__))
    except LookupError:
        raise StoreError(f"{str(opened.path)!r} is not a whole checkpoint.", remedy=ANEW) from None


def discard(model: str | Path) -> None:
    """Remove the checkpoint in a model folder: its manifest first, so that half a removal leaves none."""
    folder = Path(model) / IN_PROGRESS
    if not os.path.isdir(folder):
        return
    with store.plain_errors("remove", folder):
        for name in sorted(os.listdir(folder), key=lambda name: name != store.MANIFEST):
            os.unlink(folder / name)
        os.rmdir(folder)


def discard_finished(model: str | Path, serial: int) -> None:
    """Remove the checkpoint of a task older than `serial`, which the model holds finished, and what a process that
    was killed has left of one. For those who hold the folder's lock."""
    found = task_in_progress(model)
    half = not os.path.lexists(Path(model) / IN_PROGRESS / store.MANIFEST)
    if half or (found is not None and found.serial < serial):
        discard(model)


def digest_of(content: object, parts: Mapping[str, Mapping[str, Tensor]]) -> str:
    """One digest over JSON and tensors: names, types, shapes and bytes."""
    total = hashlib.sha256(store.encode(content, "content"))
    for part in sorted(parts):
        for name, tensor in sorted(parts[part].items()):
            plain = tensor.detach().cpu().contiguous()
            total.update(f"{part}/{name}/{plain.dtype}/{tuple(plain.shape)}/".encode())
            total.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
