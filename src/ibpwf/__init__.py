"""Continual learning with a Bayesian nonparametric dictionary of weight factors (IBP-WF)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ibpwf.data.scenarios import scenario
    from ibpwf.errors import IBPWFError
    from ibpwf.factors.model import factorize
    from ibpwf.inference.prediction import Prediction
    from ibpwf.learner import Learner, load
    from ibpwf.settings import Settings

__version__ = "0.1.0"
__all__ = ["IBPWFError", "Learner", "Prediction", "Settings", "__version__", "factorize", "load", "scenario"]

_PLACES = {
    "IBPWFError": "ibpwf.errors",
    "Learner": "ibpwf.learner",
    "Prediction": "ibpwf.inference.prediction",
    "Settings": "ibpwf.settings",
    "factorize": "ibpwf.factors.model",
    "load": "ibpwf.learner",
    "scenario": "ibpwf.data.scenarios",
}


def __getattr__(name: str) -> object:
    """Public names are fetched when first used: `ibpwf --help` need not wait for torch."""
    if name not in _PLACES:
        raise AttributeError(f"module 'ibpwf' has no attribute '{name}'")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
