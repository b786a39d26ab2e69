"""What IBP-WF stores: a part per task and a part per block of factors that a task locked, none of them ever rewritten
by a later task. docs/model-format.md lists every tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ibpwf.core.dictionary import FactorBlock
from ibpwf.core.learned import BLOCK, VECTORS, LearnedTask, Reference
from ibpwf.core.posterior import LayerVectors

if TYPE_CHECKING:
    from ibpwf.method import IBPWF

REFERENCE = "reference"

Tensors = dict[str, Tensor]


def state_of(method: IBPWF) -> tuple[dict[str, Any], dict[str, Tensors]]:
    """JSON, and the parts by name. They hold the model's own tensors, not copies."""
    model, inference = method.model, method.inference
    parts: dict[str, Tensors] = {}
    tasks = []
    for t, serial in enumerate(method.serials):
        learned, tensors = inference.task_state(t)
        blocks = {name: dictionary.blocks[t] for name, dictionary in model.layers.items()}
        factors = sum(len(block.positions) for block in blocks.values())
        parts[f"task-{serial:04d}"] = _task_part(model.tasks[t], tensors)
        if factors:
            parts[f"factors-{serial:04d}"] = _block_part(blocks)
        tasks.append(
            {
                "serial": serial,
                "classes": list(method.classes[t]),
                "outputs": model.tasks[t].outputs,
                "factors": factors,
                "inference": learned,
            }
        )
    if model.reference is not None:
        parts[REFERENCE] = _reference_part(method)
    content: dict[str, Any] = {"reference": model.reference is not None, "tasks": tasks}
    for name, part in (("features", method.features), ("inference", method.inference)):
        content[name], tensors = part.state()
        if tensors:
            parts[name] = tensors
    return content, parts


def _task_part(task: LearnedTask, inference: Tensors) -> Tensors:
    """A task's vectors, its own parameters and buffers, and what task inference keeps of it."""
    tensors = {f"own/{name}": tensor for name, tensor in task.own.items()}
    for name, vectors in task.vectors.items():
        tensors |= {f"posterior/{name}/{part}": getattr(vectors, part) for part in VECTORS}
        tensors[f"posterior/{name}/selected"] = task.selected[name]
    return tensors | {f"inference/{name}": tensor for name, tensor in inference.items()}


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
    """The inverse of `state_of`, on a fresh method, of earlier schemas too."""
    model = method.model
    content, files = _upgraded(content, files)

    def part(name: str) -> Tensors:
        return {key: tensor.to(method.device) for key, tensor in files[name].items()}

    def part_if_any(name: str) -> Tensors:
        return part(name) if name in files else {}

    method.features.load_state(content["features"], part_if_any("features"))
    if content["reference"]:
        _take_reference(method, part(REFERENCE))
    learned = []
    for entry in content["tasks"]:
        serial = int(entry["serial"])
        tensors = part(f"task-{serial:04d}")
        factors = tensors
        if "factors" in entry:
            factors = part(f"factors-{serial:04d}") if entry["factors"] else {}
        vectors, selected = {}, {}
        for name in model.layers:
            vectors[name] = LayerVectors(*(tensors[f"posterior/{name}/{key}"] for key in VECTORS))
            selected[name] = tensors[f"posterior/{name}/selected"]
        task = LearnedTask(int(entry["outputs"]), vectors, selected, _within(tensors, "own/"))
        model.add_task(task, {name: _block(method, name, factors) for name in model.layers})
        method.classes.append(tuple(entry["classes"]))
        method.serials.append(serial)
        learned.append((entry["inference"], _within(tensors, "inference/")))
    method.inference.load_state((content["inference"], part_if_any("inference")), learned)
    _check_read(method)


def _upgraded(
    content: Mapping[str, Any], files: Mapping[str, Mapping[str, Tensor]]
) -> tuple[Mapping[str, Any], Mapping[str, Mapping[str, Tensor]]]:
    """What schemas 1 and 2 stored, in the form of schema 3: moments of φ lay beside the tasks under names of their
    own, and schema 1 had a task's factors in the task's part and no serials."""
    if "features" in content:
        return content, files
    renamed = {
        name: {key.replace("moments/", "inference/", 1): tensor for key, tensor in tensors.items()}
        for name, tensors in files.items()
    }
    if "random-features" in renamed:
        renamed["features"] = renamed.pop("random-features")
    tasks = [
        {"serial": number, **entry, "inference": {"groups": entry["groups"]}}
        for number, entry in enumerate(content["tasks"])
    ]
    features = {"layers": content["inference_layers"]}
    inference = {"absolute_ridge": content["absolute_ridge"]}
    reference = content.get("reference", False)
    return {"features": features, "inference": inference, "reference": reference, "tasks": tasks}, renamed


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
    model.reference = Reference(strength, selected, _within(tensors, "own/"))


def _block(method: IBPWF, layer: str, tensors: Tensors) -> FactorBlock:
    if f"factors/{layer}/a" in tensors:
        return FactorBlock(*(tensors[f"factors/{layer}/{key}"] for key in BLOCK))
    dictionary = method.model.layers[layer]
    empty = next(iter(method.model.net.parameters())).new_empty
    at = empty(0).long()
    return FactorBlock(empty(dictionary.inputs, 0), empty(0, dictionary.outputs), at)


def _within(tensors: Tensors, prefix: str) -> Tensors:
    return {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
