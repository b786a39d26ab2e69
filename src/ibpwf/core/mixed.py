"""Rows of several tasks in one pass: with one shared dictionary they differ in a few numbers alone.

    y_n = x_n W_0 + ((x_n W_a) ⊙ λ_{t(n)}) W_b + bias_{t(n)}

Beside a frozen base, the product with W_0 is the same for every row, and that with the factors differs by λ. So a
batch of any mixture of tasks costs one pass and not one for each. Normalization and biases, which are each task's
own, are looked up by row; of dense heads all are asked, and each row takes its own. So are tokens and positions that
a transformer adds to those of each row.

A network can be mixed if its first axis is the row in every layer, and if all that its tasks have of their own lies
in Linear layers, convolutions without groups, normalizations, and parameters that are added to rows; for any other
`mixed` gives None. Nothing says what a network does with a parameter of its own: the first answer is compared with
those of the tasks alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils.rnn import pad_sequence

from ibpwf.core.reference import reference
from ibpwf.core.weights import replace_module, sharing

if TYPE_CHECKING:
    from ibpwf.core.dictionary import FactorBlock
    from ibpwf.core.model import FactorModel

_PLACES: ContextVar[Tensor] = ContextVar("places")
"""Of each row of the batch that is looked at, its task's place among those that are mixed; a thread has its own."""

_ROWS: ContextVar[Mapping[int, Tensor] | None] = ContextVar("rows", default=None)
"""What `by_row` would look up, where it is looked up already, by the identity of the values."""


@dataclass(frozen=True)
class RowTasks:
    """Of which tasks rows are: the tasks' `numbers`, and of every row the `place` of its own among them. All of it is
    on the host, which decides by it what to run: to ask a GPU about a few numbers takes longer than the numbers."""

    numbers: tuple[int, ...]
    place: Tensor

    @classmethod
    def of(cls, tasks: Tensor) -> RowTasks:
        """Of every row the number of its task, which is none below 0."""
        given = tasks.cpu().numpy()
        numbers = np.flatnonzero(np.bincount(given))
        places = np.zeros(int(numbers[-1]) + 1 if len(numbers) else 0, np.int64)
        places[numbers] = np.arange(len(numbers))
        return cls(tuple(numbers.tolist()), torch.from_numpy(places[given]))

    def __len__(self) -> int:
        return len(self.place)

    @property
    def tasks(self) -> Tensor:
        return torch.tensor(self.numbers, dtype=torch.long)[self.place]

    def called(self, numbers: Sequence[int]) -> RowTasks:
        """The same rows, where the tasks have other numbers."""
        return replace(self, numbers=tuple(numbers[number] for number in self.numbers))

    def split(self, rows: int) -> list[RowTasks]:
        """So many rows at a time."""
        return [self] if len(self) <= rows else [RowTasks.of(part) for part in torch.split(self.tasks, rows)]


ROWS_OF_A_CALL, NUMBERS_OF_A_CALL = 12, 1_000_000
"""On a CPU another call of a layer takes as long as so many more rows of it, and so many more multiplications."""


class NotMixed(Exception):
    """A layer does not have the rows of the batch on its first axis."""


def by_row(values: Tensor, x: Tensor, axis: int) -> Tensor:
    """Of values T×C each row's own, as they multiply x: C on `axis`, and 1 elsewhere."""
    places = _PLACES.get()
    if len(x) != len(places):
        raise NotMixed
    shape = [len(x)] + [1] * (x.ndim - 1)
    shape[axis] = values.shape[1]
    looked_up = (_ROWS.get() or {}).get(id(values))
    return (values.index_select(0, places) if looked_up is None else looked_up).view(shape)


class MixedFactors(nn.Module):
    """A Linear layer or convolution of several tasks: `a` (J×F) and `b` (F×M) are all factors that any of them reads,
    `scores` (T×F) their λ, `bias` T×M."""

    bias: Tensor | None

    def __init__(self, original: nn.Module, base: Tensor, factors: Mapping[str, Tensor], bias: Tensor | None) -> None:
        super().__init__()
        self.register_buffer("base", base, persistent=False)
        for name, tensor in factors.items():
            self.register_buffer(name, tensor, persistent=False)
        self.register_buffer("bias", bias, persistent=False)
        self.original = (original,)  # not a module of ours

    def __getattr__(self, name: str) -> Any:
        """What else a network asks its layer for (its weight's type, `in_features`) is the original's."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "original" not in self.__dict__:
                raise
            return getattr(self.original[0], name)

    def forward(self, x: Tensor) -> Tensor:
        original = self.original[0]
        if isinstance(original, _ConvNd):
            return self._convolved(x, original)
        a, b, scores, base = (self.get_buffer(name) for name in ("a", "b", "scores", "base"))
        rows = x.reshape(-1, x.shape[-1])
        y = rows @ base.t()
        if a.shape[1]:
            h = rows @ a
            h.view(*x.shape[:-1], -1).mul_(by_row(scores, x, x.ndim - 1))
            y.addmm_(h, b)  # in place: a pass over memory costs as much as the product of a few factors
        y = y.view(*x.shape[:-1], y.shape[-1])
        return y if self.bias is None else y.add_(by_row(self.bias, y, x.ndim - 1))

    def _convolved(self, x: Tensor, original: _ConvNd) -> Tensor:
        a, b, scores, base = (self.get_buffer(name) for name in ("a", "b", "scores", "base"))
        y: Tensor = original._conv_forward(x, base, None)
        if a.shape[1]:
            h = original._conv_forward(x, a.t().reshape(-1, *base.shape[1:]), None)
            h.mul_(by_row(scores, h, 1))
            y.add_((h.movedim(1, -1) @ b).movedim(-1, 1))
        return y if self.bias is None else y.add_(by_row(self.bias, y, 1))


class MixedHeads(nn.Module):
    """Dense heads of several tasks, side by side: row n takes the columns of its own, filled up where it has fewer
    classes than others."""

    bias: Tensor | None

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor] | None) -> None:
        super().__init__()
        self.register_buffer("weight", torch.cat(list(weights)), persistent=False)
        self.register_buffer("bias", None if biases is None else torch.cat(list(biases)), persistent=False)
        widest, first, columns = max(map(len, weights)), 0, []
        for weight in weights:
            columns.append([first + min(place, len(weight) - 1) for place in range(widest)])
            first += len(weight)
        self.register_buffer("columns", torch.tensor(columns, device=weights[0].device), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        places = _PLACES.get()
        if len(x) != len(places) or x.ndim != 2:
            raise NotMixed
        every = F.linear(x, self.get_buffer("weight"), self.bias)
        return every.gather(1, self.get_buffer("columns").index_select(0, places))


class MixedNorm(nn.Module):
    """A normalization of several tasks: as the original without its own numbers, then `scale` and `shift`, T×C each,
    on the axis of channels."""

    def __init__(self, original: nn.Module, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.original = (original,)
        self.register_buffer("scale", scale, persistent=False)
        self.register_buffer("shift", shift, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        norm = self.original[0]
        axis = 1 if isinstance(norm, (nn.GroupNorm, _BatchNorm)) else x.ndim - 1
        if isinstance(norm, nn.LayerNorm):
            x = F.layer_norm(x, norm.normalized_shape, None, None, norm.eps)
        elif isinstance(norm, nn.GroupNorm):
            x = F.group_norm(x, norm.num_groups, None, None, norm.eps)
        elif not isinstance(norm, _BatchNorm):
            x = norm(x)  # with a weight of 1
        shift, scale = (by_row(self.get_buffer(part), x, axis) for part in ("shift", "scale"))
        return torch.addcmul(shift, x, scale)


def plainly(net: nn.Module, x: Tensor, places: Tensor, rows: Mapping[int, Tensor] | None = None) -> Tensor:
    """What a network of several tasks gives for rows whose tasks are in these places; `rows` has the values of some
    of its tables by row, by the identity of the table."""
    token, looked_up = _PLACES.set(places.to(x.device)), _ROWS.set(rows)
    try:
        with torch.no_grad():
            out: Tensor = net(x)
            return out
    finally:
        _ROWS.reset(looked_up)
        _PLACES.reset(token)


def tables(net: nn.Module) -> list[Tensor]:
    """All values of a network of several tasks that are looked up by row, T×C each."""
    found = []
    for module in net.modules():
        if isinstance(module, MixedFactors):
            found += [table for table in (module.get_buffer("scores"), module.bias) if table is not None]
        elif isinstance(module, MixedNorm):
            found += [module.get_buffer("scale"), module.get_buffer("shift")]
    return found


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
        if x.device.type != "cpu" or not self.fits or not len(x):
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
        a, b, base = (layer.get_buffer(name) for name in ("a", "b", "base"))
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
        return stacked.index_select(0, _PLACES.get())

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
