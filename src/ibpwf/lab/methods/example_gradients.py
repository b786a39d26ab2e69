"""Gradients of many single examples, or of groups of them, without a backward pass for each.

For one example n the gradient of a linear layer's weight is the outer product δ_n a_nᵀ of the gradient with respect
to the layer's output and the layer's input, and that of its bias is δ_n. Where a network has no other parameters, δ
and a of all examples come from one pass, and what is needed of them is a matrix product.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from ibpwf.data.rows import ROWS_PER_PASS

NUMBERS_AT_ONCE = {"cpu": 1 << 22, "cuda": 1 << 26}  # gradients held at a time: on a CPU, what its caches hold

Value = Callable[..., Tensor]
"""A number made of one example's outputs and whatever else belongs to the example."""


def trainable(net: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that training moves, by name."""
    return {name: parameter for name, parameter in net.named_parameters() if parameter.requires_grad}


def linear_layers(net: nn.Module) -> dict[str, nn.Linear]:
    return {name: module for name, module in net.named_modules() if type(module) is nn.Linear}


def only_linear(net: nn.Module) -> bool:
    """Whether every parameter that moves is the weight or the bias of a linear layer."""
    return trainable(net).keys() == {f"{name}.{part}" for name in linear_layers(net) for part in ("weight", "bias")}


def gradients_and_inputs(
    net: nn.Module, x: Tensor, value: Callable[[Tensor], Tensor]
) -> dict[str, tuple[Tensor, Tensor]]:
    """Per linear layer δ, the gradient of value(net(x)) with respect to the layer's output, and a, its input."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}  # a layer's output and input

    def watch(name: str, layer: nn.Linear) -> torch.utils.hooks.RemovableHandle:
        return layer.register_forward_hook(lambda _, inputs, out: seen.update({name: (out, inputs[0].detach())}))

    hooks = [watch(name, layer) for name, layer in linear_layers(net).items()]
    try:
        total = value(net(x))
    finally:
        for hook in hooks:
            hook.remove()
    gradients = torch.autograd.grad(total, [out for out, _ in seen.values()])
    return {name: (gradient, a) for gradient, (name, (_, a)) in zip(gradients, seen.items(), strict=True)}


def gradient_sum(
    net: nn.Module, value: Value, size: Callable[[Tensor], Tensor], x: Tensor, *others: Tensor
) -> Tensor:
    """Σ_n size(∂ value(net(x_n), …) / ∂θ) as one vector, exact for every example, a few examples at a time; `size`
    is the absolute value or the square."""
    count = sum(p.numel() for p in trainable(net).values())
    linear = only_linear(net)
    rows = ROWS_PER_PASS if linear else max(1, NUMBERS_AT_ONCE["cuda" if x.is_cuda else "cpu"] // count)
    total = torch.zeros(count, device=x.device, dtype=torch.float32)
    for batch in zip(*(torch.split(t, rows) for t in (x, *others)), strict=True):
        total += (_by_products if linear else _by_examples)(net, value, size, *batch)
    return total


def _by_products(
    net: nn.Module, value: Value, size: Callable[[Tensor], Tensor], x: Tensor, *others: Tensor
) -> Tensor:
    """The size of a product is the product of the sizes, so the sum over examples is size(δ)ᵀ size(a), and no
    example's gradient is ever formed."""
    parts: dict[str, Tensor] = {}
    found = gradients_and_inputs(net, x, lambda outputs: vmap(value)(outputs, *others).sum())
    for name, (gradient, inputs) in found.items():
        parts[f"{name}.weight"], parts[f"{name}.bias"] = size(gradient).T @ size(inputs), size(gradient).sum(0)
    return torch.cat([parts[name].flatten() for name in trainable(net)])


def _by_examples(
    net: nn.Module, value: Value, size: Callable[[Tensor], Tensor], x: Tensor, *others: Tensor
) -> Tensor:
    """Any network: every example's own gradient."""

    def of_one(parameters: dict[str, Tensor], x: Tensor, *others: Tensor) -> Tensor:
        return value(functional_call(net, parameters, (x.unsqueeze(0),))[0], *others)

    parameters = {name: p.detach() for name, p in trainable(net).items()}
    gradients = vmap(grad(of_one), (None, 0, *(0 for _ in others)))(parameters, x, *others)
    return torch.cat([size(gradient).sum(0).flatten() for gradient in gradients.values()])
