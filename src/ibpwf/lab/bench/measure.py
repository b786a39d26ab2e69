"""How things are timed: sides take turns, and what counts is the ratio within a round.

On a CPU one thread is used and its processor time is what counts: other programs on the machine may slow a round
down, but they are not billed to it. On a GPU it is the time on the wall until the device has finished.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ibpwf.training.environment import prepared_to_train


@dataclass(frozen=True)
class Setup:
    """Where to measure and how long: `quick` halves the rounds and leaves out what takes a minute. Whole runs are
    kept in the folder `runs`, if there is one."""

    device: torch.device
    quick: bool = False
    runs: Path | None = None

    @property
    def rounds(self) -> int:
        return 7 if self.quick else 15

    def one_thread(self) -> AbstractContextManager[None]:
        """On a CPU as a small network trains: products of small matrices gain little from a second thread, and lose
        much where others run."""
        return prepared_to_train(nn.Identity(), self.device)

    def seconds(self) -> float:
        """A clock: differences of two readings count."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            return time.perf_counter()
        return time.process_time()


@dataclass(frozen=True)
class Row:
    """A line of the table: the median and the middle half of what was measured, and what it should be.

    `limit` is the most it may be (the least, where `at_least`); None for a number that is only to be known.
    """

    name: str
    what: str
    value: float
    low: float
    high: float
    limit: float | None = None
    at_least: bool = False
    unit: str = "×"
    detail: str = ""

    @property
    def met(self) -> bool | None:
        if self.limit is None:
            return None
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}


def take_turns(
    sides: Mapping[str, Callable[[], object]], setup: Setup, rounds: int | None = None, *, warm: bool = False
) -> dict[str, list[float]]:
    """Seconds of each side in each round; every round starts with another side, and a first one is not counted
    (unless all is `warm`: sides of a minute each, which have nothing to warm up)."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(int(warm), (rounds or setup.rounds) + 1):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            started = setup.seconds()
            sides[name]()
            if number:
                times[name].append(setup.seconds() - started)
    return times


def middle(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, and the quartiles around it."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return statistics.median(values), low, high


def ratio(
    name: str,
    what: str,
    above: Sequence[float],
    below: Sequence[float],
    limit: float | None = None,
    *,
    per: float = 1.0,
    detail: str = "",
) -> Row:
    """A row for `above / below`, round by round; `per` is how many of a thing `above` did for each of `below`."""
    values = [a / b / per for a, b in zip(above, below, strict=True)]
    return Row(name, what, *middle(values), limit, detail=detail)


def milliseconds(times: Mapping[str, Sequence[float]], each: int = 1) -> str:
    """What the sides took, in words."""
    return ", ".join(f"{name} {1e3 * statistics.median(values) / each:.2f} ms" for name, values in times.items())
