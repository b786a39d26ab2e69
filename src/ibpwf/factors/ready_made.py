"""A task that was learned elsewhere: ready factors and parameters of its own, made a task like any other.

Its posterior is what one of ours would be that has chosen just these factors: they are all but certain, and what was
believed of the sticks before it is believed still, so that the next task's prior goes on from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count, islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ibpwf.factors.dictionary import Dictionary, FactorBlock
from ibpwf.factors.learned import LearnedTask
from ibpwf.factors.posterior import LayerVectors
from ibpwf.factors.prior import Prior

if TYPE_CHECKING:
    from ibpwf.factors.model import FactorModel


@dataclass(frozen=True)
class ReadyFactors:
    """A layer's factors, J×n and n×M, and how strongly the task reads each."""

    a: Tensor
    b: Tensor
    strength: Tensor


def add_ready_task(
    model: FactorModel, outputs: int, factors: Mapping[str, ReadyFactors], own: Mapping[str, Tensor]
) -> LearnedTask:
    """Lock ready factors as those of a new task, on the first free positions; layers without any read none."""
    vectors, selected, blocks = {}, {}, {}
    for name, dictionary in model.layers.items():
        none = ReadyFactors(
            torch.empty(dictionary.inputs, 0, dtype=torch.float32),
            torch.empty(0, dictionary.outputs, dtype=torch.float32),
            torch.empty(0, dtype=torch.float32),
        )
        given = factors.get(name, none)
        positions = _free_positions(model.prior, dictionary, len(given.strength))
        previous = model.tasks[-1].vectors[name] if model.tasks else None
        width = max([dictionary.width, *(positions + 1).tolist()])
        vectors[name], selected[name] = _vectors(model.prior, dictionary, width, previous, positions, given.strength)
        blocks[name] = FactorBlock(given.a, given.b, positions)

    def move(tensor: Tensor) -> Tensor:
        return tensor.detach().to(model.device)

    task = LearnedTask(outputs, vectors, selected, {name: tensor.clone() for name, tensor in own.items()}).apply(move)
    model.add_task(task, {name: block.apply(move) for name, block in blocks.items()})
    return task


def _free_positions(prior: Prior, dictionary: Dictionary, wanted: int) -> Tensor:
    prior.check_room(dictionary.shape, dictionary.locked + wanted)
    taken = set(dictionary.gathered().positions.tolist())
    free = islice((place for place in count() if place not in taken), wanted)
    return torch.tensor(list(free), dtype=torch.long)


def _vectors(
    prior: Prior,
    dictionary: Dictionary,
    width: int,
    previous: LayerVectors | None,
    positions: Tensor,
    strength: Tensor,
) -> tuple[LayerVectors, Tensor]:
    """The vectors of a task that reads the factors at `positions`, and which those are."""
    chosen = torch.zeros(width, dtype=torch.bool)
    chosen[positions] = True
    strengths = torch.zeros(width, dtype=torch.float32)
    strengths[positions] = strength.cpu().float()
    start = prior.sure(prior.start(dictionary.shape, strengths, previous), positions)
    return prior.unlikely(start, (~chosen).nonzero().flatten()), chosen
