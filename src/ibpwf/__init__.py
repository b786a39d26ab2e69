"""Continual learning with a Bayesian nonparametric dictionary of weight factors (IBP-WF)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ibpwf.lazy import lazy_names

if TYPE_CHECKING:
    from ibpwf.errors import IBPWFError
    from ibpwf.estimator import ContinualClassifier
    from ibpwf.exporting import export
    from ibpwf.factors.factorize import factorize
    from ibpwf.factors.prior import IBP, ConstantGrowth, Prior
    from ibpwf.inference.prediction import Prediction
    from ibpwf.learner import Learner, load, open_model
    from ibpwf.likelihoods import Categorical, Likelihood
    from ibpwf.settings import Settings
    from ibpwf.views import Identity, Rotations, Views

__version__ = "0.1.0"
__all__ = [
    "IBP",
    "Categorical",
    "ConstantGrowth",
    "ContinualClassifier",
    "IBPWFError",
    "Identity",
    "Learner",
    "Likelihood",
    "Prediction",
    "Prior",
    "Rotations",
    "Settings",
    "Views",
    "__version__",
    "export",
    "factorize",
    "load",
    "open_model",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "IBP": "ibpwf.factors.prior",
        "Categorical": "ibpwf.likelihoods",
        "ConstantGrowth": "ibpwf.factors.prior",
        "ContinualClassifier": "ibpwf.estimator",
        "IBPWFError": "ibpwf.errors",
        "Identity": "ibpwf.views",
        "Learner": "ibpwf.learner",
        "Likelihood": "ibpwf.likelihoods",
        "Prediction": "ibpwf.inference.prediction",
        "Prior": "ibpwf.factors.prior",
        "Rotations": "ibpwf.views",
        "Settings": "ibpwf.settings",
        "Views": "ibpwf.views",
        "export": "ibpwf.exporting",
        "factorize": "ibpwf.factors.factorize",
        "load": "ibpwf.learner",
        "open_model": "ibpwf.learner",
    },
)
