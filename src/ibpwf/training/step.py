"""One optimization step: a mini-batch, its loss, gradients, and the optimizer's move."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext

import torch
from torch import Generator, Tensor, nn

from ibpwf.data.rows import Rows
from ibpwf.dispatch import reference
from ibpwf.errors import InputError
from ibpwf.training.augment import CropAndFlip
from ibpwf.training.batch_norm import by_all_rows, norms_of
from ibpwf.training.objective import Objective
from ibpwf.training.phase import TIMES, Phase

TOGETHER = 256
"""Steps whose measurements become one tensor."""


class Step:
    """Step after step over a task's rows, epoch by epoch.

    A step has two halves, `gradients` and `move`, between which a method may decide something on the host. `measured`
    has (loss, penalty, accuracy) of every step of the epoch so far.
    """

    def __init__(self, objective: Objective, phase: Phase, rows: Rows, augment: CropAndFlip | None = None) -> None:
        self.objective, self.phase, self.rows, self.augment = objective, phase, rows, augment
        self.parameters = list(objective.parameters(phase))
        self.optimizer = objective.make_optimizer(phase, self.parameters)
        self.norms = [] if objective.group.alone else norms_of(objective.trained_networks())
        self.done = 0
        self._log: list[Tensor] = []  # of the last steps, 3 numbers each
        self._earlier: list[Tensor] = []  # of those before, many steps in one tensor
        self._batches: Iterator[tuple[Tensor, Tensor]] = iter(())
        like = self.parameters[0]
        self._none, self._unknown = like.new_zeros(()), like.new_full((), torch.nan)

    def start_epoch(self, shuffle: Generator) -> None:
        """Begin a pass; its order is drawn from `shuffle`."""
        self._batches = self.rows.epoch(self.phase.batch_size, shuffle)
        self._log, self._earlier, self.done = [], [], 0

    def gradients(self) -> bool:
        """Gradients of the next mini-batch's loss; False where the epoch is over."""
        batch = next(self._batches, None)
        if batch is None:
            return False
        self.take_gradients(*batch)
        return True

    def move(self) -> None:
        """Let the optimizer move the parameters."""
        self.take_step()
        self._log.append(self.out)
        if len(self._log) == TOGETHER:  # a tensor for each of a million steps would take a gigabyte
            self._earlier.append(torch.stack(self._log))
            self._log = []
        self.done += 1

    def take_gradients(self, x: Tensor, y: Tensor) -> None:
        if self.augment is not None:
            x = self.augment(x)
        group, rows = self.objective.group, len(y)
        x, y, weight = group.part(x, y)
        if x.is_cuda and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)  # as its convolutions want images
        self.optimizer.zero_grad(set_to_none=True)
        rounded = self.objective.bfloat16 and x.is_cuda
        with by_all_rows(self.norms if len(y) < rows else (), group, weight):
            with torch.autocast("cuda", torch.bfloat16, cache_enabled=False) if rounded else nullcontext():
                loss = self.objective.loss(x, y)
            _run_backward(loss.total)
        self.objective.after_backward()
        penalty = self._none if loss.penalty is None else loss.penalty.detach()
        accuracy = self._unknown if loss.accuracy is None else loss.accuracy
        self.out = torch.stack([loss.total.detach(), penalty, accuracy])
        group.add_gradients(self.parameters, weight, self.out)
        if not group.alone:
            alike = {id(buffer) for norm in self.norms for buffer in norm.buffers(recurse=False)}
            group.average([buffer for buffer in self.objective.buffers() if id(buffer) not in alike])

    def take_step(self) -> None:
        if self.phase.clip is not None and not hasattr(self.optimizer, "clip"):  # one that clips by itself
            nn.utils.clip_grad_value_(self.parameters, self.phase.clip)
        self.optimizer.step()
        self.objective.after_step()

    def latest(self) -> Tensor:
        """What was measured of the last step."""
        return self.out

    def measured(self) -> Tensor:
        parts = [*self._earlier, torch.stack(self._log)] if self._log else self._earlier
        return torch.cat(parts) if parts else self._none.new_zeros(0, 3)

    def set_learning_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            own = rate * group.get(TIMES, 1.0)
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(own)
            else:
                group["lr"] = own

    def state(self) -> dict[str, Tensor]:
        """What goes into a checkpoint besides the method's own: the optimizer's state and the epoch's log."""
        tensors = {"log": self.measured()}
        if self.augment is not None:
            tensors["augment"] = self.augment.generator.get_state()
        for number, parameter in enumerate(self.parameters):
            state = self.optimizer.state[parameter].items()
            tensors |= {f"optimizer/{number}/{key}": value for key, value in state if isinstance(value, Tensor)}
        return tensors

    def restore(self, tensors: Mapping[str, Tensor], done: int) -> None:
        """Go on after `done` steps of an epoch that has just been started in the same order."""
        device = self.parameters[0].device
        for name, tensor in tensors.items():
            if name.startswith("optimizer/"):
                _, number, key = name.split("/")
                self.optimizer.state[self.parameters[int(number)]][key] = tensor.to(device)
        self.skip(done, tensors["log"].to(device))
        if self.augment is not None:
            self.augment.generator.set_state(tensors["augment"])

    def skip(self, done: int, log: Tensor) -> None:
        """Pass over the batches of an epoch that have been learned already."""
        for _ in range(done):
            next(self._batches)
        self._log, self._earlier, self.done = [], [log] if len(log) else [], done


def _run_backward(loss: Tensor) -> None:
    try:
        loss.backward()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        if "second time" not in str(error):
            raise
        raise InputError(
            "gradients go through a part of the network twice: give gradient checkpointing use_reentrant=False "
            "(transformers: gradient_checkpointing_kwargs={'use_reentrant': False}), and keep no tensors from one "
            "batch to the next unless detached."
        ) from error


@reference
def make_step(objective: Objective, phase: Phase, rows: Rows, augment: CropAndFlip | None = None) -> Step:
    """The steps of a phase over a task's rows."""
    return Step(objective, phase, rows, augment)
