"""What the tensors of a task of IBP-WF must be like, by its network: what a part of a folder is compared with."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ibpwf.factors.learned import BLOCK
from ibpwf.storage.tensor_checks import BOUNDED, CorruptModelError, Expected, buffer_rules

if TYPE_CHECKING:
    from ibpwf.method import IBPWF

Tensors = dict[str, Tensor]


def own_shapes(method: IBPWF, outputs: int) -> dict[str, Expected]:
    """A task's own parameters and buffers: all of the network but factorized and frozen weights; a dense head has a
    row per class of the task."""
    model = method.model
    elsewhere = {model.weights[name].parameter for name in model.layers} | model.fixed_tensors().keys()
    buffers = buffer_rules(model.net)
    shapes = {}
    for name, value in model.net.state_dict().items():
        if name not in elsewhere and isinstance(value, Tensor):
            shape = tuple(value.shape)
            if model.heads == "per-task" and name.rpartition(".")[0] == model.head and name not in buffers:
                shape = (outputs, *shape[1:])
            shapes[name] = Expected(shape, value.dtype, buffers.get(name, BOUNDED))
    return shapes


def task_shapes(method: IBPWF, part: str, tensors: Tensors, outputs: int) -> dict[str, Expected]:
    """What a task's part must hold: its own tensors, and vectors as long as its strengths are."""
    model = method.model
    if model.heads == "shared" and outputs > model.head_width:
        raise CorruptModelError(f"part '{part}' has {outputs} classes, and the network {model.head_width} outputs")
    shapes = {f"own/{name}": shape for name, shape in own_shapes(method, outputs).items()}
    for name in model.layers:
        width = length(tensors, f"posterior/{name}/strength")
        shapes |= {f"posterior/{name}/{key}": Expected((width,)) for key in model.prior.vectors.names()}
        shapes[f"posterior/{name}/selected"] = Expected((width,), torch.bool)
    return shapes


def block_shapes(method: IBPWF, tensors: Tensors) -> dict[str, Expected]:
    """What the factors of the layers named in a part must be like."""
    shapes = {}
    for name, dictionary in method.model.layers.items():
        if any(f"factors/{name}/{key}" in tensors for key in BLOCK):
            count = length(tensors, f"factors/{name}/positions")
            shapes[f"factors/{name}/a"] = Expected((dictionary.inputs, count))
            shapes[f"factors/{name}/b"] = Expected((count, dictionary.outputs))
            shapes[f"factors/{name}/positions"] = Expected((count,), torch.int64)
    return shapes


def reference_shapes(method: IBPWF, tensors: Tensors) -> dict[str, Expected]:
    """What is kept of a forgotten first task must be like: all that φ reads, and what else of it is there."""
    model, unread = method.model, tuple(method.features.unread())
    shapes = block_shapes(method, tensors)
    head = f"{model.head}."
    for name, shape in own_shapes(method, 0).items():
        if f"own/{name}" in tensors or not name.startswith(unread):
            if name.startswith(head) and shape.shape[:1] == (0,):  # a row per class of the task, which is forgotten
                shape = replace(shape, shape=(length(tensors, f"own/{name}"), *shape.shape[1:]))
            shapes[f"own/{name}"] = shape
    for name in model.layers:
        if f"posterior/{name}/selected" in tensors or not model.weights[name].parameter.startswith(unread):
            width = length(tensors, f"posterior/{name}/strength")
            shapes[f"posterior/{name}/strength"] = Expected((width,))
            shapes[f"posterior/{name}/selected"] = Expected((width,), torch.bool)
    return shapes


def length(tensors: Tensors, name: str) -> int:
    """How many a tensor has, if it is there: what else must be as many is compared with it."""
    return len(tensors[name]) if name in tensors and tensors[name].ndim else 0
