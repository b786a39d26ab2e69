"""The training loop of every method, from the first step of a task to its end.

The loop owns the order of things, the optimizer's steps and the watch for a loss that is not a number. What the loss
is, and which parameters move, is the method's affair; who wants to watch is a callback.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ibpwf.data.rows import Rows
from ibpwf.dispatch import accelerated
from ibpwf.errors import TrainingError
from ibpwf.storage.checkpoint_folder import CheckpointContent, Identity
from ibpwf.training.augment import CropAndFlip, check_images
from ibpwf.training.callbacks import Callback, Callbacks, EpochEnd, StepEnd, TaskStart
from ibpwf.training.environment import prepared_to_train
from ibpwf.training.method import Method, TaskData
from ibpwf.training.objective import Objective
from ibpwf.training.phase import Phase, learning_rate_at
from ibpwf.training.step import Step, make_step
from ibpwf.training.stopping import Stopping

CHECK_EVERY = 512
"""Steps between two looks at the losses: each look waits for the device."""


@dataclass
class Place:
    """Where training is: the phase, the epoch, and the random numbers that the epoch's order was drawn from."""

    phase: int = 0
    epoch: int = 0
    shuffle: Tensor | None = None


class Training:
    """One task being learned. `run` trains it, pausing after every step, so that several learners can take turns.

    If it breaks off anywhere, the method is of no more use: teach a fork of one that is to answer again.
    """

    def __init__(self, method: Method, data: TaskData, callbacks: Sequence[Callback] = ()) -> None:
        self.method, self.data = method, data
        self.callbacks = Callbacks(callbacks)
        self.place = Place()
        self.stopping = Stopping(method)
        self.step: Step | None = None
        self.identity: Callable[[], Identity] | None = None  # what a checkpoint of it belongs to
        self.accuracy: float | None = None  # per cent of the last epoch's rows, as far as the method can tell
        self._restored: tuple[int, Mapping[str, Tensor]] | None = None
        self._told = 0.0  # when a callback last saw a step

    def run(self) -> Generator[None, None, None]:
        method, data, callbacks = self.method, self.data, self.callbacks
        prepared = prepared_to_train(method.template, method.device)
        with prepared, accelerated(method.accelerate), self.telling_failure():
            shuffle, on_host, watched = data.generator("shuffle"), method.decides_on_host, callbacks.watches_steps
            phases = method.begin_task(data)
            rows = method.rows_to_train(data)
            moved = CropAndFlip(data.generator("augment", method.device))
            callbacks.task_start(
                TaskStart(data.name, data.index, len(rows), data.classes, sum(p.epochs for p in phases), self)
            )
            for number, phase in enumerate(phases):
                if number < self.place.phase:  # of a task that is resumed
                    continue
                epoch = -1
                if self._restored is None:
                    self.stopping.start_phase()
                if phase.augment != "none":
                    check_images(phase.augment, tuple(next(rows.in_order(1))[0].shape[1:]))
                step: Step | None = None
                for epoch in range(self.place.epoch if self._restored else 0, phase.epochs):
                    if step is None:
                        step = self.step = make_step(method, phase, rows, None if phase.augment == "none" else moved)
                    if method.sets_rate:
                        step.set_learning_rate(learning_rate_at(phase, epoch))
                    self._start_epoch(step, number, epoch, shuffle)
                    describe = f"epoch {epoch + 1} ({phase.name}) of task '{data.name}'"
                    while step.gradients():
                        if on_host:
                            yield  # others' gradients are computed while this learner waits for its own
                            method.on_host()
                        step.move()
                        if watched and time.monotonic() - self._told >= callbacks.step_interval:
                            self._tell_step(step, phase.name, epoch)
                        yield
                        if step.done % CHECK_EVERY == 0:
                            check_finite(step.measured(), describe)
                    check_finite(step.measured(), describe)
                    callbacks.epoch_end(self._epoch_end(step, phase.name, epoch, phase.epochs))
                    if self.stopping.is_over(phase, epoch):
                        break
                    if method.after_epoch(phase, epoch):
                        step = None
                self.stopping.end_phase(epoch)
                if step is not None:
                    check_parameters(step.parameters, f"the {phase.name} phase of task '{data.name}'")
            method.end_task(data)

    @contextlib.contextmanager
    def telling_failure(self) -> Iterator[None]:
        """For all that belongs to the task until it counts: callbacks hear of what breaks it off."""
        try:
            yield
        except BaseException as error:
            self.callbacks.task_failed(error)
            raise

    def _start_epoch(self, step: Step, phase: int, epoch: int, shuffle: torch.Generator) -> None:
        """Begin an epoch, or go on in the middle of the one that was restored."""
        if self._restored is not None:
            done, tensors = self._restored
            assert self.place.shuffle is not None
            shuffle.set_state(self.place.shuffle)
            step.start_epoch(shuffle)
            step.restore(tensors, done)
            self._restored = None
        else:
            self.place = Place(phase, epoch, shuffle.get_state())
            step.start_epoch(shuffle)

    def _tell_step(self, step: Step, phase: str, epoch: int) -> None:
        self._told = time.monotonic()
        self.callbacks.step_end(
            StepEnd(
                self.data.name,
                phase,
                epoch + 1,
                step.done,
                step.rows.steps(step.phase.batch_size),
                step.latest,
                self,
            )
        )

    def _epoch_end(self, step: Step, phase: str, epoch: int, epochs: int) -> EpochEnd:
        loss, penalty, accuracy = step.measured().mean(0).tolist()
        counts = self.method.counts()
        self.accuracy = 100 * accuracy if accuracy == accuracy else None
        samples = len(step.rows)
        return EpochEnd(
            self.data.name,
            phase,
            epoch + 1,
            epochs,
            loss,
            penalty,
            self.accuracy,
            counts.active,
            counts.new,
            counts.reused,
            samples,
        )

    def state(self) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
        """The task as far as it got, as JSON and named groups of tensors: all that training has changed."""
        assert self.step is not None
        assert self.place.shuffle is not None
        content, tensors = self.method.training_state()
        where = {"phase": self.place.phase, "epoch": self.place.epoch, "done": self.step.done}
        step = {**self.step.state(), "shuffle": self.place.shuffle}
        best, kept = self.stopping.state()
        found = {**where, "best": best, "method": content}
        return found, {"method": tensors, "step": step} | ({"best": kept} if kept else {})

    def restore(self, content: CheckpointContent, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Go on where `state` was taken; to be called when the task starts, with the same task and model."""
        self.method.load_training_state(content.method, tensors["method"])
        step = dict(tensors["step"])
        self.place = Place(content.phase, content.epoch, step.pop("shuffle"))
        self.stopping.restore(content.best, tensors.get("best", {}))
        self._restored = content.done, step


def fit_steps(
    objective: Objective, phase: Phase, rows: Rows, shuffle: torch.Generator, of: str
) -> Generator[None, None, None]:
    """Train anything for a phase, pausing after every step: what a method may do beside a task's own training."""
    step = make_step(objective, phase, rows)
    for epoch in range(phase.epochs):
        step.set_learning_rate(learning_rate_at(phase, epoch))
        step.start_epoch(shuffle)
        while step.gradients():
            step.move()
            yield
        check_finite(step.measured(), f"epoch {epoch + 1} of {of}")


KEPT = (
    "nothing of this task was kept and earlier tasks are unchanged. "
    "Lower learning_rate, set clip=0.5, or look for extreme values in x."
)


def check_finite(measured: Tensor, describe: str) -> None:
    bad = (~torch.isfinite(measured[:, 0])).nonzero()
    if len(bad):
        raise TrainingError(f"the loss is not a number at step {int(bad[0]) + 1} of {describe}; {KEPT}")


def check_parameters(parameters: Sequence[nn.Parameter], describe: str) -> None:
    """The last step of a phase has no loss after it that would show what it did."""
    if not all(bool(torch.isfinite(parameter).all()) for parameter in parameters):
        raise TrainingError(f"a parameter is not a number after the last step of {describe}; {KEPT}")
