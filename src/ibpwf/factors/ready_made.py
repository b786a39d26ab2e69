"""A task that was learned elsewhere: ready factors and parameters of its own, made a task like any other.

Its posterior is what one of ours would be that has chosen just these factors: they are all but certain, and what was
believed of the sticks before it is believed still, so that the next task's prior goes on from there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count, islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ibpwf.errors import InputError
from ibpwf.factors.dictionary import Dictionary, FactorBlock
from ibpwf.factors.learned import LearnedTask
from ibpwf.factors.posterior import LayerVectors, initial_vectors
from ibpwf.factors.pretrained import CERTAINTY

if TYPE_CHECKING:
    from ibpwf.factors.model import FactorModel

UNUSED = 0.25
"""The most π̄ of a factor that the task does not read: below every usual κ, and within the next task's reach."""


@dataclass(frozen=True)
class ReadyFactors:
    """A layer's factors, J×n and n×M, and how strongly the task reads each."""

    a: Tensor
    b: Tensor
    strength: Tensor


def add_ready_task(
    model: FactorModel, outputs: int, factors: Mapping[str, ReadyFactors], own: Mapping[str, Tensor]
) -> LearnedTask:
    """Lock ready factors as those of a new task, on the first sticks that are free; layers without any read none."""
    vectors, selected, blocks = {}, {}, {}
    for name, dictionary in model.layers.items():
        none = ReadyFactors(
            torch.empty(dictionary.inputs, 0, dtype=torch.float32),
            torch.empty(0, dictionary.outputs, dtype=torch.float32),
            torch.empty(0, dtype=torch.float32),
        )
        given = factors.get(name, none)
        positions = _free_sticks(name, dictionary, len(given.strength))
        previous = model.tasks[-1].vectors[name] if model.tasks else None
        width = max([dictionary.width, *(positions + 1).tolist()])
        vectors[name], selected[name] = _vectors(dictionary, width, previous, positions, given.strength)
        blocks[name] = FactorBlock(given.a, given.b, positions)

    def move(tensor: Tensor) -> Tensor:
        return tensor.detach().to(model.device)

    task = LearnedTask(outputs, vectors, selected, {name: tensor.clone() for name, tensor in own.items()}).apply(move)
    model.add_task(task, {name: block.apply(move) for name, block in blocks.items()})
    return task


def _free_sticks(name: str, dictionary: Dictionary, wanted: int) -> Tensor:
    most = dictionary.max_factors
    if most is not None and dictionary.locked + wanted > most:
        raise InputError(
            f"layer '{name}' would hold {dictionary.locked + wanted} factors, and max_factors is {most}; raise it, "
            "or bring fewer."
        )
    taken = set(dictionary.gathered().positions.tolist())
    free = islice((stick for stick in count() if stick not in taken), wanted)
    return torch.tensor(list(free), dtype=torch.long)


def _vectors(
    dictionary: Dictionary, width: int, previous: LayerVectors | None, positions: Tensor, strength: Tensor
) -> tuple[LayerVectors, Tensor]:
    """r, logit π̄, c and d of a task that reads the factors at `positions`, and which those are."""
    start = initial_vectors(dictionary.alpha, width, previous, 1.0, torch.Generator())
    chosen = torch.zeros(width, dtype=torch.bool)
    chosen[positions] = True
    strengths = torch.zeros(width, dtype=torch.float32)
    strengths[positions] = strength.cpu().float()
    sure, unused = (math.log(p) - math.log1p(-p) for p in (CERTAINTY, UNUSED))
    logit = torch.where(chosen, start.logit.clamp(min=sure), start.logit.clamp(max=unused))
    return LayerVectors(strengths, logit, start.c, start.d), chosen
