"""Rows of several tasks in one pass: with one shared dictionary they differ in a few numbers alone.

    y_n = x_n W_0 + ((x_n W_a) ⊙ λ_{t(n)}) W_b + bias_{t(n)}

Beside a frozen base, the product with W_0 is the same for every row, and that with the factors differs by λ. So a
batch of any mixture of tasks costs one pass and not one for each. Normalization and biases, which are each task's
own, are looked up by row; of dense heads each row takes its own. So are tokens and positions that a transformer adds
to those of each row.

A network can be mixed if its first axis is the row in every layer, and if all that its tasks have of their own lies
in Linear layers, convolutions without groups, normalizations, and parameters that are added to rows; for any other
`mixed` gives None. Nothing says what a network does with a parameter of its own: the first answer is compared with
those of the tasks alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.rnn import pad_sequence

from ibpwf.dispatch import reference
from ibpwf.factors.weights import replace_module, sharing
from ibpwf.fast.mixed_layers import MixedFactors, MixedHeads, MixedNorm, NotMixed, on_host, plainly, row_places

if TYPE_CHECKING:
    from ibpwf.factors.dictionary import FactorBlock
    from ibpwf.factors.model import FactorModel


ROWS_OF_A_CALL, NUMBERS_OF_A_CALL = 12, 1_000_000
"""On a CPU another call of a layer takes as long as so many more rows of it, and so many more multiplications."""


@reference
def in_one_pass(net: nn.Module, x: Tensor, places: Tensor) -> Tensor:
    """The same; a GPU may have a shorter way."""
    return plainly(net, x, places)


class MixedNetwork:
    """A network that answers for rows of several `tasks` at once. `alone` gives the outputs of one of them; an answer
    that is `doubtful` is compared with it first."""

    def __init__(
        self, net: nn.Module, tasks: Sequence[int], alone: Callable[[Tensor, int], Tensor], *, doubtful: bool
    ) -> None:
        self.net, self.alone, self.doubtful, self.fits = net, alone, doubtful, True
        self.tasks = tasks
        self._extra: dict[tuple[int, ...], tuple[int, int]] = {}

    def __call__(self, x: Tensor, places: Tensor) -> Tensor | None:
        """Outputs, a row for each of x, of the task that it is of, given by its place among those that are mixed;
        None where layers do not keep to rows."""
        if not self.fits:
            return None
        try:
            out = in_one_pass(self.net, x, places)
        except NotMixed:
            return None
        except RuntimeError:
            if not self.doubtful:
                raise
            self.fits = False
            return None
        if self.doubtful:
            self.fits = self._agrees(x, places, out)
            self.doubtful = False
        return out if self.fits else None

    def dearer(self, x: Tensor, places: Tensor) -> bool:
        """Whether one pass takes more multiplications than the tasks one after another: on a CPU, where rows have so
        many positions each (tokens, pixels) that those of one task keep it busy, and all tasks' factors are many."""
        if not on_host(x) or not self.fits or not len(x):
            return False
        shape = tuple(x.shape[1:])
        if shape not in self._extra:
            try:
                self._extra[shape] = _extra_work(self.net, x[:1], places[:1])
            except (NotMixed, RuntimeError):  # so says the pass itself
                return False
        of_a_row, of_a_task = self._extra[shape]
        return len(x) * of_a_row > len(self.tasks) * of_a_task

    def _agrees(self, x: Tensor, places: Tensor, out: Tensor) -> bool:
        """Whether a row of each task has the answer of its task alone."""
        for place in torch.unique(places).tolist():
            row = int((places == place).nonzero()[0])
            own = self.alone(x[row : row + 1], self.tasks[place])[0]
            if not torch.allclose(out[row, : len(own)], own, rtol=1e-3, atol=1e-4):
                return False
        return True


def _extra_work(net: nn.Module, x: Tensor, places: Tensor) -> tuple[int, int]:
    """Multiplications beyond those with the weights: of a row, by the factors of all tasks in one pass; of a task, by
    a pass of its own."""
    of_a_row = of_a_task = 0
    here = threading.get_ident()

    def count(layer: nn.Module, _: object, y: Tensor) -> None:
        nonlocal of_a_row, of_a_task
        if threading.get_ident() != here:  # another that answers meanwhile
            return
        assert isinstance(layer, MixedFactors)
        a, b, base = layer.a, layer.b, layer.base
        of_a_row += y.numel() // b.shape[1] * (a.numel() + b.numel())
        of_a_task += ROWS_OF_A_CALL * base.numel() + NUMBERS_OF_A_CALL

    handles = [layer.register_forward_hook(count) for layer in net.modules() if isinstance(layer, MixedFactors)]
    try:
        plainly(net, x, places)
    finally:
        for handle in handles:
            handle.remove()
    return of_a_row, of_a_task


def mixed(model: FactorModel, tasks: Sequence[int]) -> MixedNetwork | None:
    """The network of several tasks, or None where what they have of their own cannot be looked up by row."""
    own = [model.tasks[task].own for task in tasks]
    if model.base != "frozen" or any(model.tasks[task].turns > 1 for task in tasks):
        return None
    differ = {name for name, first in own[0].items() if not all(_same(first, other[name]) for other in own[1:])}
    net = sharing(model.net, {name: value for name, value in own[0].items() if name not in differ}).eval()
    stand_ins: dict[str, nn.Module] = {}
    for name in model.layers:
        module = net.get_submodule(name) if model.weights[name].replaceable else None
        if module is None or getattr(module, "groups", 1) != 1:
            return None
        stand_ins[name] = _factors(model, tasks, name, module)
    if model.heads == "per-task":
        if not isinstance(net.get_submodule(model.head), nn.Linear):
            return None
        weights, biases = ([part.get(f"{model.head}.{leaf}") for part in own] for leaf in ("weight", "bias"))
        stand_ins[model.head] = MixedHeads(_all(weights) or [], _all(biases))
    for name, module in net.named_modules():
        prefix = f"{name}."
        norm = isinstance(module, NORMS) or root_mean_square(module)
        if norm and any(key.startswith(prefix) for key in differ):
            stand_ins[name] = _norm(module, [_within(part, prefix) for part in own])
    loose = [key for key in differ if key.rpartition(".")[0] not in stand_ins]
    if not all(_added_to_rows(own[0][key]) for key in loose):
        return None
    for name, stand_in in stand_ins.items():
        replace_module(net, name, stand_in)
    for key in loose:
        _look_up(net, key, torch.stack([part[key] for part in own]))
    return MixedNetwork(net, tasks, model.logits, doubtful=bool(loose))


def _added_to_rows(parameter: Tensor) -> bool:
    """Whether a parameter may be one that is added to every row: a token, or one for every position."""
    return parameter.is_floating_point() and (parameter.ndim == 1 or (parameter.ndim > 1 and parameter.shape[0] == 1))


def _look_up(net: nn.Module, key: str, values: Tensor) -> None:
    """Let a module find each row's own parameter where it had one for all: N×1×C of C, N×… of 1×…. (The module is
    given a class derived from its own, so that threads that answer at the same time see each its own rows.)"""
    owner, _, leaf = key.rpartition(".")
    module = net.get_submodule(owner)
    stacked = values.unsqueeze(1) if values.ndim == 2 else values.squeeze(1)

    def looked_up(_: nn.Module) -> Tensor:
        return stacked.index_select(0, row_places())

    module.__class__ = type(type(module).__name__, (type(module),), {leaf: property(looked_up)})


def _within(own: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in own.items() if key.startswith(prefix)}


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)


def _all(tensors: Sequence[Tensor | None]) -> list[Tensor] | None:
    """All of them, or None where one is missing."""
    found = [tensor for tensor in tensors if tensor is not None]
    return found if len(found) == len(tensors) else None


def read_by_any(model: FactorModel, tasks: Sequence[int], layer: str) -> tuple[FactorBlock, Tensor]:
    """The locked factors that any of these tasks reads in a layer, in stick order, and the strengths r of every task,
    T×F, 0 where it does not read one."""
    known = [model.tasks[task] for task in tasks]
    reads = pad_sequence([task.selected[layer] for task in known], batch_first=True)
    strengths = pad_sequence([task.vectors[layer].strength for task in known], batch_first=True)
    factors = model.layers[layer].chosen(reads.any(0), layer, max(tasks) + 1)
    return factors, strengths.where(reads, 0)[:, factors.positions]


def _factors(model: FactorModel, tasks: Sequence[int], name: str, module: nn.Module) -> MixedFactors:
    """All factors of a layer that any of the tasks reads, in stick order, each once."""
    factors, scores = read_by_any(model, tasks, name)
    base = model.base_weights()[model.weights[name].parameter]
    base = base.t() if model.weights[name].transposed else base
    biases = _all([model.tasks[task].own.get(f"{name}.bias") for task in tasks])
    bias = None if biases is None else torch.stack(biases)
    parts = {"a": factors.a, "b": factors.b, "scores": scores}
    return MixedFactors(module, base, {part: tensor.to(base) for part, tensor in parts.items()}, bias)


NORMS = (nn.LayerNorm, nn.GroupNorm, _BatchNorm)


def root_mean_square(module: nn.Module) -> bool:
    """Whether a module is a normalization by the root of the mean square, torch's or a transformer's own: rows of one
    length times one weight."""
    named = [name for name, _ in module.named_parameters()]
    if not type(module).__name__.endswith("RMSNorm") or named != ["weight"]:
        return False
    weight = module.get_parameter("weight")
    if weight.ndim != 1:
        return False
    x = torch.linspace(-1, 2, weight.numel(), device=weight.device, dtype=weight.dtype).unsqueeze(0)
    with torch.no_grad():
        ones = functional_call(module, {"weight": torch.ones_like(weight)}, (x,))
        halves = functional_call(module, {"weight": torch.full_like(weight, 0.5)}, (x,))
    return torch.equal(halves, ones / 2)  # and not 1 + weight


def _norm(module: nn.Module, own: Sequence[Mapping[str, Tensor]]) -> MixedNorm:
    """Scale and shift of every task; the statistics that batch normalization keeps are a part of them."""
    scales, shifts = [], []
    if not isinstance(module, NORMS):
        module = sharing(module, {"weight": torch.ones_like(module.get_parameter("weight"))})
    for part in own:
        some = next(part[key] for key in ("weight", "running_mean", "bias") if key in part)
        scale = part.get("weight", torch.ones_like(some))
        shift = part.get("bias", torch.zeros_like(some))
        if isinstance(module, _BatchNorm):
            scale = scale / (part["running_var"] + module.eps).sqrt()
            shift = shift - part["running_mean"] * scale
        scales.append(scale)
        shifts.append(shift)
    return MixedNorm(module, torch.stack(scales), torch.stack(shifts))
