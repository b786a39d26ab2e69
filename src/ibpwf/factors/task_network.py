"""The network a task trains: the user's network with factor layers in place of the factorised ones."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ibpwf.factors.compiled import call
from ibpwf.factors.dictionary import Dictionary, FactorBlock
from ibpwf.factors.layers import FactorLayer, FactorWeight, assign_scores, factor_layer, xavier
from ibpwf.factors.learned import LearnedTask
from ibpwf.factors.posterior import LayerVectors
from ibpwf.factors.pretrained import (
    anew_vectors,
    beside_base,
    continued_vectors,
    fitted_vectors,
    fresh_beside_base,
    singular_factors,
    uniform,
)
from ibpwf.factors.weights import Weight, copied, load_tensors, replace_module, resized

if TYPE_CHECKING:
    from ibpwf.factors.model import FactorModel

FACTOR_STATE = ("free_a", "free_b")


class TaskNetwork(nn.Module):
    """Locked factors as constants, free factors and the task's own parameters to train, and its posterior.

    A factor layer stands in for each plain Linear or convolution layer. Every other factorised weight is composed
    before the forward pass and lent to the module that owns it, which runs as it is.

    In the ELBO phase every forward pass uses a fresh sample of the selection; after `fix_selection` the
    selection is what it is and only the selected factors are multiplied.
    """

    def __init__(
        self,
        model: FactorModel,
        outputs: int,
        previous: Mapping[str, LayerVectors],
        generator: torch.Generator,
        version_of: LearnedTask | None = None,
    ) -> None:
        super().__init__()
        self.outputs, self.turns = outputs, 1
        self._version_of = version_of
        self.generator = generator  # on the CPU: initial values do not depend on the device
        self.noise: torch.Generator | None = None
        self.dropout: Tensor | None = None  # the state of torch's own random numbers, which dropout draws from
        self.prior = model.prior
        self.dictionaries = model.layers
        self.selected: dict[str, Tensor] = {}
        self.number = len(model.tasks) + 1
        self._fitted = model.init != "random" and self.number == 1
        self._anew = model.init == "anew" and self.number > 1 and version_of is None
        self._on_base = model.base == "frozen"
        self._layer_names = list(model.layers)
        self._fixed = model.fixed_tensors()
        net = copied(model.net, model.base_weights()).train()
        if model.init == "pretrained" and model.tasks:
            _continue_from(net, model.tasks[-1].own, model.head if model.heads == "per-task" else None)
        model.thawed(net)
        if model.heads == "per-task":
            if not (self._fitted and outputs == model.head_width):
                replace_module(net, model.head, _dense_head(net.get_submodule(model.head), outputs, generator))
            net.get_submodule(model.head).requires_grad_(True)
        if version_of is not None:
            load_tensors(net, version_of.own)
        self.composed_weights = nn.ModuleList()
        self._lent: dict[str, tuple[Weight, FactorWeight]] = {}
        start = []
        for name in model.layers:
            layer, vectors = self._started(model, net, name, previous.get(name), generator)
            start.append(vectors)
            if isinstance(layer, FactorWeight):
                self._lent[name] = (model.weights[name], layer)
                self.composed_weights.append(layer)
            else:
                replace_module(net, name, layer)
        self.network = net
        # In a tuple, so that its parameters have one name here and not two.
        self._called = (net if model.compiler is None else model.compiler(net),)
        self.posterior = self.prior.posterior(start, start)
        self.to(model.device)

    def _started(
        self,
        model: FactorModel,
        net: nn.Module,
        name: str,
        previous: LayerVectors | None,
        generator: torch.Generator,
    ) -> tuple[FactorLayer, LayerVectors]:
        """A layer's factors and vectors as the task finds them."""
        dictionary = model.layers[name]
        layer = _layer_of(net, model.weights[name], dictionary.gathered(), keeps_base=self._on_base)
        fitted = model.fitted_factors(name) if self._fitted else None
        number = 1 if self._on_base else self.number  # what a task needs beside a base is its own
        shape, locked = dictionary.shape, dictionary.locked
        if fitted is not None:
            width = fitted[0].shape[1]
        elif self._anew:
            width = self.prior.capped(shape, max(dictionary.width, locked + shape.rank), locked)
        else:
            width = self.prior.width(shape, number, locked, dictionary.width)
        vectors = self.prior.start(shape, self._strengths(width, generator), previous)
        taken = set(layer.locked_at.tolist())
        free_at = torch.tensor([k for k in range(width) if k not in taken], dtype=torch.long)
        if fitted is not None:
            a, b = fitted
            vectors = fitted_vectors(self.prior, vectors)
        elif self._anew:
            a, b = self._fresh(dictionary, len(free_at), width, generator)
            count = min(shape.rank, len(free_at))
            drawn = uniform(dictionary.inputs, dictionary.outputs, generator)
            a[:, :count], b[:count] = singular_factors(drawn, count)
            vectors = anew_vectors(self.prior, vectors, free_at[:count])
        else:
            a, b = self._fresh(dictionary, len(free_at), width, generator)
            if self._on_base:
                vectors = beside_base(self.prior, shape, vectors, layer.locked_at, free_at)
            if self._version_of is not None:
                old = self._version_of
                vectors = continued_vectors(vectors, old.vectors[name], old.selected[name].nonzero().flatten())
                if self._on_base:  # W_b of a new factor is 0 there; with no strength either it would never move
                    vectors.strength[free_at] = 1
            elif model.init == "pretrained" and previous is not None:
                vectors = continued_vectors(vectors, previous, layer.locked_at)
        where = layer.locked_at.device  # drawn on the CPU, whatever the device; locked ones are there already
        layer.set_free(a.t().to(where), b.to(where), free_at.to(where))
        return layer, vectors

    def _strengths(self, width: int, generator: torch.Generator) -> Tensor:
        return torch.randn(width, generator=generator, dtype=torch.float32) * self.prior.strength_std

    def _fresh(
        self, dictionary: Dictionary, count: int, width: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        if self._on_base:
            return fresh_beside_base(dictionary.inputs, dictionary.outputs, count, generator)
        return xavier(dictionary.inputs, dictionary.outputs, count, width, generator)

    @cached_property
    def factor_layers(self) -> dict[str, FactorLayer]:
        layers = {}
        for name in self._layer_names:
            layer = self._lent[name][1] if name in self._lent else self.network.get_submodule(name)
            assert isinstance(layer, FactorLayer)
            layers[name] = layer
        return layers

    def forward(self, x: Tensor) -> Tensor:
        scores = self.posterior.strength if self.selected else self.posterior.sample_scores(self.noise)
        assign_scores(scores, list(self.factor_layers.values()))
        with self._own_random_numbers(x.device):
            return self._outputs(x)

    def _outputs(self, x: Tensor, *, compiled: bool = True) -> Tensor:
        weights = {weight.parameter: _as_owned(weight, layer) for weight, layer in self._lent.values()}
        y = call(self._called[0] if compiled else self.network, x, weights)
        return y[:, : self.outputs]

    @torch.no_grad()
    def answers(self, x: Tensor) -> Tensor:
        """The outputs with E[λ] = r ⊙ π̄, without dropout: nothing random is drawn."""
        scores: Tensor = self.posterior.strength if self.selected else self.posterior.mean_scores()
        assign_scores(scores, list(self.factor_layers.values()))
        self.eval()
        try:
            return self._outputs(x)
        finally:
            self.train()

    @torch.no_grad()
    def answers_with(self, x: Tensor, selection: Mapping[str, Tensor] | None) -> Tensor:
        """The outputs if this selection were fixed; None: with E[λ], as before it is. Batch normalization goes by the
        rows at hand, since what it has recorded is of sampled selections."""
        scores = self.posterior.mean_scores()
        if selection is not None:
            share = torch.zeros_like(scores)
            for row, chosen in enumerate(selection.values()):
                share[row, : len(chosen)] = chosen
            scores = self.posterior.strength * share
        assign_scores(scores, list(self.factor_layers.values()))
        self.eval()
        norms = [module for module in self.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
        for norm in norms:
            norm.training, norm.track_running_stats = True, False
        try:
            return self._outputs(x, compiled=False)  # compiling takes longer than the few rows that are answered here
        finally:
            for norm in norms:
                norm.track_running_stats = True
            self.train()

    def release(self) -> None:
        """Let go of the last pass's graph, once it has been run backwards: kept alive, it would tie parameters to the
        stream it ran on."""
        for layer in self.factor_layers.values():
            layer.scores = layer.scores.detach()

    @contextlib.contextmanager
    def _own_random_numbers(self, device: torch.device) -> Iterator[None]:
        """Let dropout draw from the task's own stream on the CPU, so that the same seed gives the same bits whatever
        else has drawn from torch's. (A GPU's stream belongs to the recorded graph and is left alone.)"""
        if self.dropout is None or device.type != "cpu":
            yield
            return
        outside = torch.get_rng_state()
        torch.set_rng_state(self.dropout)
        try:
            yield
            self.dropout = torch.get_rng_state()
        finally:
            torch.set_rng_state(outside)

    def kl(self) -> Tensor:
        return self.posterior.kl(self.noise)

    def active(self) -> dict[str, tuple[int, int]]:
        """Per layer: the factors that would be selected now, and how many of them are new."""
        counts = {}
        for row, (name, layer) in enumerate(self.factor_layers.items()):
            chosen = self.prior.selected(self.posterior.vectors(row))
            counts[name] = (int(chosen.sum()), int(chosen[layer.free_at].sum()))
        return counts

    def grow(self) -> int:
        """Add positions to every layer that has used up the free factors it was offered; how many were added. Factors
        that were fitted to whole weights are all in use from the start, and are not added to."""
        if self.selected or self._fitted or self._anew:
            return 0
        added = 0
        start, prior = [], []
        device = self.posterior.strength.device
        for row, (name, layer) in enumerate(self.factor_layers.items()):
            dictionary = self.dictionaries[name]
            vectors, prior_vectors = self.posterior.vectors(row).apply(Tensor.cpu), self.posterior.prior[row]
            active = int(self.prior.selected(vectors)[layer.free_at.cpu()].sum())
            extra = self.prior.shortage(dictionary.shape, active, len(layer.free_at), dictionary.locked)
            if extra:
                width = len(vectors) + extra
                strength = self._strengths(width, self.generator)
                a, b = self._fresh(dictionary, extra, width, self.generator)
                at = torch.arange(len(vectors), width)
                layer.set_free(
                    torch.cat([layer.free_a.detach(), a.t().to(device)]),
                    torch.cat([layer.free_b.detach(), b.to(device)]),
                    torch.cat([layer.free_at, at.to(device)]),
                )
                if self._on_base:
                    strength.fill_(1)
                strength[: len(vectors)] = vectors.strength
                vectors = self.prior.start(dictionary.shape, strength, vectors)
                none = torch.zeros(width, dtype=torch.float32)
                prior_vectors = self.prior.start(dictionary.shape, none, prior_vectors)
                added += extra
            start.append(vectors)
            prior.append(prior_vectors)
        if added:
            grown = self.prior.posterior(start, prior).to(device)
            grown.carry_over(self.posterior)
            self.posterior = grown
        return added

    def selection(self) -> dict[str, Tensor]:
        """Per layer, which factors the task would use if it ended now."""
        return {name: self.prior.selected(self.posterior.vectors(row)) for row, name in enumerate(self._layer_names)}

    def fix_selection(self, selection: Mapping[str, Tensor] | None = None) -> None:
        """Keep the factors that the prior selects, or another selection, and drop the others from the computation.
        Idempotent."""
        if self.selected:
            return
        for name, chosen in (self.selection() if selection is None else selection).items():
            layer = self.factor_layers[name]
            locked, free = chosen[layer.locked_at], chosen[layer.free_at]
            layer.set_locked(layer.locked_a[locked], layer.locked_b[locked], layer.locked_at[locked])
            layer.set_free(layer.free_a[free], layer.free_b[free], layer.free_at[free])
            self.selected[name] = chosen

    def own_state(self) -> dict[str, Tensor]:
        """Parameters and buffers that belong to the task alone, by their names in the user's network; those that no
        task changes are the model's, not copies."""
        factor = {f"{name}.{part}" for name in self._layer_names for part in FACTOR_STATE}
        factor |= {weight.parameter for weight, _ in self._lent.values()}
        state = self.network.state_dict()
        own = {name: value for name, value in state.items() if name not in factor and isinstance(value, Tensor)}
        return {
            name: self._fixed[name] if name in self._fixed else tensor.detach().clone()
            for name, tensor in own.items()
        }

    def trainable(self, *, posterior: bool) -> list[nn.Parameter]:
        """What the optimiser moves; without the posterior only r of it (the fine-tune phase)."""
        inner = list(self.posterior.parameters()) if posterior else [self.posterior.strength]
        outer = [*self.network.parameters(), *self.composed_weights.parameters()]
        return [p for p in [*outer, *inner] if p.requires_grad and p.numel()]


def _layer_of(net: nn.Module, weight: Weight, locked: FactorBlock, *, keeps_base: bool) -> FactorLayer:
    """The factor layer of a weight; the module's own parameter, if it stays, is not trained."""
    if weight.replaceable:
        return factor_layer(net.get_submodule(weight.layer), locked, keeps_base=keeps_base)
    owner, _, _ = weight.parameter.rpartition(".")
    parameter = net.get_parameter(weight.parameter).requires_grad_(False)
    shown = parameter.t() if weight.transposed else parameter
    return FactorWeight(net.get_submodule(owner), locked, shown, keeps_base=keeps_base)


def _as_owned(weight: Weight, layer: FactorWeight) -> Tensor:
    """A composed weight as the module that owns it has it."""
    return layer.weight.t() if weight.transposed else layer.weight


def _continue_from(net: nn.Module, own: Mapping[str, Tensor], but: str | None) -> None:
    """Take over the parameters and buffers of the task before, save those of a dense head."""
    load_tensors(net, {name: value for name, value in own.items() if but is None or not name.startswith(f"{but}.")})


def _dense_head(original: nn.Module, outputs: int, generator: torch.Generator) -> nn.Module:
    head = resized(original, outputs)
    bound = 1 / math.sqrt(math.prod(original.get_parameter("weight").shape[1:]))
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_((torch.rand(parameter.shape, generator=generator, dtype=torch.float32) * 2 - 1) * bound)
    return head
