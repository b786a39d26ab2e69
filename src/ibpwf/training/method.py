"""What every continual-learning method is to the rest of the program.

A method learns one task at a time: `begin_task` names the phases to train, the loop in `training/loop.py` then asks
for `parameters` and calls `loss`, and `end_task` stores what is to be kept. Nothing of a task counts before
`end_task` has returned. A learner teaches a `fork`, so training may be broken off anywhere.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn

from ibpwf.data.rows import IndexedRows, Rows
from ibpwf.errors import InputError
from ibpwf.factors.model import FactorModel
from ibpwf.inference.prediction import Prediction
from ibpwf.likelihoods import Categorical, Likelihood
from ibpwf.linear import HeldOut
from ibpwf.packing import Packing
from ibpwf.parts import FrozenSettings
from ibpwf.training.objective import Loss, Objective
from ibpwf.training.phase import Phase

T = TypeVar("T")

__all__ = ["Counts", "Forgotten", "Loss", "Method", "TaskData"]


class TaskData:
    """One task's training data: its `rows`, or `x` and `y` on the training device, where `y` counts the task's
    classes from 0."""

    def __init__(
        self,
        name: str,
        index: int,
        classes: tuple[int, ...],
        x: Tensor | None = None,
        y: Tensor | None = None,
        seed: int = 0,
        serial: int | None = None,  # its number among all tasks ever learned, where that is not `index`
        *,
        rows: Rows | None = None,
        is_update: bool = False,  # rows of task number `index`, which has been learned already
    ) -> None:
        self.is_update = is_update
        self.name, self.index, self.classes, self.seed = name, index, classes, seed
        self.serial = index if serial is None else serial
        if rows is None:
            assert x is not None
            assert y is not None
            rows = IndexedRows(x, y)
        self.rows: Rows = rows

    @property
    def x(self) -> Tensor:
        """All examples at once; those of a stream are read for it."""
        return self.rows.tensors()[0]

    @property
    def y(self) -> Tensor:
        return self.rows.tensors()[1]

    def generator(self, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
        """A stream of random numbers that depends on seed, task and purpose alone: a learner that was stored
        and loaded draws the same numbers as one that never stopped."""
        key = f"{self.seed}/{self.serial}/{purpose}".encode()
        number = 1469598103934665603
        for byte in key:
            number = ((number ^ byte) * 1099511628211) % (1 << 63)
        return torch.Generator(device).manual_seed(number)


@dataclass(frozen=True)
class Forgotten:
    """Per layer: the factors that went with a task, and those of its own that stay because others read them."""

    removed: dict[str, int]
    kept: dict[str, int]


@dataclass(frozen=True)
class Counts:
    """Factors in use while a task trains; zero for methods without factors."""

    active: int = 0
    new: int = 0

    @property
    def reused(self) -> int:
        return self.active - self.new


class Method(Objective):
    """A way to learn task after task."""

    name: ClassVar[str]
    summary: ClassVar[str]  # one line for `ibpwf methods`
    stores: ClassVar[str]  # what is kept between tasks
    serves_both: ClassVar[bool] = False  # whether one training answers with the task given and inferred
    settings_type: ClassVar[type[FrozenSettings]] = FrozenSettings
    answers: ClassVar[tuple[str, ...]] = ("task", "class")  # the settings it makes sense in
    resumable: ClassVar[bool] = False  # whether it can give and take the state of a task in progress
    accelerate: bool = True  # whether faster stand-ins of reference functions may be used
    trains_what_it_keeps: bool = True  # whether the last task's network is what its last epoch had
    likelihood: Likelihood = Categorical()
    outcome: HeldOut | None = None  # how well the last task's held-out rows were answered when it ended
    further_factors: Mapping[str, int] = MappingProxyType({})  # of the last task, those with π̄ < κ it keeps, by layer
    locks: ClassVar[bool] = False  # whether a tensor that `state` gave once is never written to again
    has_versions: ClassVar[bool] = False  # whether a task can be updated
    settings: Any = None  # what the next task is learned with
    classes: Sequence[tuple[int, ...]] | None = None  # of every task; None where the state does not say
    has_frozen_base: bool = False  # whether tasks are differences from pretrained weights

    @property
    @abstractmethod
    def device(self) -> torch.device: ...

    def fork(self) -> Self:
        """A method that may learn or forget a task while this one stays as it is, and answers whoever asks it. What
        neither of them ever writes to may be shared."""
        return copy.deepcopy(self)

    @abstractmethod
    def begin_task(self, data: TaskData) -> Sequence[Phase]:
        """Prepare for a task and say what to train."""

    def with_settings(self, settings: Any) -> Self:
        """The same method with other settings from the next task on."""
        raise self._unsupported("does not change its settings between tasks")

    def _unsupported(self, what: str, remedy: str = "use IBP-WF for it") -> InputError:
        return InputError(f"method '{self.name}' {what}; {remedy}.")

    def check_complete(self) -> None:
        """Reject learning where parts of the user's own, which a folder cannot hold, have not been given again."""

    def find_packing(self, x: object, before: Packing | None) -> Packing | None:
        """How inputs of a first task become one tensor, where they have names."""
        return None

    def take_packing(self, packing: Packing) -> None:
        """Take inputs that are packed so; called before the first task."""
        raise self._unsupported("takes no inputs by name")

    def check_input_shape(self, shape: tuple[int, ...]) -> None:
        """Reject a stored shape of inputs that the method was not made for."""

    @property
    def least_classes(self) -> int:
        """How many classes a task needs to be learned at all."""
        return 2

    def rows_to_train(self, data: TaskData) -> Rows:
        """The rows that mini-batches are made of; asked for after `begin_task`."""
        return data.rows

    @property
    @abstractmethod
    def template(self) -> nn.Module:
        """A plain network of the size that is trained: it tells how many threads a CPU should use."""

    def after_epoch(self, phase: Phase, epoch: int) -> bool:
        """Called after every epoch; True when the parameters to train are new ones."""
        return False

    def held_out_loss(self) -> float | None:
        """How badly rows that nothing is learned from are answered at the moment; None where there are none."""
        return None

    def counts(self) -> Counts:
        return Counts()

    def check_resumable(self) -> None:
        """Refuse checkpoints of a task in progress where the method cannot give its training state."""
        if not self.resumable:
            raise self._not_resumable()

    def _not_resumable(self) -> InputError:
        remedy = "leave checkpoint out and save after each task"
        return InputError(f"method '{self.name}' cannot be resumed inside a task; {remedy}.")

    def training_state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The task in progress as JSON and tensors: all that training has changed since `begin_task`."""
        raise self._not_resumable()

    def load_training_state(self, content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `training_state`, on a method that has just begun the same task."""
        raise self._not_resumable()

    @abstractmethod
    def end_task(self, data: TaskData) -> None:
        """Keep what the task taught; the only place where a method's lasting state changes."""

    def learn_adapter(self, path: str | Path, data: TaskData, classes: Sequence[int] | None) -> None:
        """Keep a LoRA adapter in a folder as a task; `data` are examples of it."""
        raise self._unsupported("takes no adapters")

    def add_rows(self, task: int, rows: Rows) -> None:
        """Let task inference see more rows of a task, whose expert stays."""
        raise self.no_versions()

    def no_versions(self) -> InputError:
        return self._unsupported(
            "keeps no versions of a task, so it cannot update one", "learn the rows as another task, or use IBP-WF"
        )

    @abstractmethod
    def trial(self, x: Tensor) -> object:
        """What the network gives for one example, to see that its shape fits."""

    @abstractmethod
    def logits(self, x: Tensor, task: int) -> Tensor:
        """A task's raw outputs, a column per class of the task."""

    @property
    def has_novelty(self) -> bool:
        return False

    def predict_with_novelty(
        self, x: Tensor, task: Tensor | None, rate: float, *, marginal: bool, posterior_samples: int, seed: int
    ) -> Prediction:
        """`predict` with novelty scores beside."""
        found = self.predict(x, task, marginal=marginal, posterior_samples=posterior_samples, seed=seed)
        return found.with_novelty(self.novelty(x, rate))

    @property
    def factor_model(self) -> FactorModel:
        """The factorized network with every task."""
        raise self._unsupported("has no factorized network")

    def merge(self, task: int) -> nn.Module:
        """A task as an ordinary network."""
        raise self._unsupported("has no network for each task")

    def novelty(self, x: Tensor, rate: float) -> Tensor:
        """How novel each row is; above 1 for a share `rate` of the tasks' own rows."""
        raise self._unsupported("has no novelty score")

    def serial(self, task: int) -> int:
        """A task's number among all that were ever learnt. Forgetting changes numbers, not serials: files and random
        streams go by them."""
        return task

    def by_number(self, learned: Sequence[T]) -> Sequence[T]:
        """What there is of each task, in the order in which they were learned, in that of their numbers: tasks, then
        older versions of them."""
        return learned

    def version(self, task: int) -> tuple[int, int]:
        """The number of the task that one is a version of, and which."""
        return task, 1

    def next_serial(self, tasks: int) -> int:
        """That of the task that comes after these."""
        return tasks

    def forget(self, task: int) -> Forgotten:
        """Remove one task and leave the others' answers as they are."""
        raise InputError(
            f"method '{self.name}' cannot forget one task, because its tasks share weights; train again without it."
        )

    def use(self, task: int) -> dict[str, dict[str, int]]:
        """Factors per layer as they were when a task ended; empty for methods without factors."""
        return {}

    @abstractmethod
    def memory(self) -> dict[str, int]:
        """Bytes kept between tasks, by kind."""

    @abstractmethod
    def parameter_count(self) -> int:
        """Numbers the method stores to answer with, after the tasks so far."""

    @abstractmethod
    def configuration(self) -> dict[str, Any]:
        """JSON from which `create` makes the same untrained method again."""

    def fixed_files(self) -> dict[str, dict[str, Tensor]]:
        """Named files of tensors that make the untrained method, beside `configuration`."""
        return {}

    @classmethod
    @abstractmethod
    def create(cls, configuration: Mapping[str, Any], device: str | torch.device = "cpu") -> Self:
        """An untrained method from its configuration."""

    @abstractmethod
    def predict(
        self, x: Tensor, task: Tensor | None, *, marginal: bool, posterior_samples: int, seed: int
    ) -> Prediction:
        """Answer inputs, for a task per row (on the host), or inferring it when `task` is None."""

    @abstractmethod
    def state(self) -> tuple[dict[str, Any], Mapping[str, Mapping[str, Tensor]]]:
        """What to store: JSON, and named files of tensors (one per task where it can be)."""

    @abstractmethod
    def load_state(self, content: Mapping[str, Any], files: Mapping[str, Mapping[str, Tensor]]) -> None:
        """The inverse of `state`, on a fresh method."""
