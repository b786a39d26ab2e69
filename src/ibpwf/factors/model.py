"""A network as a continual learner: which layers are factorized, what each task stored, and its weights.

`factorize(net)` reads an ordinary `nn.Module` and never changes it. `FactorModel.start_task` builds a
`TaskNetwork` to train; `finish_task` locks the factors the task selected. A finished task is then nothing
but tensors: `state(task)` composes the plain network's own state dict from them, so prediction runs the
user's network itself, at its own cost, and `merge(task)` hands it back as an ordinary module.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from ibpwf.errors import InputError
from ibpwf.factors.compiled import Compiler
from ibpwf.factors.compose import compose
from ibpwf.factors.dictionary import Dictionary, FactorBlock
from ibpwf.factors.learned import (
    FactorUse,
    LearnedTask,
    Reference,
    reference_from_tensors,
    reference_tensors,
    task_from_tensors,
    task_tensors,
)
from ibpwf.factors.merge import merged
from ibpwf.factors.pretrained import LayerFit, fit_of, singular_factors
from ibpwf.factors.prior import Prior
from ibpwf.factors.row_tasks import RowTasks
from ibpwf.factors.task_network import TaskNetwork
from ibpwf.factors.weights import Weight, sharing
from ibpwf.fast.mixed import MixedNetwork, mixed
from ibpwf.packing import Packing, pack_inputs, packing_of, unpack_inputs
from ibpwf.torch_state import depends_on_default, pinned
from ibpwf.views import Views, views_of

TASKS, FORGOTTEN = "tasks", "reference"
"""Where a state dict keeps the tasks, and what φ reads of a forgotten first one."""

MIXTURES = 3
"""Of tasks whose networks are remembered, beside the newest."""

REFERENCE = -1
"""Stands for the number of a forgotten first task where composed weights are remembered."""


class FactorModel(nn.Module):
    """A network whose chosen weights are sparse sums of factors from one shared dictionary per layer.

    `model(x, task=0)` gives a task's outputs. It is a module like any other: it moves with `.to`, its `state_dict`
    holds the template network and every task learned, and `parameters()` are the template's (locked factors are no
    parameters: nothing ever trains them again).
    """

    net: nn.Module
    compiler: Compiler | None = None  # of the networks that tasks train

    def __init__(
        self,
        net: nn.Module,
        layers: Mapping[str, Dictionary],
        weights: Mapping[str, Weight],
        head: str,
        heads: str,
        prior: Prior,
        init: str = "random",
        frozen: Iterable[str] = (),
        base: str = "none",
    ) -> None:
        super().__init__()
        self.net = net
        self.layers = dict(layers)
        self.weights = dict(weights)
        self.head = head
        self.heads = heads
        self.prior = prior
        self.init, self.base = init, base
        self.frozen = frozenset(frozen)
        self.options: dict[str, Any] = {}  # as `factorize` was asked
        self.tasks: list[LearnedTask] = []
        self.reference: Reference | None = None
        self._composed: dict[int, dict[str, Tensor]] = {}
        self._ready: dict[int, nn.Module] = {}
        self._fitted: dict[str, tuple[Tensor, Tensor]] = {}
        self._shells: list[nn.Module] = []
        self._mixed: dict[tuple[int, ...], MixedNetwork | None] = {}
        depends_on_default(*net.modules())

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        depends_on_default(*self.net.modules())

    def __repr__(self) -> str:
        shown = [f"{name} {d.inputs}×{d.outputs}" for name, d in self.layers.items()]
        layers = ", ".join(shown[:6]) + (f", … ({len(shown)} layers)" if len(shown) > 6 else "")
        return f"FactorModel({layers}; heads={self.heads}, {len(self.tasks)} task{'s' * (len(self.tasks) != 1)})"

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.net.parameters()), torch.device("cpu"))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Another device: tasks and locked factors move with the template."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for dictionary in self.layers.values():
            dictionary.apply(fn)
        self.tasks = [task.apply(fn) for task in self.tasks]
        self.reference = None if self.reference is None else self.reference.apply(fn)
        self.forget_composed()
        return self

    def forward(self, x: Tensor | Mapping[str, Tensor], task: int) -> Tensor:
        """The task's outputs, one column per class of the task. Of a network that takes named inputs, x has these."""
        if isinstance(x, Mapping):
            if self.packing is None:
                raise InputError("x has names, and no task has been learned from inputs with names; give one tensor.")
            x = self.packing.pack(x).to(self.device)
        return self.logits(x, task)

    @pinned()
    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for number, task in enumerate(self.tasks):
            blocks = {name: dictionary.blocks[number] for name, dictionary in self.layers.items()}
            for name, tensor in task_tensors(task, blocks).items():
                destination[f"{prefix}{TASKS}.{number}.{name}"] = tensor
        if self.reference is not None:
            kept = {name: dictionary.reference for name, dictionary in self.layers.items()}
            for name, tensor in reference_tensors(self.reference, kept).items():
                destination[f"{prefix}{FORGOTTEN}.{name}"] = tensor

    @pinned()
    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        tasks, forgotten = f"{prefix}{TASKS}.", f"{prefix}{FORGOTTEN}."
        rest = {key: value for key, value in state_dict.items() if not key.startswith((tasks, forgotten))}
        super()._load_from_state_dict(rest, prefix, *args)
        if self.tasks:
            raise InputError("this model has tasks of its own; load a state dict into a freshly factorized network.")

        def within(start: str) -> dict[str, Tensor]:
            found = {key.removeprefix(start): value for key, value in state_dict.items() if key.startswith(start)}
            return {key: value.to(self.device) for key, value in found.items()}

        if reference := within(forgotten):
            self.reference, blocks = reference_from_tensors(reference)
            for name, block in blocks.items():
                self.layers[name].reference = block
        for number in range(len({key.partition(".")[0] for key in within(tasks)})):
            self.add_task(*task_from_tensors(within(f"{tasks}{number}."), self.layers, self.prior.vectors))

    def start_task(
        self,
        outputs: int,
        generator: torch.Generator,
        version_of: LearnedTask | None = None,
    ) -> TaskNetwork:
        """A trainable network for the next task with `outputs` classes; for a new version of a task it begins as that
        task is, and with what is believed of it."""
        if self.heads == "shared" and outputs > self.head_width:
            raise InputError(
                f"the task needs {outputs} outputs, one per class (and per turn of it), but the shared head "
                f"'{self.head}' has {self.head_width} outputs; give the network a wider last layer or use "
                "heads='per-task'."
            )
        before = version_of or (self.tasks[-1] if self.tasks else None)
        previous = {} if before is None else before.vectors
        return TaskNetwork(self, outputs, previous, generator, version_of)

    def finish_task(self, network: TaskNetwork) -> LearnedTask:
        """Lock the factors that `network` selected and store the task's vectors."""
        if network.number != len(self.tasks) + 1:
            raise ValueError(f"a network for task {network.number} cannot finish as task {len(self.tasks) + 1}")
        network.fix_selection()
        vectors, blocks = {}, {}
        for row, (name, layer) in enumerate(network.factor_layers.items()):
            vectors[name] = network.posterior.vectors(row)
            blocks[name] = FactorBlock(layer.free_a.t(), layer.free_b, layer.free_at)
        selected = {name: chosen.clone() for name, chosen in network.selected.items()}
        task = LearnedTask(network.outputs, vectors, selected, network.own_state(), network.turns)
        self.add_task(task, blocks)
        self._fitted.clear()  # only the first task starts from them
        return task

    def fork(self) -> Self:
        """A model that can learn or forget a task while this one stays as it is, and answers whoever asks it. They
        share every tensor."""
        other = copy.copy(self)
        other.layers = {name: dictionary.fork() for name, dictionary in self.layers.items()}
        other.tasks = list(self.tasks)
        other._composed, other._ready, other._fitted = dict(self._composed), dict(self._ready), dict(self._fitted)
        return other

    @contextlib.contextmanager
    def shell(self) -> Iterator[nn.Module]:
        """The network for one caller alone, to hang hooks on and lend weights to; it shares the template's tensors.
        After an error it is not used again: something may still hang on it."""
        try:
            net = self._shells.pop()
        except IndexError:
            net = sharing(self.net, {}).eval()
        yield net
        self._shells.append(net)

    def forget_composed(self) -> None:
        """Compose every task's weights anew: the tasks' numbers, or the device, have changed."""
        self._composed, self._ready, self._shells, self._mixed = {}, {}, [], {}

    def add_task(self, task: LearnedTask, blocks: Mapping[str, FactorBlock]) -> None:
        """Append a finished task: lock its factors, store its vectors."""
        for name, dictionary in self.layers.items():
            dictionary.lock(blocks[name], width=len(task.vectors[name]))
        self.tasks.append(task)

    def add_stored(self, task: LearnedTask, blocks: Mapping[str, FactorBlock]) -> None:
        """`add_task` of one that lies in a folder, which is not read for it; `width` must be set after the last."""
        for name, dictionary in self.layers.items():
            dictionary.blocks.append(blocks[name])
        self.tasks.append(task)

    def state(self, task: int) -> dict[str, Tensor]:
        """The plain network's state dict for a task, weights composed from locked factors only; cached."""
        task = range(len(self.tasks))[task]  # a negative number must not outlive the next task in the cache
        found = self._composed.get(task)
        if found is None:
            found = self._composed[task] = self._compose(task)
        return found

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

    @pinned()
    def _composed_of(
        self, own: Mapping[str, Tensor], chosen: Mapping[str, tuple[FactorBlock, Tensor]]
    ) -> dict[str, Tensor]:
        state = dict(own)
        for name, (factors, strength) in chosen.items():
            state[self.weights[name].parameter] = self._composed_weight(name, factors, strength)
        return state

    def _composed_weight(self, name: str, factors: FactorBlock, scores: Tensor) -> Tensor:
        """A layer's weight from the factors it reads, beside the base where there is one: W_0 + W_a diag(λ) W_b."""
        base = self._weight(name)
        weight = self.weights[name].shaped(compose(factors.a, scores, factors.b), base.shape)
        return (base + weight if self.base == "frozen" else weight).contiguous()

    def factor_state(self, layer: str) -> dict[str, Tensor]:
        """`reference_state()` in which `layer` gives what each of its selected factors makes of the input,
        λ ⊙ (W_aᵀ x), instead of their sum (eq. W_fac without W_b). Only for a pass that ends with that layer: what
        follows does not fit."""
        module = self.net.get_submodule(layer)
        if layer not in self.layers or not self.weights[layer].replaceable or getattr(module, "groups", 1) != 1:
            raise InputError(
                f"features is 'factors', but '{layer}' is no factorized Linear layer or convolution without "
                "groups; name one in inference.features.layers, or use features of kind 'layer'."
            )
        kept = self.reference
        if kept is None:
            factors, strength = self.selected_factors(0, layer)
        else:
            factors, strength = self._chosen(layer, kept.selected[layer], kept.strength[layer])
        weight = self.weights[layer].shaped(factors.a * strength, self._weight(layer).shape).contiguous()
        changed = {self.weights[layer].parameter: weight}
        if getattr(module, "bias", None) is not None:
            changed[f"{layer}.bias"] = weight.new_zeros(len(strength))
        return self.reference_state() | changed

    def thawed(self, net: nn.Module) -> nn.Module:
        """Let every parameter of a copy of the network be trained, but those that the user's has frozen."""
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(parameter.is_floating_point() and name not in self.frozen)
        return net

    def base_weights(self) -> dict[str, Tensor]:
        """W_0 of every factorized layer by its parameter's name, and what else no task changes; none where there is
        no base."""
        if self.base != "frozen":
            return {}
        return {self.weights[name].parameter: self._weight(name) for name in self.layers} | self.fixed_tensors()

    def fixed_tensors(self) -> dict[str, Tensor]:
        """Frozen parameters that are neither factorized nor a task's dense head: every task has the template's."""
        factorized = {self.weights[name].parameter for name in self.layers}
        head = (f"{self.head}.",) if self.heads == "per-task" else ()
        fixed = [name for name in self.frozen if name not in factorized and not name.startswith(head)]
        return {name: self.net.get_parameter(name).detach() for name in sorted(fixed)}

    def matrix(self, name: str) -> Tensor:
        """A layer's weight in the given network, as the paper's matrix J×M."""
        return self.weights[name].matrix(self._weight(name))

    def _weight(self, name: str) -> Tensor:
        return self.net.get_parameter(self.weights[name].parameter)

    @property
    def packing(self) -> Packing | None:
        """How named inputs become the one tensor that everything here takes."""
        return packing_of(self.net)

    def take_packing(self, packing: Packing) -> None:
        """Take inputs that are packed so from now on; of a model that no task has been learned with yet. Forks keep
        the network that they have."""
        net = sharing(self.net, {})
        unpack_inputs(net)
        pack_inputs(net, packing)
        self._modules = {**self._modules, "net": net}
        self.forget_composed()

    @property
    def head_width(self) -> int:
        """Outputs of the user's own head."""
        weight = self.net.get_submodule(self.head).weight  # a parameter, or computed where it was excluded
        assert isinstance(weight, Tensor)
        return weight.shape[0]

    # Starting from trained weights

    @pinned()
    def fitted_factors(self, name: str) -> tuple[Tensor, Tensor]:
        """The factors a layer starts with when `init` is "pretrained": as many as its rank, or the cap, allows."""
        if name not in self._fitted:
            matrix = self.matrix(name)
            count = self.prior.capped(self.layers[name].shape, min(matrix.shape), self.layers[name].locked)
            self._fitted[name] = singular_factors(matrix, count)
        return self._fitted[name]

    @pinned()
    def fits(self) -> dict[str, LayerFit]:
        """Per layer: how many factors are fitted to the given weight, its rank, and the relative error left."""
        self._need_pretrained()
        return {name: fit_of(self.matrix(name), *self.fitted_factors(name)) for name in self.layers}

    @pinned()
    def fitted_network(self) -> nn.Module:
        """The given network with every factorized weight as its fitted factors give it: where task 1 starts."""
        self._need_pretrained()
        net = copy.deepcopy(self.net).eval()
        for name in self.layers:
            a, b = self.fitted_factors(name)
            shape = self._weight(name).shape
            weight = self.weights[name].shaped(compose(a, a.new_ones(a.shape[1]), b), shape)
            net.get_parameter(self.weights[name].parameter).copy_(weight)
        return self.thawed(net)

    def _need_pretrained(self) -> None:
        if self.init == "random":
            raise InputError(f"init is '{self.init}'; only factorize(net, init='pretrained') fits the given weights.")

    # Answering

    def selected_factors(self, task: int, layer: str) -> tuple[FactorBlock, Tensor]:
        """The locked factors a task reads in a layer, in stick order, and their strengths r."""
        task = range(len(self.tasks))[task]
        learned = self.tasks[task]
        return self._chosen(layer, learned.selected[layer], learned.vectors[layer].strength, task + 1)

    def _chosen(
        self, layer: str, selected: Tensor, strength: Tensor, tasks: int | None = None
    ) -> tuple[FactorBlock, Tensor]:
        factors = self.layers[layer].chosen(selected, layer, tasks)
        return factors, strength[factors.positions]

    def ready(self, task: int) -> nn.Module:
        """The plain network holding a task's weights: the tensors of `state(task)` themselves, not copies; cached, so
        that an answer costs what the network costs."""
        if task not in self._ready:
            net = self._ready[task] = sharing(self.net, self.state(task)).eval()
            return net
        return self._ready[task]

    @pinned()
    def logits(self, x: Tensor, task: int, views: Views | None = None) -> Tensor:
        """The task's outputs, one column per class of the task: the mean over `views`, which are by default all the
        turns that a task was learned with (see `views`)."""
        task = range(len(self.tasks))[task]
        learned = self.tasks[task]
        return (views or views_of(learned.turns)).scores(self.ready(task), x, learned.classes)

    @pinned()
    def mixed_logits(self, x: Tensor, tasks: Tensor | RowTasks, *, if_cheaper: bool = False) -> Tensor | None:
        """Outputs for rows of several tasks in one pass (`fast.mixed`), as many columns as the largest of them has
        classes, of which a row's own come first; None where that cannot be had, or with `if_cheaper` where the tasks
        one after another take less."""
        of = tasks if isinstance(tasks, RowTasks) else RowTasks.of(tasks)
        key = of.numbers
        if key not in self._mixed:
            self._mixed = {**dict(list(self._mixed.items())[-MIXTURES:]), key: mixed(self, key)}
        network = self._mixed[key]
        if network is None or (if_cheaper and network.dearer(x, of.place)):
            return None
        return network(x, of.place)

    @pinned()
    def sampled_states(self, task: int, posterior_samples: int, generator: torch.Generator) -> dict[str, Tensor]:
        """`posterior_samples` posterior samples of the task's weights, stacked: b_k ~ Bernoulli(π̄_k) over the factors
        the task selected (appendix E). Parameters that are not sampled are repeated without a copy."""
        learned = self.tasks[task]
        state = {name: tensor.expand(posterior_samples, *tensor.shape) for name, tensor in learned.own.items()}
        for name in self.layers:
            factors, strength = self.selected_factors(task, name)
            probability = self.prior.logit(learned.vectors[name])[factors.positions].sigmoid()
            noise = torch.rand(
                posterior_samples,
                len(probability),
                generator=generator,
                device=probability.device,
                dtype=torch.float32,
            )
            scores = strength * (noise < probability)
            state[self.weights[name].parameter] = self._composed_weight(name, factors, scores)
        return state

    @pinned()
    def merge(self, task: int) -> nn.Module:
        """An ordinary network with the task's weights: same class, same layer names, no factors left.

        A shared head keeps its shape, so the state dict loads into the user's own network. Where it has more outputs
        than the task has classes, the merged network answers with the task's alone; in the state dict the others
        have a weight of 0 and, if the head has a bias, one so low that they never win. A dense head per task has
        one output per class of the task. Of a task learned with turns, these are the outputs for unturned images.
        """
        return merged(self, task)

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

    def stored_numbers(self) -> dict[str, int]:
        """How many numbers are kept, by kind: locked factors, every task's strengths of the factors it reads, and its
        own tensors."""
        factors = sum(d.locked * (d.inputs + d.outputs) for d in self.layers.values())
        kept: list[LearnedTask | Reference] = [*self.tasks]
        if self.reference is not None:
            kept.append(self.reference)
        strengths = sum(int(chosen.sum()) for each in kept for chosen in each.selected.values())
        fixed = self.fixed_tensors()
        own = sum(tensor.numel() for each in kept for name, tensor in each.own.items() if name not in fixed)
        return {"factors": factors, "strengths": strengths, "own": own}
