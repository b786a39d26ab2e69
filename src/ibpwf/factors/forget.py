"""Taking a task, or all versions of it, out of a factorized model, and nothing else.

A factor stays for as long as a task that remains reads it, or φ does. It then belongs to the first that reads it,
as if the forgotten task had never been there. What remains is moved, not calculated anew, so every other task's
weights are composed of the same numbers in the same order: its outputs do not change by a bit.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ibpwf.factors.dictionary import Dictionary, FactorBlock
from ibpwf.factors.learned import Reference

if TYPE_CHECKING:
    from ibpwf.factors.model import FactorModel


def forget_task(
    model: FactorModel, task: int | Collection[int], unread: Sequence[str] = ()
) -> tuple[dict[str, int], dict[str, int]]:
    """Remove task number `task`, or several, and every factor that nobody else read; per layer: how many factors
    went, and how many of those that were read stay because others read them.

    φ is read under the first task's weights for good. If that task goes, `model.reference` keeps them, save those of
    modules whose names begin with one of `unread`, which φ cannot depend on. With the last task everything goes.
    """
    gone = {task} if isinstance(task, int) else {*task}
    before = {name: dictionary.locked for name, dictionary in model.layers.items()}
    remaining = [each for number, each in enumerate(model.tasks) if number not in gone]
    read = {name: _read([model.tasks[number].selected[name] for number in gone]) for name in model.layers}
    if 0 in gone and model.reference is None:
        model.reference = _reference_of(model, unread)
    if not remaining:
        model.reference = None
    for name, dictionary in model.layers.items():
        kept_for_phi = None if model.reference is None else model.reference.selected.get(name)
        _regroup(dictionary, gone, kept_for_phi, [each.selected[name] for each in remaining])
        dictionary.width = len(remaining[-1].vectors[name]) if remaining else 0
    model.tasks = remaining
    model.forget_composed()
    removed = {name: before[name] - dictionary.locked for name, dictionary in model.layers.items()}
    kept = {name: read[name] - count if remaining else 0 for name, count in removed.items()}
    return removed, kept


def _read(selections: Sequence[Tensor]) -> int:
    """How many factors are read by any of these tasks."""
    return len(torch.unique(torch.cat([selected.nonzero().flatten() for selected in selections])))


def _reference_of(model: FactorModel, unread: Sequence[str]) -> Reference:
    first = model.tasks[0]
    read = [name for name in model.layers if not model.weights[name].parameter.startswith(tuple(unread))]
    return Reference(
        {name: first.vectors[name].strength * first.selected[name] for name in read},
        {name: first.selected[name] for name in read},
        {name: tensor for name, tensor in first.own.items() if not name.startswith(tuple(unread))},
    )


def _regroup(
    dictionary: Dictionary, gone: Collection[int], for_phi: Tensor | None, remaining: Sequence[Tensor]
) -> None:
    """Give every locked factor to the first that reads it, φ before all tasks; drop what nobody reads. A block whose
    factors stay the same stays the same object, which tells a save that it need not be written again."""
    locked = dictionary.gathered()
    owner = torch.full_like(locked.positions, -1)
    readers = [*([] if for_phi is None else [for_phi]), *remaining]
    for number, selected in reversed(list(enumerate(readers))):
        owner[torch.isin(locked.positions, selected.nonzero().flatten())] = number
    blocks = [_taken(locked, owner == number) for number in range(len(readers))]
    left = [block for number, block in enumerate(dictionary.blocks) if number not in gone]
    was = [*([] if for_phi is None else [dictionary.reference]), *left]
    blocks = [old if old is not None and _same(old, new) else new for old, new in zip(was, blocks, strict=True)]
    dictionary.reference = None if for_phi is None else blocks.pop(0)
    dictionary.blocks = blocks


def _taken(locked: FactorBlock, rows: Tensor) -> FactorBlock:
    return FactorBlock(locked.a[:, rows].contiguous(), locked.b[rows].contiguous(), locked.positions[rows])


def _same(old: FactorBlock, new: FactorBlock) -> bool:
    return torch.equal(old.positions, new.positions)
