"""A network as a continual learner: which layers are factorised, what each task stored, and its weights.

`factorize(net)` reads an ordinary `nn.Module` and never changes it. `FactorModel.start_task` builds a
`TaskNetwork` to train; `finish_task` locks the factors the task selected. A finished task is then nothing
but tensors: `state(task)` composes the plain network's own state dict from them, so prediction runs the
user's network itself, at its own cost, and `merge(task)` hands it back as an ordinary module.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from ibpwf.core.dictionary import Dictionary, FactorBlock
from ibpwf.core.layers import as_matrix, as_weight
from ibpwf.core.learned import FactorUse, LearntTask, Reference
from ibpwf.core.pretrained import LayerFit, fit_of, singular_factors
from ibpwf.core.task_network import TaskNetwork
from ibpwf.core.weights import (
    Weight,
    automatic_alpha,
    check_patterns,
    check_weight,
    factorisable,
    head_choices,
    load_tensors,
    per_layer,
    replace_module,
    resized,
)
from ibpwf.errors import InputError

SILENT = -1e4
"""The bias of an output that a merged task has no class for: it never wins, and its probability is 0."""

REFERENCE = -1
"""Stands for the number of a forgotten first task where composed weights are remembered."""


class FactorModel:
    """A network whose chosen weights are sparse sums of factors from one shared dictionary per layer."""

    def __init__(
        self,
        net: nn.Module,
        layers: Mapping[str, Dictionary],
        weights: Mapping[str, Weight],
        head: str,
        heads: str,
        strength_std: float,
        init: str = "random",
        frozen: Iterable[str] = (),
    ) -> None:
        self.net = net
        self.layers = dict(layers)
        self.weights = dict(weights)
        self.head = head
        self.heads = heads
        self.strength_std = strength_std
        self.init = init
        self.frozen = frozenset(frozen)
        self.tasks: list[LearntTask] = []
        self.reference: Reference | None = None
        self._composed: dict[int, dict[str, Tensor]] = {}
        self._ready: dict[int, nn.Module] = {}
        self._fitted: dict[str, tuple[Tensor, Tensor]] = {}

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.net.parameters()), torch.device("cpu"))

    def to(self, device: torch.device | str) -> FactorModel:
        target = torch.device(device)
        self.net.to(target)
        for dictionary in self.layers.values():
            dictionary.to(target)
        self.tasks = [task.to(target) for task in self.tasks]
        self.reference = None if self.reference is None else self.reference.to(target)
        self.forget_composed()
        return self

    def start_task(
        self, outputs: int, generator: torch.Generator, temperature: float = 2 / 3, kl_terms: int | None = None
    ) -> TaskNetwork:
        """A trainable network for the next task with `outputs` classes."""
        if self.heads == "shared" and outputs > self.head_width:
            raise InputError(
                f"the task has {outputs} classes but the shared head '{self.head}' has {self.head_width} outputs; "
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
            blocks[name] = FactorBlock(layer.free_a.t(), layer.free_b, layer.free_at)
        selected = {name: chosen.clone() for name, chosen in network.selected.items()}
        task = LearntTask(network.outputs, vectors, selected, network.own_state())
        self.add_task(task, blocks)
        self._fitted.clear()  # only the first task starts from them
        return task

    def drop_last_task(self) -> None:
        """Undo `finish_task`, for when what follows it fails."""
        self.tasks.pop()
        for name, dictionary in self.layers.items():
            dictionary.unlock_last(len(self.tasks[-1].vectors[name]) if self.tasks else 0)
        self._composed.pop(len(self.tasks), None)
        self._ready.pop(len(self.tasks), None)

    def forget_composed(self) -> None:
        """Compose every task's weights anew: the tasks' numbers, or the device, have changed."""
        self._composed.clear()
        self._ready.clear()

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

    def reference_state(self) -> dict[str, Tensor]:
        """The first task's state dict, under which φ is read. Once that task is forgotten: what φ needs of it."""
        kept = self.reference
        if kept is None:
            return self.state(0)
        if REFERENCE not in self._composed:
            chosen = {name: self._chosen(name, kept.selected[name], kept.strength[name]) for name in kept.selected}
            self._composed[REFERENCE] = self._composed_of(kept.own, chosen)
        return self._composed[REFERENCE]

    def _compose(self, task: int) -> dict[str, Tensor]:
        chosen = {name: self.selected_factors(task, name) for name in self.layers}
        return self._composed_of(self.tasks[task].own, chosen)

    def _composed_of(
        self, own: Mapping[str, Tensor], chosen: Mapping[str, tuple[FactorBlock, Tensor]]
    ) -> dict[str, Tensor]:
        state = dict(own)
        for name, (factors, strength) in chosen.items():
            weight = as_weight((factors.a * strength) @ factors.b, self._weight(name).shape)
            state[self.weights[name].parameter] = weight.contiguous()
        return state

    def factor_state(self, layer: str) -> dict[str, Tensor]:
        """`reference_state()` in which `layer` gives what each of its selected factors makes of the input,
        λ ⊙ (W_aᵀ x), instead of their sum (eq. W_fac without W_b). Only for a pass that ends with that layer: what
        follows does not fit."""
        module = self.net.get_submodule(layer)
        if layer not in self.layers or not self.weights[layer].replaceable or getattr(module, "groups", 1) != 1:
            raise InputError(
                f"features is 'factors', but '{layer}' is no factorized Linear layer or convolution without "
                "groups; name one in inference_layers, or set features='layer'."
            )
        kept = self.reference
        if kept is None:
            factors, strength = self.selected_factors(0, layer)
        else:
            factors, strength = self._chosen(layer, kept.selected[layer], kept.strength[layer])
        weight = as_weight(factors.a * strength, self._weight(layer).shape).contiguous()
        changed = {self.weights[layer].parameter: weight}
        if getattr(module, "bias", None) is not None:
            changed[f"{layer}.bias"] = weight.new_zeros(len(weight))
        return self.reference_state() | changed

    def thawed(self, net: nn.Module) -> nn.Module:
        """Let every parameter of a copy of the network be trained, but those that the user's has frozen."""
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(parameter.is_floating_point() and name not in self.frozen)
        return net

    def _weight(self, name: str) -> Tensor:
        return self.net.get_parameter(self.weights[name].parameter)

    @property
    def head_width(self) -> int:
        """Outputs of the user's own head."""
        weight = self.net.get_submodule(self.head).weight  # a parameter, or computed where it was excluded
        assert isinstance(weight, Tensor)
        return weight.shape[0]

    def check_head(self, x: Tensor, out: object) -> None:
        """Refuse a head that is not the layer the network's outputs come from, seen by what it gives for `x`."""
        wanted, net = self.head_width, self.net
        if not isinstance(out, Tensor) or out.ndim != 2:
            return  # said elsewhere, in other words
        if out.shape[1] == wanted and self.heads == "per-task":
            wanted += 1
            net = copy.deepcopy(net)
            replace_module(net, self.head, resized(net.get_submodule(self.head), wanted))
            try:
                with torch.no_grad():
                    out = net(x)
            except (RuntimeError, ValueError, IndexError):
                out = None
        if not isinstance(out, Tensor) or out.shape[1] != wanted:
            raise InputError(
                f"head is '{self.head}' with {self.head_width} outputs, but the network's outputs do not come from "
                "it alone; name the layer that gives the class scores: factorize(net, head='...')."
            )

    # Starting from trained weights

    def fitted_factors(self, name: str) -> tuple[Tensor, Tensor]:
        """The factors a layer starts with when `init` is "pretrained": as many as its rank, or the cap, allows."""
        if name not in self._fitted:
            matrix = as_matrix(self._weight(name))
            self._fitted[name] = singular_factors(matrix, self.layers[name].capped(min(matrix.shape)))
        return self._fitted[name]

    def fits(self) -> dict[str, LayerFit]:
        """Per layer: how many factors are fitted to the given weight, its rank, and the relative error left."""
        self._need_pretrained()
        return {name: fit_of(as_matrix(self._weight(name)), *self.fitted_factors(name)) for name in self.layers}

    def fitted_network(self) -> nn.Module:
        """The given network with every factorised weight as its fitted factors give it: where task 1 starts."""
        self._need_pretrained()
        net = copy.deepcopy(self.net).eval()
        for name in self.layers:
            a, b = self.fitted_factors(name)
            shape = self._weight(name).shape
            net.get_parameter(self.weights[name].parameter).copy_(as_weight(a @ b, shape))
        return self.thawed(net)

    def _need_pretrained(self) -> None:
        if self.init != "pretrained":
            raise InputError(f"init is '{self.init}'; only factorize(net, init='pretrained') fits the given weights.")

    # Answering

    def selected_factors(self, task: int, layer: str) -> tuple[FactorBlock, Tensor]:
        """The locked factors a task reads in a layer, in stick order, and their strengths r."""
        learnt = self.tasks[task]
        return self._chosen(layer, learnt.selected[layer], learnt.vectors[layer].strength)

    def _chosen(self, layer: str, selected: Tensor, strength: Tensor) -> tuple[FactorBlock, Tensor]:
        at = selected.nonzero().flatten()
        locked = self.layers[layer].gathered()
        place = torch.searchsorted(locked.positions, at)
        return FactorBlock(locked.a[:, place].contiguous(), locked.b[place].contiguous(), at), strength[at]

    def ready(self, task: int) -> nn.Module:
        """The plain network holding a task's weights: the tensors of `state(task)` themselves, not copies; cached, so
        that an answer costs what the network costs."""
        if task not in self._ready:
            state = self.state(task)
            here = {**dict(self.net.named_buffers()), **dict(self.net.named_parameters())}
            memo: dict[int, object] = {}  # what deepcopy takes for the copy of a tensor
            for name, tensor in here.items():
                value = state.get(name, tensor)
                given = isinstance(tensor, nn.Parameter) and not isinstance(value, nn.Parameter)
                memo[id(tensor)] = nn.Parameter(value, requires_grad=False) if given else value
            self._ready[task] = copy.deepcopy(self.net, memo).eval()
        return self._ready[task]

    def logits(self, x: Tensor, task: int) -> Tensor:
        """The task's outputs, one column per class of the task."""
        task = range(len(self.tasks))[task]
        with torch.no_grad():
            out: Tensor = self.ready(task)(x)
        return out[:, : self.tasks[task].outputs]

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
            state[self.weights[name].parameter] = weight
        return state

    def merge(self, task: int) -> nn.Module:
        """An ordinary network with the task's weights: same class, same layer names, no factors left.

        A shared head keeps its shape, so the state dict loads into the user's own network. Where it has more outputs
        than the task has classes, the merged network answers with the task's alone; in the state dict the others
        have a weight of 0 and, if the head has a bias, one so low that they never win. A dense head per task has
        one output per class of the task.
        """
        learnt = self.tasks[task]
        net = copy.deepcopy(self.net).eval()
        state = dict(self.state(task))
        if self.heads == "per-task" and learnt.outputs != self.head_width:
            replace_module(net, self.head, resized(net.get_submodule(self.head), learnt.outputs))
        elif learnt.outputs != self.head_width:
            for part, empty in (("weight", 0.0), ("bias", SILENT)):
                if f"{self.head}.{part}" in state:
                    rows = state[f"{self.head}.{part}"].clone()
                    rows[learnt.outputs :] = empty
                    state[f"{self.head}.{part}"] = rows
            net.register_forward_hook(FirstOutputs(learnt.outputs))
        load_tensors(net, state)
        return self.thawed(net)

    def use(self, task: int) -> dict[str, FactorUse]:
        """Active, new, reused and total locked factors per layer, as they were when the task ended."""
        table = {}
        task = range(len(self.tasks))[task]
        for name, dictionary in self.layers.items():
            active = int(self.tasks[task].selected[name].sum())
            new = len(dictionary.blocks[task].positions)
            before = dictionary.all_blocks[: len(dictionary.all_blocks) - len(dictionary.blocks) + task + 1]
            total = sum(len(block.positions) for block in before)
            table[name] = FactorUse(active, new, active - new, total)
        return table

    def parameters(self) -> int:
        """Numbers stored: locked factors, and every task's strengths of the factors it reads and own tensors."""
        factors = sum(d.locked * (d.inputs + d.outputs) for d in self.layers.values())
        vectors = sum(int(chosen.sum()) for task in self.tasks for chosen in task.selected.values())
        own = sum(tensor.numel() for task in self.tasks for tensor in task.own.values())
        if self.reference is not None:
            vectors += sum(int(chosen.sum()) for chosen in self.reference.selected.values())
            own += sum(tensor.numel() for tensor in self.reference.own.values())
        return factors + vectors + own


class FirstOutputs:
    """A forward hook: only the first outputs of a network, those its task has classes for."""

    def __init__(self, outputs: int) -> None:
        self.outputs = outputs

    def __call__(self, module: nn.Module, inputs: object, output: Tensor) -> Tensor:
        return output[:, : self.outputs]


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
    init: str = "random",
) -> FactorModel:
    """Turn a network into a continual learner's model; `net` itself is copied, not changed.

    The weights of Linear and convolution layers and the projections of `nn.MultiheadAttention` are factorised;
    `include` and `exclude` choose among them by name or type pattern. Every other parameter and buffer (biases,
    normalisation and its running statistics, embeddings, tokens) becomes the task's own; one that is frozen
    (`requires_grad=False`) stays as it is.
    `alpha` is the IBP's expected number of factors per task and layer (a number, "auto", or a mapping from
    layer-name or type patterns to numbers); `max_factors` caps the dictionary (None: it grows as needed).
    `heads="shared"` factorises the last layer like any other, `"per-task"` gives each task a dense one; `head`
    names that layer where it is not the last Linear one.
    `init="pretrained"` fits the dictionary to the weights of `net` by singular value decomposition, so that the first
    task starts from what `net` computes and each later one from the task before it; `FactorModel.fits` tells the
    error. `"random"` takes nothing from `net` but what is not factorised.
    """
    if not isinstance(net, nn.Module):
        raise InputError(f"net is a {type(net).__name__}; factorize takes a torch.nn.Module.")
    for field, value, choices in (("heads", heads, ("shared", "per-task")), ("init", init, ("random", "pretrained"))):
        if value not in choices:
            raise InputError(f"{field} is {value!r}; choose {' or '.join(map(repr, choices))}.")
    if not (strength_std > 0 and math.isfinite(strength_std)):
        raise InputError(f"strength_std is {strength_std}; the spread of the initial r must be above 0.")
    template = copy.deepcopy(net)
    found = factorisable(template)
    for field, chosen_by in (("include", include), ("exclude", exclude)):
        check_patterns(field, [chosen_by] if isinstance(chosen_by, str) else chosen_by or [], found, template)
    for field, numbers in (("alpha", alpha), ("max_factors", max_factors)):
        check_patterns(field, numbers if isinstance(numbers, Mapping) else [], found, template)
    head = _chosen_head(head, found)
    chosen = {
        name: weight
        for name, weight in found.items()
        if (include is None or weight.matches(include))
        and not (exclude is not None and weight.matches(exclude))
        and not (heads == "per-task" and name == head)
    }
    if not chosen:
        raise InputError(
            f"no layer of net is left to factorise (include={include!r}, exclude={exclude!r}, heads={heads!r}); "
            f"it has {', '.join(found)}."
        )
    for weight in [*chosen.values(), found[head]] if heads == "per-task" else chosen.values():
        check_weight(template, weight)
    layers = {name: _dictionary(template, weight, alpha, max_factors) for name, weight in chosen.items()}
    frozen = [name for name, parameter in template.named_parameters() if not parameter.requires_grad]
    template.requires_grad_(False)
    return FactorModel(template, layers, chosen, head, heads, strength_std, init, frozen)


def _chosen_head(head: str | None, found: Mapping[str, Weight]) -> str:
    choices = head_choices(found)
    if head is not None and head not in choices:
        kind = "Linear" if any(isinstance(found[name].module, nn.Linear) for name in choices) else "convolution"
        raise InputError(f"head is {head!r}; name one of the {kind} layers: {', '.join(choices) or 'none'}.")
    if not choices:
        raise InputError("net has no Linear or convolution layer to serve as its head; add one as the last layer.")
    return head or choices[-1]


def _dictionary(net: nn.Module, weight: Weight, alpha: object, max_factors: object) -> Dictionary:
    """An empty dictionary for a weight, with the settings that the patterns give it."""
    inputs, outputs = as_matrix(net.get_parameter(weight.parameter)).shape
    layer_alpha = per_layer("alpha", alpha, weight, automatic_alpha(inputs, outputs))
    cap = per_layer("max_factors", max_factors, weight, None)
    if cap is not None and not cap.is_integer():
        raise InputError(f"max_factors is {cap}; give a whole number, or None for a dictionary that grows freely.")
    return Dictionary(inputs, outputs, layer_alpha or 0.0, None if cap is None else int(cap))
