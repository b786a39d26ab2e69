"""The kinds of features and of task inference that are part of the library; importing them makes them known."""

from __future__ import annotations

from typing import Any

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
from ibpwf.parts import build
from ibpwf.settings import Settings

__all__ = ["Adapted", "Backbone", "Context", "Factors", "Features", "Gaussian", "Images", "Inputs", "Joined", "Layer"]
__all__ += ["Patches", "Quantiles", "Random", "Router", "SharedGaussian", "TaskInference"]


# Until settings are a tree, these make parts of the flat ones.


def images_of(s: Settings) -> Images:
    return Images(shape=s.image_shape, mean=s.image_mean, std=s.image_std)


def inference_of(s: Settings) -> TaskInference:
    own: dict[str, dict[str, Any]] = {
        "gaussian": {"ridge": s.ridge, "shrinkage": s.shrinkage},
        "shared-gaussian": {"ridge": s.ridge},
        "router": {
            "ridge": s.router_ridge,
            "precision": s.router_precision,
            "keep_sums_per_task": s.keep_sums_per_task,
            "experts": s.experts,
            "expert_weight": s.expert_weight,
            "second_opinion": s.second_opinion,
        },
    }
    kind, more = ("gaussian", {"per": "class"}) if s.inference == "class-gaussian" else (s.inference, {})
    tree = {"kind": kind, **own.get(kind, {}), **more}
    found = build("inference", tree)
    assert isinstance(found, TaskInference)
    return found.model_copy(update={"features": features_of(s)})


def features_of(s: Settings) -> Features:
    own: dict[str, dict[str, Any]] = {
        "layer": {"layers": s.inference_layers},
        "factors": {"layers": s.inference_layers},
        "adapted": {"layers": s.inference_layers, "mirror": s.mirror},
        "random": {"width": s.random_features},
        "quantiles": {"width": s.random_features},
        "patches": {
            "filters": s.patch_filters,
            "sizes": s.patch_sizes,
            "grid": s.patch_grid,
            "epsilon": s.patch_epsilon,
            "mirror": s.mirror,
        },
        "backbone": {
            "name": s.backbone,
            "depths": s.backbone_depths,
            "grid": s.backbone_grid,
            "size": s.backbone_size,
            "projection": s.backbone_projection,
            "mirror": s.mirror,
        },
    }

    def tree(kind: str) -> dict[str, Any]:
        return {"kind": kind, **own.get(kind, {})}

    named = Features.spelled(s.features)
    if isinstance(named, str):
        found = build("features", tree(named))
    else:
        found = build("features", {"kind": "joined", "parts": [tree(kind) for kind in named["parts"]]})
    assert isinstance(found, Features)
    return found
