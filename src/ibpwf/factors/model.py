"""A network as a continual learner: which layers are factorised, what each task stored, and its weights.

`factorize(net)` reads an ordinary `nn.Module` and never changes it. `FactorModel.start_task` builds a
`TaskNetwork` to train; `finish_task` locks the factors the task selected. A finished task is then nothing
but tensors: `state(task)` composes the plain network's own state dict from them, so prediction runs the
user's network itself, at its own cost, and `merge(task)` hands it back as an ordinary module.
"""

from __future__ import annotations

import copy
import fnmatch
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.conv import _ConvNd

from ibpwf.errors import InputError, unknown
from ibpwf.factors.dictionary import Dictionary, FactorBlock
from ibpwf.factors.layers import as_matrix, as_weight
from ibpwf.factors.posterior import LayerVectors
from ibpwf.factors.task_network import TaskNetwork

PLAIN_FORWARDS = {layer.forward for layer in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)}


@dataclass(frozen=True)
class LearntTask:
    """What one finished task keeps, besides the factors it locked.

    `vectors` are r, logit π̄, c, d per layer; `selected` the factors it reads; `own` the parameters and
    buffers that belong to the task alone (biases, normalisation, a dense head), named as in the network.
    """

    outputs: int
    vectors: dict[str, LayerVectors]
    selected: dict[str, Tensor]
    own: dict[str, Tensor]

    def to(self, device: torch.device) -> LearntTask:
        return LearntTask(
            self.outputs,
            {name: vectors.to(device) for name, vectors in self.vectors.items()},
            {name: chosen.to(device) for name, chosen in self.selected.items()},
            {name: tensor.to(device) for name, tensor in self.own.items()},
        )


@dataclass(frozen=True)
class FactorUse:
    """Factors of one layer for one task."""

    active: int
    new: int
    reused: int
    total: int


class FactorModel:
    """A network whose chosen weights are sparse sums of factors from one shared dictionary per layer."""

    def __init__(
        self,
        net: nn.Module,
        layers: Mapping[str, Dictionary],
        head: str,
        heads: str,
        strength_std: float,
    ) -> None:
        self.net = net
        self.layers = dict(layers)
        self.head = head
        self.heads = heads
        self.strength_std = strength_std
        self.tasks: list[LearntTask] = []
        self._composed: dict[int, dict[str, Tensor]] = {}

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.net.parameters()), torch.device("cpu"))

    def to(self, device: torch.device | str) -> FactorModel:
        target = torch.device(device)
        self.net.to(target)
        for dictionary in self.layers.values():
            dictionary.to(target)
        self.tasks = [task.to(target) for task in self.tasks]
        self._composed.clear()
        return self

    def start_task(
        self, outputs: int, generator: torch.Generator, temperature: float = 2 / 3, kl_terms: int | None = None
    ) -> TaskNetwork:
        """A trainable network for the next task with `outputs` classes."""
        width = self._head(self.net).out_features
        if self.heads == "shared" and outputs > width:
            raise InputError(
                f"the task has {outputs} classes but the shared head '{self.head}' has {width} outputs; "
                "give the network a wider last layer or use heads='per-task'."
            )
        previous = self.tasks[-1].vectors if self.tasks else {}
        return TaskNetwork(self, outputs, previous, generator, temperature, kl_terms)

    def finish_task(self, network: TaskNetwork, kappa: float) -> LearntTask:
        """Lock the factors `network` selected (π̄ ≥ κ) and store the task's vectors."""
        if network.number != len(self.tasks) + 1:
            raise ValueError(f"a network for task {network.number} cannot finish as task {len(self.tasks) + 1}")
        network.fix_selection(kappa)
        vectors, blocks = {}, {}
        for row, (name, layer) in enumerate(network.factor_layers.items()):
            vectors[name] = network.posterior.vectors(row)
            blocks[name] = FactorBlock(layer.free_a, layer.free_b, layer.free_at)
        selected = {name: chosen.clone() for name, chosen in network.selected.items()}
        task = LearntTask(network.outputs, vectors, selected, network.own_state())
        self.add_task(task, blocks)
        return task

    def drop_last_task(self) -> None:
        """Undo `finish_task`, for when what follows it fails."""
        self.tasks.pop()
        for name, dictionary in self.layers.items():
            dictionary.unlock_last(len(self.tasks[-1].vectors[name]) if self.tasks else 0)
        self._composed.pop(len(self.tasks), None)

    def add_task(self, task: LearntTask, blocks: Mapping[str, FactorBlock]) -> None:
        """Append a finished task: lock its factors, store its vectors."""
        for name, dictionary in self.layers.items():
            dictionary.lock(blocks[name], width=len(task.vectors[name]))
        self.tasks.append(task)

    def state(self, task: int) -> dict[str, Tensor]:
        """The plain network's state dict for a task, weights composed from locked factors only; cached."""
        task = range(len(self.tasks))[task]  # a negative number must not outlive the next task in the cache
        if task not in self._composed:
            self._composed[task] = self._compose(task)
        return self._composed[task]

    def _compose(self, task: int) -> dict[str, Tensor]:
        learnt = self.tasks[task]
        state = dict(learnt.own)
        for name in self.layers:
            factors, strength = self.selected_factors(task, name)
            weight = as_weight((factors.a * strength) @ factors.b, self._weight(name).shape)
            state[f"{name}.weight"] = weight.contiguous()
        return self._cut_head(state, learnt.outputs)

    def _cut_head(self, state: dict[str, Tensor], outputs: int) -> dict[str, Tensor]:
        """Only the task's own outputs; a shared head's others mean nothing to it."""
        for part in (f"{self.head}.weight", f"{self.head}.bias"):
            if part in state:
                dim = state[part].ndim - (2 if part.endswith("weight") else 1)
                state[part] = state[part].narrow(dim, 0, outputs).contiguous()
        return state

    def _weight(self, name: str) -> Tensor:
        return self.net.get_parameter(f"{name}.weight")

    def _head(self, net: nn.Module) -> nn.Linear:
        head = net.get_submodule(self.head)
        assert isinstance(head, nn.Linear)
        return head

    def selected_factors(self, task: int, layer: str) -> tuple[FactorBlock, Tensor]:
        """The locked factors a task reads in a layer, in stick order, and their strengths r."""
        learnt = self.tasks[task]
        at = learnt.selected[layer].nonzero().flatten()
        locked = self.layers[layer].gathered()
        place = torch.searchsorted(locked.positions, at)
        block = FactorBlock(locked.a[:, place].contiguous(), locked.b[place].contiguous(), at)
        return block, learnt.vectors[layer].strength[at]

    def logits(self, x: Tensor, task: int) -> Tensor:
        """The task's outputs, one column per class of the task."""
        self.net.eval()
        with torch.no_grad():
            out: Tensor = functional_call(self.net, self.state(task), (x,), tie_weights=False)
        return out

    def drawn_states(self, task: int, draws: int, generator: torch.Generator) -> dict[str, Tensor]:
        """`draws` posterior samples of the task's weights, stacked: b_k ~ Bernoulli(π̄_k) over the factors the
        task selected (appendix E). Parameters that are not sampled are repeated without a copy."""
        learnt = self.tasks[task]
        state = {name: tensor.expand(draws, *tensor.shape) for name, tensor in learnt.own.items()}
        for name in self.layers:
            factors, strength = self.selected_factors(task, name)
            probability = learnt.vectors[name].logit[factors.positions].sigmoid()
            noise = torch.rand(draws, len(probability), generator=generator, device=probability.device)
            scores = strength * (noise < probability)
            matrices = (factors.a * scores.unsqueeze(1)) @ factors.b
            shape = self._weight(name).shape
            weight = matrices.transpose(1, 2).reshape(draws, matrices.shape[2], *shape[1:])
            state[f"{name}.weight"] = weight
        return self._cut_head(state, learnt.outputs)

    def merge(self, task: int) -> nn.Module:
        """An ordinary network with the task's weights: same class, same layer names, nothing of ours left.

        Its head has one output per class of the task, so a state dict from it loads into the user's own
        network whenever that has as many outputs.
        """
        net = copy.deepcopy(self.net).eval()
        head = self._head(net)
        learnt = self.tasks[task]
        if head.out_features != learnt.outputs:
            parent, _, leaf = self.head.rpartition(".")
            dense = nn.Linear(head.in_features, learnt.outputs, bias=head.bias is not None)
            setattr(net.get_submodule(parent), leaf, dense.to(self.device))
        net.load_state_dict(self.state(task))
        return net.requires_grad_(True)

    def use(self, task: int) -> dict[str, FactorUse]:
        """Active, new, reused and total locked factors per layer, as they were when the task ended."""
        table = {}
        task = range(len(self.tasks))[task]
        for name, dictionary in self.layers.items():
            active = int(self.tasks[task].selected[name].sum())
            new = len(dictionary.blocks[task].positions)
            total = sum(len(block.positions) for block in dictionary.blocks[: task + 1])
            table[name] = FactorUse(active, new, active - new, total)
        return table

    def parameters(self) -> int:
        """Numbers stored: locked factors, and every task's strengths of the factors it reads and own tensors."""
        factors = sum(d.locked * (d.inputs + d.outputs) for d in self.layers.values())
        vectors = sum(int(chosen.sum()) for task in self.tasks for chosen in task.selected.values())
        own = sum(tensor.numel() for task in self.tasks for tensor in task.own.values())
        return factors + vectors + own


def _matches(name: str, module: nn.Module, patterns: str | list[str] | tuple[str, ...]) -> bool:
    wanted = [patterns] if isinstance(patterns, str) else list(patterns)
    return any(fnmatch.fnmatchcase(name, p) or fnmatch.fnmatchcase(type(module).__name__, p) for p in wanted)


def _factorisable(net: nn.Module) -> dict[str, nn.Module]:
    """Linear and convolution layers by name; those an attention module reads directly are its own affair."""
    modules = dict(net.named_modules(remove_duplicate=False))
    inside = {
        f"{name}.{child}" if name else child
        for name, module in modules.items()
        if isinstance(module, nn.MultiheadAttention)
        for child, _ in module.named_modules(remove_duplicate=False)
        if child
    }
    return {
        name: module
        for name, module in modules.items()
        if name
        and name not in inside
        and (isinstance(module, nn.Linear) or (isinstance(module, _ConvNd) and not module.transposed))
    }


def _check_layer(net: nn.Module, name: str) -> None:
    """Refuse a layer whose weight cannot be replaced by ours."""
    module = net.get_submodule(name)
    weight = module._parameters.get("weight")
    if type(module).forward not in PLAIN_FORWARDS:
        raise InputError(
            f"layer '{name}' is a {type(module).__name__} with a forward pass of its own, which factors cannot "
            "follow; use a plain layer, or exclude it."
        )
    if weight is None:
        raise InputError(
            f"layer '{name}' computes its weight from other parameters (weight_norm, spectral_norm, ...); "
            "remove the parametrisation, or exclude the layer."
        )
    if isinstance(weight, nn.UninitializedParameter):
        raise InputError(f"layer '{name}' is lazy and has no shape yet; run the network on one example first.")
    if weight.dtype != torch.float32:
        raise InputError(f"layer '{name}' has weights of {weight.dtype}; training is in float32: use net.float().")
    for other, parameter in net.named_parameters(remove_duplicate=False):
        if parameter is weight and other != f"{name}.weight":
            raise InputError(
                f"layer '{name}' shares its weight with '{other}', and factorised weights cannot be shared; "
                "give each layer its own weight, or exclude them."
            )


def _check_patterns(field: str, patterns: Iterable[str], found: Mapping[str, nn.Module]) -> None:
    """Refuse a pattern that fits no layer: it is misspelt, and would do nothing."""
    for pattern in patterns:
        if not any(_matches(name, module, pattern) for name, module in found.items()):
            raise unknown(f"layer in {field}", pattern, found)


def _per_layer(field: str, value: object, name: str, module: nn.Module, automatic: float | None) -> float | None:
    """A setting for one layer: a number for all layers, or a mapping from patterns to numbers."""
    if value is None or value == "auto":
        return automatic
    if isinstance(value, Mapping):
        chosen = [value[name]] if name in value else []
        chosen += [number for pattern, number in value.items() if _matches(name, module, pattern)]
        return _per_layer(field, chosen[0], name, module, automatic) if chosen else automatic
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise InputError(f"{field} is {value!r}; give a number, or a mapping from layer patterns to numbers.")


def automatic_alpha(inputs: int, outputs: int) -> float:
    """Half the rank a J×M weight can have, at least 4: α should be below the rank (appendix F)."""
    return max(4.0, min(inputs, outputs) / 2)


def factorize(
    net: nn.Module,
    *,
    alpha: float | str | Mapping[str, float] = "auto",
    max_factors: int | Mapping[str, int] | None = None,
    heads: str = "shared",
    head: str | None = None,
    include: str | list[str] | None = None,
    exclude: str | list[str] | None = None,
    strength_std: float = 0.316,
) -> FactorModel:
    """Turn a network into a continual learner's model; `net` itself is copied, not changed.

    `alpha` is the IBP's expected number of factors per task and layer (a number, "auto", or a mapping from
    layer-name or type patterns to numbers); `max_factors` caps the dictionary (None: it grows as needed).
    `heads="shared"` factorises the last layer like any other, `"per-task"` gives each task a dense one.
    `include` and `exclude` choose layers by name or type pattern. Every parameter that is not factorised
    (biases, normalisation, embeddings) becomes the task's own.
    """
    if not isinstance(net, nn.Module):
        raise InputError(f"net is a {type(net).__name__}; factorize takes a torch.nn.Module.")
    if heads not in ("shared", "per-task"):
        raise InputError(f"heads is {heads!r}; choose 'shared' or 'per-task'.")
    if not (strength_std > 0 and math.isfinite(strength_std)):
        raise InputError(f"strength_std is {strength_std}; the spread of the initial r must be above 0.")
    template = copy.deepcopy(net)
    found = _factorisable(template)
    linear = [name for name, module in found.items() if isinstance(module, nn.Linear)]
    _check_patterns("include", [include] if isinstance(include, str) else include or [], found)
    _check_patterns("exclude", [exclude] if isinstance(exclude, str) else exclude or [], found)
    _check_patterns("alpha", alpha if isinstance(alpha, Mapping) else [], found)
    _check_patterns("max_factors", max_factors if isinstance(max_factors, Mapping) else [], found)
    if head is not None and head not in linear:
        raise InputError(f"head is {head!r}; name one of the Linear layers: {', '.join(linear) or 'none'}.")
    if not linear:
        raise InputError("net has no Linear layer to serve as its head; add one as the last layer.")
    head = head or linear[-1]
    chosen = {
        name: module
        for name, module in found.items()
        if (include is None or _matches(name, module, include))
        and not (exclude is not None and _matches(name, module, exclude))
        and not (heads == "per-task" and name == head)
    }
    if not chosen:
        raise InputError(
            f"no layer of net is left to factorise (include={include!r}, exclude={exclude!r}, heads={heads!r}); "
            f"it has {', '.join(found)}."
        )
    for name in [*chosen, head] if heads == "per-task" else chosen:
        _check_layer(template, name)
    layers = {}
    for name, module in chosen.items():
        inputs, outputs = as_matrix(template.get_parameter(f"{name}.weight")).shape
        layer_alpha = _per_layer("alpha", alpha, name, module, automatic_alpha(inputs, outputs))
        cap = _per_layer("max_factors", max_factors, name, module, None)
        if cap is not None and not cap.is_integer():
            raise InputError(
                f"max_factors is {cap}; give a whole number, or None for a dictionary that grows freely."
            )
        layers[name] = Dictionary(inputs, outputs, layer_alpha or 0.0, None if cap is None else int(cap))
    template.requires_grad_(False)
    return FactorModel(template, layers, head, heads, strength_std)
