"""Continual-learning scenarios by name, `scenario("split-mnist")`, and of the user's own arrays.

`split-<set>` deals the classes out to tasks. `permuted-<set>` gives every task all classes and its own
fixed shuffle of the input values, the first task none. Packages bring their own through entry points of
the group `ibpwf.scenarios`, and `module:name` is imported: functions
`f(*, tasks=None, examples=None, seed=0, progress=None)` that return a `Scenario`.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ibpwf import registry
from ibpwf.downloads.files import Progress
from ibpwf.errors import InputError
from ibpwf.lab.data.catalog import DATA_SETS
from ibpwf.lab.data.examples import Array, Rows, check_fit, checked_split
from ibpwf.lab.data.partition import Cut, Options, class_names, partition
from ibpwf.lab.data.sets import load
from ibpwf.lab.data.tasks import Scenario

PERMUTED_TASKS = 10
"""How many tasks a permuted scenario has unless told otherwise."""

# One float32 copy of a data set serves all live scenarios that read the whole of it, whatever their seeds.
_whole: weakref.WeakValueDictionary[tuple[int, bool, bool], Rows] = weakref.WeakValueDictionary()


def scenario_names() -> list[str]:
    """The names `scenario` knows, those of installed packages included."""
    return registry.names(registry.SCENARIOS, _built_in())


def scenario(
    name: str,
    *,
    tasks: int | None = None,
    examples: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    **options: Any,
) -> Scenario:
    """A scenario by its name (`scenario_names()` lists them) or as `module:name`.

    Split: `splits=[(0, 1), (2, 3, 4)]` names every task's classes; or `classes_per_task` (2) classes are
    dealt out in `order` (a list, or "random" by `seed`; as numbered by default). `tasks` keeps the first
    few. Labels stay those of the data set.

    Permuted: `tasks` (10) tasks with permutations drawn one after the other from `seed`, so that fewer
    tasks are the first of more. Whole examples are permuted, colors included.

    Both take all other fields of `ibpwf.lab.data.Options` as well: `validation`, `flatten`, `normalize`,
    `data_dir`. A scenario from elsewhere is given whatever options you give.
    """
    make = registry.find(registry.SCENARIOS, name, _built_in())
    if not callable(make):
        raise InputError(f"scenario '{name}' is a {type(make).__name__}; name a function that returns a Scenario.")
    given = {"tasks": tasks, "examples": examples, "seed": seed, "progress": progress, **options}
    try:
        inspect.signature(make).bind(**given)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"scenario '{name}' must take tasks, examples, seed and progress by name ({error})."
        ) from error
    made = make(**given)
    if not isinstance(made, Scenario):
        raise InputError(f"scenario '{name}' gave a {type(made).__name__}; return an ibpwf.lab.data.Scenario.")
    return made


def split_by_class(
    x_train: Array,
    y_train: Array,
    x_test: Array,
    y_test: Array,
    *,
    name: str = "custom",
    names: Sequence[str] | None = None,
    **options: Any,
) -> Scenario:
    """A scenario that deals the classes of the user's arrays out to tasks, with the options of a split `scenario`."""
    asked = Options(**options)
    train, test = checked_split(x_train, y_train, "train"), checked_split(x_test, y_test, "test")
    check_fit(train, test, "test")
    groups = partition(torch.unique(train.y).tolist(), asked)
    called = [class_names(group) for group in groups] if names is None else list(names)
    if len(called) != len(groups):
        raise InputError(f"names has {len(called)} entries for {len(groups)} tasks; give one for each.")
    cut = Cut((train.rows.source, train.y), (test.rows.source, test.y), asked)
    return Scenario(name, list(map(cut.task, called, groups)), seed=asked.seed)


def _built_in() -> dict[str, Callable[..., Scenario]]:
    kinds = {"split": _split, "permuted": _permuted}
    return {f"{kind}-{name}": partial(make, name) for name in DATA_SETS for kind, make in kinds.items()}


def _split(data_set: str, **given: Any) -> Scenario:
    options = Options(**given)
    classes = range(len(DATA_SETS[data_set].classes))
    groups = partition(classes, options)  # before the data is loaded: a typing error should not cost a download
    cut = _cut(data_set, options)
    made = [cut.task(class_names(group), group) for group in groups]
    return Scenario(f"split-{data_set}", made, seed=options.seed, n_classes=len(classes))


def _permuted(data_set: str, **given: Any) -> Scenario:
    options = Options(**given)
    for field in ("splits", "classes_per_task", "order"):
        if (value := getattr(options, field)) is not None:
            raise InputError(
                f"{field}={value!r}: every task of permuted-{data_set} has all classes. Drop it, or use "
                f"'split-{data_set}'."
            )
    classes = range(len(DATA_SETS[data_set].classes))
    made = [_cut(data_set, options).task("permutation-0", classes)]
    generator = torch.Generator().manual_seed(options.seed)
    values = torch.Size(made[0].train.shape).numel()
    for index in range(1, options.tasks or PERMUTED_TASKS):
        permutation = torch.randperm(values, generator=generator, device="cpu")
        made.append(made[0].permuted(f"permutation-{index}", permutation))
    return Scenario(f"permuted-{data_set}", made, seed=options.seed, n_classes=len(classes))


def _cut(data_set: str, options: Options) -> Cut:
    """The data set, ready to be cut into tasks."""
    data = load(data_set, data_dir=options.data_dir, progress=options.progress)
    known = data.entry
    flat = known.shape[0] == 1 if options.flatten is None else options.flatten
    mean, std = (known.mean, known.std) if options.normalize else ((), ())
    make = partial(Rows, levels=known.levels, mean=mean, std=std, flatten=flat)

    def rows(x: Tensor, picked: Tensor | None) -> Rows:
        if picked is not None:
            return make(x, picked)
        shared = _whole.get((id(x), options.normalize, flat)) or make(x)
        _whole[id(x), options.normalize, flat] = shared
        return shared

    return Cut((data.train_x, data.train_y), (data.test_x, data.test_y), options, rows)
