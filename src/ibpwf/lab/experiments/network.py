"""Which network a run trains: the preset's, or one of `ibpwf.models` named on the command line."""

from __future__ import annotations

import inspect
import json
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from ibpwf import models
from ibpwf.errors import InputError, unknown
from ibpwf.lab.data.tasks import Scenario
from ibpwf.parts import parse_assignment

NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "mlp": models.mlp,
    "resnet20": models.resnet20,
    "resnet9": models.resnet9,
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
    outputs = max(stream.n_classes, *(len(task.classes) for task in stream))
    if spec["builder"] == "mlp":
        arguments |= {"inputs": math.prod(stream.input_shape), "outputs": outputs}
    else:
        shape = _image_shape(spec["builder"], stream)
        arguments |= {"classes": outputs, "in_channels": shape[0]}
        if spec["builder"] == "vit_tiny":
            arguments["image"] = shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = NETWORKS[spec["builder"]](**arguments)
    if spec["builder"] == "mlp" or len(stream.input_shape) == 3:
        return net
    return nn.Sequential(OrderedDict(image=nn.Unflatten(1, shape), network=net))


def _image_shape(builder: str, stream: Scenario) -> tuple[int, int, int]:
    """Channels, height and width of a scenario's images, also where they come as rows of grey pixels."""
    shape = stream.input_shape
    side = math.isqrt(math.prod(shape))
    if len(shape) == 1 and side * side == shape[0]:
        return 1, side, side
    if len(shape) != 3:
        raise InputError(
            f"network '{builder}' takes images, but the examples of {stream.name} have shape {shape}; choose mlp, or "
            "a scenario of images such as split-cifar10."
        )
    return shape[0], shape[1], shape[2]
