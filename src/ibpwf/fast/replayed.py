"""Rows of several tasks in one pass on a GPU: stands for `fast.mixed.in_one_pass`.

Such a pass is many small operations, and to start each takes longer than the operation itself. From the third batch
of a shape on they are replayed as one CUDA graph, in which all that differs between tasks is looked up at once; the
answers are the same. Batches before that are answered plainly, so that a network which is seldom asked costs nothing
more.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ibpwf.dispatch import stands_for
from ibpwf.fast.mixed import in_one_pass
from ibpwf.fast.mixed_layers import plainly, tables

SHAPES, SIGHTS, REMEMBERED = 4, 3, 64
"""Of so many shapes of batches a network keeps a recording, the latest ones: each holds memory for its numbers. To
record takes far longer than a pass, so it is done when a shape is seen for that time; so many shapes are counted."""

LOOKED_UP = 2**26
"""So many numbers, 268 MB, may be looked up at once; where there are more, each layer looks up its own."""

Shape = tuple[tuple[int, ...], torch.dtype]


@dataclass(frozen=True)
class Table:
    """The values of all layers that are looked up by row, side by side; None where they would be too many."""

    values: Tensor | None
    names: tuple[int, ...] = ()
    widths: tuple[int, ...] = ()

    @classmethod
    def of(cls, net: nn.Module, rows: int) -> Table:
        parts = [part for part in tables(net) if part.shape[1]]
        if not parts or rows * sum(part.shape[1] for part in parts) > LOOKED_UP:
            return cls(None)
        return cls(torch.cat(parts, 1), tuple(map(id, parts)), tuple(part.shape[1] for part in parts))

    def passed(self, net: nn.Module, x: Tensor, places: Tensor) -> Tensor:
        if self.values is None:
            return plainly(net, x, places)
        rows = torch.split(self.values.index_select(0, places), list(self.widths), 1)
        return plainly(net, x, places, dict(zip(self.names, rows, strict=True)))


@dataclass
class Recording:
    """A pass over a batch of one shape; `given` and `places` are read and `out` is written where they lie. The graph
    reads the `table` too."""

    given: Tensor
    places: Tensor
    graph: torch.cuda.CUDAGraph
    out: Tensor
    table: Table

    def __call__(self, x: Tensor, places: Tensor) -> Tensor:
        self.given.copy_(x)
        self.places.copy_(places, non_blocking=True)  # what lies on the host is read before it returns
        self.graph.replay()
        return self.out.clone()


class Recordings:
    """Of one network, by the shape of a batch. They share memory, so one runs at a time: threads take turns, as
    do their streams."""

    def __init__(self) -> None:
        self.of_shape: dict[Shape, Recording] = {}
        self.sights: dict[Shape, int] = {}
        self.failed = False
        self.lock = threading.Lock()
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.last: torch.cuda.Stream | None = None  # on which the latest ran
        self.pool = torch.cuda.graph_pool_handle()

    def answered(self, net: nn.Module, x: Tensor, places: Tensor) -> Tensor | None:
        """By the recording of this shape; None where there is none."""
        shape = tuple(x.shape), x.dtype
        with self.lock:
            found = self.of_shape.pop(shape, None)
            if found is None and self._is_due(shape):
                found = self._recorded(net, x, places)
            if found is None:
                return None
            self.of_shape[shape] = found
            if len(self.of_shape) > SHAPES:
                del self.of_shape[next(iter(self.of_shape))]
            here = torch.cuda.current_stream()
            if self.last is not None and self.last != here:
                here.wait_stream(self.last)
            self.last = here
            return found(x, places)

    def _is_due(self, shape: Shape) -> bool:
        if self.failed:
            return False
        seen = self.sights.pop(shape, 0) + 1
        self.sights = {**dict(list(self.sights.items())[1 - REMEMBERED :]), shape: seen}
        return seen >= SIGHTS

    def _recorded(self, net: nn.Module, x: Tensor, places: Tensor) -> Recording | None:
        """None where the network looks at its numbers on the way, and ever after."""
        here = torch.cuda.current_stream()
        with torch.inference_mode(False):  # else nobody outside of it could write to them later
            given, at, graph = x.clone(), places.to(x.device, copy=True), torch.cuda.CUDAGraph()
            self.stream.wait_stream(here)
            try:
                with torch.cuda.stream(self.stream):
                    table = Table.of(net, len(x))
                    table.passed(net, given, at)
                here.wait_stream(self.stream)
                # Other threads may ask the GPU for something else meanwhile.
                with torch.cuda.graph(graph, self.pool, self.stream, capture_error_mode="thread_local"):
                    out = table.passed(net, given, at)
            except RuntimeError:
                self.failed = True
                self._mend(x.device)
                return None
        self.sights.pop((tuple(x.shape), x.dtype), None)
        return Recording(given, at, graph, out, table)

    def _mend(self, device: torch.device) -> None:
        """After a recording that broke off torch's random numbers believe to be in one still; the next ends that."""
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=self.stream, capture_error_mode="thread_local"):
            torch.zeros(1, device=device, dtype=torch.float32)


_recordings: WeakKeyDictionary[nn.Module, Recordings] = WeakKeyDictionary()


def _on_a_gpu(net: nn.Module, x: Tensor, places: Tensor) -> bool:
    return x.is_cuda and not torch.is_autocast_enabled("cuda") and not torch.cuda.is_current_stream_capturing()


@stands_for(in_one_pass, when=_on_a_gpu)
def replayed(net: nn.Module, x: Tensor, places: Tensor) -> Tensor:
    with torch.cuda.device(x.device):
        kept = _recordings.get(net)
        if kept is None:
            kept = _recordings.setdefault(net, Recordings())
        out = kept.answered(net, x, places)
    return plainly(net, x, places) if out is None else out
