"""One layer's shared dictionary of rank-1 weight factors: what is locked.

The weight of task t is `W_t = W_a diag(λ_t) W_b` (paper, eq. W_fac). Column k of `W_a` and row k of
`W_b` are factor k; k is also its place in the stick-breaking order of the prior. Only locked factors
live here. A task that is being learnt brings its own free ones (`FactorLayer`) and hands over those it
wants to keep; they are appended and never written again, so an old task cannot change.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ibpwf.errors import StoreError
from ibpwf.factors.deferred import Deferred
from ibpwf.factors.prior import LayerShape


@dataclass(frozen=True)
class FactorBlock(Deferred):
    """The factors one task added: `a` is J×n, `b` is n×M, `positions` are their places in the stick order."""

    a: Tensor
    b: Tensor
    positions: Tensor

    def apply(self, fn: Callable[[Tensor], Tensor]) -> FactorBlock:
        return FactorBlock(fn(self.a), fn(self.b), fn(self.positions))


class Dictionary:
    """The locked factors of the layer `name`. `width` counts the positions used so far, locked or not."""

    def __init__(self, inputs: int, outputs: int, name: str = "") -> None:
        self.inputs, self.outputs = inputs, outputs
        self.shape = LayerShape(name, inputs, outputs)
        self.width = 0
        self.blocks: list[FactorBlock] = []  # one per task
        self.reference: FactorBlock | None = None  # what φ reads of a first task that was forgotten

    @property
    def all_blocks(self) -> list[FactorBlock]:
        return self.blocks if self.reference is None else [self.reference, *self.blocks]

    @property
    def locked(self) -> int:
        return sum(len(block.positions) for block in self.all_blocks)

    def gathered(self, tasks: int | None = None) -> FactorBlock:
        """All locked factors, or those of the first `tasks` tasks and of φ, ordered by stick position."""
        blocks = self.all_blocks
        blocks = blocks if tasks is None else blocks[: len(blocks) - len(self.blocks) + tasks]
        if not blocks:
            empty = torch.empty(0, dtype=torch.float32)
            return FactorBlock(empty.new_empty(self.inputs, 0), empty.new_empty(0, self.outputs), empty.long())
        positions = torch.cat([block.positions for block in blocks])
        order = positions.argsort()
        a = torch.cat([block.a for block in blocks], dim=1)[:, order]
        b = torch.cat([block.b for block in blocks], dim=0)[order]
        return FactorBlock(a.contiguous(), b.contiguous(), positions[order])

    def chosen(self, selected: Tensor, layer: str, tasks: int | None = None) -> FactorBlock:
        """The locked factors on these sticks, in stick order. A factor belongs to the first task that reads it: none
        that a task reads is of a later one, so `tasks` says how many can have locked them. `layer` is whose they are,
        for the message where some are missing."""
        at = selected.nonzero().flatten()
        locked = self.gathered(tasks)
        place = torch.searchsorted(locked.positions, at)
        if len(at) and not (int(place[-1]) < len(locked.positions) and torch.equal(locked.positions[place], at)):
            raise StoreError(
                f"a task reads factors of layer '{layer}' that are not there; restore the model's folder."
            )
        return FactorBlock(locked.a[:, place].contiguous(), locked.b[place].contiguous(), at)

    def lock(self, block: FactorBlock, width: int) -> None:
        """Append a copy of a finished task's new factors. Nothing already locked is touched."""
        taken = [old.positions for old in self.all_blocks]
        if taken and bool(torch.isin(block.positions, torch.cat(taken)).any()):
            raise ValueError("a locked factor cannot be locked again")
        parts = (block.a, block.b, block.positions)
        own = (part.detach().clone(memory_format=torch.contiguous_format) for part in parts)
        self.blocks.append(FactorBlock(*own))
        self.width = max(self.width, width)

    def fork(self) -> Dictionary:
        """A dictionary that can grow while this one stays as it is; they share what is locked."""
        other = copy.copy(self)
        other.blocks = list(self.blocks)
        return other

    def apply(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Move the factors, as torch moves a module's tensors."""
        self.blocks = [block.apply(fn) for block in self.blocks]
        self.reference = None if self.reference is None else self.reference.apply(fn)
