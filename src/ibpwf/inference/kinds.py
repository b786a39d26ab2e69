"""The kinds of features and of task inference that are part of the library; importing them makes them known."""

from __future__ import annotations

from ibpwf.images import Images
from ibpwf.inference.base import Context, Features, TaskInference
from ibpwf.inference.features.adapted import Adapted
from ibpwf.inference.features.backbone import Backbone
from ibpwf.inference.features.inputs import Inputs
from ibpwf.inference.features.joined import Joined
from ibpwf.inference.features.layer import Factors, Layer
from ibpwf.inference.features.patches import Patches
from ibpwf.inference.features.quantiles import Quantiles
from ibpwf.inference.features.random import Random
from ibpwf.inference.gaussian import Gaussian
from ibpwf.inference.router import Router
from ibpwf.inference.shared import SharedGaussian

__all__ = ["Adapted", "Backbone", "Context", "Factors", "Features", "Gaussian", "Images", "Inputs", "Joined", "Layer"]
__all__ += ["Patches", "Quantiles", "Random", "Router", "SharedGaussian", "TaskInference"]
