"""One optimisation step of any method: make a mini-batch, take gradients, move the parameters.

On CUDA the step is recorded once as a graph and replayed. The batch is gathered inside the graph from data, order and
position that stay on the device, so the interpreter does nothing per step but say 'again'. With `bfloat16` products
and convolutions of the forward and backward pass are made in that precision; parameters and all else stay in 32 bits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from ibpwf.training.augment import CropAndFlip
from ibpwf.training.phase import Phase, make_optimizer

Loss = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class Step:
    """One step after another over examples `x`, `y` in the order given to `start_epoch`.

    A step has two halves, `gradients` (batch, loss, backward pass, `between`) and `move` (optimiser, `after`). Where
    a method has something to decide `on_host` after the first, each half is a graph of its own."""

    def __init__(
        self,
        phase: Phase,
        parameters: Sequence[nn.Parameter],
        loss: Loss,
        x: Tensor,
        y: Tensor,
        *,
        generators: Sequence[torch.Generator] = (),
        buffers: Sequence[Tensor] = (),
        augment: CropAndFlip | None = None,
        after: Callable[[], None] | None = None,
        between: Callable[[], None] | None = None,
        on_host: Callable[[], None] | None = None,
        capture: bool = True,
        tf32: bool = False,
        bfloat16: bool = False,
    ) -> None:
        self.phase, self.parameters, self.loss = phase, list(parameters), loss
        self.x, self.y, self.augment = x, y, augment
        self.after, self.between, self.on_host = after, between, on_host
        self.optimizer = make_optimizer(phase, self.parameters)
        self.generators, self.buffers = generators, buffers
        self.recorded, self.tf32 = x.is_cuda and capture, tf32
        self.bfloat16 = bfloat16 and x.is_cuda
        self.graphs: list[torch.cuda.CUDAGraph] = []
        # A rest smaller than a batch is left out (another order next epoch): every step has the same shape.
        self.size = min(phase.batch_size, len(y))
        self.count = len(y) // self.size
        self.order = torch.zeros(self.count, self.size, dtype=torch.long, device=x.device)
        self.log = torch.zeros(self.count, 2, device=x.device)
        self.position = torch.zeros(1, dtype=torch.long, device=x.device)  # of the next step, for a recorded one
        self.done = 0

    def start_epoch(self, order: Tensor) -> None:
        """Take the rows in this order; `log` will hold (loss, extra) of each step."""
        self.order.copy_(order[: self.count * self.size].view(self.count, self.size))
        self.position.zero_()
        self.done = 0

    def kept(self) -> dict[str, Tensor]:
        """What goes into a checkpoint besides the parameters: the optimiser's state and the log of the epoch."""
        tensors = {"log": self.log}
        if self.augment is not None:
            tensors["augment"] = self.augment.generator.get_state()
        for number, parameter in enumerate(self.parameters):
            state = self.optimizer.state[parameter].items()
            tensors |= {f"optimizer/{number}/{key}": value for key, value in state if isinstance(value, Tensor)}
        return tensors

    def restore(self, tensors: Mapping[str, Tensor], done: int) -> None:
        """Go on after `done` steps of an epoch that was started in the same order."""
        self.log.copy_(tensors["log"])
        if self.augment is not None:
            self.augment.generator.set_state(tensors["augment"])
        self.position.fill_(done)
        self.done = done
        for name, tensor in tensors.items():
            if name.startswith("optimizer/"):
                _, number, key = name.split("/")
                self.optimizer.state[self.parameters[int(number)]][key] = tensor.to(self.x.device)

    def first_half(self) -> None:
        """Gradients of the next batch (and, in a recorded step with nothing to decide on the host, all the rest)."""
        if not self.recorded:
            self.gradients()
            return
        if not self.graphs:
            with products_in_tf32(self.tf32):
                self._record()
        self.graphs[0].replay()

    def second_half(self) -> None:
        """What is left of the step after `first_half`. Nothing waits for the device."""
        if self.on_host is not None:
            self.on_host()
        if not self.recorded:
            self.move()
        elif len(self.graphs) == 2:
            self.graphs[1].replay()
        self.done += 1

    def gradients(self) -> None:
        rows = self.order.index_select(0, self.position).squeeze(0) if self.recorded else self.order[self.done]
        x = self.x.index_select(0, rows)
        if self.augment is not None:
            x = self.augment(x)
        if x.is_cuda and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)  # as its convolutions want images
        self.optimizer.zero_grad(set_to_none=True)
        rounded = torch.autocast("cuda", torch.bfloat16, cache_enabled=False) if self.bfloat16 else nullcontext()
        with rounded:
            loss, extra = self.loss(x, self.y.index_select(0, rows))
        loss.backward()  # type: ignore[no-untyped-call]
        if self.between is not None:
            self.between()
        self.out = torch.stack([loss.detach(), extra.detach()])

    def move(self) -> None:
        if self.phase.clip is not None and not hasattr(self.optimizer, "clip"):
            nn.utils.clip_grad_value_(self.parameters, self.phase.clip)
        self.optimizer.step()
        if self.after is not None:
            self.after()
        if self.recorded:
            self.log.index_copy_(0, self.position, self.out.unsqueeze(0))
            self.position += 1
        else:
            self.log[self.done] = self.out

    def _record(self) -> None:
        """Warm up with all state put back afterwards, then record, both on a stream no other learner records on:
        matrix products keep their workspace per stream, and graphs that shared one would overwrite each other's
        results when they run at the same time."""
        tensors = [*(p.detach() for p in self.parameters), *self.buffers, self.position]
        tensors += [v for state in self.optimizer.state.values() for v in state.values() if isinstance(v, Tensor)]
        resumed = bool(self.optimizer.state)
        kept = [t.clone() for t in tensors]
        states = [g.get_state() for g in self.generators]
        here = torch.cuda.current_stream()
        alone = here == torch.cuda.default_stream()
        stream = torch.cuda.Stream() if alone else here  # type: ignore[no-untyped-call]
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            for _ in range(2):
                self.position.zero_()
                self.gradients()
                self.move()
        here.wait_stream(stream)
        for tensor, old in zip(tensors, kept, strict=True):
            tensor.copy_(old)
        for state in () if resumed else self.optimizer.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    value.zero_()
        for generator, saved in zip(self.generators, states, strict=True):
            generator.set_state(saved)
        self.optimizer.zero_grad(set_to_none=True)
        halves = [(self.gradients, self.move)] if self.on_host is None else [(self.gradients,), (self.move,)]
        for parts in halves:
            graph = torch.cuda.CUDAGraph()
            for generator in self.generators:
                graph.register_generator_state(generator)
            with torch.cuda.graph(graph, stream=stream):
                for part in parts:
                    part()
            self.graphs.append(graph)


@contextlib.contextmanager
def products_in_tf32(wanted: bool) -> Iterator[None]:
    """Matrix products recorded inside may round their inputs to TF32 (10 bits of mantissa), if `wanted`."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = wanted
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
