"""Which weights of a network can be factorised, how patterns choose among them, and what is refused, by name.

Every Linear and convolution layer has one factorizable weight and gives it its own name, and so has the `Conv1D` of
Hugging Face's GPT-2, a Linear layer whose weight lies the other way round. An attention module
(`nn.MultiheadAttention`) reads the weights of its projections directly, so each of them stands for itself:
`attention.in_proj_weight` (or `q_proj_weight`, `k_proj_weight`, `v_proj_weight`) and `attention.out_proj`.
"""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ibpwf.errors import InputError, unknown
from ibpwf.factors.compose import as_matrix, as_weight

PLAIN_FORWARDS = {layer.forward for layer in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)}
IN_PROJECTIONS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")


@dataclass(frozen=True)
class Weight:
    """A factorizable weight: the name its layer goes by, the parameter's name, and the module that owns it.

    `aliases` are other names and types a pattern may call it by; `replaceable` says whether a factor layer can
    stand in for the module (it is called, and calculates as torch's own layer does); `transposed` that the parameter
    has inputs before outputs.
    """

    layer: str
    parameter: str
    module: nn.Module
    aliases: tuple[str, ...]
    replaceable: bool
    transposed: bool = False

    def matrix(self, parameter: Tensor) -> Tensor:
        """The parameter as the paper's matrix J×M."""
        return parameter if self.transposed else as_matrix(parameter)

    def shaped(self, matrix: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The inverse of `matrix`, also of several in a row."""
        return matrix if self.transposed else as_weight(matrix, shape)

    def matches(self, patterns: str | Iterable[str]) -> bool:
        wanted = [patterns] if isinstance(patterns, str) else patterns
        return any(fnmatch.fnmatchcase(name, p) for p in wanted for name in (self.layer, *self.aliases))


def weight_layer(module: nn.Module) -> bool:
    """A Linear or convolution layer, of torch's own class or derived from it; not a transposed convolution."""
    if isinstance(module, nn.Linear) or transposed_linear(module):
        return True
    return isinstance(module, _ConvNd) and not module.transposed


def transposed_linear(module: nn.Module) -> bool:
    """The `Conv1D` of transformers: a Linear layer whose weight is (inputs, outputs)."""
    weight, outputs = module._parameters.get("weight"), getattr(module, "nf", None)
    return type(module).__name__ == "Conv1D" and weight is not None and tuple(weight.shape[1:]) == (outputs,)


def type_names(module: nn.Module) -> tuple[str, ...]:
    """The class of a module and those it derives from, up to torch's own: `Conv2dSame`, `Conv2d`."""
    return tuple(kind.__name__ for kind in type(module).__mro__ if kind not in (nn.Module, _ConvNd, object))


def _plain(module: nn.Module) -> bool:
    hooked = module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__
    return (type(module).forward in PLAIN_FORWARDS or transposed_linear(module)) and not hooked


def factorizable(net: nn.Module) -> dict[str, Weight]:
    """The factorizable weights by the names of their layers, in the order of the network's modules."""
    found: dict[str, Weight] = {}
    projections: dict[str, tuple[str, ...]] = {}
    for name, module in net.named_modules(remove_duplicate=False):
        prefix = f"{name}." if name else ""
        if isinstance(module, nn.MultiheadAttention):
            aliases = (name, *type_names(module))
            projections[f"{prefix}out_proj"] = aliases
            for part in IN_PROJECTIONS:
                if getattr(module, part) is not None:
                    found[prefix + part] = Weight(prefix + part, prefix + part, module, aliases, replaceable=False)
        elif name and weight_layer(module):
            inside = name in projections
            aliases = projections.get(name) or type_names(module)
            plain, transposed = _plain(module) and not inside, transposed_linear(module)
            found[name] = Weight(name, f"{name}.weight", module, aliases, plain, transposed)
    return found


def head_choices(found: Mapping[str, Weight]) -> list[str]:
    """Layers that can be a network's last: Linear ones, or convolutions where there are none."""
    layers = [name for name, weight in found.items() if weight.parameter == f"{name}.weight"]
    layers = [name for name in layers if "MultiheadAttention" not in found[name].aliases]
    linear = [name for name in layers if isinstance(found[name].module, nn.Linear)]
    return linear or [name for name in layers if getattr(found[name].module, "groups", 0) == 1]


def check_weight(net: nn.Module, weight: Weight) -> None:
    """Refuse a layer whose weight cannot be replaced by ours."""
    name = weight.layer
    owner, _, part = weight.parameter.rpartition(".")
    value = net.get_submodule(owner)._parameters.get(part)
    if value is None:
        raise InputError(
            f"layer '{name}' computes its weight from other parameters (weight_norm, spectral_norm, ...); "
            "remove the parametrisation, or exclude the layer."
        )
    if isinstance(value, nn.UninitializedParameter):
        raise InputError(f"layer '{name}' is lazy and has no shape yet; run the network on one example first.")
    if value.dtype != torch.float32:
        raise InputError(f"layer '{name}' has weights of {value.dtype}; training is in float32: use net.float().")
    for other, parameter in net.named_parameters(remove_duplicate=False):
        if parameter is value and other != weight.parameter:
            raise InputError(
                f"layer '{name}' shares its weight with '{other}', and factorised weights cannot be shared; "
                "give each layer its own weight, or exclude them."
            )


def check_patterns(field: str, patterns: Iterable[str], found: Mapping[str, Weight], net: nn.Module) -> None:
    """Refuse a pattern that fits no factorizable layer: it is misspelt, or names something of another kind."""
    for pattern in patterns:
        if any(weight.matches(pattern) for weight in found.values()):
            continue
        for name, module in net.named_modules():
            kinds = type_names(module)
            if name and any(fnmatch.fnmatchcase(word, pattern) for word in (name, *kinds)):
                raise InputError(
                    f"{field} has '{pattern}', which fits '{name}', a {type(module).__name__}: only Linear, Conv1d, "
                    "Conv2d, Conv3d and MultiheadAttention weights are factorised, and all other parameters are "
                    f"each task's own. Take it out of {field}."
                )
        raise unknown(f"layer in {field}", pattern, found)


def per_layer(field: str, value: object, weight: Weight, automatic: float | None) -> float | None:
    """A setting for one layer: a number for all layers, or a mapping from patterns to numbers."""
    if value is None or value == "auto":
        return automatic
    if isinstance(value, Mapping):
        chosen = [value[weight.layer]] if weight.layer in value else []
        chosen += [number for pattern, number in value.items() if weight.matches(pattern)]
        return per_layer(field, chosen[0], weight, automatic) if chosen else automatic
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise InputError(f"{field} is {value!r}; give a number, or a mapping from layer patterns to numbers.")


def automatic_alpha(inputs: int, outputs: int) -> float:
    """Half the rank a J×M weight can have, at least 4: α should be below the rank (appendix F)."""
    return max(4.0, min(inputs, outputs) / 2)


def adapter_alpha(inputs: int, outputs: int) -> float:
    """Of factors beside a frozen base: a difference from trained weights needs few."""
    return 4.0


def load_tensors(net: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put values into a network by name. Its own state dict brings what a module may want to know besides (some ask
    for the version they were written with)."""
    state = net.state_dict()
    missing = [name for name in tensors if name not in state]
    if missing:
        raise KeyError(f"the network has no '{missing[0]}'")
    state.update(tensors)
    net.load_state_dict(state)


def replace_module(net: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(net.get_submodule(parent), leaf, module)


def resized(layer: nn.Module, outputs: int) -> nn.Module:
    """A copy of a Linear or convolution layer with another number of outputs; its weights are zero."""
    other = copy.deepcopy(layer)
    for part, value in other.named_parameters():
        setattr(other, part, nn.Parameter(value.detach().new_zeros(outputs, *value.shape[1:])))
    setattr(other, "out_features" if isinstance(other, nn.Linear) else "out_channels", outputs)
    return other


def copied(net: nn.Module, kept: Collection[str]) -> nn.Module:
    """A copy of a network with tensors of its own, but that the parameters `kept`, which nobody changes, are in the
    memory where the network has them."""
    memo: dict[int, object] = {
        id(parameter): nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)
        for name, parameter in net.named_parameters()
        if name in kept
    }
    return copy.deepcopy(net, memo)


def sharing(net: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """A copy of a network that holds the tensors of `state`, and where it has none the network's: not copies."""
    memo: dict[int, object] = {}  # what deepcopy takes for the copy of a tensor
    for name, tensor in [*net.named_buffers(), *net.named_parameters()]:
        value = state.get(name, tensor)
        given = isinstance(tensor, nn.Parameter) and not isinstance(value, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(value, requires_grad=False) if given else value
    return copy.deepcopy(net, memo)
