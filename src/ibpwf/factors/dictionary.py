"""One layer's shared dictionary of rank-1 weight factors: what is locked, and when it grows.

The weight of task t is `W_t = W_a diag(λ_t) W_b` (paper, eq. W_fac). Column k of `W_a` and row k of
`W_b` are factor k; k is also its place in the stick-breaking order of the prior. Only locked factors
live here. A task that is being learnt brings its own free ones (`FactorLayer`) and hands over those it
wants to keep; they are appended and never written again, so an old task cannot change.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ibpwf.errors import InputError, StoreError


@dataclass(frozen=True)
class FactorBlock:
    """The factors one task added: `a` is J×n, `b` is n×M, `positions` are their places in the stick order."""

    a: Tensor
    b: Tensor
    positions: Tensor

    def apply(self, fn: Callable[[Tensor], Tensor]) -> FactorBlock:
        return FactorBlock(fn(self.a), fn(self.b), fn(self.positions))


MOST_FACTORS = 10_000
"""The largest α of any layer, unless its weight has a tenth of that rank or more: ten times the rank then."""


class Dictionary:
    """The locked factors of one layer.

    `width` counts the stick positions used so far, locked or not. `alpha` is the IBP's expected number of
    factors per task; `max_factors` the optional cap on `width` (the paper's truncation K).
    """

    def __init__(self, inputs: int, outputs: int, alpha: float, max_factors: int | None = None) -> None:
        if not (alpha > 0 and math.isfinite(alpha)):
            raise InputError(f"alpha is {alpha}; it is the expected number of factors per task and must be above 0.")
        most = max(MOST_FACTORS, 10 * min(inputs, outputs))
        if alpha > most:
            raise InputError(
                f"alpha is {alpha:g}; a task cannot use so many factors in a layer of {inputs}×{outputs}. Give at "
                f"most {most:,}; half of the layer's rank is usual."
            )
        if max_factors is not None and max_factors < 1:
            raise InputError(
                f"max_factors is {max_factors}; give at least 1, or None for a dictionary that grows freely."
            )
        self.inputs, self.outputs = inputs, outputs
        self.alpha = float(alpha)
        self.max_factors = max_factors
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

    def room_for(self, task_number: int) -> int:
        """Stick positions to offer task `task_number` (1 is the first) before it starts.

        The IBP's t-th customer tries Poisson(α/t) new dishes (appendix A): offer its mean plus three
        standard deviations, but at least half of what the prior expects a task to use in all, so that a
        task unlike its forerunners finds room at once. The first task gets 2α sticks (the paper's K=400 for
        α=200), after which the prior's probability has fallen to e^-2. More follow during the task if it
        uses up what it was offered (`shortage`).
        """
        if task_number == 1:
            free = math.ceil(2 * self.alpha)
        else:
            expected = self.alpha / task_number
            free = math.ceil(max(expected + 3 * math.sqrt(expected), 0.5 * self.alpha))
        return self.capped(max(self.width, self.locked + max(free, 4)))

    def shortage(self, active_free: int, free: int) -> int:
        """How many sticks to add when `active_free` of the `free` factors are in use: 0 while a tenth of α
        (at least 2) still lies idle, else half of α, as far as the cap allows."""
        idle_wanted = max(2, math.ceil(0.1 * self.alpha))
        if free - active_free >= idle_wanted:
            return 0
        width = self.locked + free
        return self.capped(width + max(4, math.ceil(0.5 * self.alpha))) - width

    def capped(self, width: int) -> int:
        return width if self.max_factors is None else max(min(width, self.max_factors), self.locked)

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
