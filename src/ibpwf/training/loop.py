"""One training loop for every method: phases of epochs of mini-batches, on any device.

The loop owns batches, optimiser steps and the watch for a loss that is not a number. What the loss is, and
which parameters move, is the method's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ibpwf.errors import TrainingError
from ibpwf.training.augment import CropAndFlip, check_images
from ibpwf.training.checkpoint import Checkpoint, Place, Resumed
from ibpwf.training.phase import learning_rate_at, set_learning_rate
from ibpwf.training.step import Step

if TYPE_CHECKING:
    from ibpwf.training.method import Method, TaskData


@dataclass(frozen=True)
class Progress:
    """What a progress display is told after every epoch."""

    task: str
    phase: str
    epoch: int
    epochs: int
    loss: float
    extra: float
    active: int
    new: int
    reused: int
    samples: int


def epoch_steps(
    step: Step,
    order: Tensor,
    describe: str,
    resumed: Resumed | None = None,
    step_done: Callable[[], None] | None = None,
) -> Generator[None, None, tuple[float, float]]:
    """One pass in the given order (the rest of one that was `resumed`), pausing after every step; returns the mean
    loss and extra term."""
    step.start_epoch(order)
    if resumed is not None:
        step.restore(resumed.step, resumed.done)
    for number in range(step.done, step.count):
        step.first_half()
        if step.on_host is not None:
            yield  # others' gradients are computed while this learner waits for its own
        step.second_half()
        if step_done is not None:
            step_done()
        yield
        if number % 512 == 511:
            check_finite(step.log[: number + 1], describe)
    check_finite(step.log, describe)
    mean = step.log.mean(0)
    return float(mean[0]), float(mean[1])


KEPT = (
    "nothing of this task was kept and earlier tasks are unchanged. "
    "Lower learning_rate, set clip=0.5, or look for extreme values in x."
)


def check_finite(log: Tensor, describe: str) -> None:
    bad = (~torch.isfinite(log[:, 0])).nonzero()
    if len(bad):
        raise TrainingError(f"the loss is not a number at step {int(bad[0]) + 1} of {describe}; {KEPT}")


def check_parameters(parameters: Sequence[nn.Parameter], describe: str) -> None:
    """The last step of a phase has no loss after it that would show what it did."""
    if not all(bool(torch.isfinite(parameter).all()) for parameter in parameters):
        raise TrainingError(f"a parameter is not a number after the last step of {describe}; {KEPT}")


def task_steps(
    method: Method,
    data: TaskData,
    progress: Callable[[Progress], None] | None = None,
    checkpoint: Checkpoint | None = None,
) -> Generator[None, None, None]:
    """Train one task from `begin_task` to `end_task`, pausing after every step so that several learners can take
    turns. Nothing is kept if it does not get to the end, save in a `checkpoint`, from which it then goes on."""
    try:
        shuffle = data.generator("shuffle")
        phases = method.begin_task(data)
        x, y = method.examples_to_train(data)
        augment = CropAndFlip(data.generator("augment", x.device))
        resumed = None if checkpoint is None else checkpoint.resumed(method)
        for number, phase in enumerate(phases):
            check_images(phase.augment, tuple(x.shape[1:]))
            if resumed is not None and number < resumed.place.phase:
                continue
            step: Step | None = None
            for epoch in range(0 if resumed is None else resumed.place.epoch, phase.epochs):
                if step is None:
                    step = Step(
                        phase,
                        method.parameters(phase),
                        method.loss,
                        x,
                        y,
                        generators=[*method.generators(), augment.generator],
                        augment=None if phase.augment == "none" else augment,
                        buffers=method.buffers(),
                        after=method.after_step,
                        between=method.after_backward,
                        on_host=method.on_host if method.decides_on_host else None,
                        capture=method.capturable,
                        tf32=method.tf32,
                        bfloat16=method.bfloat16,
                    )
                set_learning_rate(step.optimizer, learning_rate_at(phase, epoch))
                if resumed is not None:
                    shuffle.set_state(resumed.place.shuffle)
                place = Place(number, epoch, shuffle.get_state())
                order = torch.randperm(len(y), generator=shuffle)
                describe = f"epoch {epoch + 1} ({phase.name}) of task '{data.name}'"
                keep = None if checkpoint is None else partial(checkpoint.step_done, method, step, place)
                loss, extra = yield from epoch_steps(step, order, describe, resumed, keep)
                resumed = None
                if progress is not None:
                    counts = method.counts()
                    progress(
                        Progress(
                            data.name,
                            phase.name,
                            epoch + 1,
                            phase.epochs,
                            loss,
                            extra,
                            counts.active,
                            counts.new,
                            counts.reused,
                            len(order),
                        )
                    )
                if method.after_epoch(phase, epoch):
                    step = None
            if step is not None:
                check_parameters(step.parameters, f"the {phase.name} phase of task '{data.name}'")
        method.end_task(data)
    except BaseException:
        method.abandon_task()
        raise
