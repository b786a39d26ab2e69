"""φ(x): what a named layer of the network gives under one task's weights (paper, section 2.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ibpwf.errors import InputError, unknown

CHANNELS_LAST = (nn.Linear, nn.LayerNorm, nn.Embedding)


class _Enough(Exception):
    """Raised inside the forward pass once the last wanted layer has answered."""


def first_layer(net: nn.Module) -> str:
    """The first layer with a weight matrix: the paper's choice of φ, read before its activation. Not one that an
    attention module reads directly: it gives no output of its own."""
    attention = [f"{name}." for name, module in net.named_modules() if isinstance(module, nn.MultiheadAttention)]
    for name, parameter in net.named_parameters():
        if parameter.ndim >= 2 and name.endswith(".weight") and not name.startswith(tuple(attention)):
            return name.removesuffix(".weight")
    raise InputError("the network has no layer with a weight to infer tasks from; name one in inference_layers.")


def check_layers(net: nn.Module, names: Sequence[str]) -> None:
    known = [name for name, _ in net.named_modules() if name]
    for name in names:
        if name not in known:
            raise unknown("inference_layer", name, known)


def features(net: nn.Module, state: Mapping[str, Tensor], layers: Sequence[str], x: Tensor) -> Tensor:
    """The layers' outputs under the weights `state`, averaged over space (or tokens) and concatenated: N×D.

    The forward pass stops as soon as all of them have answered.
    """
    found: dict[str, Tensor] = {}

    def keep(name: str) -> object:
        def hook(module: nn.Module, inputs: object, output: Tensor) -> None:
            channels = output.movedim(-1, 1) if isinstance(module, CHANNELS_LAST) else output
            found[name] = channels if output.ndim == 2 else channels.flatten(2).mean(2)
            if len(found) == len(layers):
                raise _Enough

        return hook

    handles = [net.get_submodule(name).register_forward_hook(keep(name)) for name in layers]  # type: ignore[arg-type]
    try:
        net.eval()
        with torch.no_grad():
            functional_call(net, dict(state), (x,), tie_weights=False)
    except _Enough:
        pass
    finally:
        for handle in handles:
            handle.remove()
    for name in layers:
        if name not in found:
            raise InputError(f"inference_layers: '{name}' gives no output when the network runs; name another layer.")
    return torch.cat([found[name] for name in layers], dim=1)
