"""Has surprise risen? Detectors that look at one number a row, between 0 (as expected) and 1.

A detector's own mean is its reference, so a stream that is hard to predict is not a changing one. Only a rise counts:
that a stream gets easier calls for no new task.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

from ibpwf.errors import InputError, unknown

WARM_UP = 100
"""Rows that a reference is taken from before anything is called a change."""


class Detector(Protocol):
    """Watches a series of numbers from 0 to 1."""

    def update(self, surprise: float) -> int | None:
        """Take the next number; None, or how many rows ago they began to be higher."""
        ...

    def state(self) -> dict[str, Any]:
        """What goes to disk, as JSON."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        ...

    def fork(self) -> Self:
        """A copy that goes on by itself."""
        ...


class _Fields:
    """State that is the object's numbers and lists of numbers."""

    def state(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, list) else value for name, value in vars(self).items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        for name, now in vars(self).items():
            value = state[name]
            numbers = value if isinstance(now, list) else [value]
            if not all(type(number) in (int, float) and math.isfinite(number) for number in numbers):
                raise ValueError(f"a detector's {name} is {value!r}")
            setattr(self, name, list(value) if isinstance(now, list) else type(now)(value))

    def fork(self) -> Self:
        return copy.deepcopy(self)


@dataclass
class PageHinkley(_Fields):
    """The Page–Hinkley test: how far the sum of (s − mean − tolerance) has risen above its lowest point.

    Of a stationary series whose rows are independent with variance σ², one such rise reaches `threshold` with a
    probability of about exp(−2·tolerance·threshold/σ²).
    """

    tolerance: float = 0.05
    threshold: float = 25.0
    rows: int = 0
    mean: float = 0.0
    total: float = 0.0
    lowest: float = 0.0
    since_lowest: int = 0

    def update(self, surprise: float) -> int | None:
        self.rows += 1
        self.mean += (surprise - self.mean) / self.rows
        if self.rows <= WARM_UP:
            return None
        self.total += surprise - self.mean - self.tolerance
        self.since_lowest += 1
        if self.total <= self.lowest:
            self.lowest, self.since_lowest = self.total, 0
        return self.since_lowest if self.total - self.lowest > self.threshold else None


@dataclass
class TwoWindows(_Fields):
    """The mean of the last `width` numbers against that of all before them: a rise beyond what Bernstein's
    inequality allows by chance, with probability `confidence` at each of the looks, one a quarter of a window."""

    width: int = 200
    confidence: float = 1e-5
    rows: int = 0
    total: float = 0.0
    squares: float = 0.0
    recent: list[float] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.recent = list(self.recent or [])

    def update(self, surprise: float) -> int | None:
        self.recent.append(surprise)
        if len(self.recent) > self.width:
            old = self.recent.pop(0)
            self.rows, self.total, self.squares = self.rows + 1, self.total + old, self.squares + old * old
        looks = (self.rows + len(self.recent)) % max(1, self.width // 4) == 0
        if self.rows < WARM_UP or not looks:
            return None
        mean = self.total / self.rows
        variance = max(self.squares / self.rows - mean * mean, 1e-4)
        share = 1 / self.rows + 1 / self.width
        log = math.log(1 / self.confidence)
        allowed = math.sqrt(2 * variance * share * log) + 2 / 3 * share * log
        rise = sum(self.recent) / self.width - mean
        if rise <= allowed:
            return None
        sums, best, ago = 0.0, -math.inf, 0
        for back, value in enumerate(reversed(self.recent), start=1):  # where the rise began
            sums += value - mean - rise / 2
            if sums > best:
                best, ago = sums, back
        return ago


class River:
    """A drift detector of the package river, by its class's name. River tells of any change: a fall is passed over.
    Its state does not go to disk; a stored stream begins with a fresh one."""

    def __init__(self, name: str) -> None:
        try:
            from river import drift
        except ImportError:
            raise InputError(
                f"detector is 'river-{_NAMES[name]}', but river is not installed; run: pip install 'ibpwf[streams]'."
            ) from None
        self.name = name
        self._detector: Any = getattr(drift, name)(**({"seed": 0} if name == "KSWIN" else {}))
        self._rows, self._mean, self._fast = 0, 0.0, 0.0

    def update(self, surprise: float) -> int | None:
        self._rows += 1
        self._mean += (surprise - self._mean) / self._rows
        self._fast += (surprise - self._fast) / min(self._rows, 50)
        self._detector.update(surprise)
        rose = self._detector.drift_detected and self._fast > self._mean
        return 50 if rose and self._rows > WARM_UP else None

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Nothing was kept."""

    def fork(self) -> Self:
        return copy.deepcopy(self)


_NAMES = {"ADWIN": "adwin", "PageHinkley": "page-hinkley", "KSWIN": "kswin"}

DETECTORS: dict[str, Callable[[], Detector]] = {
    "page-hinkley": PageHinkley,
    "two-windows": TwoWindows,
    "river-adwin": lambda: River("ADWIN"),
    "river-page-hinkley": lambda: River("PageHinkley"),
    "river-kswin": lambda: River("KSWIN"),
}


def check_detector(name: str) -> None:
    if name not in DETECTORS:
        raise unknown("detector", name, DETECTORS)


def make_detector(name: str) -> Detector:
    """A fresh detector by its name."""
    check_detector(name)
    return DETECTORS[name]()
