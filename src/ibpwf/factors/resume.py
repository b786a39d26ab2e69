"""A task network in the middle of its training as JSON and tensors, and back to the same bits.

Locked factors are not among them: they are in the model, and a list of positions says which ones the task reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ibpwf.factors.posterior import TaskPosterior
from ibpwf.factors.task_network import TaskNetwork

OF_FACTORS = ("free_a", "free_b", "free_at", "locked_a", "locked_b", "locked_at")


def kept(network: TaskNetwork) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Everything that training has changed since the task began, random streams included."""
    tensors = {f"network/{name}": tensor for name, tensor in _plain(network)}
    tensors |= {f"posterior/{name}": tensor for name, tensor in network.posterior.state_dict(keep_vars=True).items()}
    for (name, layer), prior in zip(network.factor_layers.items(), network.posterior.prior, strict=True):
        tensors |= {f"prior/{name}/{part}": getattr(prior, part) for part in prior.names()}
        for part in ("free_a", "free_b", "free_at", "locked_at"):
            tensors[f"factors/{name}/{part}"] = getattr(layer, part)
    tensors |= {f"selected/{name}": chosen for name, chosen in network.selected.items()}
    tensors["random/init"] = network.generator.get_state()
    if network.noise is not None:
        tensors["random/noise"] = network.noise.get_state()
    if network.dropout is not None:
        tensors["random/dropout"] = network.dropout
    return {"widths": network.posterior.widths}, tensors


@torch.no_grad()
def restore(network: TaskNetwork, content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Bring a network that has just been started for the same task to where the kept one was."""
    device = network.posterior.strength.device
    there = {name: tensor.to(device) for name, tensor in tensors.items() if not name.startswith("random/")}
    for name, tensor in _plain(network):
        tensor.copy_(there[f"network/{name}"])
    for name, layer in network.factor_layers.items():
        layer.set_free(*(there[f"factors/{name}/{part}"] for part in ("free_a", "free_b", "free_at")))
        at = there[f"factors/{name}/locked_at"]
        place = torch.searchsorted(layer.locked_at, at)
        layer.set_locked(layer.locked_a[place], layer.locked_b[place], at)
    network.posterior = _posterior(network, [int(width) for width in content["widths"]], there)
    network.selected = {
        name.removeprefix("selected/"): tensor for name, tensor in there.items() if name.startswith("selected/")
    }
    network.generator.set_state(tensors["random/init"])
    if network.noise is not None:
        network.noise.set_state(tensors["random/noise"])
    if network.dropout is not None:
        network.dropout = tensors["random/dropout"]


def _plain(network: TaskNetwork) -> Iterator[tuple[str, Tensor]]:
    """The parameters and buffers of the user's network that are no factors."""
    factors = {f"{name}.{part}" for name in network.factor_layers for part in OF_FACTORS}
    for name, tensor in [*network.network.named_parameters(), *network.network.named_buffers()]:
        if name not in factors:
            yield name, tensor


def _posterior(network: TaskNetwork, widths: list[int], there: Mapping[str, Tensor]) -> TaskPosterior:
    """A posterior as wide as the kept one, which may have grown; its values are then copied to the bit."""
    kind = network.prior.vectors
    start = [kind(*(torch.ones(width, dtype=torch.float32) for _ in kind.names())) for width in widths]
    prior = [kind(*(there[f"prior/{name}/{part}"].cpu() for part in kind.names())) for name in network.factor_layers]
    posterior = network.prior.posterior(start, prior).to(network.posterior.strength.device)
    for name, tensor in posterior.state_dict(keep_vars=True).items():
        tensor.copy_(there[f"posterior/{name}"])
    return posterior
