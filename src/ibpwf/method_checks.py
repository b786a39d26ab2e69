"""Whether what was read of IBP-WF fits together: tasks, factors, features, task inference, and their inputs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ibpwf.inference.base import Features
from ibpwf.inference.features.adapted import AdaptedFeatures
from ibpwf.inference.features.backbone import BackboneFeatures
from ibpwf.inference.features.joined import JoinedFeatures
from ibpwf.inference.features.layer import FactorFeatures, LayerFeatures
from ibpwf.inference.features.layer import features as layer_outputs
from ibpwf.inference.features.patches import PatchFeatures
from ibpwf.inference.features.random import RandomFeatures
from ibpwf.inference.gaussian import GaussianTaskInference
from ibpwf.inference.router import RidgeRouter
from ibpwf.inference.shared import SharedGaussianInference
from ibpwf.storage.network_json import check_runs
from ibpwf.storage.tensor_checks import NotWhole
from ibpwf.views import check_square

if TYPE_CHECKING:
    from ibpwf.method import IBPWF


def check_opinions(method: IBPWF) -> None:
    """They are of the features that the router knows, and weighed where anything was."""
    for one in method.versions.all:
        weighed = one.calibration is not None and one.calibration.opinion is not None
        if one.opinion is None and not weighed:
            continue
        place, width = f"task-{one.serial:04d}", getattr(method.inference, "width", None)
        if one.opinion is None or (one.calibration is not None and not weighed):
            raise NotWhole(f"part '{place}' has an opinion, and its calibration none, or the other way round")
        if len(one.opinion.weight) != width:
            raise NotWhole(f"the opinion in part '{place}' is of {len(one.opinion.weight)} features, not {width}")


def check_groups(method: IBPWF) -> None:
    """Gaussians of ours: one per task, or per class; of a router a column per class."""
    inference, tasks = method.inference, method.versions.newest
    if isinstance(inference, RidgeRouter) and inference.columns() != [len(task.classes) for task in tasks]:
        raise NotWhole(f"the router's tasks have {inference.columns()} classes, which are not those of the tasks")
    if not isinstance(inference, GaussianTaskInference):
        return
    if (inference.absolute_ridge is None) != (not tasks):
        raise NotWhole(f"absolute_ridge is {inference.absolute_ridge} with {len(tasks)} tasks")
    each = inference.per_class or isinstance(inference, SharedGaussianInference)
    for number, task in enumerate(tasks):
        if len(inference.groups_of(number)) != (len(task.classes) if each else 1):
            found = len(inference.groups_of(number))
            raise NotWhole(f"task {task.serial} has {found} Gaussians, which are not its own")


def check_inputs(method: IBPWF, shape: tuple[int, ...]) -> None:
    """Refuse inputs that the network and φ were not made for."""
    given, wanted = check_runs(method.model.net, shape), (1, method.model.head_width)
    if given != wanted:
        head = f"its head '{method.model.head}' has {wanted[1]} outputs"
        raise NotWhole(f"the network gives {list(given)} for one input, and {head}")
    for task in method.model.tasks:
        check_square(torch.zeros(1, *shape, dtype=torch.float32), task.turns, method.image_shape)
    inference, width = method.inference, _width(method, method.features, shape)
    if isinstance(inference, RidgeRouter) and width not in (None, inference.width):
        raise NotWhole(f"the router is of {inference.width} features, and φ has {width}")
    if isinstance(inference, GaussianTaskInference) and width not in (None, len(inference.groups[0].mean)):
        raise NotWhole(f"the Gaussians are of {len(inference.groups[0].mean)} features, and φ has {width}")


def _width(method: IBPWF, features: Features, shape: tuple[int, ...]) -> int | None:
    """How many features φ has of inputs of this shape; None where that is not for us to know."""
    if isinstance(features, JoinedFeatures):
        widths = [_width(method, part, shape) for part in features.parts]
        return None if None in widths else sum(each for each in widths if each is not None)
    if isinstance(features, RandomFeatures):
        if features.inputs != math.prod(shape):
            raise NotWhole(f"random features take {features.inputs} numbers, inputs have shape {list(shape)}")
        return len(features.bias)
    if isinstance(features, FactorFeatures):
        kept, layer = method.model.reference or method.model.tasks[0], features.layers[0]
        return int(kept.selected[layer].sum())
    if isinstance(features, AdaptedFeatures):
        outputs = _width(method, features.outputs, shape)
        return None if outputs is None else features.width(outputs)
    if isinstance(features, LayerFeatures):
        net, one = method.model.net, torch.zeros(1, *shape, device=method.device, dtype=torch.float32)
        return layer_outputs(net, dict(net.state_dict()), features.layers, one).shape[1]
    if isinstance(features, BackboneFeatures):
        features.check_shape(torch.zeros(1, *shape, dtype=torch.float32))
        return features.width
    if isinstance(features, PatchFeatures):
        return features(torch.zeros(1, *shape, device=method.device, dtype=torch.float32)).shape[1]
    return None


def check_read(method: IBPWF) -> None:
    """A factor that is read must be there: weights composed of the wrong ones would answer without a sign of it."""
    model = method.model
    for name, dictionary in model.layers.items():
        readers = [task.selected[name] for task in model.tasks]
        if model.reference is not None and name in model.reference.selected:
            readers.append(model.reference.selected[name])
        locked = [block.positions for block in dictionary.all_blocks]
        for selected in readers:
            if not bool(torch.isin(selected.nonzero().flatten(), torch.cat(locked)).all()):
                raise NotWhole(f"a task reads factors of layer '{name}' that are not there")
