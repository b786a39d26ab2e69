"""When two accuracies over seeds are level, and when one is above the other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

TIE = 0.1
"""Points of accuracy below which two are level, whatever their spread."""


def standard_error(spread: Mapping[str, Any]) -> float:
    """Of a mean over seeds; 0 for a single seed, of which nothing is known."""
    return (spread.get("std") or 0.0) / math.sqrt(max(1, len(spread.get("per_seed") or ())))


def level_within(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Two standard errors of the difference of the means, and at least `TIE`: a smaller difference tells nothing."""
    return max(TIE, 2 * math.hypot(standard_error(one), standard_error(other)))


def above(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether the first is more accurate than the second by more than what counts as level."""
    return float(one["mean"] - other["mean"]) > level_within(one, other)
