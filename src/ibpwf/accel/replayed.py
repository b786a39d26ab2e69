"""Rows of several tasks in one pass on a GPU: stands for `core.mixed.in_one_pass`.

Such a pass is many small operations, and to start each takes longer than the operation itself. From the second batch
of a shape on they are replayed as one CUDA graph, in which all that differs between tasks is looked up at once; the
answers are the same. The first batch is answered plainly, so that a network which is asked once costs nothing more.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ibpwf.core.mixed import in_one_pass, plainly, tables
from ibpwf.core.reference import stands_for

SHAPES = 4
"""Of so many shapes of batches a network keeps a recording, the latest ones: each holds memory for its numbers."""

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
    """A pass over a batch of one shape; `given` and `places` are read and `out` is written where they lie."""

    given: Tensor
    places: Tensor
    graph: torch.cuda.CUDAGraph
    out: Tensor
    table: Table  # which the graph reads

    @classmethod
    def of(cls, net: nn.Module, x: Tensor, places: Tensor) -> Recording:
        given, at, graph = x.clone(), places.clone(), torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            table = Table.of(net, len(x))
            table.passed(net, given, at)
        torch.cuda.current_stream().wait_stream(stream)
        # Other threads may ask the GPU for something else meanwhile.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            out = table.passed(net, given, at)
        return cls(given, at, graph, out, table)

    def __call__(self, x: Tensor, places: Tensor) -> Tensor:
        self.given.copy_(x)
        self.places.copy_(places)
        self.graph.replay()
        return self.out.clone()


@dataclass
class Recordings:
    """Of one network, by the shape of a batch; None of a shape that was seen once. Threads take turns: a recording
    has one place for its numbers."""

    of_shape: dict[Shape, Recording | None] = field(default_factory=dict)
    failed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


_recordings: WeakKeyDictionary[nn.Module, Recordings] = WeakKeyDictionary()


def _on_a_gpu(net: nn.Module, x: Tensor, places: Tensor) -> bool:
    return x.is_cuda and not torch.is_autocast_enabled("cuda") and not torch.cuda.is_current_stream_capturing()


@stands_for(in_one_pass, when=_on_a_gpu)
def replayed(net: nn.Module, x: Tensor, places: Tensor) -> Tensor:
    kept, shape = _recordings.setdefault(net, Recordings()), (tuple(x.shape), x.dtype)
    with kept.lock, torch.cuda.device(x.device):
        seen, found = shape in kept.of_shape, kept.of_shape.pop(shape, None)
        if kept.failed or not seen:
            kept.of_shape = {**dict(list(kept.of_shape.items())[1 - SHAPES :]), shape: None}
            return plainly(net, x, places)
        if found is None:
            try:
                found = Recording.of(net, x, places)
            except RuntimeError:  # a network that looks at its numbers on the way
                kept.failed = True
                return plainly(net, x, places)
        kept.of_shape[shape] = found
        return found(x, places)
