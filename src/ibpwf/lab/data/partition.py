"""How classes are dealt out to tasks and examples to validation; every wrong request is named here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import Literal

import torch
from torch import Tensor

from ibpwf.errors import InputError

Splits = Sequence[Sequence[int]]
Order = Sequence[int] | Literal["random"]


def whole_number(field: str, value: object, least: int) -> int:
    """`value` as an int, or an `InputError` naming the field."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise InputError(f"{field}={value!r}: it must be a whole number of at least {least}.")
    return int(value)


def checked_seed(seed: object) -> int:
    """A seed that `torch.Generator` takes."""
    number = whole_number("seed", seed, 0)
    if number >= 2**63:
        raise InputError(f"seed={number}: it must be below 2**63.")
    return number


def checked_fraction(value: object) -> float:
    """The validation fraction, in [0, 1)."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0.0 <= float(value) < 1.0:
        raise InputError(
            f"validation={value!r}: it is the fraction of the training examples to hold out, at least 0 and below 1."
        )
    return float(value)


def partition(
    classes: Sequence[int],
    *,
    splits: Splits | None,
    classes_per_task: int | None,
    order: Order | None,
    tasks: int | None,
    seed: int,
) -> list[tuple[int, ...]]:
    """Which classes each task has."""
    if splits is not None:
        for field, value in (("classes_per_task", classes_per_task), ("order", order)):
            if value is not None:
                raise InputError(f"{field}={value!r} and splits are both given; splits already says it. Drop one.")
        groups = _given_splits(classes, splits)
    else:
        groups = _in_groups(_ordered(classes, order, seed), classes_per_task, tasks)
    if tasks is None:
        return groups
    wanted = whole_number("tasks", tasks, 1)
    if wanted > len(groups):
        raise InputError(
            f"tasks={wanted}: there are only {len(groups)} tasks here. Ask for 1 to {len(groups)}, or for "
            "fewer classes_per_task."
        )
    return groups[:wanted]


def _given_splits(classes: Sequence[int], splits: Splits) -> list[tuple[int, ...]]:
    groups: list[tuple[int, ...]] = []
    seen: dict[int, int] = {}
    if isinstance(splits, str) or not isinstance(splits, Iterable):
        raise InputError(f"splits={splits!r}: give a list of class lists, such as [(0, 1), (2, 3)].")
    for place, group in enumerate(splits):
        if isinstance(group, str) or not isinstance(group, Iterable):
            raise InputError(f"splits[{place}]={group!r}: give the classes of a task as a list, such as (0, 1).")
        members = _classes(f"splits[{place}]", group, classes)
        if not members:
            raise InputError(f"splits[{place}] is empty; a task needs at least one class.")
        for label in members:
            if label in seen:
                raise InputError(
                    f"splits[{place}]: class {label} is already in splits[{seen[label]}]; a class belongs to "
                    "one task."
                )
            seen[label] = place
        groups.append(members)
    if not groups:
        raise InputError("splits is empty; a scenario needs at least one task.")
    return groups


def _ordered(classes: Sequence[int], order: Order | None, seed: int) -> list[int]:
    if order is None:
        return list(classes)
    if isinstance(order, str):
        if order != "random":
            raise InputError(f"order={order!r}: give 'random' or a list of classes.")
        generator = torch.Generator().manual_seed(seed)
        shuffled = torch.randperm(len(classes), generator=generator, device="cpu")
        return [classes[place] for place in shuffled.tolist()]
    if not isinstance(order, Iterable):
        raise InputError(f"order={order!r}: give 'random' or a list of classes.")
    return list(_classes("order", order, classes))


def _in_groups(classes: list[int], classes_per_task: int | None, tasks: int | None) -> list[tuple[int, ...]]:
    per_task = whole_number("classes_per_task", 2 if classes_per_task is None else classes_per_task, 1)
    if per_task > len(classes):
        raise InputError(f"classes_per_task={per_task}: there are only {len(classes)} classes.")
    groups = [tuple(classes[start : start + per_task]) for start in range(0, len(classes), per_task)]
    left_over = len(classes) % per_task
    if left_over == 0:
        return groups
    full = len(groups) - 1
    if tasks is None:
        fitting = [number for number in range(1, len(classes) + 1) if len(classes) % number == 0]
        raise InputError(
            f"classes_per_task={per_task}: {len(classes)} classes do not divide evenly. Use one of "
            f"{', '.join(map(str, fitting))}; or tasks={full} to leave the last {left_over} out; or name "
            "every task's classes in splits."
        )
    return groups[:full]


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


def held_out(y: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
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


def first_of_each(y: Tensor, count: int, rows: Tensor | None = None) -> Tensor:
    """The first `count` rows of each class (fewer where a class has fewer), among `rows` if given, in data order."""
    allowed = torch.arange(len(y), device=y.device) if rows is None else rows
    kept = [allowed[y[allowed] == label][:count] for label in torch.unique(y).tolist()]
    return torch.cat(kept).sort().values


def class_names(classes: Sequence[int]) -> str:
    """A short name for a task with these classes: '0/1', or '0-9' for a long run of neighbours."""
    if len(classes) > 4:
        if list(classes) == list(range(classes[0], classes[0] + len(classes))):
            return f"{classes[0]}-{classes[-1]}"
        return f"{classes[0]}/{classes[1]}/…/{classes[-1]}"
    return "/".join(map(str, classes))
