"""The numbers in the paper's tables (`targets.csv` beside this file), to print next to ours."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True)
class Target:
    """One number of the paper."""

    table: str
    benchmark: str
    setting: str
    method: str
    uses_replay: bool
    mean: float
    std: float | None
    note: str

    @property
    def after_tasks(self) -> int | None:
        """How many tasks had been learnt, where that was not all of them."""
        found = re.match(r"(\d+) tasks only", self.note)
        return int(found[1]) if found else None


@cache
def targets() -> tuple[Target, ...]:
    """Every number of tables 1 to 4."""
    text = resources.files("ibpwf.lab.experiments").joinpath("targets.csv").read_text(encoding="utf-8")
    return tuple(
        Target(
            row["table"],
            row["benchmark"],
            row["setting"],
            row["method"],
            row["uses_replay"] == "yes",
            float(row["mean"]),
            float(row["std"]) if row["std"] else None,
            row["note"],
        )
        for row in csv.DictReader(text.splitlines())
    )


def target(benchmark: str, setting: str, method: str) -> Target | None:
    """The paper's figure for a benchmark, setting ('task', 'class', 'task-inference') and method, if any."""
    return next((t for t in targets() if (t.benchmark, t.setting, t.method) == (benchmark, setting, method)), None)


def tolerance(std: float | None) -> float:
    """How far below the paper's mean a number may lie that reproduces it: 1 point, or 3 standard deviations."""
    return max(1.0, 3 * (std or 0.0))
