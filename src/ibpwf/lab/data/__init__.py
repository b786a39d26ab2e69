"""Data sets, where they come from, and the scenarios made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ibpwf.lazy import lazy_names

if TYPE_CHECKING:
    from ibpwf.lab.data.arrays import scenario_from_arrays, split_by_class
    from ibpwf.lab.data.fetching import fetch, verify
    from ibpwf.lab.data.scenarios import describe, scenario, scenario_names
    from ibpwf.lab.data.sets import ArrayDataset, data_set_names, load
    from ibpwf.lab.data.tasks import Scenario, Split, Task

__all__ = [
    "ArrayDataset",
    "Scenario",
    "Split",
    "Task",
    "data_set_names",
    "describe",
    "fetch",
    "load",
    "scenario",
    "scenario_from_arrays",
    "scenario_names",
    "split_by_class",
    "verify",
]

__getattr__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(("scenario_from_arrays", "split_by_class"), "ibpwf.lab.data.arrays"),
        **dict.fromkeys(("fetch", "verify"), "ibpwf.lab.data.fetching"),
        **dict.fromkeys(("describe", "scenario", "scenario_names"), "ibpwf.lab.data.scenarios"),
        **dict.fromkeys(("ArrayDataset", "data_set_names", "load"), "ibpwf.lab.data.sets"),
        **dict.fromkeys(("Scenario", "Split", "Task"), "ibpwf.lab.data.tasks"),
    },
)
