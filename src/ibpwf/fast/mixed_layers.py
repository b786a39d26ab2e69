"""Layers of several tasks: each row of a batch with its own task's factors, head, scale and shift (`fast.mixed`).

A CPU sees rows in the order of their tasks. What tasks do not read is left out of the products then: earlier tasks
have fewer factors than later ones, and a row has one head. A GPU has done all of it before it would know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

_PLACES: ContextVar[Tensor] = ContextVar("places")
"""What `row_places` gives; a thread has its own."""

_ROWS: ContextVar[Mapping[int, Tensor] | None] = ContextVar("rows", default=None)
"""What `by_row` would look up, where it is looked up already, by the identity of the values."""

STEPS, ROWS_OF_A_STEP = 4, 32
"""On a CPU the factors are gone through in so many steps at most, of so many rows each at least."""
HEADS_FOR_ONE = 4
"""On a CPU rows have their own heads alone where that saves all but one product in so many."""


def row_places() -> Tensor:
    """Of each row of the batch that is looked at, its task's place among those that are mixed."""
    return _PLACES.get()


def on_host(x: Tensor) -> bool:
    """Whether a CPU calculates."""
    return x.device.type == "cpu"


def in_order(x: Tensor) -> bool:
    """Whether rows are in the order of their tasks, and what is looked up by row is nobody else's."""
    return on_host(x) and _ROWS.get() is None


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

    a: Tensor
    b: Tensor
    scores: Tensor
    base: Tensor
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
        base, rows = self.base, x.reshape(-1, x.shape[-1])
        added = None if self.bias is None else by_row(self.bias, x, x.ndim - 1)
        last = added is not None and in_order(x)  # the base: a pass over memory costs as much as a few factors
        if added is None or not last:
            y = rows @ base.t()
        else:
            y = added if x.ndim == 2 else added.expand(*x.shape[:-1], -1).clone(memory_format=torch.contiguous_format)
            y = y.reshape(len(rows), -1)
        if self.a.shape[1]:
            self._add_factors(y, rows, x)
        y = (y.addmm_(rows, base.t()) if last else y).view(*x.shape[:-1], y.shape[-1])
        return y if added is None or last else y.add_(added)

    def _add_factors(self, y: Tensor, rows: Tensor, x: Tensor) -> None:
        """((x W_a) ⊙ λ) W_b. On a CPU, where rows are in the order of tasks, some at a time with the factors that
        their tasks reach: earlier ones read fewer."""
        a, b, scores = self.a, self.b, self.scores
        own = by_row(scores, x, x.ndim - 1)
        positions = len(rows) // len(x)
        for start, end, count in self._steps(len(x), positions) if in_order(x) else [(0, len(x), a.shape[1])]:
            some = slice(start * positions, end * positions)
            h = rows[some] @ a[:, :count]
            h.view(end - start, *x.shape[1:-1], count).mul_(own[start:end, ..., :count])
            y[some].addmm_(h, b[:count])

    @cached_property
    def reach(self) -> list[int]:
        """Of every task, how many factors there are up to the last that it reads."""
        read = self.scores != 0
        found: list[int] = (read * torch.arange(1, read.shape[1] + 1)).amax(1).tolist()
        return found

    def _steps(self, rows: int, positions: int) -> Iterator[tuple[int, int, int]]:
        """From which row to which, and how many of the factors any of them reads."""
        places, steps = _PLACES.get().numpy(), max(1, min(STEPS, rows * positions // ROWS_OF_A_STEP))
        for start, end in pairwise(rows * step // steps for step in range(steps + 1)):
            if start < end:
                yield start, end, max(self.reach[places[start] : places[end - 1] + 1])

    def _convolved(self, x: Tensor, original: _ConvNd) -> Tensor:
        a, b, scores, base = self.a, self.b, self.scores, self.base
        y: Tensor = original._conv_forward(x, base, None)
        if a.shape[1]:
            h = original._conv_forward(x, a.t().reshape(-1, *base.shape[1:]), None)
            h.mul_(by_row(scores, h, 1))
            y.add_((h.movedim(1, -1) @ b).movedim(-1, 1))
        return y if self.bias is None else y.add_(by_row(self.bias, y, 1))


class MixedHeads(nn.Module):
    """Dense heads of several tasks, side by side: row n takes the columns of its own, filled up where it has fewer
    classes than others."""

    weight: Tensor
    bias: Tensor | None
    columns: Tensor

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
        weight, columns = self.weight, self.columns
        if in_order(x) and len(weight) == columns.numel():
            found = self._by_task(x, places, weight.view(*columns.shape, -1))
            if found is not None:
                return found
        every = F.linear(x, weight, self.bias)
        return every.gather(1, columns.index_select(0, places))

    def _by_task(self, x: Tensor, places: Tensor, weights: Tensor) -> Tensor | None:
        """Each row with its own head T×C×J alone, as many rows of every task as the one with most has; None where
        that is not far less than all rows with all heads."""
        tasks, classes, _ = weights.shape
        counts = np.bincount(places.numpy(), minlength=tasks)
        most = int(counts.max())
        if HEADS_FOR_ONE * most > len(x):
            return None
        biases = None if self.bias is None else self.bias.view(tasks, classes).index_select(0, places)
        if tasks * most == len(x):
            scores = torch.bmm(x.reshape(tasks, most, -1), weights.mT).view(-1, classes)
        else:
            skipped = torch.from_numpy(np.arange(tasks) * most - (counts.cumsum() - counts))
            where = torch.arange(len(x)) + skipped.index_select(0, places)
            rows = x.new_zeros(tasks * most, x.shape[1]).index_copy_(0, where, x)
            scores = torch.bmm(rows.view(tasks, most, -1), weights.mT).view(-1, classes).index_select(0, where)
        return scores if biases is None else scores.add_(biases)


class MixedNorm(nn.Module):
    """A normalization of several tasks: as the original without its own numbers, then `scale` and `shift`, T×C each,
    on the axis of channels."""

    scale: Tensor
    shift: Tensor

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
        shift, scale = (by_row(part, x, axis) for part in (self.shift, self.scale))
        return torch.addcmul(shift, x, scale)


def plainly(net: nn.Module, x: Tensor, places: Tensor, rows: Mapping[int, Tensor] | None = None) -> Tensor:
    """What a network of several tasks gives for rows whose tasks are in these places; `rows` has the values of some
    of its tables by row, by the identity of the table. Without these, on a CPU, layers see rows in the order of their
    tasks."""
    order = None
    if on_host(x) and rows is None:
        order = torch.from_numpy(np.argsort(places.numpy(), kind="stable"))
        x, places = x.index_select(0, order), places.index_select(0, order)
    token, looked_up = _PLACES.set(places.to(x.device)), _ROWS.set(rows)
    try:
        with torch.no_grad():
            out: Tensor = net(x)
        if order is None:
            return out
        if len(out) != len(order):
            raise NotMixed
        return torch.empty_like(out).index_copy_(0, order, out)
    finally:
        _ROWS.reset(looked_up)
        _PLACES.reset(token)


def tables(net: nn.Module) -> list[Tensor]:
    """All values of a network of several tasks that are looked up by row, T×C each."""
    found = []
    for module in net.modules():
        if isinstance(module, MixedFactors):
            found += [table for table in (module.scores, module.bias) if table is not None]
        elif isinstance(module, MixedNorm):
            found += [module.scale, module.shift]
    return found
