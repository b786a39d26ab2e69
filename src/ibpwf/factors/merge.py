"""A task's network as an ordinary module, with an output for each of the task's classes and no other; and whether the
head that must be cut for that is the layer the outputs come from."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ibpwf.errors import InputError
from ibpwf.factors.outputs import FirstOutputs, tell_width
from ibpwf.factors.weights import load_tensors, replace_module, resized
from ibpwf.packing import unpack_inputs

if TYPE_CHECKING:
    from ibpwf.factors.model import FactorModel

SILENT = -1e4
"""The bias of an output that a merged task has no class for: it never wins, and its probability is 0."""


def merged(model: FactorModel, task: int) -> nn.Module:
    """See `FactorModel.merge`."""
    classes, head = model.tasks[task].classes, model.head
    net = copy.deepcopy(model.net).eval()
    unpack_inputs(net)
    state = dict(model.state(task))
    parts = _head_parts(head, state)
    if model.heads == "per-task":
        if classes != model.head_width:
            replace_module(net, head, resized(net.get_submodule(head), classes))
            tell_width(net, classes)
        state |= {name: state[name][:classes] for name in parts.values()}
    elif classes != model.head_width:
        for part, empty in (("weight", 0.0), ("bias", SILENT)):
            if part in parts:
                rows = state[parts[part]].clone()
                rows[classes:] = empty
                state[parts[part]] = rows
        net.register_forward_hook(FirstOutputs(classes))
    load_tensors(net, state)
    return model.thawed(net)


def _head_parts(head: str, state: Mapping[str, Tensor]) -> dict[str, str]:
    """The names of the head's weight and bias in a state dict that has them."""
    return {part: f"{head}.{part}" for part in ("weight", "bias") if f"{head}.{part}" in state}


def check_head(model: FactorModel, x: Tensor, out: object) -> None:
    """Refuse a head that is not the layer the network's outputs come from, seen by what it gives for `x`."""
    wanted, net = model.head_width, model.net
    if not isinstance(out, Tensor) or out.ndim != 2:
        return  # said elsewhere, in other words
    if out.shape[1] == wanted and model.heads == "per-task":
        wanted += 1
        net = copy.deepcopy(net).eval()  # one example has no statistics
        replace_module(net, model.head, resized(net.get_submodule(model.head), wanted))
        try:
            with torch.no_grad():
                out = net(x)
        except (RuntimeError, ValueError, IndexError):
            out = None
    if not isinstance(out, Tensor) or out.shape[1] != wanted:
        raise InputError(
            f"head is '{model.head}' with {model.head_width} outputs, but the network's outputs do not come from "
            "it alone; name the layer that gives the class scores: factorize(net, head='...')."
        )
