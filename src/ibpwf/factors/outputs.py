"""What a merged network answers with: its task's classes alone, also where it gives more than a tensor."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class FirstOutputs:
    """A forward hook: only the first outputs of a network, those its task has classes for."""

    def __init__(self, outputs: int) -> None:
        self.outputs = outputs

    def __call__(self, module: nn.Module, inputs: object, output: Any) -> Any:
        """Of a tensor, of an object's logits, or of the first of several."""
        if isinstance(output, Tensor):
            return output[:, : self.outputs]
        if isinstance(output, tuple):
            return (output[0][:, : self.outputs], *output[1:])
        output.logits = output.logits[:, : self.outputs]
        return output


def tell_width(net: nn.Module, outputs: int) -> None:
    """Networks of transformers also say in numbers how many outputs they have, and are built again by them."""
    holders: tuple[Any, ...] = (net, getattr(net, "config", None))
    for holder in holders:
        if isinstance(getattr(holder, "num_labels", None), int):
            holder.num_labels = outputs
