"""A task in progress, kept on disk every few minutes, so that hours of training outlive a crash.

A checkpoint is a folder of its own (`.in-progress` in the model folder), written whole or not at all like the model
itself. It holds the method's training state, the optimiser's, the random streams and the place in the epoch: going on
from it gives the same bits as never having stopped, on the same machine. It names the data and the model it belongs
to by their digests, and is refused for any others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from ibpwf.errors import InputError, StoreError
from ibpwf.storage.checkpoint_folder import (
    ANEW,
    CheckpointContent,
    Identity,
    OpenedCheckpoint,
    discard,
    has_checkpoint,
    open_checkpoint,
    save_checkpoint,
)

if TYPE_CHECKING:
    from ibpwf.training.method import Method
    from ibpwf.training.step import Step


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
        self.model, self.identity = Path(model), identity
        self.seconds, self.stop = every * 60, stop
        self.written = time.monotonic()
        if not resume:
            discard(model)
        self.opened = self._found() if resume else None
        self.ours = self.opened is not None  # whether what lies there is of this task

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
                raise InputError(f"{here} and cannot be resumed as '{mine.task}': {what} is not the same. {ANEW}")
        if found.data != mine.data:
            raise InputError(f"{here}, begun with other data: x or y is not the same as then. {ANEW}")
        return opened

    def resumed(self, method: Method) -> Resumed | None:
        """Bring a method that has just begun the task to where the checkpoint was written."""
        if self.opened is None:
            return None
        folder, content = self.opened.folder, self.opened.content
        try:
            method.load_training_state(content.method, folder.tensors("method"))
            tensors = folder.tensors("step")
            return Resumed(Place(content.phase, content.epoch, tensors.pop("shuffle")), content.done, tensors)
        except (LookupError, TypeError, ValueError, RuntimeError) as error:
            what = f"{type(error).__name__}: {error}"
            raise StoreError(f"{str(folder.path)!r} cannot be resumed ({what}). {ANEW}") from None

    def step_done(self, method: Method, step: Step, place: Place) -> None:
        """Write a checkpoint if it is time for one, or time to stop."""
        stopping = self.stop is not None and self.stop()
        if not stopping and time.monotonic() - self.written < self.seconds:
            return
        state, tensors = method.training_state()
        content = CheckpointContent(
            **self.identity.model_dump(), method=state, phase=place.phase, epoch=place.epoch, done=step.done
        )
        if not self.ours:
            discard(self.model)  # of a task that is finished
        save_checkpoint(self.model, content, {"method": tensors, "step": {**step.kept(), "shuffle": place.shuffle}})
        self.ours, self.written = True, time.monotonic()
        if stopping:
            raise KeyboardInterrupt
