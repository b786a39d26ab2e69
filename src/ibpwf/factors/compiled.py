"""Networks that were handed in as `torch.compile(net)` gives them: tasks are trained as asked there.

Everything else sees the network itself, whose parameters keep their names: torch's wrapper puts `_orig_mod.` before
them. Answers are given by the plain network, so that they do not depend on the compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

INSIDE = "_orig_mod"
"""What torch's wrapper calls the network in it."""

SHAPES = 256
"""Of factors for which a network may be compiled again; torch gives up after eight. Each task has its own, and a
dictionary that grows has others afterwards."""

Compiler = Callable[[nn.Module], nn.Module]


def uncompiled(net: nn.Module) -> nn.Module:
    """The network that was compiled; any other as it is."""
    inside = net._modules.get(INSIDE)
    return net if inside is None else inside


def compiler_of(net: nn.Module) -> Compiler | None:
    """What compiles another network as this one was; None where it was not."""
    made: Any = net
    return made.dynamo_ctx if INSIDE in net._modules else None


def call(net: nn.Module, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    """The network's outputs, by some weights that are lent to it."""
    if INSIDE not in net._modules:
        return _called(net, x, weights)
    import torch._dynamo.config as compiler

    with compiler.patch(recompile_limit=SHAPES, accumulated_recompile_limit=SHAPES):
        return _called(net, x, {f"{INSIDE}.{name}": weight for name, weight in weights.items()})


def _called(net: nn.Module, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    y: Tensor = functional_call(net, dict(weights), (x,), tie_weights=False) if weights else net(x)
    return y
