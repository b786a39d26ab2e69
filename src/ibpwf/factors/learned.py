"""What a factorized model keeps of the tasks it has learned: tensors, and nothing that could still be trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ibpwf.factors.deferred import Deferred
from ibpwf.factors.dictionary import Dictionary, FactorBlock
from ibpwf.factors.posterior import LayerVectors

Move = Callable[[Tensor], Tensor]

BLOCK = ("a", "b", "positions")


@dataclass(frozen=True)
class LearnedTask(Deferred):
    """What one finished task keeps, besides the factors it locked.

    `vectors` are the strengths r per layer and what else the prior names; `selected` the factors it reads; `own` the
    parameters and buffers that belong to the task alone (biases, normalization, a dense head), named as in the
    network. With `turns` there are so many outputs for each class (see `views`).
    """

    outputs: int
    vectors: dict[str, LayerVectors]
    selected: dict[str, Tensor]
    own: dict[str, Tensor]
    turns: int = 1

    @property
    def classes(self) -> int:
        return self.outputs // self.turns

    def apply(self, fn: Move) -> LearnedTask:
        vectors = {name: vectors.apply(fn) for name, vectors in self.vectors.items()}
        return LearnedTask(self.outputs, vectors, _moved(self.selected, fn), _moved(self.own, fn), self.turns)


@dataclass(frozen=True)
class Reference:
    """The first task's weights as far as φ reads them, for when that task itself is forgotten."""

    strength: dict[str, Tensor]
    selected: dict[str, Tensor]
    own: dict[str, Tensor]

    def apply(self, fn: Move) -> Reference:
        return Reference(_moved(self.strength, fn), _moved(self.selected, fn), _moved(self.own, fn))


def _moved(tensors: Mapping[str, Tensor], fn: Move) -> dict[str, Tensor]:
    return {name: fn(tensor) for name, tensor in tensors.items()}


@dataclass(frozen=True)
class FactorUse:
    """Factors of one layer for one task."""

    active: int
    new: int
    reused: int
    total: int


def task_tensors(task: LearnedTask, blocks: Mapping[str, FactorBlock]) -> dict[str, Tensor]:
    """A task and the factors it locked as flat, named tensors."""
    tensors = {"outputs": torch.tensor(task.outputs), "turns": torch.tensor(task.turns)}
    tensors |= {f"own.{name}": tensor for name, tensor in task.own.items()}
    for name, vectors in task.vectors.items():
        tensors |= {f"{part}.{name}": getattr(vectors, part) for part in vectors.names()}
        tensors[f"selected.{name}"] = task.selected[name]
        tensors |= {f"factors.{part}.{name}": getattr(blocks[name], part) for part in BLOCK}
    return tensors


def reference_tensors(reference: Reference, blocks: Mapping[str, FactorBlock | None]) -> dict[str, Tensor]:
    """What φ reads of a forgotten first task, and the factors it holds, as flat, named tensors."""
    tensors = {f"own.{name}": tensor for name, tensor in reference.own.items()}
    for name, strength in reference.strength.items():
        tensors |= {f"strength.{name}": strength, f"selected.{name}": reference.selected[name]}
    for name, block in blocks.items():
        if block is not None:
            tensors |= {f"factors.{part}.{name}": getattr(block, part) for part in BLOCK}
    return tensors


def reference_from_tensors(tensors: Mapping[str, Tensor]) -> tuple[Reference, dict[str, FactorBlock]]:
    """The inverse of `reference_tensors`."""
    strength, selected, own, names = (
        {key.removeprefix(start): tensor for key, tensor in tensors.items() if key.startswith(start)}
        for start in ("strength.", "selected.", "own.", "factors.a.")
    )
    blocks = {name: FactorBlock(*(tensors[f"factors.{part}.{name}"] for part in BLOCK)) for name in names}
    return Reference(strength, selected, own), blocks


def task_from_tensors(
    tensors: Mapping[str, Tensor], layers: Mapping[str, Dictionary], kind: type[LayerVectors]
) -> tuple[LearnedTask, dict[str, FactorBlock]]:
    """The inverse of `task_tensors`, for vectors of this kind."""
    vectors = {name: kind(*(tensors[f"{part}.{name}"] for part in kind.names())) for name in layers}
    selected = {name: tensors[f"selected.{name}"] for name in layers}
    own = {name.removeprefix("own."): tensor for name, tensor in tensors.items() if name.startswith("own.")}
    blocks = {name: FactorBlock(*(tensors[f"factors.{part}.{name}"] for part in BLOCK)) for name in layers}
    return LearnedTask(int(tensors["outputs"]), vectors, selected, own, int(tensors["turns"])), blocks
