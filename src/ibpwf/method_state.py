"""What IBP-WF stores: a part per task and a part per block of factors that a task locked, none of them ever rewritten
by a later task. docs/model-format.md lists every tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ibpwf.core.dictionary import FactorBlock
from ibpwf.core.learned import LearntTask, Reference
from ibpwf.core.posterior import LayerVectors
from ibpwf.inference.features.random import RandomFeatures
from ibpwf.inference.gaussian import Moments

if TYPE_CHECKING:
    from ibpwf.method import IBPWF

BLOCK = ("a", "b", "positions")
VECTORS = ("strength", "logit", "c", "d")
REFERENCE = "reference"
RANDOM_FEATURES = "random-features"

Tensors = dict[str, Tensor]


def state_of(method: IBPWF) -> tuple[dict[str, Any], dict[str, Tensors]]:
    """JSON, and the parts by name. They hold the model's own tensors, not copies."""
    model, inference = method.model, method.inference
    parts: dict[str, Tensors] = {}
    tasks = []
    for t, serial in enumerate(method.serials):
        groups = [group for group, owner in zip(inference.groups, inference.owner, strict=True) if owner == t]
        blocks = {name: dictionary.blocks[t] for name, dictionary in model.layers.items()}
        factors = sum(len(block.positions) for block in blocks.values())
        parts[f"task-{serial:04d}"] = _task_part(model.tasks[t], groups)
        if factors:
            parts[f"factors-{serial:04d}"] = _block_part(blocks)
        tasks.append(
            {
                "serial": serial,
                "classes": list(method.classes[t]),
                "outputs": model.tasks[t].outputs,
                "groups": [group.count for group in groups],
                "factors": factors,
            }
        )
    if model.reference is not None:
        parts[REFERENCE] = _reference_part(method)
    if method.random is not None:
        parts[RANDOM_FEATURES] = method.random.tensors()
    content = {
        "inference_layers": list(method.inference_layers),
        "absolute_ridge": inference.absolute_ridge,
        "reference": model.reference is not None,
        "tasks": tasks,
    }
    return content, parts


def _task_part(task: LearntTask, groups: list[Moments]) -> Tensors:
    """A task's vectors, its own parameters and buffers, φ's moments."""
    tensors = {f"own/{name}": tensor for name, tensor in task.own.items()}
    for name, vectors in task.vectors.items():
        tensors |= {f"posterior/{name}/{part}": getattr(vectors, part) for part in VECTORS}
        tensors[f"posterior/{name}/selected"] = task.selected[name]
    for number, group in enumerate(groups):
        tensors[f"moments/{number}/mean"] = group.mean
        if number == 0 or group.covariance is not groups[0].covariance:  # a task's classes may share one
            tensors[f"moments/{number}/covariance"] = group.covariance
    return tensors


def _block_part(blocks: Mapping[str, FactorBlock]) -> Tensors:
    """The factors that a task locked, of the layers in which it locked any."""
    return {
        f"factors/{name}/{part}": getattr(block, part)
        for name, block in blocks.items()
        if len(block.positions)
        for part in BLOCK
    }


def _reference_part(method: IBPWF) -> Tensors:
    """What φ reads of a first task that was forgotten."""
    model = method.model
    assert model.reference is not None
    tensors = {f"own/{name}": tensor for name, tensor in model.reference.own.items()}
    tensors |= _block_part({name: d.reference for name, d in model.layers.items() if d.reference is not None})
    for name in model.reference.selected:
        tensors[f"posterior/{name}/strength"] = model.reference.strength[name]
        tensors[f"posterior/{name}/selected"] = model.reference.selected[name]
    return tensors


def take_state(method: IBPWF, content: Mapping[str, Any], files: Mapping[str, Mapping[str, Tensor]]) -> None:
    """The inverse of `state_of`, on a fresh method; schema 1, with a task's factors in the task's part, too."""
    model, inference = method.model, method.inference

    def part(name: str) -> Tensors:
        return {key: tensor.to(method.device) for key, tensor in files[name].items()}

    method.inference_layers = tuple(content["inference_layers"])
    inference.absolute_ridge = content["absolute_ridge"]
    if RANDOM_FEATURES in files:
        method.random = RandomFeatures.from_tensors(files[RANDOM_FEATURES], method.device)
    if content.get("reference", False):
        _take_reference(method, part(REFERENCE))
    for t, entry in enumerate(content["tasks"]):
        serial = int(entry.get("serial", t))
        tensors = part(f"task-{serial:04d}")
        factors = tensors
        if "factors" in entry:
            factors = part(f"factors-{serial:04d}") if entry["factors"] else {}
        vectors, selected = {}, {}
        for name in model.layers:
            vectors[name] = LayerVectors(*(tensors[f"posterior/{name}/{key}"] for key in VECTORS))
            selected[name] = tensors[f"posterior/{name}/selected"]
        task = LearntTask(int(entry["outputs"]), vectors, selected, _own(tensors))
        model.add_task(task, {name: _block(method, name, factors) for name in model.layers})
        method.classes.append(tuple(entry["classes"]))
        method.serials.append(serial)
        for number, count in enumerate(entry["groups"]):
            covariance = tensors.get(f"moments/{number}/covariance", tensors["moments/0/covariance"])
            inference.add(t, Moments(int(count), tensors[f"moments/{number}/mean"], covariance))
    _check_read(method)


def _check_read(method: IBPWF) -> None:
    """A factor that is read must be there: weights composed of the wrong ones would answer without a sign of it."""
    model = method.model
    for name, dictionary in model.layers.items():
        readers = [task.selected[name] for task in model.tasks]
        if model.reference is not None and name in model.reference.selected:
            readers.append(model.reference.selected[name])
        locked = [block.positions for block in dictionary.all_blocks]
        for selected in readers:
            if not bool(torch.isin(selected.nonzero().flatten(), torch.cat(locked)).all()):
                raise ValueError(f"a task reads factors of layer '{name}' that are not there")


def _take_reference(method: IBPWF, tensors: Tensors) -> None:
    model = method.model
    strength, selected = {}, {}
    for name, dictionary in model.layers.items():
        if f"posterior/{name}/selected" in tensors:
            strength[name] = tensors[f"posterior/{name}/strength"]
            selected[name] = tensors[f"posterior/{name}/selected"]
            dictionary.reference = _block(method, name, tensors)
    model.reference = Reference(strength, selected, _own(tensors))


def _block(method: IBPWF, layer: str, tensors: Tensors) -> FactorBlock:
    if f"factors/{layer}/a" in tensors:
        return FactorBlock(*(tensors[f"factors/{layer}/{key}"] for key in BLOCK))
    dictionary = method.model.layers[layer]
    empty = next(iter(method.model.net.parameters())).new_empty
    at = empty(0).long()
    return FactorBlock(empty(dictionary.inputs, 0), empty(0, dictionary.outputs), at)


def _own(tensors: Tensors) -> Tensors:
    return {key.removeprefix("own/"): tensor for key, tensor in tensors.items() if key.startswith("own/")}
