"""Adapters of peft, the folders that its `save_pretrained` writes: read without peft, nothing in them is run.

A LoRA adapter changes a layer by `scaling · B A`, which is a task's difference from a frozen base:
`W_aᵀ = A`, `W_bᵀ = B`, `λ = scaling`. Modules that the adapter holds whole are the task's own parameters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ibpwf.errors import InputError
from ibpwf.factors.model import FactorModel
from ibpwf.factors.pretrained import singular_factors
from ibpwf.factors.ready_made import ReadyFactors
from ibpwf.storage.checkpoint_folder import digest_of
from ibpwf.storage.directory import Directory
from ibpwf.storage.files import decode_json, decode_tensors
from ibpwf.storage.records import first_problem
from ibpwf.storage.tensor_checks import CorruptModelError, check_numbers

CONFIG, TENSORS, ABOUT = "adapter_config.json", "adapter_model.safetensors", "ibpwf.json"
PREFIX = "base_model.model."
"""Before every name in an adapter's file of tensors."""

LAYER_KEY = re.compile(r"(.+)\.lora_(A\.weight|B\.weight|B\.bias)")
KEEPS_BASE = (True, False, "gaussian", "orthogonal", "eva")
"""How factors may have been started; every other way changes the base's weights too."""
UNSUPPORTED = (
    *("use_dora", "use_qalora", "layer_replication", "target_parameters", "trainable_token_indices"),
    *("alora_invocation_tokens", "arrow_config", "velora_config", "kasa_config"),
)
"""Options of peft that make of an adapter something else than scaling · B A beside the base."""
NEGLIGIBLE = 1e-7
"""The share of a weight's size below which a factor of it is but rounding."""
Rank = Annotated[int, Field(ge=1)]


class Config(BaseModel):
    """What of `adapter_config.json` decides what the adapter computes."""

    model_config = ConfigDict(extra="allow", strict=True)

    peft_type: str
    r: Rank = 8
    lora_alpha: float = 8
    target_modules: list[str] | str | None = None
    rank_pattern: dict[str, Rank] | None = None
    alpha_pattern: dict[str, float] | None = None
    bias: str = "none"
    use_rslora: bool = False
    init_lora_weights: Any = True

    def rank(self, layer: str) -> int:
        return int(_matching(self.rank_pattern or {}, layer, self.r))

    def scaling(self, layer: str) -> float:
        rank = self.rank(layer)
        alpha = _matching(self.alpha_pattern or {}, layer, self.lora_alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)


def _matching(patterns: Mapping[str, float], layer: str, usual: float) -> float:
    """As peft looks a layer up: by the first pattern that fits the end of its name."""
    for pattern, value in patterns.items():
        if re.match(rf"(.*\.)?({pattern})$", layer):
            return value
    return usual


@dataclass(frozen=True)
class LoraLayer:
    """`scaling · B A` and, where the adapter has one, a bias beside it."""

    a: Tensor
    b: Tensor
    scaling: float
    bias: Tensor | None


@dataclass(frozen=True)
class Adapter:
    """What a folder holds, each tensor under its name in the network; `about` is what our own export says of it."""

    path: Path
    layers: dict[str, LoraLayer]
    whole: dict[str, Tensor]
    about: dict[str, Any]


@dataclass(frozen=True)
class AdapterTask:
    """An adapter as a task of a model: factors, and what is the task's own."""

    factors: dict[str, ReadyFactors]
    own: dict[str, Tensor]


def exact_in_peft(module: nn.Module) -> bool:
    """Whether peft's LoRA of a layer is the layer with another weight. Of convolutions it forgets groups, dilation
    and how edges are filled up."""
    if isinstance(module, _ConvNd):
        return module.groups == 1 and set(module.dilation) == {1} and module.padding_mode == "zeros"
    return not isinstance(module, nn.MultiheadAttention)


def weight_digest(weight: Tensor) -> str:
    """Of one layer's trained weight, to know it again."""
    return digest_of([], {"base": {"weight": weight}})


def read_adapter(path: str | Path) -> Adapter:
    """A folder with `adapter_config.json` and `adapter_model.safetensors`, checked."""
    path = Path(path)
    with Directory.opened(path) as folder:
        for name in (CONFIG, TENSORS):
            if folder.size(name) is None:
                also = ""
                if name == TENSORS and folder.size("adapter_model.bin") is not None:
                    also = " (an adapter_model.bin may run code when it is read)"
                raise InputError(
                    f"'{path}' has no {name}{also}; give a folder that peft's save_pretrained has written, with "
                    "safetensors."
                )
        config = _config(decode_json(folder.read(CONFIG), path / CONFIG), path / CONFIG)
        tensors = decode_tensors(folder.read(TENSORS), path / TENSORS)
        about = decode_json(folder.read(ABOUT), path / ABOUT) if folder.size(ABOUT) is not None else {}
    layers, whole = _sorted_out(path, tensors, config)
    _check_targets(path, config, layers)
    return Adapter(path, layers, whole, about if isinstance(about, dict) else {})


def _config(content: Any, where: Path) -> Config:
    try:
        config = Config.model_validate(content)
    except ValidationError as error:
        raise InputError(f"'{where}' is no adapter's: {first_problem(error)}.") from None
    if config.peft_type != "LORA":
        raise InputError(f"'{where}' is of an adapter of type {config.peft_type}; only LORA can become a task.")
    if config.bias != "none":
        raise InputError(
            f"'{where}' has bias '{config.bias}', which changes the base itself; train it with bias='none' "
            "(lora_bias=True gives an adapter biases of its own)."
        )
    if config.init_lora_weights not in KEEPS_BASE:
        raise InputError(
            f"'{where}' has init_lora_weights {config.init_lora_weights!r}, which changes the base's weights; "
            "convert it in peft first: save_pretrained(..., path_initial_model_for_weight_conversion=...)."
        )
    for option in UNSUPPORTED:
        if (config.model_extra or {}).get(option):
            raise InputError(f"'{where}' uses {option}, which is more than factors beside a base; train without it.")
    return config


def _sorted_out(
    path: Path, tensors: Mapping[str, Tensor], config: Config
) -> tuple[dict[str, LoraLayer], dict[str, Tensor]]:
    """The factors of each layer, and the tensors of modules that are held whole."""
    parts: dict[str, dict[str, Tensor]] = {}
    whole: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        try:
            check_numbers(TENSORS, key, tensor)
        except CorruptModelError as error:
            raise InputError(f"'{path}': {error}; give another adapter.") from None
        name = key.removeprefix(PREFIX)
        if name == key or "lora_embedding_" in key or "lora_magnitude" in key:
            raise InputError(
                f"'{path}' has the tensor '{key}', which is no factor of a Linear or convolution layer; train the "
                "adapter with such layers as its target_modules."
            )
        if found := LAYER_KEY.fullmatch(name):
            parts.setdefault(found[1], {})[found[2]] = tensor.float()
        else:
            whole[name] = tensor
    layers = {}
    for layer, part in parts.items():
        if "A.weight" not in part or "B.weight" not in part:
            raise InputError(f"'{path}' has but one of lora_A and lora_B of layer '{layer}'; save the adapter again.")
        rank, found_rank = config.rank(layer), len(part["A.weight"])
        if rank != found_rank:
            raise InputError(
                f"'{path}' has {found_rank} factors of layer '{layer}', and its config says {rank}; save it again."
            )
        layers[layer] = LoraLayer(part["A.weight"], part["B.weight"], config.scaling(layer), part.get("B.bias"))
    if not layers and not whole:
        raise InputError(f"'{path}' holds an adapter of no layer; give one that was trained.")
    return layers, whole


def _check_targets(path: Path, config: Config, layers: Iterable[str]) -> None:
    """Refuse an adapter that lacks a layer it says it has."""
    for target in config.target_modules if isinstance(config.target_modules, list) else ():
        if not any(layer == target or layer.endswith(f".{target}") for layer in layers):
            raise InputError(f"'{path}' has no factors of its target '{target}'; save the adapter again.")


def as_task(adapter: Adapter, model: FactorModel, outputs: int) -> AdapterTask:
    """An adapter as a task of `outputs` classes of a model with a frozen base, which must be the adapter's own."""
    if model.base != "frozen":
        raise InputError(
            "an adapter is a difference from trained weights, and this model keeps none; learn with base='frozen' to "
            "take adapters."
        )
    state = model.net.state_dict()
    weights = {model.weights[name].parameter: name for name in model.layers}
    own = {name: value for name, value in state.items() if name not in weights and isinstance(value, Tensor)}
    factors: dict[str, ReadyFactors] = {}
    for name, layer in adapter.layers.items():
        factors[name] = _factors(adapter, model, name, layer)
        if layer.bias is not None and layer.bias.any():
            if f"{name}.bias" not in own or own[f"{name}.bias"].shape != layer.bias.shape:
                raise InputError(f"'{adapter.path}' has a bias of layer '{name}', and the layer has none like it.")
            own[f"{name}.bias"] = own[f"{name}.bias"] + layer.scaling * layer.bias.to(model.device)
    for name, value in adapter.whole.items():
        if name not in state:
            raise InputError(
                f"'{adapter.path}' has the tensor '{name}', which the network has not; give its own base."
            )
        _check_shape(adapter, model, name, value, state[name], outputs)
        if name in weights:
            matrix = model.weights[weights[name]].matrix
            factors[weights[name]] = _difference(matrix(value.float()), matrix(state[name].cpu()))
        else:
            own[name] = value.to(state[name].dtype)
    _check_frozen(adapter, model, own)
    head = f"{model.head}.weight"
    if model.heads == "per-task" and len(own[head]) != outputs:
        raise InputError(
            f"'{adapter.path}' brings no head, and the network's own '{model.head}' has {len(own[head])} outputs for "
            f"{outputs} classes; give the network as many outputs, or train the adapter with the head in "
            "modules_to_save."
        )
    return AdapterTask(factors, own)


def _check_frozen(adapter: Adapter, model: FactorModel, own: Mapping[str, Tensor]) -> None:
    """Refuse another value of what all tasks share."""
    for name in sorted(model.frozen & {*own}):
        dense_head = model.heads == "per-task" and name.startswith(f"{model.head}.")
        if not dense_head and not torch.equal(own[name].to(model.device), model.net.get_parameter(name)):
            raise InputError(
                f"'{adapter.path}' changes '{name}', which is frozen here for all tasks; leave its requires_grad "
                "True before factorize."
            )


def _factors(adapter: Adapter, model: FactorModel, name: str, layer: LoraLayer) -> ReadyFactors:
    if name not in model.layers:
        there = name in dict(model.net.named_modules())
        what = (
            "is not factorized here; include it in factorize" if there else "the network has not; give its own base"
        )
        raise InputError(f"'{adapter.path}' has factors of layer '{name}', which {what}.")
    module = model.weights[name].module
    if not exact_in_peft(module):
        raise InputError(
            f"'{adapter.path}' has factors of layer '{name}', a {type(module).__name__} whose weight peft's factors "
            "do not change as they say (groups, dilation, padding, attention); leave it out of the adapter's "
            "target_modules."
        )
    dictionary, rank = model.layers[name], len(layer.a)
    weight = model.net.get_parameter(model.weights[name].parameter)
    a, b = layer.a.flatten(1), layer.b.flatten(1)
    if a.shape != (rank, dictionary.inputs) or b.shape != (dictionary.outputs, rank):
        raise InputError(
            f"'{adapter.path}' has factors for a layer '{name}' of {a.shape[1]}×{b.shape[0]}, and the network's is "
            f"{dictionary.inputs}×{dictionary.outputs}; give the base that the adapter was trained on."
        )
    known = adapter.about.get("base")
    if isinstance(known, dict) and known.get(name, weight_digest(weight)) != weight_digest(weight):
        raise InputError(
            f"'{adapter.path}' is a difference from another network: the trained weight of layer '{name}' has the "
            "same shape and other numbers. Give the base that the adapter was made on."
        )
    return ReadyFactors(a.t(), b.t(), torch.full((rank,), layer.scaling, dtype=torch.float32))


def _check_shape(adapter: Adapter, model: FactorModel, name: str, value: Tensor, like: Tensor, outputs: int) -> None:
    wanted = tuple(like.shape)
    if model.heads == "per-task" and name.rpartition(".")[0] == model.head:
        wanted = (outputs, *wanted[1:])
    if tuple(value.shape) != wanted:
        raise InputError(
            f"'{adapter.path}' has '{name}' of shape {list(value.shape)}, and a task of {outputs} classes needs "
            f"{list(wanted)} here; give the base that the adapter was trained on, and its classes."
        )


def _difference(weight: Tensor, base: Tensor) -> ReadyFactors:
    """A weight that is held whole, J×M, as the factors of its difference from the base."""
    a, b = singular_factors(weight - base, min(base.shape))
    used = b.norm(dim=1) * a.norm(dim=0) > NEGLIGIBLE * float(base.norm() + weight.norm())
    return ReadyFactors(a[:, used], b[used], torch.ones(int(used.sum()), dtype=torch.float32))


def adapter_classes(
    adapter: Adapter, model: FactorModel, classes: Sequence[int] | None, found: Sequence[int]
) -> None:
    """Refuse labels that do not tell which of the adapter's outputs is which class; `found` are those of y."""
    if classes is not None:
        given = list(classes)
        if given != sorted(set(given)):
            raise InputError(f"classes is {given}; give the label of each output once, in rising order.")
        if given != list(found):
            raise InputError(f"classes is {given}, and y has the labels {list(found)}; give examples of every class.")
        return
    head = f"{model.head}.weight"
    outputs = len(adapter.whole[head]) if head in adapter.whole else model.head_width
    if outputs != len(found) and adapter.about.get("labels") != list(found):
        raise InputError(
            f"the adapter has {outputs} outputs and y has {len(found)} labels; say with classes=[...] which label "
            "each of its first outputs stands for."
        )
