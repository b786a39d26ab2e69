"""Networks whose parameters are all those of linear layers: gradients from slopes and inputs.

For one example n the gradient of a layer's weight is the outer product δ_n a_nᵀ of the slope of the loss with respect
to the layer's output and the layer's input, and that of its bias is δ_n. Whoever needs many gradients, one per
example or one per task, takes δ and a of all examples in one pass and forms what is needed with matrix products.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def linear_layers(net: nn.Module) -> dict[str, nn.Linear]:
    """The linear layers of a network by name."""
    return {name: module for name, module in net.named_modules() if type(module) is nn.Linear}


def only_linear(net: nn.Module) -> bool:
    """Whether every parameter that moves is the weight or the bias of a linear layer."""
    moving = {name for name, parameter in net.named_parameters() if parameter.requires_grad}
    return moving == {f"{name}.{part}" for name in linear_layers(net) for part in ("weight", "bias")}


def slopes_and_inputs(
    net: nn.Module, x: Tensor, value: Callable[[Tensor], Tensor]
) -> dict[str, tuple[Tensor, Tensor]]:
    """Per linear layer δ, the slope of value(net(x)) with respect to the layer's output, and a, its input."""
    layers = linear_layers(net)
    seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}  # a layer's input and output

    def watch(layer: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        seen[layer] = inputs[0].detach(), output

    watches = [layer.register_forward_hook(watch) for layer in layers.values()]
    try:
        total = value(net(x))
    finally:
        for handle in watches:
            handle.remove()
    names: dict[nn.Module, str] = {layer: name for name, layer in layers.items()}
    slopes = torch.autograd.grad(total, [output for _, output in seen.values()])
    return {names[layer]: (slope, a) for slope, (layer, (a, _)) in zip(slopes, seen.items(), strict=True)}
