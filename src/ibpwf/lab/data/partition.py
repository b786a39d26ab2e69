"""How a data set becomes tasks: classes are dealt out, examples held out for validation or left out.

Every wrong request is named here, before any data is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal

import torch
from torch import Tensor

from ibpwf.downloads.files import Progress
from ibpwf.errors import InputError
from ibpwf.lab.data.examples import Pair, Rows, Split
from ibpwf.lab.data.tasks import Task


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a scenario of one data set can be asked for."""

    tasks: int | None = None
    """How many tasks: the first of a split's, or of as many permutations as one likes (10)."""
    examples: int | None = None
    """Keep the first so many of each class, for training and for testing."""
    seed: int = 0
    progress: Progress | None = None
    """Told what a fetch is doing."""
    splits: Sequence[Sequence[int]] | None = None
    """Every task's classes, `[(0, 1), (2, 3, 4)]`; instead of the next two."""
    classes_per_task: int | None = None
    """2 unless given."""
    order: Sequence[int] | Literal["random"] | None = None
    """The classes as they are dealt out, or "random" by the seed; as numbered unless given."""
    validation: float = 0.0
    """The fraction of each class's training examples to hold out, by the seed."""
    flatten: bool | None = None
    """Whether inputs come flat; unless given, grey images do, `(N, 784)`, and color does not, `(N, 3, 32, 32)`."""
    normalize: bool = True
    """Standardize by the data set's constants; without it values are in [0, 1]."""
    data_dir: str | os.PathLike[str] | None = None
    """The cache folder; unless given, `$IBPWF_DATA`, else the platform's."""

    def __post_init__(self) -> None:
        for field, least in (("seed", 0), ("tasks", 1), ("examples", 1), ("classes_per_task", 1)):
            if (value := getattr(self, field)) is not None:
                object.__setattr__(self, field, _whole_number(field, value, least))
        if self.seed >= 2**63:
            raise InputError(f"seed={self.seed}: it must be below 2**63.")
        fraction = self.validation
        if isinstance(fraction, bool) or not isinstance(fraction, Real) or not 0.0 <= float(fraction) < 1.0:
            raise InputError(
                f"validation={fraction!r}: it is the fraction of the training examples to hold out, at least 0 and "
                "below 1."
            )
        for field, allowed in (("normalize", (True, False)), ("flatten", (True, False, None))):
            if not any(getattr(self, field) is choice for choice in allowed):
                raise InputError(f"{field}={getattr(self, field)!r}: it must be True or False.")


def _whole_number(field: str, value: object, least: int) -> int:
    """`value` as an int, or an `InputError` naming the field."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise InputError(f"{field}={value!r}: it must be a whole number of at least {least}.")
    return int(value)


def partition(classes: Sequence[int], options: Options) -> list[tuple[int, ...]]:
    """Which classes each task has."""
    if options.splits is not None:
        for field in ("classes_per_task", "order"):
            if (value := getattr(options, field)) is not None:
                raise InputError(f"{field}={value!r} and splits are both given; splits already says it. Drop one.")
        groups = _given_splits(classes, options.splits)
    else:
        groups = _in_groups(_ordered(classes, options), options)
    if options.tasks is not None and options.tasks > len(groups):
        raise InputError(
            f"tasks={options.tasks}: there are only {len(groups)} tasks here. Ask for 1 to {len(groups)}, or for "
            "fewer classes_per_task."
        )
    return groups[: options.tasks]


def _given_splits(classes: Sequence[int], splits: object) -> list[tuple[int, ...]]:
    groups: list[tuple[int, ...]] = []
    for place, group in enumerate(_listed("splits", splits, "a list of class lists, such as [(0, 1), (2, 3)]")):
        field = f"splits[{place}]"
        members = _classes(field, _listed(field, group, "the classes of a task as a list, such as (0, 1)"), classes)
        if not members:
            raise InputError(f"{field} is empty; a task needs at least one class.")
        for earlier, others in enumerate(groups):
            for label in set(members) & set(others):
                raise InputError(
                    f"{field}: class {label} is already in splits[{earlier}]; a class belongs to one task."
                )
        groups.append(members)
    if not groups:
        raise InputError("splits is empty; a scenario needs at least one task.")
    return groups


def _ordered(classes: Sequence[int], options: Options) -> Sequence[int]:
    if options.order is None:
        return classes
    if isinstance(options.order, str) and options.order == "random":
        generator = torch.Generator().manual_seed(options.seed)
        shuffled = torch.randperm(len(classes), generator=generator, device="cpu")
        return [classes[place] for place in shuffled.tolist()]
    return _classes("order", _listed("order", options.order, "'random' or a list of classes"), classes)


def _in_groups(classes: Sequence[int], options: Options) -> list[tuple[int, ...]]:
    size, count = options.classes_per_task or 2, len(classes)
    if size > count:
        raise InputError(f"classes_per_task={size}: there are only {count} classes.")
    full, left_over = divmod(count, size)
    if left_over and options.tasks is None:
        fitting = [str(number) for number in range(1, count + 1) if count % number == 0]
        raise InputError(
            f"classes_per_task={size}: {count} classes do not divide evenly. Use one of {', '.join(fitting)}; or "
            f"tasks={full} to leave the last {left_over} out; or name every task's classes in splits."
        )
    return [tuple(classes[place * size : (place + 1) * size]) for place in range(full)]


def _listed(field: str, value: object, expected: str) -> Iterable[object]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InputError(f"{field}={value!r}: give {expected}.")
    return value


def _classes(field: str, labels: Iterable[object], known: Sequence[int]) -> tuple[int, ...]:
    """Labels as ints, each known and none twice."""
    chosen: list[int] = []
    for label in labels:
        if isinstance(label, bool) or not isinstance(label, Integral) or int(label) not in known:
            shown = ", ".join(map(str, known)) if len(known) <= 20 else f"{known[0]} to {known[-1]}"
            raise InputError(f"{field} has class {label!r}, which the data has not. Known: {shown}.")
        if int(label) in chosen:
            raise InputError(f"{field} has class {int(label)} twice; name it once.")
        chosen.append(int(label))
    return tuple(chosen)


def class_names(classes: Sequence[int]) -> str:
    """A short name for a task with these classes: '0/1', or '0-9' for a long run of neighbours."""
    if len(classes) > 4:
        if list(classes) == list(range(classes[0], classes[0] + len(classes))):
            return f"{classes[0]}-{classes[-1]}"
        return f"{classes[0]}/{classes[1]}/…/{classes[-1]}"
    return "/".join(map(str, classes))


class Cut:
    """A data set cut into tasks by index: nothing is copied before a task is used."""

    def __init__(
        self, train: Pair, test: Pair, options: Options, rows: Callable[[Tensor, Tensor | None], Rows] = Rows
    ) -> None:
        """`rows` makes the examples of some rows of the inputs (None: of all)."""
        self._train, self._test, self._rows = train, test, rows
        self._validation_rows = self._train_rows = self._test_rows = None
        if options.validation:
            fraction = float(options.validation)
            self._train_rows, self._validation_rows = _held_out(train[1], fraction, options.seed)
        if options.examples is not None:
            self._train_rows = _first_of_each(train[1], options.examples, self._train_rows)
            self._test_rows = _first_of_each(test[1], options.examples, None)

    def task(self, name: str, classes: Sequence[int]) -> Task:
        """The task with the examples of these classes."""
        train = self._split(self._train, self._train_rows, classes)
        test = self._split(self._test, self._test_rows, classes)
        held_out = self._validation_rows
        validation = None if held_out is None else self._split(self._train, held_out, classes)
        return Task(name, train, test, validation, classes=classes)

    def _split(self, pair: Pair, kept: Tensor | None, classes: Sequence[int]) -> Split:
        x, y = pair
        mine = torch.isin(y, torch.tensor(classes, dtype=y.dtype, device=y.device))
        if kept is not None:
            allowed = torch.zeros_like(mine)
            allowed[kept] = True
            mine &= allowed
        rows = None if bool(mine.all()) else torch.nonzero(mine).flatten()
        return Split(self._rows(x, rows), (y if rows is None else y[rows]).to(torch.int64))


def _held_out(y: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Rows kept for training and rows held out, the same fraction of each class, both in data order.

    Every class of two examples or more gives at least one and keeps at least one.
    """
    generator = torch.Generator().manual_seed(seed)
    out = torch.zeros_like(y, dtype=torch.bool)
    for label in torch.unique(y).tolist():
        rows = torch.nonzero(y == label).flatten()
        count = min(max(1, round(fraction * len(rows))), len(rows) - 1)
        shuffled = torch.randperm(len(rows), generator=generator, device="cpu")
        out[rows[shuffled[:count]]] = True
    if not bool(out.any()):
        raise InputError(
            f"validation={fraction}: no class has two examples, so none can be held out. Use validation=0."
        )
    return torch.nonzero(~out).flatten(), torch.nonzero(out).flatten()


def _first_of_each(y: Tensor, count: int, rows: Tensor | None) -> Tensor:
    """The first `count` rows of each class (fewer where a class has fewer), among `rows` if given, in data order."""
    allowed = torch.arange(len(y), device=y.device) if rows is None else rows
    kept = [allowed[y[allowed] == label][:count] for label in torch.unique(y).tolist()]
    return torch.cat(kept).sort().values
