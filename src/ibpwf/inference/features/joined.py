"""φ(x) of several kinds side by side: what one of them cannot tell apart, another may.

    φ(x) = [φ₁(x), φ₂(x), …]

Each is fitted as it would be alone.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor, nn

from ibpwf.errors import InputError
from ibpwf.factors.model import FactorModel
from ibpwf.inference.base import Batch, Context, Features, State
from ibpwf.parts import OfGroup, register, require
from ibpwf.storage.tensor_checks import CorruptModelError


@register
class Joined(Features):
    """All features of `parts` in a row."""

    kind: ClassVar[str] = "joined"
    fixed: ClassVar[frozenset[str]] = frozenset({"parts"})

    parts: tuple[Annotated[Features, OfGroup("features")], ...] = Field(
        (), description="the features that stand side by side, at least two"
    )
    _own: tuple[Features, ...] = PrivateAttr(())

    def check_settings(self) -> None:
        require(len(self.parts) > 1, "parts", list(self.parts), "give at least two, or one alone as it is")

    def model_post_init(self, context: Any, /) -> None:
        self._own = tuple(copy.copy(part) for part in self.parts)

    @property
    def reads_pixels(self) -> bool:
        return any(part.reads_pixels for part in self.parts)

    def bound(self, context: Context) -> Self:
        other = super().bound(context)
        other._own = tuple(part.bound(context) for part in self.parts)
        return other

    def parts_to_fit(self) -> tuple[Features, ...]:
        return tuple(each for part in self._own for each in part.parts_to_fit())

    def fit(self, batches: Iterable[Batch], rows: int, generator: torch.Generator) -> None:
        """`batches` can be gone through again and again."""
        start = generator.get_state()
        for part in self._own:
            generator.set_state(start)
            part.fit(batches, rows, generator)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self._own], 1)

    def views(self, x: Tensor) -> Iterator[Tensor]:
        """Those that look at a row in one way only say the same beside every view of the others."""
        found = [list(part.views(x)) for part in self._own]
        count = max(len(views) for views in found)
        if any(len(views) not in (1, count) for views in found):
            raise InputError(
                f"features side by side look at a row in {[len(views) for views in found]} ways; let those that have "
                "several ways have as many as each other."
            )
        for number in range(count):
            yield torch.cat([views[number % len(views)] for views in found], 1)

    def check(self, x: Tensor) -> None:
        for part in self._own:
            part.check(x)

    def width_for(self, shape: tuple[int, ...]) -> int | None:
        widths = [part.width_for(shape) for part in self._own]
        return None if None in widths else sum(each for each in widths if each is not None)

    def export_module(self) -> nn.Module:
        return SideBySide([part.export_module() for part in self._own])

    def unread(self) -> tuple[str, ...]:
        """What none of them reads."""
        first, *others = (part.unread() for part in self._own)
        for other in others:
            pairs = ((one, two) for one in first for two in other)
            first = tuple(
                max(pair, key=len) for pair in pairs if pair[0].startswith(pair[1]) or pair[1].startswith(pair[0])
            )
        return tuple(dict.fromkeys(first))

    def fork(self, model: FactorModel) -> Self:
        other = super().fork(model)
        other._own = tuple(part.fork(model) for part in self._own)
        return other

    def state(self) -> State:
        """A part's tensors have its number before their names, such as `1/mean`."""
        states = [part.state() for part in self._own]
        if not any(content or tensors for content, tensors in states):
            return {}, {}
        tensors = {f"{number}/{name}": one for number, (_, own) in enumerate(states) for name, one in own.items()}
        return {"parts": [content for content, _ in states]}, tensors

    def load_state(self, content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        if not content:
            return
        own: list[dict[str, Tensor]] = [{} for _ in self._own]
        for name, tensor in tensors.items():
            number, _, rest = name.partition("/")
            if number not in map(str, range(len(own))):
                raise CorruptModelError(f"part 'features' has a tensor '{name}' that nothing reads")
            own[int(number)][rest] = tensor
        for part, told, kept in zip(self._own, content["parts"], own, strict=True):
            part.load_state(told, kept)


class SideBySide(nn.Module):
    """The outputs of several modules in a row."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self.parts], 1)
