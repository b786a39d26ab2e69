"""The kinds of features and of task inference by name, and how settings make them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ibpwf import registry
from ibpwf.core.model import FactorModel
from ibpwf.errors import InputError
from ibpwf.inference.base import Features, TaskInference
from ibpwf.inference.features.layer import FactorFeatures, LayerFeatures
from ibpwf.inference.features.random import RandomFeatures
from ibpwf.inference.gaussian import GaussianTaskInference
from ibpwf.inference.shared import SharedGaussianInference
from ibpwf.settings import Settings

FEATURES: dict[str, Callable[[Settings, FactorModel], Features]] = {
    "layer": lambda s, model: LayerFeatures(model, None if s.inference_layers == "auto" else s.inference_layers),
    "factors": lambda s, model: FactorFeatures(model, None if s.inference_layers == "auto" else s.inference_layers),
    "random": lambda s, model: RandomFeatures(None if s.random_features == "auto" else s.random_features),
}

INFERENCE: dict[str, Callable[[Settings], TaskInference]] = {
    "gaussian": lambda s: GaussianTaskInference(s.ridge, s.shrinkage),
    "class-gaussian": lambda s: GaussianTaskInference(s.ridge, s.shrinkage, per_class=True),
    "shared-gaussian": lambda s: SharedGaussianInference(s.ridge),
}


def make_features(settings: Settings, model: FactorModel, *, imports: bool = True) -> Features:
    """What `settings.features` names. One of your own is called with the settings and the model, or with nothing."""
    kind = registry.find(registry.FEATURES, settings.features, FEATURES, imports=imports)
    made: Features = _made("features", settings.features, Features, kind, settings, model)
    return made


def make_inference(settings: Settings, *, imports: bool = True) -> TaskInference:
    """What `settings.inference` names. One of your own is called with the settings, or with nothing."""
    kind = registry.find(registry.INFERENCE, settings.inference, INFERENCE, imports=imports)
    made: TaskInference = _made("inference", settings.inference, TaskInference, kind, settings)
    return made


def _made(field: str, name: str, wanted: type[Any], kind: Any, *arguments: Any) -> Any:
    made = kind
    if not isinstance(kind, wanted):
        try:
            made = kind(*arguments) if inspect.signature(kind).parameters else kind()
        except TypeError as error:
            what = " and ".join(["the settings", "the model"][: len(arguments)])
            raise InputError(f"{field} '{name}' cannot be made: {error}; it is called with {what}.") from error
    if not isinstance(made, wanted):
        raise InputError(f"{field} '{name}' is a {type(made).__name__}, not a {wanted.__name__} of ibpwf.inference.")
    return made
