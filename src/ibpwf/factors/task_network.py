"""The network a task trains: the user's network with factor layers in place of the factorised ones."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ibpwf.factors.layers import FactorLayer, factor_layer, xavier
from ibpwf.factors.posterior import LayerVectors, TaskPosterior, initial_vectors

if TYPE_CHECKING:
    from ibpwf.factors.model import FactorModel

FACTOR_STATE = ("free_a", "free_b")


class TaskNetwork(nn.Module):
    """Locked factors as constants, free factors and the task's own parameters to train, and its posterior.

    In the ELBO phase every forward pass uses a fresh sample of the selection; after `fix_selection` the
    selection is what it is and only the selected factors are multiplied.
    """

    def __init__(
        self,
        model: FactorModel,
        outputs: int,
        previous: Mapping[str, LayerVectors],
        generator: torch.Generator,
        temperature: float,
        kl_terms: int | None,
    ) -> None:
        super().__init__()
        self.outputs = outputs
        self.generator = generator  # on the CPU: initial values do not depend on the device
        self.noise: torch.Generator | None = None
        self.strength_std = model.strength_std
        self.dictionaries = model.layers
        self.selected: dict[str, Tensor] = {}
        self._temperature, self._kl_terms = temperature, kl_terms
        self.number = len(model.tasks) + 1
        net = copy.deepcopy(model.net).train()
        net.requires_grad_(True)
        if model.heads == "per-task":
            _replace(net, model.head, _dense_head(net.get_submodule(model.head), outputs, generator))
        self._layer_names = list(model.layers)
        start, prior = [], []
        for name, dictionary in model.layers.items():
            layer = factor_layer(net.get_submodule(name), dictionary.gathered())
            width = dictionary.room_for(self.number)
            start.append(initial_vectors(dictionary.alpha, width, previous.get(name), self.strength_std, generator))
            prior.append(start[-1])
            taken = set(layer.locked_at.tolist())
            free_at = torch.tensor([k for k in range(width) if k not in taken], dtype=torch.long)
            a, b = xavier(dictionary.inputs, dictionary.outputs, len(free_at), width, generator)
            layer.set_free(a, b, free_at)
            _replace(net, name, layer)
        self.network = net
        self.posterior = TaskPosterior(start, prior, temperature, kl_terms)
        self.to(model.device)

    @property
    def factor_layers(self) -> dict[str, FactorLayer]:
        layers = {}
        for name in self._layer_names:
            layer = self.network.get_submodule(name)
            assert isinstance(layer, FactorLayer)
            layers[name] = layer
        return layers

    def forward(self, x: Tensor) -> Tensor:
        scores = self.posterior.strength if self.selected else self.posterior.sample_scores(self.noise)
        for row, name in enumerate(self._layer_names):
            layer = self.network.get_submodule(name)
            layer.scores = scores[row]
        y: Tensor = self.network(x)
        return y[:, : self.outputs]

    def kl(self) -> Tensor:
        return self.posterior.kl(self.noise)

    def active(self, kappa: float) -> dict[str, tuple[int, int]]:
        """Per layer: factors with π̄ ≥ κ, and how many of them are new."""
        counts = {}
        for row, (name, layer) in enumerate(self.factor_layers.items()):
            chosen = self.posterior.vectors(row).selected(kappa)
            counts[name] = (int(chosen.sum()), int(chosen[layer.free_at].sum()))
        return counts

    def grow(self, kappa: float) -> int:
        """Add sticks to every layer that has used up the free factors it was offered; how many were added."""
        if self.selected:
            return 0
        added = 0
        start, prior = [], []
        device = self.posterior.logit.device
        for row, (name, layer) in enumerate(self.factor_layers.items()):
            dictionary = self.dictionaries[name]
            vectors = self.posterior.vectors(row).to("cpu")
            prior_vectors = self.posterior.prior_vectors(row).to("cpu")
            active = int(vectors.selected(kappa)[layer.free_at.cpu()].sum())
            extra = dictionary.shortage(active, len(layer.free_at))
            if extra:
                width = len(vectors) + extra
                fresh = initial_vectors(dictionary.alpha, width, vectors, self.strength_std, self.generator)
                a, b = xavier(dictionary.inputs, dictionary.outputs, extra, width, self.generator)
                at = torch.arange(len(vectors), width)
                layer.set_free(
                    torch.cat([layer.free_a.detach(), a.to(device)], dim=1),
                    torch.cat([layer.free_b.detach(), b.to(device)]),
                    torch.cat([layer.free_at, at.to(device)]),
                )
                strength = torch.cat([vectors.strength, fresh.strength[len(vectors) :]])
                tail = LayerVectors(strength, fresh.logit, fresh.c, fresh.d)
                alpha_c = torch.full((extra,), dictionary.alpha)
                prior_vectors = LayerVectors(
                    torch.zeros(width),
                    torch.zeros(width),
                    torch.cat([prior_vectors.c, alpha_c]),
                    torch.cat([prior_vectors.d, torch.ones(extra)]),
                )
                vectors = tail
                added += extra
            start.append(vectors)
            prior.append(prior_vectors)
        if added:
            temperature = float(self.posterior.temperature)
            grown = TaskPosterior(start, prior, temperature, self._kl_terms).to(device)
            grown.carry_over(self.posterior)
            self.posterior = grown
        return added

    def fix_selection(self, kappa: float) -> None:
        """Keep the factors with π̄ ≥ κ, drop the others from the computation. Idempotent."""
        if self.selected:
            return
        for row, (name, layer) in enumerate(self.factor_layers.items()):
            chosen = self.posterior.vectors(row).selected(kappa)
            locked, free = chosen[layer.locked_at], chosen[layer.free_at]
            layer.set_locked(layer.locked_a[:, locked], layer.locked_b[locked], layer.locked_at[locked])
            layer.set_free(layer.free_a[:, free], layer.free_b[free], layer.free_at[free])
            self.selected[name] = chosen

    def own_state(self) -> dict[str, Tensor]:
        """Parameters and buffers that belong to the task alone, by their names in the user's network."""
        factor = {f"{name}.{part}" for name in self._layer_names for part in FACTOR_STATE}
        state = self.network.state_dict()
        return {name: tensor.detach().clone() for name, tensor in state.items() if name not in factor}

    def trainable(self, *, posterior: bool) -> list[nn.Parameter]:
        """What the optimiser moves; without the posterior only r of it (the fine-tune phase)."""
        inner = list(self.posterior.parameters()) if posterior else [self.posterior.strength]
        return [p for p in [*self.network.parameters(), *inner] if p.requires_grad and p.numel()]


def _replace(net: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(net.get_submodule(parent), leaf, module)


def _dense_head(original: nn.Module, outputs: int, generator: torch.Generator) -> nn.Linear:
    assert isinstance(original, nn.Linear)
    head = nn.Linear(original.in_features, outputs, bias=original.bias is not None)
    bound = 1 / math.sqrt(original.in_features)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_((torch.rand(parameter.shape, generator=generator) * 2 - 1) * bound)
    return head
