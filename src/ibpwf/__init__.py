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
    from ibpwf.images import Images
    from ibpwf.inference.features.adapted import Adapted
    from ibpwf.inference.features.backbone import Backbone
    from ibpwf.inference.features.inputs import Inputs
    from ibpwf.inference.features.joined import Joined
    from ibpwf.inference.features.layer import Factors, Layer
    from ibpwf.inference.features.patches import Patches
    from ibpwf.inference.features.quantiles import Quantiles
    from ibpwf.inference.features.random import Random
    from ibpwf.inference.gaussian import Gaussian
    from ibpwf.inference.prediction import Prediction
    from ibpwf.inference.router import Router
    from ibpwf.inference.shared import SharedGaussian
    from ibpwf.learner import Learner, load, open_model
    from ibpwf.likelihoods import Categorical, Likelihood
    from ibpwf.settings import Settings
    from ibpwf.views import Identity, Rotations, Views

__version__ = "0.1.0"
__all__ = [
    "IBP",
    "Adapted",
    "Backbone",
    "Categorical",
    "ConstantGrowth",
    "ContinualClassifier",
    "Factors",
    "Gaussian",
    "IBPWFError",
    "Identity",
    "Images",
    "Inputs",
    "Joined",
    "Layer",
    "Learner",
    "Likelihood",
    "Patches",
    "Prediction",
    "Prior",
    "Quantiles",
    "Random",
    "Rotations",
    "Router",
    "Settings",
    "SharedGaussian",
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
        "Adapted": "ibpwf.inference.features.adapted",
        "Backbone": "ibpwf.inference.features.backbone",
        "Factors": "ibpwf.inference.features.layer",
        "Gaussian": "ibpwf.inference.gaussian",
        "Images": "ibpwf.images",
        "Inputs": "ibpwf.inference.features.inputs",
        "Joined": "ibpwf.inference.features.joined",
        "Layer": "ibpwf.inference.features.layer",
        "Patches": "ibpwf.inference.features.patches",
        "Quantiles": "ibpwf.inference.features.quantiles",
        "Random": "ibpwf.inference.features.random",
        "Router": "ibpwf.inference.router",
        "SharedGaussian": "ibpwf.inference.shared",
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
