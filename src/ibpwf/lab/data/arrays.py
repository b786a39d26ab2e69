"""Scenarios of the user's own data: numpy arrays or torch tensors in, a `Scenario` out.

Inputs are taken as they are: converted to float32 if need be, not normalised, and not copied if not
needed. Labels are whole numbers from 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ibpwf.errors import InputError
from ibpwf.lab.data.partition import (
    Order,
    Splits,
    checked_fraction,
    checked_seed,
    class_names,
    held_out,
    partition,
)
from ibpwf.lab.data.tasks import Rows, Scenario, Split, Task

Array = npt.NDArray[np.generic] | Tensor
"""What users may give: a numpy array or a torch tensor."""


def scenario_from_arrays(
    tasks: Iterable[tuple[Array, Array, Array, Array]],
    names: Sequence[str] | None = None,
    name: str = "custom",
    *,
    validation: float = 0.0,
    seed: int = 0,
) -> Scenario:
    """A scenario of ready-made tasks, each `(x_train, y_train, x_test, y_test)`.

    Tasks may share classes. `names` are task-0, task-1, … unless given. `validation` holds out that
    fraction of each class's training examples, by `seed`.
    """
    fraction, seed = checked_fraction(validation), checked_seed(seed)
    given = list(tasks)
    if not given:
        raise InputError("tasks is empty; a scenario needs at least one task.")
    made = []
    for index, (own_name, parts) in enumerate(zip(_names(names, len(given)), given, strict=True)):
        where = f"tasks[{index}]"
        if isinstance(parts, (str, Tensor, np.ndarray)) or not isinstance(parts, Sequence) or len(parts) != 4:
            raise InputError(f"{where}: give four arrays, (x_train, y_train, x_test, y_test).")
        train, test = _pairs(where, *parts)
        made.append(_task(own_name, index, train, test, fraction, seed, where))
    return _scenario(name, made, seed)


def split_by_class(
    x_train: Array,
    y_train: Array,
    x_test: Array,
    y_test: Array,
    splits: Splits | None = None,
    classes_per_task: int | None = None,
    *,
    order: Order | None = None,
    tasks: int | None = None,
    names: Sequence[str] | None = None,
    name: str = "custom",
    validation: float = 0.0,
    seed: int = 0,
) -> Scenario:
    """A scenario that deals the classes of one data set out to tasks, as `scenario` does."""
    fraction, seed = checked_fraction(validation), checked_seed(seed)
    (train_x, train_y, _), (test_x, test_y, _) = _pairs("", x_train, y_train, x_test, y_test)
    classes: list[int] = torch.unique(train_y).tolist()
    groups = partition(classes, splits=splits, classes_per_task=classes_per_task, order=order, tasks=tasks, seed=seed)
    own_names = [class_names(group) for group in groups] if names is None else _names(names, len(groups))
    made = []
    for index, (own_name, group) in enumerate(zip(own_names, groups, strict=True)):
        mine = torch.tensor(group, device=train_y.device)
        train_rows = torch.nonzero(torch.isin(train_y, mine)).flatten()
        test_rows = torch.nonzero(torch.isin(test_y, mine)).flatten()
        train = (train_x, train_y[train_rows], train_rows)
        test = (test_x, test_y[test_rows], test_rows)
        made.append(_task(own_name, index, train, test, fraction, seed, f"task {own_name}", group))
    return _scenario(name, made, seed)


_Part = tuple[Tensor, Tensor, Tensor | None]
"""Inputs, the labels of this part, and which inputs are its own (None: all)."""


def _task(
    name: str,
    index: int,
    train: _Part,
    test: _Part,
    fraction: float,
    seed: int,
    where: str,
    classes: Sequence[int] | None = None,
) -> Task:
    x, y, rows = train
    labels = torch.unique(y)
    if len(test[1]) == 0:
        raise InputError(f"{where}: it has no test examples; give at least one.")
    validation = None
    if fraction:
        kept, out = held_out(y, fraction, seed)
        validation = _split(x, y, rows, out)
        trained = _split(x, y, rows, kept)
    else:
        trained = Split(Rows(x, rows), y)
    own = tuple(labels.tolist()) if classes is None else tuple(classes)
    return Task(name, index, own, trained, Split(Rows(test[0], test[2]), test[1]), validation)


def _split(x: Tensor, y: Tensor, rows: Tensor | None, picked: Tensor) -> Split:
    return Split(Rows(x, picked if rows is None else rows[picked]), y[picked])


def _scenario(name: str, tasks: Sequence[Task], seed: int) -> Scenario:
    shape = tasks[0].train.shape
    for task in tasks:
        if task.train.shape != shape:
            raise InputError(
                f"tasks[{task.index}]: its examples have shape {task.train.shape}, those of tasks[0] have "
                f"{shape}; all must be alike."
            )
    n_classes = 1 + max(max(task.classes) for task in tasks)
    return Scenario(name, tuple(tasks), seed, shape, n_classes)


def _names(names: Sequence[str] | None, count: int) -> list[str]:
    if names is None:
        return [f"task-{index}" for index in range(count)]
    chosen = [names] if isinstance(names, str) else list(names)
    if len(chosen) != count:
        raise InputError(f"names has {len(chosen)} entries for {count} tasks; give one for each.")
    for index, name in enumerate(chosen):
        if not isinstance(name, str) or not name:
            raise InputError(f"names[{index}]={name!r}: a name must be a text that is not empty.")
        if name in chosen[:index]:
            raise InputError(f"names[{index}]={name!r} is there twice; names must differ.")
    return chosen


def _pairs(
    where: str, x_train: Array, y_train: Array, x_test: Array, y_test: Array
) -> tuple[tuple[Tensor, Tensor, None], tuple[Tensor, Tensor, None]]:
    prefix = f"{where}: " if where else ""
    train = _pair(prefix, "train", x_train, y_train)
    test = _pair(prefix, "test", x_test, y_test)
    if train[0].shape[1:] != test[0].shape[1:]:
        raise InputError(
            f"{prefix}x_train has examples of shape {tuple(train[0].shape[1:])}, x_test of "
            f"{tuple(test[0].shape[1:])}; they must be alike."
        )
    strange = test[1][~torch.isin(test[1], train[1])]
    if len(strange):
        raise InputError(f"{prefix}y_test has class {int(strange[0])}, which y_train has not.")
    return (*train, None), (*test, None)


def _pair(prefix: str, part: str, x: Array, y: Array) -> tuple[Tensor, Tensor]:
    inputs, labels = _tensor(f"{prefix}x_{part}", x), _tensor(f"{prefix}y_{part}", y)
    if inputs.ndim < 2:
        raise InputError(
            f"{prefix}x_{part} has shape {tuple(inputs.shape)}; the first dimension counts examples, the "
            "others are one example's. Reshape it to (N, features)."
        )
    if len(inputs) == 0 or inputs[0].numel() == 0:
        raise InputError(f"{prefix}x_{part} is empty (shape {tuple(inputs.shape)}).")
    if inputs.is_complex():
        raise InputError(f"{prefix}x_{part} has complex values; give real ones.")
    # Bytes stay bytes until a task is used: a quarter of the memory.
    if inputs.dtype != torch.uint8:
        inputs = inputs.to(torch.float32)
        if not bool(torch.isfinite(inputs).all()):
            raise InputError(f"{prefix}x_{part} has values that are NaN or infinite; clean it first.")
    if labels.ndim != 1 or len(labels) != len(inputs):
        raise InputError(
            f"{prefix}y_{part} has shape {tuple(labels.shape)} for {len(inputs)} examples in x_{part}; give "
            "one label for each."
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InputError(f"{prefix}y_{part} has type {labels.dtype}; labels must be whole numbers.")
    labels = labels.to(torch.int64)
    if int(labels.min()) < 0:
        raise InputError(f"{prefix}y_{part} has label {int(labels.min())}; labels count from 0.")
    return inputs, labels


def _tensor(field: str, values: Array) -> Tensor:
    try:
        # torch takes neither read-only arrays nor reversed ones.
        if isinstance(values, np.ndarray) and not (values.flags.writeable and values.flags.c_contiguous):
            values = values.copy()
        return torch.as_tensor(values).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{field} is no array of numbers ({error}). Give a numpy array or a tensor.") from error
