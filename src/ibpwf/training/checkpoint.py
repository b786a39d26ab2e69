"""A task in progress, kept on disk while it is learned, so that training outlives a crash.

A checkpoint is a folder of its own (`.in-progress` in the model folder), written whole or not at all like the model
itself. It holds the method's training state, the optimizer's, the random streams and the place in the epoch: going on
from it gives the same bits as never having stopped, on the same machine. It names the data and the model it belongs
to by their digests, and is refused for any others.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from ibpwf.errors import InputError, StoreError
from ibpwf.storage.checkpoint_folder import (
    ANEW,
    CheckpointContent,
    OpenedCheckpoint,
    discard,
    has_checkpoint,
    open_checkpoint,
    save_checkpoint,
)
from ibpwf.storage.folder import lock_folder
from ibpwf.training.callbacks import Callback, StepEnd, TaskEnd, TaskStart

SHARE = 0.01
"""Of the time of training that writing checkpoints may take."""
SOONEST = 1.0
"""Seconds between two checkpoints, at least; also before the first one."""
BYTES_A_SECOND = 1e8
"""That a disk is assumed to write, until the first checkpoint has shown it."""


class Checkpoint(Callback):
    """A callback that writes the task in progress to `FOLDER/.in-progress`.

    It does so every so many minutes, and sooner as long as that takes less than a hundredth of the time: a task that
    takes seconds is not begun anew after every crash either.

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
        self.model = Path(folder)
        self.seconds, self.resume, self.stop = every * 60, resume, stop
        self._held = contextlib.ExitStack()

    def task_start(self, task: TaskStart) -> None:
        training = task.training
        assert training.identity is not None
        training.method.check_resumable()
        self._held.enter_context(lock_folder(self.model))
        self.identity = training.identity()
        self.written = time.monotonic()
        self.wait, self.estimated = min(self.seconds, SOONEST), False
        if not self.resume:
            discard(self.model)
        opened = self._found() if self.resume else None
        self.ours = opened is not None  # whether what lies there is of this task
        if opened is not None:
            try:
                best = () if opened.content.best is None else ("best",)
                parts = {name: opened.folder.tensors(name) for name in ("method", "step", *best)}
                training.restore(opened.content, parts)
            except (LookupError, TypeError, ValueError, RuntimeError) as error:
                what = f"{type(error).__name__}: {error}"
                raise StoreError(f"{str(opened.folder.path)!r} cannot be resumed ({what}).", remedy=ANEW) from None

    def _found(self) -> OpenedCheckpoint | None:
        """The checkpoint of this task; None where there is none, or only that of a task finished since."""
        if not has_checkpoint(self.model):
            return None
        opened = open_checkpoint(self.model)
        found, mine = opened.content, self.identity
        if found.serial < mine.serial:
            return None
        here = f"{str(opened.folder.path)!r} is of task '{found.task}'"
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

    def step_end(self, step: StepEnd) -> None:
        """Write a checkpoint if it is time for one, or time to stop."""
        stopping = self.stop is not None and self.stop()
        began = time.monotonic()
        if not stopping and began - self.written < self.wait:
            return
        progress, files = step.training.state()
        if not self.estimated and not stopping:
            self.estimated = True
            size = sum(tensor.nbytes for tensors in files.values() for tensor in tensors.values())
            self.wait = min(self.seconds, size / BYTES_A_SECOND / SHARE)
            if began - self.written < self.wait:
                return
        if not self.ours:
            discard(self.model)  # of a task that is finished
        content = CheckpointContent(**self.identity.model_dump(), **progress)
        save_checkpoint(self.model, content, files)
        self.ours, self.written = True, time.monotonic()
        self.wait = min(self.seconds, max(SOONEST, (self.written - began) / SHARE))
        if stopping:
            raise KeyboardInterrupt

    def task_end(self, task: TaskEnd) -> None:
        self._held.close()

    def task_failed(self, error: BaseException) -> None:
        self._held.close()
