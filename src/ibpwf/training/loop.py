"""One training loop for every method: phases of epochs of mini-batches, on any device.

The loop owns batches, optimiser steps and the watch for a loss that is not a number. What the loss is, and
which parameters move, is the method's affair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ibpwf.errors import TrainingError

if TYPE_CHECKING:
    from ibpwf.methods.base import Method, TaskData

Batch = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Phase:
    """A stretch of training: how long, how fast, with what."""

    name: str
    epochs: int
    batch_size: int
    learning_rate: float = 1e-3
    optimizer: str = "adam"
    weight_decay: float = 0.0
    clip: float | None = None
    schedule: str = "constant"


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


def make_optimizer(phase: Phase, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    """The phase's optimiser; fused where torch has it (about 1.8 times as fast on the CPU)."""
    cuda = parameters[0].is_cuda
    # A captured graph reads the rate from a tensor; a number would be recorded once and for all.
    rate = torch.tensor(phase.learning_rate, device=parameters[0].device) if cuda else phase.learning_rate
    decay = phase.weight_decay
    if phase.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=rate, weight_decay=decay, fused=True, capturable=cuda)
    if phase.optimizer == "adagrad":
        return torch.optim.Adagrad(parameters, lr=phase.learning_rate, weight_decay=decay)
    if phase.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=rate, weight_decay=decay, fused=True)
    raise ValueError(f"no optimiser '{phase.optimizer}'")


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


class Step:
    """One optimisation step. On CUDA it is captured once as a graph and replayed, so that a small network
    does not wait for the interpreter; elsewhere it runs as written."""

    def __init__(
        self,
        phase: Phase,
        parameters: Sequence[nn.Parameter],
        loss: Batch,
        generators: Sequence[torch.Generator] = (),
        buffers: Sequence[Tensor] = (),
        after: Callable[[], None] | None = None,
        between: Callable[[], None] | None = None,
        capture: bool = True,
    ) -> None:
        self.phase, self.parameters, self.loss = phase, list(parameters), loss
        self.after, self.between, self.capture = after, between, capture
        self.optimizer = make_optimizer(phase, self.parameters)
        self.generators, self.buffers = generators, buffers
        self.graph: torch.cuda.CUDAGraph | None = None

    def run(self, x: Tensor, y: Tensor) -> Tensor:
        """Move the parameters once; returns (loss, extra) as a tensor of two, without waiting for it."""
        if not (x.is_cuda and self.capture):
            return self._eager(x, y)
        if self.graph is None:
            self._capture(x, y)
        assert self.graph is not None
        self.x.copy_(x)
        self.y.copy_(y)
        self.graph.replay()
        return self.out

    def _eager(self, x: Tensor, y: Tensor) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss, extra = self.loss(x, y)
        loss.backward()  # type: ignore[no-untyped-call]
        if self.between is not None:
            self.between()
        if self.phase.clip is not None:
            nn.utils.clip_grad_value_(self.parameters, self.phase.clip)
        self.optimizer.step()
        if self.after is not None:
            self.after()
        return torch.stack([loss.detach(), extra.detach()])

    def _capture(self, x: Tensor, y: Tensor) -> None:
        """Warm up with all state put back afterwards, then record, both on a stream no other learner records on:
        matrix products keep their workspace per stream, and graphs that shared one would overwrite each other's
        results when they run at the same time."""
        self.x, self.y = x.clone(), y.clone()
        tensors = [*(p.detach() for p in self.parameters), *self.buffers]
        kept = [t.clone() for t in tensors]
        states = [g.get_state() for g in self.generators]
        here = torch.cuda.current_stream()
        alone = here == torch.cuda.default_stream()
        stream = torch.cuda.Stream() if alone else here  # type: ignore[no-untyped-call]
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._eager(self.x, self.y)
        here.wait_stream(stream)
        for tensor, old in zip(tensors, kept, strict=True):
            tensor.copy_(old)
        for state in self.optimizer.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    value.zero_()
        for generator, saved in zip(self.generators, states, strict=True):
            generator.set_state(saved)
        self.graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            self.graph.register_generator_state(generator)
        self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(self.graph, stream=stream):
            self.out = self._eager(self.x, self.y)


def epoch_steps(
    step: Step, x: Tensor, y: Tensor, order: Tensor, batch_size: int, describe: str
) -> Generator[None, None, tuple[float, float]]:
    """One pass in the given order, pausing after every step; returns the mean loss and extra term. A rest smaller
    than a batch is left out (another order next epoch), so that every step has the same shape."""
    size = min(batch_size, len(order))
    count = len(order) // size
    log = torch.empty(count, 2, device=x.device)
    order = order.to(x.device)
    for first in range(0, count, 512):  # gathers of at most 512 batches: quick slices, little memory
        rows = order[first * size : min(first + 512, count) * size]
        part_x, part_y = x[rows], y[rows]
        for i in range(len(rows) // size):
            here = slice(i * size, (i + 1) * size)
            log[first + i].copy_(step.run(part_x[here], part_y[here]))
            yield
        check_finite(log[: first + len(rows) // size], describe)
    mean = log.mean(0)
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


def learning_rate_at(phase: Phase, epoch: int) -> float:
    """Constant, or half a cosine from the full rate to nearly none over the phase."""
    if phase.schedule == "cosine":
        return phase.learning_rate * 0.5 * (1 + math.cos(math.pi * epoch / max(phase.epochs, 1)))
    return phase.learning_rate


def task_steps(
    method: Method, data: TaskData, progress: Callable[[Progress], None] | None = None
) -> Generator[None, None, None]:
    """Train one task from `begin_task` to `end_task`, pausing after every step so that several learners can take
    turns. Nothing is kept if it does not get to the end."""
    try:
        shuffle = data.generator("shuffle")
        for phase in method.begin_task(data):
            step: Step | None = None
            for epoch in range(phase.epochs):
                if step is None:
                    parameters = method.parameters(phase)
                    step = Step(
                        phase,
                        parameters,
                        method.loss,
                        method.generators(),
                        method.buffers(),
                        after=method.after_step,
                        between=method.after_backward,
                        capture=method.capturable,
                    )
                set_learning_rate(step.optimizer, learning_rate_at(phase, epoch))
                order = torch.randperm(len(data.y), generator=shuffle)
                describe = f"epoch {epoch + 1} ({phase.name}) of task '{data.name}'"
                loss, extra = yield from epoch_steps(step, data.x, data.y, order, phase.batch_size, describe)
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
