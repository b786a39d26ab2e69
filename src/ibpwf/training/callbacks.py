"""What can be seen while a task is learned: every step, epoch and task, with losses, accuracy and factor counts.

A callback overrides what it wants to see:

    class Losses(Callback):
        def epoch_end(self, epoch: EpochEnd) -> None:
            print(epoch.task, epoch.epoch, epoch.loss, epoch.penalty, epoch.accuracy)

    learner.learn(x, y, callbacks=[Losses()])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from ibpwf.training.loop import Training


@dataclass(frozen=True)
class TaskStart:
    """A task is about to be trained: `epochs` in all its phases together. `training` is the task itself, whose
    `state` can be kept and restored."""

    task: str
    number: int
    rows: int
    classes: tuple[int, ...]
    epochs: int
    training: Training = field(repr=False)


@dataclass(frozen=True)
class StepEnd:
    """A mini-batch was learned. Reading a number waits for the device; a callback that reads none costs nothing."""

    task: str
    phase: str
    epoch: int
    step: int
    steps: int | None
    measured: Callable[[], Tensor] = field(repr=False)
    training: Training = field(repr=False)

    @property
    def loss(self) -> float:
        return float(self.measured()[0])

    @property
    def penalty(self) -> float:
        """What the method adds to the fit: IBP-WF's KL, EWC's pull."""
        return float(self.measured()[1])

    @property
    def accuracy(self) -> float:
        """Per cent of the mini-batch that was answered rightly before the step; not a number where unknown."""
        return 100 * float(self.measured()[2])


@dataclass(frozen=True)
class EpochEnd:
    """A pass over the rows: means over its steps, and factors in use at its end (0 for methods without)."""

    task: str
    phase: str
    epoch: int
    epochs: int
    loss: float
    penalty: float
    accuracy: float | None
    active: int
    new: int
    reused: int
    samples: int


@dataclass(frozen=True)
class TaskEnd:
    """A task was learned and counts. `factors` is per layer: active, new, reused and total."""

    task: str
    number: int
    rows: int
    accuracy: float | None
    seconds: float
    factors: dict[str, dict[str, int]]


class Callback:
    """Does nothing; override what you want to see."""

    step_interval: float = 0.0  # seconds between two calls of `step_end`; 0: after every step

    def task_start(self, task: TaskStart) -> None: ...

    def step_end(self, step: StepEnd) -> None: ...

    def epoch_end(self, epoch: EpochEnd) -> None: ...

    def task_end(self, task: TaskEnd) -> None: ...

    def task_failed(self, error: BaseException) -> None:
        """The task broke off; nothing of it counts."""


class TensorBoard(Callback):
    """Writes every epoch to a TensorBoard `SummaryWriter`; the axis counts tasks in thousands, then epochs."""

    def __init__(self, writer: Any, name: str = "") -> None:
        self.writer, self.prefix = writer, f"{name}/" if name else ""
        self.number = self.epochs = 0

    def task_start(self, task: TaskStart) -> None:
        self.number, self.epochs = task.number, 0

    def epoch_end(self, epoch: EpochEnd) -> None:
        self.epochs += 1
        for key in ("loss", "penalty", "accuracy", "active", "new", "reused"):
            if (value := getattr(epoch, key)) is not None:
                self.writer.add_scalar(f"{self.prefix}{key}", value, self.number * 1000 + self.epochs)


class Callbacks(Callback):
    """Several as one, told in turn."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks = list(callbacks)
        watching = [one for one in self.callbacks if type(one).step_end is not Callback.step_end]
        self.watches_steps = bool(watching)
        self.step_interval = min((one.step_interval for one in watching), default=0.0)

    def task_start(self, task: TaskStart) -> None:
        for one in self.callbacks:
            one.task_start(task)

    def step_end(self, step: StepEnd) -> None:
        for one in self.callbacks:
            one.step_end(step)

    def epoch_end(self, epoch: EpochEnd) -> None:
        for one in self.callbacks:
            one.epoch_end(epoch)

    def task_end(self, task: TaskEnd) -> None:
        for one in self.callbacks:
            one.task_end(task)

    def task_failed(self, error: BaseException) -> None:
        for one in self.callbacks:
            one.task_failed(error)
