"""φ(x): what the network makes of an input under the first task's weights, on one scale.

A trained network that has been adapted to one task sees inputs of that kind, such as small or blurred images, better
than the network as it came: beside what an untouched backbone tells of all classes, this tells what it misses. The
first task's weights are locked, so no later task changes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Self

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor

from ibpwf.errors import InputError
from ibpwf.factors.model import FactorModel
from ibpwf.images import as_images
from ibpwf.inference.base import Batch, Context, Features, State
from ibpwf.inference.features.layer import Layer
from ibpwf.inference.features.scaled import Scale
from ibpwf.parts import Auto, register
from ibpwf.storage.tensor_checks import CorruptModelError

ROWS_FITTED = 4096
"""So many rows of the first task give μ and σ."""

ROWS_AT_ONCE = {"cpu": 256, "cuda": 512}
"""A network that makes small images large needs gigabytes for some hundred of them."""


@register
class Adapted(Features):
    """The outputs of some layers under the first task's weights, averaged over space and on one scale."""

    kind: ClassVar[str] = "adapted"
    fixed: ClassVar[frozenset[str]] = frozenset({"layers", "mirror"})
    rows_to_fit: ClassVar[int | None] = ROWS_FITTED

    layers: Auto | tuple[str, ...] = Field(
        "auto", description="which layers φ reads, by name; 'auto': the last one before the head that has factors"
    )
    mirror: bool = Field(
        False,
        description="an image and its mirror image are two rows to learn from, and an answer is about both; for "
        "photographs, not for digits",
    )
    _outputs: Layer = PrivateAttr(default_factory=Layer)
    _shape: tuple[int, ...] | None = PrivateAttr(None)
    _scale: Scale | None = PrivateAttr(None)

    def bound(self, context: Context) -> Self:
        other = super().bound(context)
        layers = (_last_layer(other.model),) if self.layers == "auto" else self.layers
        other._outputs, other._shape = Layer(layers=layers).bound(context), context.images.flat_shape
        return other

    def fit(self, batches: Iterable[Batch], rows: int, generator: torch.Generator) -> None:
        self._scale = Scale.of(self._raw(view) for x, _ in batches for view in self._views(x))

    def __call__(self, x: Tensor) -> Tensor:
        """With `mirror`, the mean of an image's and of its mirror image's."""
        return self.mean_of_views(x)

    def views(self, x: Tensor) -> Iterator[Tensor]:
        scale = self._scale
        assert scale is not None
        for view in self._views(x):
            yield scale(self._raw(view))

    def _raw(self, rows: Tensor) -> Tensor:
        at_once = ROWS_AT_ONCE.get(rows.device.type, 256)
        return torch.cat([self._outputs(part) for part in torch.split(rows, at_once)])

    def check(self, x: Tensor) -> None:
        self._views(x)
        self._outputs.check(x)

    def unread(self) -> tuple[str, ...]:
        return self._outputs.unread()

    def fork(self, model: FactorModel) -> Self:
        other = super().fork(model)
        other._outputs = self._outputs.fork(model)
        return other

    def state(self) -> State:
        if self._scale is None:
            return {}, {}
        content = {
            **self._outputs.state()[0],
            "mirror": self.mirror,
            "shape": None if self._shape is None else list(self._shape),
        }
        return content, {"mean": self._scale.mean, "deviation": self._scale.deviation}

    def load_state(self, content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        if not content:
            return
        if content["mirror"] != self.mirror:
            raise CorruptModelError(
                f"adapted features have mirror={content['mirror']}, which the settings do not say"
            )
        self._outputs.load_state({"layers": content["layers"]}, {})
        self._shape = None if content["shape"] is None else tuple(content["shape"])
        self._scale = Scale.restored(tensors)

    def width_for(self, shape: tuple[int, ...]) -> int:
        outputs = self._outputs.width_for(shape)
        if self._scale is not None and len(self._scale.mean) != outputs:
            raise CorruptModelError(
                f"adapted features have {len(self._scale.mean)} means, and the layers {outputs} outputs"
            )
        return outputs

    def _views(self, x: Tensor) -> tuple[Tensor, ...]:
        if not self.mirror:
            return (x,)
        images = as_images(x, self._shape)
        if images.ndim != 4:
            raise InputError(
                f"mirror is True, and a row is {' × '.join(map(str, x.shape[1:]))}, which is no image; set "
                "mirror=False, or say in input.shape what images such rows are."
            )
        return x, images.flip(-1).reshape(x.shape)


def _last_layer(model: FactorModel) -> str:
    layers = [name for name in model.layers if name != model.head] or list(model.layers)
    return layers[-1]
