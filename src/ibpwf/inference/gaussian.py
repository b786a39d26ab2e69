"""Whose task is this input? One Gaussian over φ per group (paper, eq. task_inf).

    t̂ = argmin_t  ½ log|Σ_t| − log N_t + ½ (φ−μ_t)ᵀ Σ_t⁻¹ (φ−μ_t)

A group is a task (the paper) or a class of a task. Only first and second moments are kept, in float64. φ is
usually rank-deficient, so every Σ gets the same absolute ridge: directions φ never takes then add the same
constant to every group and cancel, where a ridge relative to each group's own variance would not.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor, nn

from ibpwf.distributed import Group
from ibpwf.errors import InputError
from ibpwf.factors.deferred import Deferred
from ibpwf.inference.base import Batch, State, TaskInference
from ibpwf.limits import check_features
from ibpwf.parts import Positive, Share, register
from ibpwf.storage.tensor_checks import CorruptModelError
from ibpwf.storage.tensor_file import TensorFile

LARGEST = 1e150
"""Of a mean or covariance: the product of two such numbers is still one."""
ROUNDING = 1e-6
"""How far from symmetric and positive a covariance may be, relative to the largest variance."""


@dataclass(frozen=True)
class Moments(Deferred):
    """Count, mean and covariance (about the mean) of φ over one group's training data."""

    count: int
    mean: Tensor
    covariance: Tensor

    def apply(self, fn: Callable[[Tensor], Tensor]) -> Moments:
        return Moments(self.count, fn(self.mean), fn(self.covariance))


def added(first: Moments, second: Moments) -> Moments:
    """The moments of both groups' rows together."""
    rows = first.count + second.count
    apart = second.mean - first.mean
    inside = first.covariance * (first.count / rows) + second.covariance * (second.count / rows)
    between = torch.outer(apart, apart) * (first.count / rows * (second.count / rows))
    return Moments(rows, first.mean + apart * (second.count / rows), inside + between)


class MomentAccumulator:
    """Collects moments batch by batch, about a fixed shift so that nothing cancels."""

    def __init__(self) -> None:
        self.count = 0
        self.shift: Tensor | None = None
        self.first: Tensor | None = None
        self.second: Tensor | None = None

    def add(self, phi: Tensor) -> None:
        if not len(phi):
            return
        phi = phi.double()
        if self.shift is None or self.first is None or self.second is None:
            check_features(phi.shape[1])
            self.shift = phi.mean(0)
            self.first = torch.zeros_like(self.shift)
            self.second = phi.new_zeros(phi.shape[1], phi.shape[1])
        centered = phi - self.shift
        self.count += len(phi)
        self.first = self.first + centered.sum(0)
        self.second = self.second + centered.T @ centered

    def add_up(self, group: Group) -> None:
        """Let these be the sums of the rows of all processes, about one shift."""
        if group.alone:
            return
        shift = group.from_first(self.shift, self.count > 0, 0 if self.shift is None else len(self.shift))
        if shift is None:
            return
        if self.shift is None or self.first is None or self.second is None:
            self.first, self.second = torch.zeros_like(shift), shift.new_zeros(len(shift), len(shift))
        else:
            off, count = self.shift - shift, self.count
            crossed = torch.outer(self.first, off)
            self.second = self.second + crossed + crossed.T + count * torch.outer(off, off)
            self.first = self.first + count * off
        self.shift, rows = shift, torch.tensor(self.count)
        group.add_up([rows, self.first, self.second])
        self.count = int(rows)

    def finish(self) -> Moments:
        """Mean and covariance of all rows (eq. parameter_est)."""
        if self.shift is None or self.first is None or self.second is None:
            raise InputError("no examples to take feature statistics from.")
        offset = self.first / self.count
        covariance = self.second / self.count - torch.outer(offset, offset)
        return Moments(self.count, self.shift + offset, (covariance + covariance.T) / 2)


def whitening(covariance: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """W with WWᵀ = (Σ + ρI)⁻¹, and ½ log|Σ + ρI|.

    By Cholesky; by eigenvalues where Σ is so large that its rounding errors outweigh ρ and leave it indefinite.
    """
    eye = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    factor, failed = torch.linalg.cholesky_ex(covariance + ridge * eye)
    if not failed:
        return torch.linalg.solve_triangular(factor, eye, upper=False).T, factor.diagonal().log().sum()
    values, vectors = torch.linalg.eigh(covariance)
    scale = (values.clamp(min=0) + ridge).sqrt()
    return vectors / scale, scale.log().sum()


class GroupedInference(TaskInference):
    """P(t | φ(x)) from stored moments of groups. `ridge` becomes one absolute number for all groups; what is kept of
    a group stays its own. `owner` says which task each group belongs to."""

    fixed: ClassVar[frozenset[str]] = frozenset({"features", "ridge"})
    adds_up: ClassVar[bool] = True
    reads_later: ClassVar[bool] = True

    ridge: Positive = Field(
        1e-4,
        description="added to covariances, relative to the first task's variance and the same for all tasks; of a "
        "shared covariance it is a prior that fades with the rows seen",
    )
    _absolute_ridge: float | None = PrivateAttr(None)
    _groups: list[Moments] = PrivateAttr(default_factory=list)
    _owner: list[int] = PrivateAttr(default_factory=list)
    _whitening: tuple[Tensor, Tensor, Tensor] | None = PrivateAttr(None)
    _each: dict[int, tuple[Moments, Tensor, Tensor]] = PrivateAttr(default_factory=dict)  # whitening, by id of group
    _derived: dict[str, Any] = PrivateAttr(default_factory=dict)

    @property
    def groups(self) -> list[Moments]:
        return self._groups

    @property
    def owner(self) -> list[int]:
        return self._owner

    @property
    def absolute_ridge(self) -> float | None:
        return self._absolute_ridge

    @property
    def derived(self) -> dict[str, Any]:
        """What has been prepared from all groups, by name; a change of the groups empties it."""
        return self._derived

    @property
    def per_class(self) -> bool:
        """Whether each class has a group, with a covariance, of its own."""
        return False

    @property
    def towards_mean(self) -> float:
        """How far each group's covariance goes towards the mean of all."""
        return 0.0

    @property
    def tasks(self) -> int:
        return 1 + max(self._owner, default=-1)

    @property
    def needs_classes(self) -> bool:
        return self.per_class

    def _changed(self) -> None:
        """Other groups than before: what was prepared from all of them together is no more."""
        self._derived = {}
        self._whitening = None
        there = set() if self.towards_mean else {id(group) for group in self._groups}
        self._each = {key: value for key, value in self._each.items() if key in there}

    def learn(self, task: int, batches: Iterable[Batch], classes: int) -> None:
        """The moments of a task's φ (eq. parameter_est)."""
        groups = self.moments_of(batches, classes)
        if self._absolute_ridge is None:
            self.set_scale(groups)
        for group in groups:
            self.add(task, group)

    def update(self, task: int, batches: Iterable[Batch], classes: int) -> None:
        """The ridge is a share of the first task's variance. If it is this one's, it is so of all its rows again."""
        places = [place for place, owner in enumerate(self._owner) if owner == task]
        old = [self._groups[place] for place in places]
        new = self.updated(old, batches, classes)
        if task == 0 and math.isclose(self.ridge * self.scale_of(old), self._absolute_ridge or 0.0, rel_tol=1e-9):
            self.set_scale(new)
            self._each = {}
        for place, group in zip(places, new, strict=True):
            self._groups[place] = group
        self._changed()

    def updated(self, groups: list[Moments], batches: Iterable[Batch], classes: int) -> list[Moments]:
        """A task's groups, of more rows."""
        sums = self._sums_of(batches, classes)
        return [added(old, new.finish()) if new.count else old for old, new in zip(groups, sums, strict=True)]

    def moments_of(self, batches: Iterable[Batch], classes: int) -> list[Moments]:
        """Of all rows together, or class by class."""
        return [accumulator.finish() for accumulator in self._sums_of(batches, classes)]

    def _sums_of(self, batches: Iterable[Batch], classes: int) -> list[MomentAccumulator]:
        sums = [MomentAccumulator() for _ in range(classes if self.per_class else 1)]
        for phi, y in batches:
            for number, accumulator in enumerate(sums):
                accumulator.add(phi[y == number] if self.per_class else phi)
        for accumulator in sums:
            accumulator.add_up(self._processes)
        return sums

    def add(self, task: int, moments: Moments) -> None:
        self._append(task, moments)
        self._changed()

    def forget(self, task: int) -> None:
        """Drop the groups of one task; later tasks move up by one number. The ridge stays: it is every group's."""
        kept = [(g, o - (o > task)) for g, o in zip(self._groups, self._owner, strict=True) if o != task]
        self._groups, self._owner = [group for group, _ in kept], [owner for _, owner in kept]
        self._changed()
        if not kept:
            self._absolute_ridge = None

    def fork(self) -> Self:
        """Moments are shared: they never change."""
        other = copy.copy(self)
        other._groups, other._owner, other._each = list(self._groups), list(self._owner), dict(self._each)
        return other

    def set_scale(self, groups: list[Moments]) -> None:
        """Fix the absolute ridge from the first task's data."""
        self._absolute_ridge = self.ridge * self.scale_of(groups)

    @staticmethod
    def scale_of(groups: list[Moments]) -> float:
        """The mean variance of a task's data, whatever its grouping."""
        total = sum(group.count for group in groups)
        mean = sum((g.mean * (g.count / total) for g in groups), torch.zeros_like(groups[0].mean))
        within = sum(float(g.covariance.trace()) * g.count / total for g in groups)
        between = sum(float(((g.mean - mean) ** 2).sum()) * g.count / total for g in groups)
        variance = (within + between) / len(mean)
        return variance if variance > 0 else 1.0

    def regularized(self, **settings: Any) -> Self:
        """The same moments with another ridge or shrinkage."""
        other, new = self.fork().model_copy(update=settings), self.replace(**settings)
        assert self._absolute_ridge is not None
        other._absolute_ridge = self._absolute_ridge * new.ridge / self.ridge
        other._each = {}
        other._changed()
        return other

    def ridge_for(self, rows: int) -> float:
        """What is added to the diagonal of a covariance made of `rows` rows: always the same."""
        assert self._absolute_ridge is not None
        return self._absolute_ridge

    def prepared(self) -> tuple[Tensor, Tensor, Tensor]:
        """Per group: mean, whitening and log N − ½ log|Σ + ρI|. Made once, used for all inputs."""
        found = self._whitening
        if found is None:
            common = self._common()
            each = [self._whitened(group, common) for group in self._groups]
            stacked = torch.stack([matrix for _, matrix, _ in each])
            for (group, _, half_log_determinant), matrix in zip(each, stacked, strict=True):  # a view: held once
                self._each[id(group)] = (group, matrix, half_log_determinant)
            constant = torch.stack([math.log(group.count) - half_log for group, _, half_log in each])
            found = self._whitening = torch.stack([group.mean for group in self._groups]), stacked, constant
        return found

    def _common(self) -> Tensor | None:
        """γ Σ̄, the mean covariance by its share; None where none is asked for."""
        if not self.towards_mean:
            return None
        rows = sum(group.count for group in self._groups)
        weighted = (group.covariance * (self.towards_mean * group.count / rows) for group in self._groups)
        return sum(weighted, torch.zeros_like(self._groups[0].covariance))

    def _whitened(self, group: Moments, common: Tensor | None) -> tuple[Moments, Tensor, Tensor]:
        """A group's whitening and ½ log|Σ + ρI|; a new task does not have those of all others made again, unless
        they share a part."""
        found = self._each.get(id(group))
        if found is None or found[0] is not group:
            covariance = group.covariance if common is None else (1 - self.towards_mean) * group.covariance + common
            found = self._each[id(group)] = (group, *whitening(covariance, self.ridge_for(group.count)))
        return found

    def group_scores(self, phi: Tensor) -> Tensor:
        """log N_g + log N(φ | μ_g, Σ_g + ρI) up to one constant, for every row and group: N×G."""
        means, whiten, constant = self.prepared()
        phi = phi.double()
        # (φ − μ)W = φW − μW: one batched product for all groups.
        z = phi.unsqueeze(0) @ whiten - means.unsqueeze(1) @ whiten
        return constant - 0.5 * z.square().sum(-1).T

    def log_scores(self, phi: Tensor) -> Tensor:
        """log P(t | φ) up to a constant, N×T: a task's probability is the sum over its groups (eq. task_inf)."""
        return self.by_task(self.group_scores(phi))

    def by_task(self, scores: Tensor) -> Tensor:
        """Scores of tasks, N×T, from those of all their groups."""
        tasks = self.tasks
        if self._owner != list(range(tasks)):
            places: list[list[int]] = [[] for _ in range(tasks)]
            for group, task in enumerate(self._owner):
                places[task].append(group)
            most = max(len(groups) for groups in places)
            none = len(self._owner)  # a column of -inf: no group
            table = torch.tensor([groups + [none] * (most - len(groups)) for groups in places], device=scores.device)
            scores = torch.nn.functional.pad(scores, (0, 1), value=-torch.inf)[:, table].logsumexp(2)
        return scores

    def phi_width(self) -> int | None:
        return len(self._groups[0].mean) if self._groups else None

    def groups_for(self, classes: int) -> int:
        """How many groups a task of so many classes has."""
        return classes if self.per_class else 1

    def check_tasks(self, classes: Mapping[int, int]) -> None:
        if (self._absolute_ridge is None) != (not classes):
            raise CorruptModelError(f"absolute_ridge is {self._absolute_ridge} with {len(classes)} tasks")
        for number, (serial, count) in enumerate(classes.items()):
            found = len(self.groups_of(number))
            if found != self.groups_for(count):
                raise CorruptModelError(f"task {serial} has {found} Gaussians, which are not its own")

    def export_module(self) -> nn.Module:
        return GaussianScores(self)

    def to(self, device: torch.device) -> None:
        self._groups = [group.apply(lambda tensor: tensor.to(device)) for group in self._groups]
        self._changed()

    def state(self) -> State:
        return {"absolute_ridge": self._absolute_ridge}, {}

    def task_state(self, task: int) -> State:
        groups = self.groups_of(task)
        tensors = {}
        for number, group in enumerate(groups):
            tensors[f"{number}/mean"] = group.mean
            if number == 0 or group.covariance is not groups[0].covariance:  # a task's classes may share one
                tensors[f"{number}/covariance"] = group.covariance
        return {"groups": [group.count for group in groups]}, tensors

    def groups_of(self, task: int) -> list[Moments]:
        found: dict[int, list[Moments]] | None = self._derived.get("by task")
        if found is None:
            found = {}
            for group, owner in zip(self._groups, self._owner, strict=True):
                found.setdefault(owner, []).append(group)
            self._derived["by task"] = found
        return found.get(task, [])

    def unread(self, task: int) -> tuple[dict[str, Any], object] | None:
        """`task_state` of a task whose groups lie where they lay, and that place; None of any other."""
        groups = self.groups_of(task)
        part = groups[0].part
        if part is None or any(group.part is not part for group in groups):
            return None
        return {"groups": [group.count for group in groups]}, part

    def load_state(self, state: State, tasks: Iterable[State | tuple[dict[str, Any], Mapping[str, Tensor]]]) -> None:
        ridge = state[0]["absolute_ridge"]
        if ridge is not None and not (type(ridge) in (int, float) and 0 < ridge < math.inf):
            raise ValueError(f"absolute_ridge is {ridge!r}; it must be above 0")
        self._absolute_ridge = None if ridge is None else float(ridge)
        size: int | None = None
        for task, (content, tensors) in enumerate(tasks):
            counts = content["groups"]
            if not counts or not all(type(count) is int and 0 < count < 1 << 53 for count in counts):
                raise ValueError(f"task number {task} has {counts!r} rows in its Gaussians")
            if isinstance(tensors, TensorFile):
                self._add_unread(task, counts, tensors)
                continue
            size = self._check_task(task, len(counts), tensors, size)
            for number, count in enumerate(counts):
                self._append(task, moments_in(tensors, number, count))
        self._changed()

    def _check_task(self, task: int, groups: int, tensors: Mapping[str, Tensor], size: int | None) -> int:
        """Refuse what are no Gaussians of so many features, or of any one number if none is known; that number."""
        wanted = {f"{number}/mean" for number in range(groups)} | {"0/covariance"}
        for name in {*tensors} ^ wanted:
            if name not in tensors or name.removesuffix("/covariance") not in map(str, range(groups)):
                raise ValueError(f"the Gaussians of task number {task} and tensor '{name}' do not fit together")
        size = len(tensors["0/mean"]) if size is None else size
        scale = self._absolute_ridge or 0.0  # what a covariance may have been rounded at
        for name, tensor in sorted(tensors.items(), key=lambda item: item[1].ndim):
            check_moment(name, tensor, size, scale)
            scale = max(scale, float(tensor.square().max())) if tensor.ndim == 1 else scale
        return size

    def _add_unread(self, task: int, counts: list[int], tensors: TensorFile) -> None:
        first = self._groups[0] if self._groups else None

        @cache
        def checked() -> Mapping[str, Tensor]:
            self._check_task(task, len(counts), tensors, None if first is None else len(first.mean))
            return tensors

        for number, count in enumerate(counts):
            read = partial(lambda *group: moments_in(checked(), *group), number, count)
            self._append(task, Moments.deferred(tensors.source, tensors.later(read), count=count))

    def _append(self, task: int, moments: Moments) -> None:
        if self._absolute_ridge is None:
            raise ValueError("moments without the ridge they belong to")
        self._groups.append(moments)
        self._owner.append(task)


@register
class Gaussian(GroupedInference):
    """P(t | φ(x)) from one Gaussian per task (the paper's), or per class.

    `shrinkage` γ moves every covariance towards their mean, (1 − γ) Σ_g + γ Σ̄ (Friedman's regularized discriminant
    analysis).
    """

    kind: ClassVar[str] = "gaussian"
    fixed: ClassVar[frozenset[str]] = frozenset({"features", "ridge", "shrinkage", "per"})

    shrinkage: Share = Field(0.0, description="how far each Gaussian's covariance goes towards the mean of all")
    per: Literal["task", "class"] = Field("task", description="what has a Gaussian of its own")

    @property
    def per_class(self) -> bool:
        return self.per == "class"

    @property
    def towards_mean(self) -> float:
        return self.shrinkage


def moments_in(tensors: Mapping[str, Tensor], number: int, count: int) -> Moments:
    """A group among the tensors of its task, which may have one covariance in common."""
    covariance = tensors.get(f"{number}/covariance", tensors["0/covariance"])
    return Moments(count, tensors[f"{number}/mean"], covariance)


def check_moment(name: str, tensor: Tensor, size: int, scale: float) -> None:
    """Refuse what is no mean or covariance of φ of that size, of numbers rounded at `scale`. Whether a covariance is
    symmetric, and not negative, is seen by its products with one vector."""
    shape = (size,) if name.endswith("/mean") else (size, size)
    if tuple(tensor.shape) != shape or tensor.dtype != torch.float64 or not size:
        raise ValueError(f"'{name}' is {tensor.dtype} {list(tensor.shape)} instead of float64 {list(shape)}")
    probe = torch.linspace(1, 2, size, dtype=tensor.dtype, device=tensor.device)
    product = tensor * probe if tensor.ndim == 1 else tensor @ probe
    if not float(product.abs().max()) <= LARGEST:  # nor if any number is NaN
        raise ValueError(f"'{name}' holds numbers beyond {LARGEST:g}, or NaN")
    if tensor.ndim == 1:
        return
    variances = tensor.diagonal()
    slack = ROUNDING * (float(variances.max().clamp(min=0)) + scale)
    apart = float((product - probe @ tensor).abs().max())
    if float(variances.min()) < -slack or float(product @ probe) < -slack * size or apart > slack * size:
        raise ValueError(f"'{name}' is no covariance")


class GaussianScores(nn.Module):
    """`log_scores`, to be traced."""

    def __init__(self, inference: GroupedInference) -> None:
        super().__init__()
        means, matrix, constant = (tensor.cpu() for tensor in inference.prepared())
        self.register_buffer("matrix", matrix)
        self.register_buffer("shift", means.unsqueeze(1) @ matrix if matrix.ndim == 3 else None)
        self.register_buffer("constant", constant)
        self.groups = [
            [group for group, owner in enumerate(inference.owner) if owner == task] for task in range(inference.tasks)
        ]

    def forward(self, phi: Tensor) -> Tensor:
        scores = self.of_groups(phi.double())
        # A task's groups are neighbors: they are added task by task, and forgotten together.
        return torch.stack([scores[:, own[0] : own[-1] + 1].logsumexp(1) for own in self.groups], 1)

    def of_groups(self, phi: Tensor) -> Tensor:
        """`group_scores` of φ in float64."""
        z = phi.unsqueeze(0) @ self.get_buffer("matrix") - self.get_buffer("shift")
        return self.get_buffer("constant") - 0.5 * z.square().sum(-1).T
