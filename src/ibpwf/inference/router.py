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
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor, nn

from ibpwf.errors import InputError
from ibpwf.inference import outline
from ibpwf.inference.base import Batch, State, TaskInference, not_in_a_graph
from ibpwf.inference.opinion import Opinion
from ibpwf.inference.ridge_regression import NormalEquations, RidgeSolution, solve
from ibpwf.inference.ridge_sums import (
    Precision,
    RidgeSums,
    TaskSums,
    accumulated,
    check_squares,
    check_sums,
    packed,
    together,
    unpacked,
)
from ibpwf.parts import Auto, NotNegative, Positive, register
from ibpwf.storage.tensor_checks import CorruptModelError

SHARPNESS = 10.0
"""By which f is multiplied to be log P(class | φ). On held-out training images the likelihood was largest at 12 to 15
for MNIST, 8 for Fashion-MNIST and 10 for CIFAR-10."""


@register
class Router(TaskInference):
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

    kind: ClassVar[str] = "router"
    fixed: ClassVar[frozenset[str]] = frozenset({"features", "ridge", "precision", "keep_sums_per_task"})
    at_prediction: ClassVar[frozenset[str]] = frozenset({"experts", "expert_weight"})
    adds_up: ClassVar[bool] = True

    ridge: Positive | Auto = Field(
        "auto",
        description="of the regression, relative to the features' mean variance; 'auto': the least error in "
        "generalized cross-validation, from the sums of all tasks",
    )
    precision: Precision = Field(
        "float64",
        description="of the sums; mixed: float32 products in float64 sums, for a GPU that is slow at float64; "
        "float32: half the memory",
    )
    keep_sums_per_task: bool = Field(
        False,
        description="keep the sums of every task apart, so that one can be forgotten; as many times the storage as "
        "there are tasks",
    )
    experts: Annotated[int, Field(ge=0)] | Literal["all", "likely"] = Field(
        "all",
        description="the tasks whose experts are asked about an input: all, so many of the likeliest, or those "
        "'likely' at 1 % or more; 0: the router alone",
    )
    expert_weight: NotNegative | Auto = Field(
        "auto",
        description="of a task's own class scores beside the router's; 'auto': by the validation split, or 0.5",
    )
    second_opinion: bool = Field(
        False,
        description="with the task given, its expert is asked and beside it the router's regression on the task's "
        "classes, as it was when the task had been learned: more accurate, and as unchanging",
    )
    _sums: RidgeSums = PrivateAttr(default_factory=RidgeSums)
    _solution: RidgeSolution | None = PrivateAttr(None)

    @property
    def experts_asked(self) -> int | Literal["all", "likely"]:
        return self.experts

    @property
    def weight_of_experts(self) -> float | Literal["auto"]:
        return self.expert_weight

    @property
    def keeps_opinions(self) -> bool:
        return self.second_opinion

    def faster(self) -> dict[str, Any]:
        return {"experts": "likely"}

    @property
    def tasks(self) -> int:
        return len(self._sums.tasks)

    def phi_width(self) -> int | None:
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
        new = accumulated(batches, classes, self.precision, self._processes)
        self._check_width(new)
        self._take((*self._sums.tasks, new), new, apart=self.keep_sums_per_task)

    def update(self, task: int, batches: Iterable[Batch], classes: int) -> None:
        tasks = self._sums.tasks
        new = accumulated(batches, classes, self.precision, self._processes, every_class=False)
        self._check_width(new)
        new = together(tasks[task], new)
        self._take((*tasks[:task], new, *tasks[task + 1 :]), new, apart=tasks[task].scatter is not None)

    def _take(self, tasks: tuple[TaskSums, ...], new: TaskSums, *, apart: bool) -> None:
        """Know these tasks, of which one is `new` with a scatter of its own, which stays `apart` or goes to that of
        all."""
        scatter = self._sums.scatter
        if not apart:
            assert new.scatter is not None
            tasks = tuple(replace(new, scatter=None) if task is new else task for task in tasks)
            scatter = new.scatter if scatter is None else new.scatter.add_(scatter)  # nobody else has the new one
        self._sums = RidgeSums(tasks, scatter)

    def _check_width(self, new: TaskSums) -> None:
        known = self._sums.tasks
        if known and known[0].means.shape[1] != new.means.shape[1]:
            raise InputError(
                f"φ has {new.means.shape[1]} features, but {known[0].means.shape[1]} in the tasks before; "
                "features must not change between tasks."
            )

    def class_scores(self, phi: Tensor) -> Tensor:
        """f(φ): about how probable each class is, but not between 0 and 1. N×ΣC, tasks in order and their classes in
        order."""
        return self.solution().scores(phi)

    def class_log_scores(self, phi: Tensor) -> Tensor:
        return self.class_scores(phi).double() * SHARPNESS

    def class_levels(self) -> Tensor:
        """What `class_log_scores` are on average for the rows of each class that were learned from, ΣC: f is linear,
        so it is that of their mean."""
        return self.solution().levels * SHARPNESS

    def opinion(self, task: int) -> Opinion:
        """What is said of a task's classes now, to keep."""
        solution, widths = self.solution(), self.columns()
        own = slice(sum(widths[:task]), sum(widths[: task + 1]))
        return Opinion.of(solution.weight[:, own] * SHARPNESS, solution.intercept[own] * SHARPNESS)

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

    def check_tasks(self, classes: Mapping[int, int]) -> None:
        if self.columns() != list(classes.values()):
            raise CorruptModelError(
                f"the router's tasks have {self.columns()} classes, which are not those of the tasks"
            )

    def export_module(self) -> nn.Module:
        if type(self).class_log_scores is not Router.class_log_scores:  # of a router derived from this one
            not_in_a_graph(self)
        return _Scores(self.solution())

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
        """A copy that may learn one more task while this one stays as it is; what both know is shared. On a CPU it
        solves for itself: with how many threads that is done changes the bits."""
        other = copy.copy(self)
        if self._solution is not None and not self._solution.weight.is_cuda:
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


class _Scores(nn.Module):
    """`class_log_scores`, to be traced."""

    def __init__(self, solution: RidgeSolution) -> None:
        super().__init__()
        self.register_buffer("weight", solution.weight.cpu())
        self.register_buffer("intercept", solution.intercept.cpu())

    def forward(self, phi: Tensor) -> Tensor:
        return SHARPNESS * (phi.double() @ self.get_buffer("weight") + self.get_buffer("intercept"))
