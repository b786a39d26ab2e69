"""Which task and class? Ridge regression on the classes of all tasks, solved for from running sums.

    W = (G + λI)⁻¹ B,   f(φ) = ȳ + Wᵀ(φ − μ),   G = Σ_c S_c + Σ_c n_c (μ_c − μ)(μ_c − μ)ᵀ,   B = [n_c (μ_c − μ)]

A column c is a class of a task. Of each its count n_c and mean μ_c are kept; of all together, the scatter S_c about
those means, added up. A new task only adds to them, so f is what ridge regression with an intercept on all rows at
once would give, whatever the order of tasks and rows. No row is kept.

The target of a column is 1 for rows of that class in that task and 0 for all others (one-hot minus a constant, which
the intercept takes up). A class that returns in a later task has a column in both. f is linear in the targets, so the
sum of the columns that mean the same label is exactly what regression on the labels would have given.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from ibpwf.errors import InputError
from ibpwf.inference import outline
from ibpwf.inference.base import Batch, State, TaskInference

Precision = Literal["float64", "mixed", "float32"]

LARGEST = 1e150
"""Of a mean or a sum: the product of two such numbers is still one."""

COLUMNS_AT_ONCE = 512
"""Products are made for so many columns at a time, and only from the diagonal up: little more than half of them."""

PROBES = 64
"""Random vectors by which the trace of an inverse is estimated; its error is some thousandths."""

SHARPNESS = 10.0
"""By which f is multiplied to be log P(class | φ). On held-out training images the likelihood was largest at 12 to 15
for MNIST, 8 for Fashion-MNIST and 10 for CIFAR-10."""

CAUTION = 1.05
"""Times which a degree of freedom is counted: without it generalized cross-validation now and then finds next to no
ridge best, where there are about as many rows as features, or where rows are much alike, as mirror images are. On
held-out training images this was as good as 1 where that was good, and better where it was not."""

ROUNDING = 1e-6
"""Share of the sum of squares below which a residual is nothing but rounding errors."""

DECADES = tuple(10.0**power for power in range(-5, 1))


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


@dataclass(frozen=True)
class RidgeSolution:
    """f(φ) = φW + `intercept`; `ridge` is λ relative to the mean of G's diagonal."""

    sums: RidgeSums
    weight: Tensor
    intercept: Tensor
    ridge: float

    def scores(self, phi: Tensor) -> Tensor:
        return phi.to(self.weight) @ self.weight + self.intercept


class RidgeRouter(TaskInference):
    """P(t | φ(x)) from ridge regression on the classes of all tasks.

    `ridge` is λ relative to the mean of G's diagonal; "auto" has the smallest error in generalized cross-validation
    (Golub, Heath and Wahba, 1979), leave-one-out with the mean leverage, which is known from the sums alone: it needs
    no rows, and does not depend on their order. A degree of freedom counts `CAUTION` times.

    `precision` is that of sums and products: float64; "mixed", float32 products added up in float64, for a GPU whose
    float64 is slow; "float32" for both, half the memory, for φ of some ten thousand features. Features should then
    be standardized.

    With `keep_sums_per_task` a task can be forgotten; every task then keeps a matrix of D(D + 1)/2 numbers, where
    otherwise there is one for all.
    """

    def __init__(
        self,
        ridge: float | Literal["auto"] = "auto",
        *,
        precision: Precision = "float64",
        keep_sums_per_task: bool = False,
    ) -> None:
        if ridge != "auto" and not ridge > 0:
            raise InputError(f"ridge is {ridge}; it must be above 0, or 'auto'.")
        self.ridge, self.precision, self.keep_sums_per_task = ridge, precision, keep_sums_per_task
        self._sums = RidgeSums()
        self._solution: RidgeSolution | None = None

    @property
    def tasks(self) -> int:
        return len(self._sums.tasks)

    @property
    def width(self) -> int | None:
        """How many features φ has; None before the first task."""
        return self._sums.tasks[0].means.shape[1] if self._sums.tasks else None

    @property
    def bytes(self) -> int:
        """What is stored: a matrix of D(D + 1)/2 numbers for all tasks or for each, a mean for each class, and an
        outline of each task."""
        numbers = [(len(matrix) * (len(matrix) + 1) // 2, matrix.element_size()) for matrix in self._sums.scatters()]
        own = sum(task.means.nbytes + task.whitening.nbytes for task in self._sums.tasks)
        return sum(count * size for count, size in numbers) + own

    def learn(self, task: int, batches: Iterable[Batch], classes: int) -> None:
        """Add a task to the sums. Until it is whole, nothing is changed."""
        sums = self._sums
        new = self._accumulated(batches, classes)
        assert new.scatter is not None
        if sums.tasks and sums.tasks[0].means.shape[1] != new.means.shape[1]:
            raise InputError(
                f"φ has {new.means.shape[1]} features, but {sums.tasks[0].means.shape[1]} in the tasks before; "
                "features must not change between tasks."
            )
        if self.keep_sums_per_task:
            self._sums = RidgeSums((*sums.tasks, new), sums.scatter)
        else:
            if sums.scatter is not None:
                new.scatter.add_(sums.scatter)  # nobody else has the new one
            self._sums = RidgeSums((*sums.tasks, replace(new, scatter=None)), new.scatter)

    def class_scores(self, phi: Tensor) -> Tensor:
        """f(φ): about how probable each class is, but not between 0 and 1. N×ΣC, tasks in order and their classes in
        order."""
        return self.solution().scores(phi)

    def class_log_scores(self, phi: Tensor) -> Tensor:
        return self.class_scores(phi).double() * SHARPNESS

    def class_levels(self) -> Tensor:
        """What `class_log_scores` are on average for the rows of each class that were learned from, ΣC: f is linear,
        so it is that of their mean."""
        solution = self.solution()
        means = torch.cat([task.means for task in solution.sums.tasks])
        return solution.scores(means).diagonal().double() * SHARPNESS

    def log_scores(self, phi: Tensor) -> Tensor:
        """log P(t | φ) up to a constant, N×T: a task is as good as its best class."""
        solution = self.solution()
        parts = torch.split(solution.scores(phi) * SHARPNESS, solution.sums.columns(), 1)
        return torch.stack([part.amax(1) for part in parts], 1)

    def distances(self, phi: Tensor) -> Tensor:
        """How far rows lie from the nearest class of each task, N×T (see `outline`). What is learned later changes
        nothing of it."""
        return torch.stack([outline.distances(phi, task.means, task.whitening) for task in self._sums.tasks], 1)

    def columns(self) -> list[int]:
        """How many classes each task has."""
        return self._sums.columns()

    def forget(self, task: int) -> None:
        tasks = self._sums.tasks
        if not 0 <= task < len(tasks):
            return
        if tasks[task].scatter is None and len(tasks) > 1:
            raise InputError(
                "the router keeps one sum for all tasks, from which none can be taken away; to be able to forget a "
                "task, learn all of them with keep_sums_per_task=True, which keeps one matrix for each."
            )
        rest = tasks[:task] + tasks[task + 1 :]
        self._sums = RidgeSums(rest, self._sums.scatter if rest else None)

    def solution(self) -> RidgeSolution:
        """Solved for once after every change. Whoever comes first publishes it whole, so that any number of threads
        may ask."""
        sums, solution = self._sums, self._solution
        if solution is None or solution.sums is not sums:
            if not sums.tasks:
                raise InputError("the router has learned no task yet.")
            solution = self._solution = solve(sums, self.ridge)
        return solution

    def fork(self) -> Self:
        """A copy that may learn one more task while this one stays as it is; what both know is shared. It solves for
        itself."""
        other = copy.copy(self)
        other._solution = None
        return other

    def to(self, device: torch.device) -> None:
        sums = self._sums
        scatter = None if sums.scatter is None else sums.scatter.to(device)
        self._sums = RidgeSums(tuple(task.to(device) for task in sums.tasks), scatter)

    def state(self) -> State:
        scatter = self._sums.scatter
        return {}, {} if scatter is None else {"scatter": packed(scatter)}

    def task_state(self, task: int) -> State:
        kept = self._sums.tasks[task]
        scatter = {} if kept.scatter is None else {"scatter": packed(kept.scatter)}
        own = {"means": kept.means, "whitening": kept.whitening}
        return {"counts": [int(count) for count in kept.counts]}, {**own, **scatter}

    def load_state(self, state: State, tasks: Iterable[State]) -> None:
        loaded: list[TaskSums] = []
        for number, (content, tensors) in enumerate(tasks):
            counts, means = content["counts"], tensors["means"]
            if {*tensors} - {"means", "whitening", "scatter"}:
                raise ValueError(f"task number {number} has tensors of the router that nothing reads")
            if not counts or not all(type(count) is int and 0 < count < 1 << 53 for count in counts):
                raise ValueError(f"task number {number} has {counts!r} rows in its sums")
            width = loaded[0].means.shape[1] if loaded else means.shape[-1]
            if means.dtype != torch.float64 or tuple(means.shape) != (len(counts), width):
                raise ValueError(f"the means of task number {number} are {means.dtype} {list(means.shape)}")
            check_sums(means)
            size, whitening = min(width, outline.DIRECTIONS), tensors["whitening"]
            if whitening.dtype != torch.float32 or tuple(whitening.shape) != (size, size):
                raise ValueError(f"the outline of task number {number} is {whitening.dtype} {list(whitening.shape)}")
            check_sums(whitening)
            scatter = unpacked(tensors["scatter"], width) if "scatter" in tensors else None
            loaded.append(TaskSums(torch.tensor(counts).to(means), means, whitening, scatter))
        whole = state[1].get("scatter")
        if {*state[1]} - {"scatter"} or (whole is not None) != any(task.scatter is None for task in loaded):
            raise ValueError("the router must have sums of its own for each task, or one for those that have none")
        scatter = None if whole is None else unpacked(whole, loaded[0].means.shape[1])
        sums = RidgeSums(tuple(loaded), scatter)
        for kept in sums.scatters():
            check_squares(kept.diagonal(), NormalEquations(sums).diagonal)
        self._sums = sums

    def _accumulated(self, batches: Iterable[Batch], classes: int) -> TaskSums:
        """The sums of one task, in memory of its own. Products are of φ − a, where a is the first batch's mean: no
        digits are lost to features far from 0."""
        products = torch.float64 if self.precision == "float64" else torch.float32
        kept = torch.float32 if self.precision == "float32" else torch.float64
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
        missing = "every class of a task needs examples for the router to learn."
        if shift is None or second is None or first is None or counts is None or inside is None:
            raise InputError(missing)
        if not bool((counts > 0).all()):
            raise InputError(missing)
        if not bool(torch.isfinite(first).all()):
            raise InputError("φ has values that are not finite; look at the inputs, or choose other features.")
        apart = first / counts.unsqueeze(1)
        second.addmm_((apart * counts.unsqueeze(1)).T.to(kept), apart.to(kept), alpha=-1)
        seen = apart @ straight.double()
        inside -= seen.T @ (seen * counts.unsqueeze(1))
        return TaskSums(counts, shift + apart, outline.whitening(inside, float(counts.sum())), second)


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


def solve(sums: RidgeSums, ridge: float | Literal["auto"]) -> RidgeSolution:
    """The regression on all tasks."""
    normal = NormalEquations(sums)
    best = downhill(normal.attempt) if ridge == "auto" else normal.attempt(ridge)
    if best is None:
        best = normal.by_eigenvalues(DECADES[-1] if ridge == "auto" else ridge)
    intercept = normal.share - normal.center @ best.weight
    return RidgeSolution(sums, best.weight, intercept, best.ridge)


def downhill(attempt: Callable[[float], Attempt | None]) -> Attempt | None:
    """The attempt with the least error, in steps of ten from the middle of `DECADES`, and then of √10. Each is a
    Cholesky factor, so those that the error rises towards are not made."""
    best = None
    middle = len(DECADES) // 2
    for side in (DECADES[middle:], DECADES[:middle][::-1]):
        climbed = False
        for number, ridge in enumerate(side):
            tried = attempt(ridge)
            if tried is not None and (best is None or tried.error < best.error):
                best, climbed = tried, number > 0
            elif best is not None:
                break
        if climbed:
            break
    if best is None:
        return None
    between = (attempt(best.ridge * factor) for factor in (10**-0.5, 10**0.5))
    return min((best, *(each for each in between if each is not None)), key=lambda each: each.error)


@dataclass(frozen=True)
class Attempt:
    """The weights D×C for one λ, and the squared error of f, summed over classes, that rows left out would have."""

    ridge: float
    weight: Tensor
    error: float


class NormalEquations:
    """(G + λI) W = B of all tasks, centered. G itself is never held: each attempt makes it in the memory in which
    Cholesky's factor takes its place, one D×D matrix beside the sums."""

    def __init__(self, sums: RidgeSums) -> None:
        self.sums = sums
        self.counts = torch.cat([task.counts for task in sums.tasks])
        means = torch.cat([task.means for task in sums.tasks])
        self.rows = float(self.counts.sum())
        self.share = self.counts / self.rows
        self.center = self.share @ means
        self.apart = means - self.center
        self.right = (self.apart * self.counts.unsqueeze(1)).T
        diagonals = [matrix.diagonal().double() for matrix in sums.scatters()]
        self.diagonal = sum(diagonals, torch.zeros_like(self.center)) + (self.apart * self.right.T).sum(0)

    def attempt(self, ridge: float) -> Attempt | None:
        """By Cholesky; None where λ is lost in the rounding errors of G and leaves it indefinite."""
        matrix = self._matrix(ridge)
        factor = matrix.mT  # what is above the diagonal of one is below that of the other
        failed = torch.empty(0, dtype=torch.int32, device=factor.device)
        torch.linalg.cholesky_ex(factor, out=(factor, failed))
        if bool(failed):
            return None
        probes = torch.randint(2, (len(factor), PROBES), generator=torch.Generator().manual_seed(0)) * 2.0 - 1
        probes = probes.to(factor)
        both = torch.linalg.solve_triangular(factor, torch.cat([self.right.to(factor), probes], 1), upper=False)
        both = torch.linalg.solve_triangular(factor.mT, both, upper=True).double()  # and no copy of the factor
        weight, solved = both[:, :-PROBES], both[:, -PROBES:]
        return self._judged(ridge, weight, float((solved * probes).sum()) / PROBES)

    def by_eigenvalues(self, ridge: float) -> Attempt:
        """For any λ: eigenvalues below 0 are rounding errors."""
        matrix = self._matrix(0.0).double()
        values, vectors = torch.linalg.eigh(matrix, UPLO="U")
        values = values.clamp(min=0) + self._absolute(ridge)
        weight = (vectors / values) @ (vectors.T @ self.right)
        return self._judged(ridge, weight, float((1 / values).sum()))

    def _absolute(self, ridge: float) -> float:
        return ridge * (float(self.diagonal.mean()) or 1.0)

    def _matrix(self, ridge: float) -> Tensor:
        """G + λI, on and above the diagonal."""
        first, *others = self.sums.scatters()
        matrix = first.clone()
        for scatter in others:
            matrix += scatter
        matrix.addmm_(self.right.to(matrix), self.apart.to(matrix))
        matrix.diagonal().add_(self._absolute(ridge))
        return matrix

    def _judged(self, ridge: float, weight: Tensor, trace_of_inverse: float) -> Attempt:
        """Generalized cross-validation: the squared error of the rows learned from, over (1 − c·df/N)²."""
        penalty = self._absolute(ridge)
        around_mean = float((self.counts * (1 - self.share)).sum())
        residual = around_mean - float((weight * self.right).sum()) - penalty * float(weight.square().sum())
        freedom = 1 + len(weight) - penalty * trace_of_inverse
        left = max(1 - CAUTION * freedom / self.rows, 1 / self.rows)
        return Attempt(ridge, weight, max(residual, ROUNDING * around_mean) / self.rows / left**2)


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
