"""A task in progress, kept on disk every few minutes, so that hours of training outlive a crash.

A checkpoint is a folder of its own (`.in-progress` in the model folder), written whole or not at all like the model
itself. It holds the method's training state, the optimizer's, the random streams and the place in the epoch: going on
from it gives the same bits as never having stopped, on the same machine. It names the data and the model it belongs
to by their digests, and is refused for any others.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from ibpwf.errors import InputError, StoreError
from ibpwf.storage import folder as store
from ibpwf.training.callbacks import Callback, StepEnd, TaskEnd, TaskStart
from ibpwf.training.loop import Identity

IN_PROGRESS = ".in-progress"
KIND = "ibpwf-task-in-progress"
SCHEMA = 2

ANEW = "To start the task anew, leave resume out."


class Checkpoint(Callback):
    """A callback that writes the task in progress to `FOLDER/.in-progress` every so many minutes.

    `folder` is the model folder that the learner is saved in; nobody else can write to it meanwhile. After a crash,
    load the learner and learn the task again with `resume=True`: it goes on from the last checkpoint (from the
    beginning if there is none) to the same bits. Saving the finished task removes the checkpoint. `stop` is asked
    after every step; once it says True, a checkpoint is written and learning ends with a KeyboardInterrupt.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        every: float = 10.0,
        resume: bool = False,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        if isinstance(every, bool) or not isinstance(every, (int, float)) or not 0 <= every < float("inf"):
            raise InputError(f"every is {every!r}; give the minutes between two checkpoints, such as 10.")
        self.model, self.folder = Path(folder), Path(folder) / IN_PROGRESS
        self.seconds, self.resume, self.stop = every * 60, resume, stop
        self._held = contextlib.ExitStack()

    def task_start(self, task: TaskStart) -> None:
        training = task.training
        assert training.identity is not None
        training.method.check_resumable()
        self._held.enter_context(store.lock_folder(self.model))
        self.identity = training.identity()
        self.written = time.monotonic()
        if not self.resume:
            discard(self.model)
        self.opened = self._found() if self.resume else None
        if self.opened is not None:
            try:
                parts = {name: self.opened.tensors(name) for name in ("method", "step")}
                training.restore(self.opened.content, parts)
            except (LookupError, TypeError, ValueError, RuntimeError) as error:
                what = f"{type(error).__name__}: {error}"
                raise StoreError(f"{str(self.folder)!r} cannot be resumed ({what}). {ANEW}") from None

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
                raise InputError(f"{here} and cannot be resumed as '{mine.task}': {what} is not the same. {ANEW}")
        if found.data != mine.data:
            raise InputError(f"{here}, begun with other data: x or y is not the same as then. {ANEW}")
        return opened

    def step_end(self, step: StepEnd) -> None:
        """Write a checkpoint if it is time for one, or time to stop."""
        stopping = self.stop is not None and self.stop()
        if not stopping and time.monotonic() - self.written < self.seconds:
            return
        content, files = step.training.state()
        if self.opened is None:
            discard(self.model)  # of a task that is finished
        content = {**vars(self.identity), **content}
        self.opened = store.save_folder(self.folder, kind=KIND, schema=SCHEMA, content=content, files=files)
        self.written = time.monotonic()
        if stopping:
            raise KeyboardInterrupt

    def task_end(self, task: TaskEnd) -> None:
        self._held.close()

    def task_failed(self, error: BaseException) -> None:
        self._held.close()


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
        raise StoreError(f"{error} {ANEW}") from None


def _identity(opened: store.Opened) -> Identity:
    try:
        return Identity(*(opened.content[field] for field in Identity.__dataclass_fields__))
    except LookupError:
        raise StoreError(f"{str(opened.path)!r} is not a whole checkpoint. {ANEW}") from None


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
