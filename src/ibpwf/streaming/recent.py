"""How tasks and the online part answered lately, and one answer made of both.

The online part knows the rows that come now; the tasks know all there ever were. What the tasks take for something
of long ago stays their answer. What they take for a (task, label) that recent rows were taken for as well may be a
row of now: there both answer, each weighed by how often it was right lately.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

SHARPNESS = 40.0
"""Five points of accuracy more make an answer count e² = 7 times as much."""
COMMON = 0.02
"""Share of recent rows from which on a (task, label) belongs to now."""


@dataclass(frozen=True, eq=False)
class TaskAnswers:
    """What tasks say of rows: a column of `probabilities` for each task's class, whose `task` and `label` are numbers
    (a task's is its serial one, which stays the same when another is forgotten)."""

    probabilities: Numbers
    task: NDArray[np.int64]
    label: NDArray[np.int64]

    def by_label(self, labels: int, columns: NDArray[np.bool_] | None = None) -> Numbers:
        """Sums over the tasks that have a label, of some of the columns."""
        out = np.zeros((labels, len(self.probabilities)))
        chosen = slice(None) if columns is None else columns
        np.add.at(out, self.label[chosen], self.probabilities.T[chosen])
        return out.T

    def pairs(self) -> list[tuple[int, int]]:
        return list(zip(self.task.tolist(), self.label.tolist(), strict=True))


@dataclass(frozen=True)
class Recent:
    """Shares over about the last `window` rows."""

    window: int
    online: float = 0.5  # right answers
    tasks: float = 0.5
    shares: Mapping[tuple[int, int], float] = field(default_factory=dict)  # taken for which (task, label)

    def seen(self, y: NDArray[np.int64], online: Numbers, told: TaskAnswers | None) -> Recent:
        """After rows whose labels are `y` were answered so."""
        now = self
        if online.shape[1]:
            now = replace(self, online=self._moved(self.online, online.argmax(1) == y))
        if told is None:
            return now
        best = told.by_label(max(online.shape[1], int(told.label.max()) + 1)).argmax(1)
        return replace(now, tasks=self._moved(self.tasks, best == y)).taken(told)

    def taken(self, told: TaskAnswers) -> Recent:
        """What rows were taken for, most recent last."""
        weights = self._weights(len(told.probabilities))
        left = (1 - 1 / self.window) ** len(weights)
        shares = {pair: share * left for pair, share in self.shares.items() if share * left > 1e-4}
        pairs = told.pairs()
        for column, weight in zip(told.probabilities.argmax(1).tolist(), weights.tolist(), strict=True):
            shares[pairs[column]] = shares.get(pairs[column], 0.0) + weight
        return replace(self, shares=shares)

    def _weights(self, rows: int) -> Numbers:
        found: Numbers = (1 - 1 / self.window) ** np.arange(rows - 1, -1, -1.0) / self.window
        return found

    def _moved(self, share: float, right: NDArray[np.bool_]) -> float:
        return share * (1 - 1 / self.window) ** len(right) + float(self._weights(len(right)) @ right)

    @property
    def weight_of_online(self) -> float:
        return float(1 / (1 + np.exp(-SHARPNESS * (self.online - self.tasks))))

    def mixed(self, online: Numbers, told: TaskAnswers | None, labels: int) -> Numbers:
        """P(label number | x) of each row, a column for each of so many labels."""
        alone = np.zeros((len(online), labels))
        alone[:, : online.shape[1]] = online
        if told is None:
            return alone
        total = sum(self.shares.values())
        common = [self.shares.get(pair, 0.0) > COMMON * total for pair in told.pairs()]
        now = np.array(common, dtype=bool)
        of_now = told.by_label(labels, now)
        mass, weight = of_now.sum(1, keepdims=True), self.weight_of_online
        mixed: Numbers = told.by_label(labels, ~now) + (1 - weight) * of_now + weight * mass * alone
        return mixed

    def to_json(self) -> dict[str, Any]:
        shares = [[*pair, share] for pair, share in self.shares.items()]
        return {"window": self.window, "online": self.online, "tasks": self.tasks, "shares": shares}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        shares = {(int(task), int(label)): float(share) for task, label, share in value["shares"]}
        return cls(int(value["window"]), float(value["online"]), float(value["tasks"]), shares)
