"""Which network a run trains: the preset's, or one of `ibpwf.models` named on the command line."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from ibpwf import models
from ibpwf.data.tasks import Scenario
from ibpwf.errors import InputError, unknown
from ibpwf.settings import parse_assignment

NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "mlp": models.mlp,
    "resnet20": models.resnet20,
    "resnet": models.resnet,
    "vit_tiny": models.vit_tiny,
}
_FROM_DATA = ("inputs", "outputs", "classes", "in_channels", "image")  # arguments that the scenario decides


def parse_network(text: str) -> dict[str, Any]:
    """`vit_tiny`, or with arguments `resnet;depth=32;width=32`, as a preset has it."""
    name, *rest = (part.strip() for part in text.split(";"))
    if name not in NETWORKS:
        raise unknown("network", name, NETWORKS)
    known = [key for key in inspect.signature(NETWORKS[name]).parameters if key not in _FROM_DATA]
    arguments = dict(parse_assignment(part) for part in rest)
    for key in arguments:
        if key not in known:
            raise unknown(f"argument of {name} in --network", key, known)
    spec = {"builder": name, **arguments}
    if name == "mlp":
        spec.setdefault("hidden", [400])
    return spec


def network_text(spec: Mapping[str, Any]) -> str:
    """The inverse of `parse_network`."""
    arguments = [f"{key}={json.dumps(value)}" for key, value in spec.items() if key != "builder"]
    return ";".join([spec["builder"], *arguments])


def build_network(spec: Mapping[str, Any], stream: Scenario, seed: int) -> nn.Module:
    """The network for a scenario; its own initial values depend on the seed alone."""
    arguments = {key: value for key, value in spec.items() if key != "builder"}
    shape = stream.input_shape
    outputs = max(stream.n_classes, *(len(task.classes) for task in stream))
    if spec["builder"] == "mlp":
        arguments |= {"inputs": math.prod(shape), "outputs": outputs}
    elif len(shape) != 3:
        raise InputError(
            f"network '{spec['builder']}' takes images (channels, height, width), but the examples of {stream.name} "
            f"have shape {shape}; choose mlp, or a scenario of images such as split-cifar10."
        )
    else:
        arguments |= {"classes": outputs, "in_channels": shape[0]}
        if spec["builder"] == "vit_tiny":
            arguments["image"] = shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return NETWORKS[spec["builder"]](**arguments)
