"""Several processes that learn one task together: data-parallel, by `torch.distributed`.

Every process has the same model and draws the same random numbers. Of each mini-batch it takes its part; gradients
are added up before the optimizer's step, so all processes take the same steps and the same decisions, and hold the
same dictionary, which is checked after every task. `torchrun` starts the processes; `join` is how one of them comes
to know the others.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from ibpwf.device import choose_device
from ibpwf.errors import InputError, TrainingError
from ibpwf.launched import started_as

Distributed = Literal["auto", "off"]

TIMEOUT = timedelta(minutes=30)
"""How long a process waits for the slowest other, which may be reading its data."""


class Group:
    """The processes that learn together, seen from one of them. One alone is a group too, and costs nothing."""

    def __init__(self, rank: int = 0, size: int = 1, device: torch.device | None = None) -> None:
        self.rank, self.size = rank, size
        self.device = device or torch.device("cpu")
        self.stop: Callable[[], bool] | None = None
        """Whether this process wants all of them to stop after this step; `stopping` is what they have agreed on."""
        self.stopping = False

    @property
    def alone(self) -> bool:
        return self.size == 1

    @property
    def writes(self) -> bool:
        """Whether this is the process that writes and speaks."""
        return self.rank == 0

    def part(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, float]:
        """This process's rows of a batch, and the weight of their mean in the mean of all. Of fewer rows than there
        are processes everybody takes all."""
        if self.alone:
            return x, y, 1.0
        if len(y) < self.size:
            return x, y, 1 / self.size
        start, end = (len(y) * rank // self.size for rank in (self.rank, self.rank + 1))
        return x[start:end], y[start:end], (end - start) / len(y)

    def shares(self, batches: Iterator[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
        """Of every batch, each row for one process alone."""
        for x, y in batches:
            start, end = (len(y) * rank // self.size for rank in (self.rank, self.rank + 1))
            if end > start:
                yield x[start:end], y[start:end]

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Put the sum over all processes in place of each tensor, at one go for those of one type."""
        if self.alone:
            return
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            same = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat = torch.cat([tensor.reshape(-1) for tensor in same])
            with spoken():
                torch.distributed.all_reduce(flat)
            parts = torch.split(flat, [tensor.numel() for tensor in same])
            for tensor, part in zip(same, parts, strict=True):
                tensor.copy_(part.view_as(tensor))

    def gathered(self, tensor: Tensor) -> Tensor:
        """The tensors of all processes, which have one shape, a row each: the same bits everywhere."""
        if tensor.is_cuda:  # gloo does not promise to gather there
            rows = tensor.new_zeros(self.size, tensor.numel())
            rows[self.rank] = tensor.flatten()
            self.add_up([rows])
            return rows.view(self.size, *tensor.shape)
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        with spoken():
            torch.distributed.all_gather(parts, tensor)  # of a few numbers in half the time that a sum takes
        return torch.stack(parts)

    def add_gradients(self, parameters: Sequence[nn.Parameter], weight: float, measured: Tensor) -> None:
        """Gradients, and what was measured of the step, become those of the whole mini-batch; and whether to stop is
        agreed on."""
        if self.alone:
            return
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flag = measured.new_tensor([float(self.stop is not None and self.stop())])
        for tensor in (*gradients, measured):
            tensor.mul_(weight)
        self.add_up([*gradients, measured, flag])
        self.stopping = bool(flag > 0)

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Put the mean over all processes in place of each tensor of real numbers."""
        if self.alone:
            return
        real = [tensor for tensor in tensors if tensor.is_floating_point() and tensor.ndim]
        for tensor in real:
            tensor.div_(self.size)
        self.add_up(real)

    def from_first(self, tensor: Tensor | None, has: bool, width: int) -> Tensor | None:
        """The tensor (of `width` numbers, float64) of the first process that has one; None where none has."""
        sizes = torch.tensor([[0, 0]] * self.size)
        sizes[self.rank] = torch.tensor([int(has), width])
        self.add_up([sizes])
        owners = sizes[:, 0].nonzero().flatten().tolist()
        if not owners:
            return None
        numbers = torch.zeros(int(sizes[owners[0], 1]), dtype=torch.float64, device=self.device)
        if tensor is not None and self.rank == owners[0]:
            numbers.copy_(tensor)
        with spoken():
            torch.distributed.broadcast(numbers, owners[0])
        return numbers

    def take_from_first(self, tensors: Iterable[Tensor]) -> None:
        """Put what process 0 has in place of each tensor."""
        if not self.alone:
            for tensor in tensors:
                with spoken():
                    torch.distributed.broadcast(tensor.detach(), 0)

    def check_same(self, digest: str, what: str) -> None:
        """Refuse to go on where processes hold different things."""
        if self.alone:
            return
        all_of_them = torch.zeros(self.size, len(digest) // 2, dtype=torch.int32)
        all_of_them[self.rank] = torch.tensor(list(bytes.fromhex(digest)), dtype=torch.int32)
        self.add_up([all_of_them])
        others = [rank for rank in range(self.size) if not torch.equal(all_of_them[rank], all_of_them[0])]
        if others:
            raise TrainingError(
                f"{what} is not the same in process 0 and process {others[0]} of {self.size}; give all of them the "
                "same data, versions and kind of machine. Nothing of this task was kept."
            )

    def wait(self) -> None:
        """Until all are here."""
        if not self.alone:
            self.add_up([torch.zeros(1, dtype=torch.float32)])

    @contextlib.contextmanager
    def folder(self, path: Path) -> Iterator[Path]:
        """Where this process may write: the one that `writes`, to the folder; any other to a copy of it as it was at
        the beginning, which goes in the end."""
        if self.writes:
            self.wait()  # until the others have their copies
            yield path
            return
        with tempfile.TemporaryDirectory(prefix="ibpwf-") as place:
            copy = Path(place) / path.name
            if path.is_dir():
                shutil.copytree(path, copy)
            self.wait()
            yield copy


ALONE = Group()
_joined: Group | None = None


@contextlib.contextmanager
def spoken() -> Iterator[None]:
    """What torch says where another process has gone, as one sentence."""
    try:
        yield
    except RuntimeError as error:
        said = re.sub(r"^\[\S*\] ", "", str(error))  # a line of torch's sources
        reason = next(iter(said.splitlines()), type(error).__name__)[:120]
        raise TrainingError(
            f"another process that learns this task has ended, or cannot be reached ({reason}); tasks before it are "
            "kept, and so is its last checkpoint. Start all of them again with --resume."
        ) from error


def join(distributed: Distributed = "auto", device: str = "auto") -> Group:
    """The group that this process belongs to. "auto": that of `torch.distributed` where it is initialized, that which
    `torchrun` has started where it has, else this process alone; "off": alone."""
    if distributed not in ("auto", "off"):
        raise InputError(f"distributed is {distributed!r}; give 'auto' or 'off'.")
    if distributed == "off" or not torch.distributed.is_available():
        return ALONE
    if not torch.distributed.is_initialized():
        if started_as() is None:
            return ALONE
        _start(device)
    global _joined
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    if _joined is None or (_joined.rank, _joined.size) != (rank, size):
        _joined = Group(rank, size, choose_device(device)) if size > 1 else ALONE
    return _joined


def _start(device: str) -> None:
    """NCCL where every process of this machine has a GPU of its own; else gloo, which also lets several share one."""
    local, here = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    cards = torch.cuda.device_count() if device != "cpu" and torch.cuda.is_available() else 0
    if cards:
        torch.cuda.set_device(local % cards)
    # What torch's optimizers import keeps the group for good, as the default of arguments, if there is one by then:
    # its threads would outlive the interpreter, and now and then end the process with SIGABRT.
    importlib.import_module("torch._dynamo")
    with spoken():
        torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if cards >= here else "gloo", timeout=TIMEOUT)
    atexit.register(_leave)


def _leave() -> None:
    if torch.distributed.is_initialized():
        with contextlib.suppress(RuntimeError):
            torch.distributed.destroy_process_group()
