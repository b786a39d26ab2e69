"""A task's difference from its trained network as a LoRA adapter that peft loads; peft itself is not needed for it.

Per layer `B A` is the task's difference, with scaling 1: A has the rows of W_aᵀ, B the columns of W_bᵀ times λ. Their
biases go into `lora_bias`. Every other module that the task has changed goes in whole, as `modules_to_save`;
so does a layer that peft's factors cannot give exactly.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ibpwf.adapters import ABOUT, CONFIG, PREFIX, TENSORS, exact_in_peft, weight_digest
from ibpwf.errors import InputError
from ibpwf.factors.model import FactorModel
from ibpwf.storage.files import encode_json, encode_tensors, write_bytes
from ibpwf.storage.whole_folder import replacing_folder


@dataclass(frozen=True)
class Factors:
    """A layer's difference: `a` is r×…, `b` out×r with ones behind it for a convolution."""

    a: Tensor
    b: Tensor

    @property
    def rank(self) -> int:
        return len(self.a)


@dataclass(frozen=True)
class PeftAdapter:
    """What is written: the factors of each layer, what is added to biases, and modules that are whole."""

    factors: dict[str, Factors]
    biases: dict[str, Tensor]
    whole: dict[str, dict[str, Tensor]]
    targets: list[str] | str
    base: str | None  # the network's name, where it has one
    transposed: bool  # transformers' Conv1D

    def tensors(self) -> dict[str, Tensor]:
        found = {}
        for name, factors in self.factors.items():
            found[f"{PREFIX}{name}.lora_A.weight"] = factors.a
            found[f"{PREFIX}{name}.lora_B.weight"] = factors.b
            if self.biases:
                zeros = factors.b.new_zeros(len(factors.b))
                found[f"{PREFIX}{name}.lora_B.bias"] = self.biases.get(name, zeros)
        for module, state in self.whole.items():
            found |= {f"{PREFIX}{module}.{part}": tensor for part, tensor in state.items()}
        return found

    def config(self) -> dict[str, Any]:
        """As peft reads it. Every layer's rank is said, longest names first: peft takes the first that fits."""
        ranks = {name: self.factors[name].rank for name in sorted(self.factors, key=len, reverse=True)}
        most = max(ranks.values())
        return {
            "peft_type": "LORA",
            "task_type": None,
            "base_model_name_or_path": self.base,
            "r": most,
            "lora_alpha": most,
            "rank_pattern": ranks,
            "alpha_pattern": ranks,
            "target_modules": self.targets,
            "modules_to_save": list(self.whole) or None,
            "fan_in_fan_out": self.transposed,
            "bias": "none",
            "lora_dropout": 0.0,
            "use_rslora": False,
            "use_dora": False,
            "init_lora_weights": True,
            "inference_mode": True,
            **({"lora_bias": True} if self.biases else {}),
        }


def peft_adapter(model: FactorModel, task: int) -> PeftAdapter:
    """A task of a model with a frozen base as peft would have it."""
    if model.base != "frozen":
        raise InputError(
            "format peft holds a task's difference from a trained network, and this model keeps no such network; "
            "learn with base='frozen' (factorize(net, base='frozen')), or export to safetensors."
        )
    base = {name: value for name, value in model.net.state_dict().items() if isinstance(value, Tensor)}
    state = task_state(model, task)
    changed = {name for name, value in model.tasks[task].own.items() if not torch.equal(value, base[name])}
    modules = dict(model.net.named_modules())
    used = [name for name in model.layers if len(model.selected_factors(task, name)[1])]
    fit = {name for name in model.layers if model.weights[name].replaceable and exact_in_peft(modules[name])}
    biased = {name for name in used if name in fit and f"{name}.bias" in changed}
    owners = {_owner(modules, name) for name in changed - {f"{name}.bias" for name in biased}}
    owners |= {_owner(modules, model.weights[name].parameter) for name in used if name not in fit}
    whole = _whole_modules(list(modules), owners, changed)
    left = [name for name in model.layers if name in fit and not _within(name, whole)]
    named = [name for name in left if name in used] or left[:1]  # peft loads no adapter without a layer
    if not named:
        raise InputError("no layer of the model can have factors in peft; export to safetensors.")
    return PeftAdapter(
        factors={name: _factors(model, task, name) for name in named},
        biases={name: (state[f"{name}.bias"] - base[f"{name}.bias"]).cpu() for name in named if name in biased},
        whole={name: _state_of(name, state) for name in whole},
        targets=_targets(list(modules), named),
        base=getattr(getattr(model.net, "config", None), "_name_or_path", None) or None,
        transposed=all(type(modules[name]).__name__ == "Conv1D" for name in named),
    )


def task_state(model: FactorModel, task: int) -> dict[str, Tensor]:
    """A task's state dict; of a head of its own the outputs for unturned inputs, as `merge` has them."""
    state = dict(model.state(task))
    if model.heads == "per-task":
        for part in ("weight", "bias"):
            if (name := f"{model.head}.{part}") in state:
                state[name] = state[name][: model.tasks[task].classes]
    return state


def _factors(model: FactorModel, task: int, name: str) -> Factors:
    """Of a layer that reads none: one that does nothing."""
    block, strength = model.selected_factors(task, name)
    a, b = block.a.t(), (block.b * strength.unsqueeze(1)).t()
    if not len(a):
        a, b = a.new_zeros(1, a.shape[1]), b.new_zeros(len(b), 1)
    module = model.weights[name].module
    kernel = tuple(getattr(module, "kernel_size", ()))
    if kernel:
        a, b = a.reshape(len(a), -1, *kernel), b.reshape(*b.shape, *(1 for _ in kernel))
    return Factors(a.cpu().contiguous(), b.cpu().contiguous())


def _owner(modules: Mapping[str, nn.Module], parameter: str) -> str:
    """The module that reads a weight; attention reads those of its projections itself."""
    owner = parameter.rpartition(".")[0]
    above = owner.rpartition(".")[0]
    return above if isinstance(modules[above], nn.MultiheadAttention) else owner


def _within(name: str, modules: Iterable[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _state_of(module: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = f"{module}."
    return {name.removeprefix(start): value.cpu() for name, value in state.items() if name.startswith(start)}


def _whole_modules(modules: list[str], owners: set[str], changed: set[str]) -> list[str]:
    """The modules to hold whole. Peft compares the ends of names, so that others may be held with them."""
    if "" in owners:
        loose = sorted(name for name in changed if "." not in name)
        raise InputError(
            f"the task has a parameter '{loose[0]}' of its own, which belongs to no module that peft could keep; "
            "freeze it before factorize (requires_grad=False), or export to safetensors."
        )
    outer = [name for name in owners if not _within(name, owners - {name})]
    whole = [name for name in modules if name and any(name.endswith(one) for one in outer)]
    for name in whole:
        for other in whole:
            if name != other and _within(name, [other]):
                raise InputError(
                    f"peft finds modules by the ends of their names, and would take '{name}' for one that this task "
                    f"has changed, inside '{other}', which is another; freeze what need not change before factorize "
                    "(requires_grad=False), or export to safetensors."
                )
    return whole


def _targets(modules: list[str], layers: list[str]) -> list[str] | str:
    """How peft is told the layers: by names, or where their ends are those of others too, by one pattern."""
    if any(name.endswith(f".{one}") for name in modules if name not in layers for one in layers):
        return f"({'|'.join(re.escape(name) for name in layers)})"
    return layers


def adapter_files(adapter: PeftAdapter, model: FactorModel, about: Mapping[str, Any]) -> dict[str, bytes]:
    """The files of the folder by name; ours beside peft's own tells labels, inputs, and which base it belongs to."""
    base = {name: weight_digest(model.net.get_parameter(model.weights[name].parameter)) for name in adapter.factors}
    return {
        TENSORS: encode_tensors(adapter.tensors(), TENSORS),
        ABOUT: encode_json({**about, "base": base}, ABOUT, 2) + b"\n",
        CONFIG: encode_json(adapter.config(), CONFIG, 2) + b"\n",
    }


def write_folder(target: Path, files: Mapping[str, bytes]) -> None:
    """A folder that stands at its place whole or not at all."""
    with replacing_folder(target) as aside:
        for name, content in files.items():
            write_bytes(aside / name, content)
