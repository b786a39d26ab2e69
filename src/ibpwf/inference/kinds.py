"""The kinds of features and of task inference by name, and how settings make them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ibpwf import registry
from ibpwf.errors import InputError
from ibpwf.factors.model import FactorModel
from ibpwf.inference.base import Features, TaskInference
from ibpwf.inference.features.adapted import AdaptedFeatures
from ibpwf.inference.features.backbone import BackboneFeatures, PixelScale
from ibpwf.inference.features.inputs import InputFeatures
from ibpwf.inference.features.joined import JoinedFeatures
from ibpwf.inference.features.layer import FactorFeatures, LayerFeatures
from ibpwf.inference.features.patches import PatchFeatures
from ibpwf.inference.features.quantiles import QuantileFeatures
from ibpwf.inference.features.random import RandomFeatures
from ibpwf.inference.gaussian import GaussianTaskInference
from ibpwf.inference.router import RidgeRouter
from ibpwf.inference.shared import SharedGaussianInference
from ibpwf.settings import Settings


def _layers(settings: Settings) -> tuple[str, ...] | None:
    return None if settings.inference_layers == "auto" else settings.inference_layers


def _width(settings: Settings) -> int | None:
    return None if settings.random_features == "auto" else settings.random_features


def _depths(settings: Settings) -> tuple[int, ...] | None:
    depths = settings.backbone_depths
    if isinstance(depths, int):
        return (depths,)
    return None if depths == "auto" else depths


def _backbone(settings: Settings) -> Features:
    mean, std = settings.image_mean, settings.image_std
    return BackboneFeatures(
        settings.backbone,
        depths=_depths(settings),
        grid=settings.backbone_grid,
        sizes=None if settings.backbone_size == "auto" else settings.backbone_size,
        projection=settings.backbone_projection,
        mirror=settings.mirror,
        shape=None if settings.image_shape == "auto" else settings.image_shape,
        scale=None if mean == "auto" or std == "auto" else PixelScale(mean, std),
    )


FEATURES: dict[str, Callable[..., Features]] = {
    "layer": lambda settings, model: LayerFeatures(model, _layers(settings)),
    "factors": lambda settings, model: FactorFeatures(model, _layers(settings)),
    "adapted": lambda settings, model: AdaptedFeatures(
        model,
        _layers(settings),
        mirror=settings.mirror,
        shape=None if settings.image_shape == "auto" else settings.image_shape,
    ),
    "inputs": lambda settings: InputFeatures(),
    "random": lambda settings: RandomFeatures(_width(settings)),
    "quantiles": lambda settings: QuantileFeatures(_width(settings)),
    "patches": lambda settings: PatchFeatures(
        settings.patch_filters,
        patch=settings.patch_sizes,
        grid=settings.patch_grid,
        epsilon=settings.patch_epsilon,
        mirror=settings.mirror,
        shape=None if settings.image_shape == "auto" else settings.image_shape,
    ),
    "backbone": lambda settings: _backbone(settings),
}

INFERENCE: dict[str, Callable[..., TaskInference]] = {
    "gaussian": lambda settings: GaussianTaskInference(settings.ridge, settings.shrinkage),
    "class-gaussian": lambda settings: GaussianTaskInference(settings.ridge, settings.shrinkage, per_class=True),
    "shared-gaussian": lambda settings: SharedGaussianInference(settings.ridge),
    "router": lambda settings: RidgeRouter(
        settings.router_ridge,
        precision=settings.router_precision,
        keep_sums_per_task=settings.keep_sums_per_task,
    ),
}


def make_features(settings: Settings, model: FactorModel) -> Features:
    """What `settings.features` names, or of several names with + between them all side by side. One of your own is
    called with `settings` and the model where it takes them, else with nothing."""
    names = settings.features.split("+")
    if len(names) > 1:
        _check_names(settings.features, names)
    parts = [_one_of(name, settings, model) for name in names]
    return parts[0] if len(parts) == 1 else JoinedFeatures(parts)


def _check_names(given: str, names: list[str]) -> None:
    """Refuse names that are blank, or that are there twice: what they know would count twice, and cost as much."""
    left = list(dict.fromkeys(name for name in names if name.strip()))
    if len(left) == len(names):
        return
    twice = next((name for name in left if names.count(name) > 1), None)
    what = "has no name beside a +" if twice is None else f"names '{twice}' twice"
    remedy = f"give each kind once, such as '{'+'.join(left)}'" if left else "give kinds such as 'patches+backbone'"
    raise InputError(f"features is '{given}', which {what}; {remedy}.")


def _one_of(name: str, settings: Settings, model: FactorModel) -> Features:
    kind = registry.find(registry.FEATURES, name, FEATURES)
    made: Features = _made("features", name, Features, kind, settings, model)
    return made


def make_inference(settings: Settings) -> TaskInference:
    """What `settings.inference` names. One of your own is called with `settings` where it takes them,
    else with nothing."""
    kind = registry.find(registry.INFERENCE, settings.inference, INFERENCE)
    made: TaskInference = _made("inference", settings.inference, TaskInference, kind, settings)
    return made


def _made(field: str, name: str, wanted: type[Any], kind: Any, *arguments: Any) -> Any:
    made = kind
    if not isinstance(kind, wanted):
        try:
            takes = list(inspect.signature(kind).parameters)
            made = kind(*arguments[: len(takes)]) if takes[:1] == ["settings"] else kind()
        except TypeError as error:
            what = " and ".join(["the settings", "the model"][: len(arguments)])
            raise InputError(f"{field} '{name}' cannot be made: {error}; it is called with {what}.") from error
    if not isinstance(made, wanted):
        raise InputError(f"{field} '{name}' is a {type(made).__name__}, not a {wanted.__name__} of ibpwf.inference.")
    return made
