"""Trained networks by name: where their weights come from, what they take and what features they give.

Weights are read without running anybody's code, and only if their digest is the one in the catalog.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ibpwf.lazy import lazy_names

if TYPE_CHECKING:
    from ibpwf.backbones.backbone import Backbone, ImageInput, TextInput
    from ibpwf.backbones.catalog import BACKBONES, TrainedNetwork
    from ibpwf.backbones.classifier import PixelInput, image_classifier, text_classifier
    from ibpwf.backbones.loading import fetch, is_cached, load
    from ibpwf.backbones.local import load_timm, load_transformers

__all__ = [
    "BACKBONES",
    "Backbone",
    "ImageInput",
    "PixelInput",
    "TextInput",
    "TrainedNetwork",
    "fetch",
    "image_classifier",
    "is_cached",
    "load",
    "load_timm",
    "load_transformers",
    "text_classifier",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(("Backbone", "ImageInput", "TextInput"), "ibpwf.backbones.backbone"),
        **dict.fromkeys(("BACKBONES", "TrainedNetwork"), "ibpwf.backbones.catalog"),
        **dict.fromkeys(("PixelInput", "image_classifier", "text_classifier"), "ibpwf.backbones.classifier"),
        **dict.fromkeys(("fetch", "is_cached", "load"), "ibpwf.backbones.loading"),
        **dict.fromkeys(("load_timm", "load_transformers"), "ibpwf.backbones.local"),
    },
)
