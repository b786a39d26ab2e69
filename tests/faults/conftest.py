"""Faults are counted, as tests/tallies.py says."""

from __future__ import annotations

from tallies import Tally, tally

__all__ = ["Tally", "tally"]
