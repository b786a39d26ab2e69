"""Which experts there are: the versions of every task, and by what number each is asked for.

More rows of a task that is known make a new version of its expert; older ones stay. The model has all versions one
after another, as they were learned. A task's number is its place among the tasks, in the order in which they were
begun, and stands for the newest version, which alone takes part in inferring tasks. Older versions have the numbers
after those of the tasks. All versions of a task have its classes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cached_property

from ibpwf.inference.fusion import Calibration, weights
from ibpwf.inference.opinion import Opinion


@dataclass(frozen=True)
class Version:
    """One version of a task. `origin` is the serial of the task's first, whether or not that is still there;
    `opinion`, where it is kept, is what the router said of its classes then."""

    serial: int
    classes: tuple[int, ...]
    origin: int
    number: int = 1
    calibration: Calibration | None = None
    opinion: Opinion | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Versions:
    """All versions of all tasks, in the model's order. It never changes: a new version makes another."""

    all: tuple[Version, ...] = ()

    @cached_property
    def _newest(self) -> dict[int, int]:
        """The place in the model of every task's newest version, by origin."""
        newest = {one.origin: place for place, one in enumerate(self.all)}
        return {origin: newest[origin] for origin in sorted(newest)}

    @cached_property
    def tasks(self) -> int:
        return len(self._newest)

    @cached_property
    def places(self) -> list[int]:
        """Where the version of each number stands in the model: the tasks', then older ones."""
        current = list(self._newest.values())
        return [*current, *sorted({*range(len(self.all))}.difference(current))]

    @cached_property
    def owners(self) -> list[int]:
        """The number of the task that the version of each number is one of."""
        number = {origin: task for task, origin in enumerate(self._newest)}
        return [number[self.all[place].origin] for place in self.places]

    @cached_property
    def newest(self) -> list[Version]:
        return [self.all[place] for place in self._newest.values()]

    @cached_property
    def calibrations(self) -> list[Calibration | None]:
        """Of every task's newest version."""
        return [one.calibration for one in self.newest]

    @cached_property
    def weights(self) -> tuple[float, float]:
        """α of the router and β of the experts, as held-out rows say."""
        return weights(self.calibrations)

    def __getitem__(self, number: int) -> Version:
        return self.all[self.places[number]]

    def of_task(self, task: int) -> list[int]:
        """The places of all versions of a task."""
        return [place for place, one in enumerate(self.all) if one.origin == self[task].origin]

    def added(self, version: Version) -> Versions:
        return Versions((*self.all, version))

    def calibrated(self, calibration: Calibration) -> Versions:
        """With what held-out rows say of the last."""
        return Versions((*self.all[:-1], replace(self.all[-1], calibration=calibration)))

    def without(self, places: Collection[int]) -> Versions:
        return Versions(tuple(one for place, one in enumerate(self.all) if place not in places))
