"""Tasks, and the factors they locked, that lie in a folder until they are first asked for.

They are what they stand for in every way but one: `part` is where they lie, so that who stores them anew need neither
read nor write what has not changed. What is copied or pickled is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from torch import Tensor

from ibpwf.factors.dictionary import FactorBlock
from ibpwf.factors.learned import LearnedTask
from ibpwf.factors.posterior import LayerVectors


class TaskOnDemand(LearnedTask):
    """A finished task of which only the number of its outputs is known yet."""

    part: object

    def __init__(self, outputs: int, turns: int, part: object, read: Callable[[], LearnedTask]) -> None:
        self.__dict__.update(outputs=outputs, turns=turns, part=part, _read=read)  # frozen, as what it stands for

    @cached_property
    def _whole(self) -> LearnedTask:
        found: LearnedTask = self.__dict__["_read"]()
        return found

    @property
    def vectors(self) -> dict[str, LayerVectors]:
        return self._whole.vectors

    @property
    def selected(self) -> dict[str, Tensor]:
        return self._whole.selected

    @property
    def own(self) -> dict[str, Tensor]:
        return self._whole.own

    def __reduce__(self) -> tuple[Any, ...]:
        return LearnedTask, (self.outputs, self.vectors, self.selected, self.own, self.turns)


class BlocksOnDemand:
    """The factors that a task locked, `count` in all layers together, in one part."""

    def __init__(self, count: int, part: object, read: Callable[[], Mapping[str, FactorBlock]]) -> None:
        self.count, self.part, self._read = count, part, read

    @cached_property
    def layers(self) -> Mapping[str, FactorBlock]:
        return self._read()


class BlockOnDemand(FactorBlock):
    """Those of one layer."""

    blocks: BlocksOnDemand

    def __init__(self, blocks: BlocksOnDemand, layer: str) -> None:
        self.__dict__.update(blocks=blocks, _layer=layer)

    @property
    def _whole(self) -> FactorBlock:
        return self.blocks.layers[self.__dict__["_layer"]]

    @property
    def a(self) -> Tensor:
        return self._whole.a

    @property
    def b(self) -> Tensor:
        return self._whole.b

    @property
    def positions(self) -> Tensor:
        return self._whole.positions

    def __reduce__(self) -> tuple[Any, ...]:
        return FactorBlock, (self.a, self.b, self.positions)
