"""Continual learning with a Bayesian nonparametric dictionary of weight factors (IBP-WF)."""

from ibpwf.data.scenarios import scenario
from ibpwf.errors import IBPWFError
from ibpwf.factors.model import factorize
from ibpwf.inference.prediction import Prediction
from ibpwf.learner import Learner, load
from ibpwf.settings import Settings

__version__ = "0.1.0"
__all__ = ["IBPWFError", "Learner", "Prediction", "Settings", "__version__", "factorize", "load", "scenario"]
