"""Which task does an input belong to? The two parts that answer: features φ(x), and inference on them.

    P(t | x) ≈ P(t | φ(x)) ∝ P(φ(x) | t) P(t)                         (eqs. gen_task_inference, phi_task_inference)

Either may be your own: derive from `Features` or `TaskInference` and hand an instance to `Learner`, or register the
class under a name (docs/extending.md).
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NoReturn, Self

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor, nn

from ibpwf.dispatch import reference
from ibpwf.distributed import ALONE, Group
from ibpwf.errors import InputError
from ibpwf.factors.model import FactorModel
from ibpwf.images import Images
from ibpwf.parts import OfGroup, Part

if TYPE_CHECKING:
    from ibpwf.inference.opinion import Opinion

ROWS_AT_ONCE = 1024

Batch = tuple[Tensor, Tensor]
State = tuple[dict[str, Any], dict[str, Tensor]]
"""What is stored of a part: JSON, and tensors by name."""


@dataclass(frozen=True)
class Context:
    """What features may look at."""

    model: FactorModel | None = None
    images: Images = field(default_factory=Images)


class Features(Part):
    """φ: what inputs are told apart by. It is fitted once, on the first task, and never changes after that."""

    group: ClassVar[str] = "features"
    rows_to_fit: ClassVar[int | None] = None
    """How many rows `fit` looks at; None: at all."""

    _context: Context = PrivateAttr(default_factory=Context)

    @property
    def reads_pixels(self) -> bool:
        """Whether it must be known how inputs were made from pixels (`Images.mean` and `std`)."""
        return False

    @classmethod
    def spelled(cls, kind: str) -> Any:
        """Several kinds with + between them stand for all of them side by side."""
        names = kind.split("+")
        if len(names) == 1:
            return kind
        left = list(dict.fromkeys(name for name in names if name.strip()))
        if len(left) < len(names):
            twice = next((name for name in left if names.count(name) > 1), None)
            what = "has no name beside a +" if twice is None else f"names '{twice}' twice"
            example = "+".join(left) if len(left) > 1 else "patches+backbone"
            raise InputError(f"features is '{kind}', which {what}; give each kind once, such as '{example}'.")
        return {"kind": "joined", "parts": names}

    def bound(self, context: Context) -> Self:
        """A copy for a model and its inputs, which may be fitted while these stay as they are. Rejects a model that
        these features cannot read."""
        other = copy.copy(self)
        other._context = context
        return other

    @property
    def model(self) -> FactorModel:
        assert self._context.model is not None, "features are bound before they are used"
        return self._context.model

    def fit(self, batches: Iterable[Batch], rows: int, generator: torch.Generator) -> None:
        """See the first task's (x, y), `rows` of them in all, as often as `batches` is gone through; random
        numbers come from `generator`."""

    def parts_to_fit(self) -> tuple[Features, ...]:
        """What is fitted by itself: these features, or each of several that they are made of."""
        return (self,)

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """φ of every row, N×D."""

    def views(self, x: Tensor) -> Iterator[Tensor]:
        """φ of every row, once for each way in which it is looked at: the rows that inference learns from."""
        yield self(x)

    def mean_of_views(self, x: Tensor) -> Tensor:
        """φ of features that look at an image in one way, or at it and its mirror image, or in more: the mean of all,
        of which scores linear in φ are then the mean, too."""
        total, *others = self.views(x)
        for view in others:
            total = total + view
        return total / (1 + len(others)) if others else total

    def check(self, x: Tensor) -> None:
        """Refuse a network or inputs these features cannot be had of, seen by one example, before anything is
        learned."""

    def width_for(self, shape: tuple[int, ...]) -> int | None:
        """How many features φ has for inputs of this shape; None if that is unknown. Rejects inputs that do not fit
        what has been loaded."""
        return None

    def export_module(self) -> nn.Module:
        """φ as a module that can be traced into a graph."""
        not_in_a_graph(self)

    def unread(self) -> tuple[str, ...]:
        """Prefixes of what φ does not read of the first task's weights; "" stands for all of them."""
        return ("",)

    def fork(self, model: FactorModel) -> Self:
        """The same features for a copy of the model, which may be fitted while these stay as they are. This default
        is for features that put new things in place of old ones and change none."""
        other = copy.copy(self)
        other._context = replace(self._context, model=model)
        return other

    def state(self) -> State:
        return {}, {}

    def load_state(self, content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `state`."""


def _paper_features() -> Features:
    from ibpwf.inference.features.layer import Layer

    return Layer()


class TaskInference(Part):
    """Learns each task's φ once, and says of a new φ how likely each task is.

    Where processes learn together, each has all rows of a task, unless `adds_up` says that every one may take a part
    of them, whose sums are then added up over all of them.
    """

    group: ClassVar[str] = "inference"
    fixed: ClassVar[frozenset[str]] = frozenset({"features"})
    adds_up: ClassVar[bool] = False

    features: Annotated[Features, OfGroup("features")] = Field(
        default_factory=_paper_features, description="φ(x), by which tasks are told apart"
    )
    _processes: Group = PrivateAttr(ALONE)

    def join(self, processes: Group) -> None:
        """Learn together with other processes from now on."""
        self._processes = processes

    @abstractmethod
    def learn(self, task: int, batches: Iterable[Batch], classes: int) -> None:
        """Take up the next task's (φ, y), where y counts its `classes` from 0."""

    def update(self, task: int, batches: Iterable[Batch], classes: int) -> None:
        """Take up more (φ, y) of a task, as if they had come with its first ones; a class may have none."""
        raise InputError(
            f"{type(self).__name__} cannot take more rows of a task that it has learned; learn them as another task, "
            "or give it a method `update` (docs/extending.md)."
        )

    @abstractmethod
    def log_scores(self, phi: Tensor) -> Tensor:
        """log P(t | φ) of every row and task, N×T, up to a constant in each row."""

    def class_log_scores(self, phi: Tensor) -> Tensor:
        """log P(t, c | φ) up to a constant, N×ΣC, tasks in order and their classes in order; only of inference that
        looks at every class of every task."""
        raise NotImplementedError

    @property
    def experts_asked(self) -> int | Literal["all", "likely"]:
        """Which tasks' experts are asked about an input, where every class is looked at."""
        return "all"

    @property
    def weight_of_experts(self) -> float | Literal["auto"]:
        """Of a task's own class scores, where every class is looked at."""
        return "auto"

    @property
    def keeps_opinions(self) -> bool:
        """Whether `opinion` of a task is kept with it."""
        return False

    def faster(self) -> dict[str, Any]:
        """Settings with which predictions are faster, and a little less accurate."""
        return {}

    @property
    def has_class_scores(self) -> bool:
        """Whether every class of every task is looked at; answers are then joined with the experts' class scores."""
        return type(self).class_log_scores is not TaskInference.class_log_scores

    @property
    def needs_classes(self) -> bool:
        """Whether it learns from class labels, and not from tasks alone."""
        return self.has_class_scores

    def class_levels(self) -> Tensor | None:
        """What `class_log_scores` are on average for the rows of each class that were learned from, ΣC, if known."""
        return None

    def distances(self, phi: Tensor) -> Tensor:
        """How far rows lie from each task, N×T; only of inference that knows it."""
        raise NotImplementedError

    @property
    def has_distances(self) -> bool:
        return type(self).distances is not TaskInference.distances

    def opinion(self, task: int) -> Opinion:
        """What is said of a task's own classes now, to keep with the task; only of inference that has one."""
        raise NotImplementedError

    @property
    def has_opinions(self) -> bool:
        return type(self).opinion is not TaskInference.opinion

    def phi_width(self) -> int | None:
        """How many features φ has; None if that is unknown."""
        return None

    def check_tasks(self, classes: Mapping[int, int]) -> None:
        """Reject a loaded state that is not of these tasks, which are told by serial number, and their classes."""

    def export_module(self) -> nn.Module:
        """`class_log_scores`, or else `log_scores`, as a module that can be traced into a graph."""
        not_in_a_graph(self)

    @abstractmethod
    def forget(self, task: int) -> None:
        """Leave no trace of a task; later ones move up by one number."""

    def fork(self) -> Self:
        """A copy that may learn or forget a task while this one stays as it is, and answers whoever asks it."""
        return copy.deepcopy(self)

    def to(self, device: torch.device) -> None:
        """Move what is kept."""

    def state(self) -> State:
        """What is kept beside the tasks."""
        return {}, {}

    def task_state(self, task: int) -> State:
        """What is kept of one task; a later task must not change it."""
        return {}, {}

    def unread(self, task: int) -> tuple[dict[str, Any], object] | None:
        """The JSON of a task whose tensors have not been read from its folder yet, and where they lie."""
        return None

    reads_later: ClassVar[bool] = False
    """Whether `load_state` takes a `TensorFile` in the place of a task's tensors."""

    @abstractmethod
    def load_state(self, state: State, tasks: Iterable[State]) -> None:
        """The inverse of `state` and every task's `task_state`."""


def not_in_a_graph(part: object) -> NoReturn:
    raise InputError(
        f"{type(part).__name__}, which infers tasks here, cannot be put into one graph; export one task at a time "
        "with --task."
    )


@reference
def infer_tasks(inference: TaskInference, features: Features, x: Tensor) -> Tensor:
    """P(t | φ(x)) of every row and task, N×T (eqs. gen_task_inference, phi_task_inference)."""
    return torch.cat([inference.log_scores(features(rows)).softmax(1) for rows in torch.split(x, ROWS_AT_ONCE)])
