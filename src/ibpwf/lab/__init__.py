"""The laboratory: baselines, data sets, scenarios, experiments, the paper's reproduction, reports, benchmarks.

The library never imports it. Its requirements are an extra: `pip install 'ibpwf[lab]'`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ibpwf.lazy import lazy_names

if TYPE_CHECKING:
    from ibpwf.lab.data.scenarios import scenario

__all__ = ["scenario"]

__getattr__, __dir__ = lazy_names(__name__, {"scenario": "ibpwf.lab.data.scenarios"})
