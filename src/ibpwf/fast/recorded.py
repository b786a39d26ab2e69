"""A step recorded once as a CUDA graph and replayed: stands for `training.step.make_step` on a GPU.

The batch is gathered inside the graph from data, order and position that stay on the device, so the interpreter does
nothing per step but say 'again'. A small network's step is a few hundred kernels of one or two microseconds each.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from ibpwf.data.rows import IndexedRows, Rows
from ibpwf.dispatch import stands_for
from ibpwf.torch_state import tf32_products
from ibpwf.training.augment import CropAndFlip
from ibpwf.training.objective import Objective
from ibpwf.training.phase import Phase
from ibpwf.training.step import Step, make_step


def _on_a_gpu(objective: Objective, phase: Phase, rows: Rows, augment: CropAndFlip | None = None) -> bool:
    on_device = isinstance(rows, IndexedRows) and isinstance(rows.x, Tensor) and rows.x.is_cuda
    return on_device and objective.capturable and objective.group.alone


class RecordedStep(Step):
    """The same steps, replayed. With something to decide on the host, each half is a graph of its own."""

    rows: IndexedRows

    def __init__(
        self, objective: Objective, phase: Phase, rows: IndexedRows, augment: CropAndFlip | None = None
    ) -> None:
        super().__init__(objective, phase, rows, augment)
        self.x, self.y = rows.tensors()
        device = self.x.device
        self.count = rows.steps(phase.batch_size)
        size = min(phase.batch_size, len(rows))
        self.order = torch.zeros(self.count, size, dtype=torch.long, device=device)
        self.position = torch.zeros(1, dtype=torch.long, device=device)  # of the next step
        self.log = torch.zeros(self.count, 3, device=device, dtype=torch.float32)
        self.graphs: list[torch.cuda.CUDAGraph] = []

    def start_epoch(self, shuffle: Generator) -> None:
        self.order.copy_(self.rows.order(self.phase.batch_size, shuffle))
        self.position.zero_()
        self.done = 0

    def gradients(self) -> bool:
        if self.done == self.count:
            return False
        if not self.graphs:
            with tf32_products(self.objective.tf32):
                self._record()
        self.graphs[0].replay()
        return True

    def move(self) -> None:
        """What is left of the step after `gradients`. Nothing waits for the device."""
        if len(self.graphs) == 2:
            self.graphs[1].replay()
        self.done += 1

    def latest(self) -> Tensor:
        return self.log[self.done - 1]

    def measured(self) -> Tensor:
        return self.log[: self.done]

    def skip(self, done: int, log: Tensor) -> None:
        self.log[:done].copy_(log)
        self.position.fill_(done)
        self.done = done

    def _gradients(self) -> None:
        rows = self.order.index_select(0, self.position).squeeze(0)
        self.take_gradients(self.x.index_select(0, rows), self.y.index_select(0, rows))

    def _move(self) -> None:
        self.take_step()
        self.log.index_copy_(0, self.position, self.out.unsqueeze(0))
        self.position += 1

    def _record(self) -> None:
        """Warm up with all state put back afterwards, then record, both on a stream no other learner records on:
        matrix products keep their workspace per stream, and graphs that shared one would overwrite each other's
        results when they run at the same time."""
        generators = [*self.objective.generators(), *([] if self.augment is None else [self.augment.generator])]
        tensors = [*(p.detach() for p in self.parameters), *self.objective.buffers(), self.position, self.log]
        tensors += [v for state in self.optimizer.state.values() for v in state.values() if isinstance(v, Tensor)]
        resumed = bool(self.optimizer.state)
        kept = [t.clone() for t in tensors]
        states = [g.get_state() for g in generators]
        here = torch.cuda.current_stream()
        alone = here == torch.cuda.default_stream()
        stream = torch.cuda.Stream() if alone else here  # type: ignore[no-untyped-call]
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            for _ in range(2):
                self.position.zero_()
                self._gradients()
                self._move()
        here.wait_stream(stream)
        for tensor, old in zip(tensors, kept, strict=True):
            tensor.copy_(old)
        for state in () if resumed else self.optimizer.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    value.zero_()
        for generator, saved in zip(generators, states, strict=True):
            generator.set_state(saved)
        self.optimizer.zero_grad(set_to_none=True)
        together = not self.objective.decides_on_host
        for parts in [(self._gradients, self._move)] if together else [(self._gradients,), (self._move,)]:
            graph = torch.cuda.CUDAGraph()
            for generator in generators:
                graph.register_generator_state(generator)
            # Other threads may answer meanwhile: what they ask of the GPU is none of the recording's business.
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                for part in parts:
                    part()
            self.graphs.append(graph)


@stands_for(make_step, when=_on_a_gpu)
def recorded_step(objective: Objective, phase: Phase, rows: Rows, augment: CropAndFlip | None = None) -> Step:
    assert isinstance(rows, IndexedRows)
    return RecordedStep(objective, phase, rows, augment)
