"""Data sets, where they come from, and the scenarios made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ibpwf.lazy import lazy_names

if TYPE_CHECKING:
    from ibpwf.lab.data.examples import Split
    from ibpwf.lab.data.fetching import fetch, verify
    from ibpwf.lab.data.partition import Options
    from ibpwf.lab.data.scenarios import scenario, scenario_names, split_by_class
    from ibpwf.lab.data.sets import ArrayDataset, load
    from ibpwf.lab.data.tasks import Scenario, Task

__all__ = [
    "ArrayDataset",
    "Options",
    "Scenario",
    "Split",
    "Task",
    "fetch",
    "load",
    "scenario",
    "scenario_names",
    "split_by_class",
    "verify",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(("fetch", "verify"), "ibpwf.lab.data.fetching"),
        **dict.fromkeys(("scenario", "scenario_names", "split_by_class"), "ibpwf.lab.data.scenarios"),
        **dict.fromkeys(("ArrayDataset", "load"), "ibpwf.lab.data.sets"),
        **dict.fromkeys(("Scenario", "Task"), "ibpwf.lab.data.tasks"),
        "Options": "ibpwf.lab.data.partition",
        "Split": "ibpwf.lab.data.examples",
    },
)
