"""What ridge regression needs of its rows: of each class a count and a mean, of all a scatter about those means.

Sums of disjoint rows add up, so tasks may come in any order and no row is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from ibpwf.distributed import ALONE, Group
from ibpwf.errors import InputError
from ibpwf.inference import outline
from ibpwf.inference.base import Batch

Precision = Literal["float64", "mixed", "float32"]

LARGEST = 1e150
"""Of a mean or a sum: the product of two such numbers is still one."""

COLUMNS_AT_ONCE = 512
"""Products are made for so many columns at a time, and only from the diagonal up: little more than half of them."""

ROUNDING = 1e-6
"""Share of the sum of squares below which a residual is nothing but rounding errors."""


@dataclass(frozen=True)
class TaskSums:
    """A task's classes: counts C and means C×D in float64; the `whitening` of its outline; `scatter` about the means
    where each task has its own."""

    counts: Tensor
    means: Tensor
    whitening: Tensor
    scatter: Tensor | None = None

    def to(self, device: torch.device) -> TaskSums:
        scatter = None if self.scatter is None else self.scatter.to(device)
        return TaskSums(self.counts.to(device), self.means.to(device), self.whitening.to(device), scatter)


@dataclass(frozen=True)
class RidgeSums:
    """All that is known of the tasks. Never changed: a new task makes a new one. Of a scatter D×D only the diagonal
    and what is above it count."""

    tasks: tuple[TaskSums, ...] = ()
    scatter: Tensor | None = None

    def columns(self) -> list[int]:
        return [len(task.counts) for task in self.tasks]

    def scatters(self) -> list[Tensor]:
        """The matrices whose sum is the scatter of all."""
        each = [self.scatter, *(task.scatter for task in self.tasks)]
        return [scatter for scatter in each if scatter is not None]


def accumulated(
    batches: Iterable[Batch],
    classes: int,
    precision: Precision,
    group: Group = ALONE,
    *,
    every_class: bool = True,
) -> TaskSums:
    """The sums of one task, in memory of its own; unless `every_class` must have rows, some may have none. Products
    are of φ − a, where a is the first batch's mean: no digits are lost to features far from 0. Where processes of a
    `group` have a part of the rows each, all get the sums of all."""
    products = torch.float64 if precision == "float64" else torch.float32
    kept = torch.float32 if precision == "float32" else torch.float64
    shift = second = first = counts = inside = None
    for phi, y in batches:
        if not len(phi):
            continue
        if shift is None or second is None or first is None or counts is None or inside is None:
            size = phi.shape[1]
            straight = outline.directions(size, phi.device)
            inside = torch.zeros(straight.shape[1], straight.shape[1], dtype=torch.float64, device=phi.device)
            shift = phi.double().mean(0)
            second = torch.zeros(size, size, dtype=kept, device=phi.device)
            first = torch.zeros(classes, size, dtype=torch.float64, device=phi.device)
            counts = torch.zeros(classes, dtype=torch.float64, device=phi.device)
        moved = phi.to(products) - shift.to(products)
        add_upper_products(second, moved)
        seen = (moved @ straight.to(moved)).double()
        inside += seen.T @ seen
        one_hot = F.one_hot(y, classes).to(moved)
        first += (one_hot.T @ moved).double()
        counts += one_hot.double().sum(0)
    if not group.alone:
        common = group.from_first(shift, shift is not None, 0 if shift is None else len(shift))
        if common is not None:
            size = len(common)
            straight = outline.directions(size, common.device)
            if shift is None or second is None or first is None or counts is None or inside is None:
                second = torch.zeros(size, size, dtype=kept, device=common.device)
                first, counts = common.new_zeros(classes, size), common.new_zeros(classes)
                inside = common.new_zeros(straight.shape[1], straight.shape[1])
            else:
                first = _about(shift - common, first, counts, second, inside, straight)
            shift = common
            group.add_up([counts, first, inside])
            group.add_up([second])
    missing = "every class of a task needs examples for the router to learn."
    if shift is None or second is None or first is None or counts is None or inside is None:
        raise InputError(missing)
    if every_class and not bool((counts > 0).all()):
        raise InputError(missing)
    if not bool(torch.isfinite(first).all()):
        raise InputError("φ has values that are not finite; look at the inputs, or choose other features.")
    apart = first / counts.clamp(min=1).unsqueeze(1)
    second.addmm_((apart * counts.unsqueeze(1)).T.to(kept), apart.to(kept), alpha=-1)
    seen = apart @ straight.double()
    inside -= seen.T @ (seen * counts.unsqueeze(1))
    return TaskSums(counts, shift + apart, outline.whitening(inside, float(counts.sum())), second)


def _about(off: Tensor, first: Tensor, counts: Tensor, second: Tensor, inside: Tensor, straight: Tensor) -> Tensor:
    """Sums about a point that lies `off` from where they were taken: `second` and `inside` in their place, and the
    first sums."""
    total, rows = first.sum(0), counts.sum()
    for products, offset, sums in (
        (second, off, total),
        (inside, off @ straight.double(), total @ straight.double()),
    ):
        left, right = torch.stack([sums + rows * offset, offset]), torch.stack([offset, sums])
        products.addmm_(left.T.to(products), right.to(products))
    return first + counts.unsqueeze(1) * off


def together(old: TaskSums, new: TaskSums) -> TaskSums:
    """The sums of one task with more rows of it. Its scatter, in the memory of the new ones', is that of the new rows
    and what the means have moved apart, and the old one's where it has its own."""
    assert new.scatter is not None
    counts = old.counts + new.counts
    share = (new.counts / counts).unsqueeze(1)
    apart = new.means - old.means
    weighted = apart * share * old.counts.unsqueeze(1)
    new.scatter.addmm_(weighted.T.to(new.scatter), apart.to(new.scatter))
    if old.scatter is not None:
        new.scatter.add_(old.scatter)
    straight = outline.directions(apart.shape[1], apart.device).double()
    inside = sum(
        (outline.scatter_of(part.whitening, float(part.counts.sum())) for part in (old, new)),
        (weighted @ straight).T @ (apart @ straight),
    )
    whitening = outline.whitening(inside, float(counts.sum()))
    return TaskSums(counts, old.means + apart * share, whitening, new.scatter)


def add_upper_products(total: Tensor, rows: Tensor) -> None:
    """Add rowsᵀ rows, at least its diagonal and what is above."""
    size = total.shape[1]
    for start in range(0, size, COLUMNS_AT_ONCE):
        end = min(start + COLUMNS_AT_ONCE, size)
        part, left, right = total[:end, start:end], rows[:, :end].T, rows[:, start:end]
        if total.dtype == rows.dtype:
            part.addmm_(left, right)
        else:
            part += left @ right


def check_sums(numbers: Tensor) -> None:
    """Refuse numbers whose products are none."""
    if not float(numbers.abs().max()) <= LARGEST:  # nor if any is NaN
        raise ValueError(f"the router's sums hold numbers beyond {LARGEST:g}, or NaN")


def check_squares(own: Tensor, all_in_all: Tensor) -> None:
    """Refuse sums of squares below 0, or a G, whose diagonal is `all_in_all`, with products beyond their type: no
    number of it is larger than the largest on its diagonal."""
    if float(own.min()) < -ROUNDING * float(own.max()):
        raise ValueError(f"the router's sums of squares go down to {float(own.min()):g}")
    if not float(all_in_all.max()) < math.sqrt(torch.finfo(own.dtype).max):
        raise ValueError(f"the router's means and sums go beyond what {own.dtype} can be calculated with")


def packed(matrix: Tensor) -> Tensor:
    """The diagonal of a D×D matrix and what is above it, row after row: D(D + 1)/2 numbers."""
    size = len(matrix)
    flat, start = matrix.new_empty(size * (size + 1) // 2), 0
    for row in range(size):
        flat[start : start + size - row] = matrix[row, row:]
        start += size - row
    return flat


def unpacked(flat: Tensor, size: int) -> Tensor:
    """The inverse of `packed`; what is below the diagonal is 0. What is no such triangle is refused."""
    if flat.dtype not in (torch.float32, torch.float64) or tuple(flat.shape) != (size * (size + 1) // 2,):
        raise ValueError(f"the router's sums are {flat.dtype} {list(flat.shape)}, and there are {size} features")
    check_sums(flat)
    matrix, start = flat.new_zeros(size, size), 0
    for row in range(size):
        matrix[row, row:] = flat[start : start + size - row]
        start += size - row
    return matrix
