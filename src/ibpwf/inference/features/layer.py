"""φ(x): what a named layer of the network gives under one task's weights (paper, section 2.4).

The paper's φ is the first layer's output, averaged over space for a convolution. Here it may be any layer's, or
several layers' side by side: a convolution is averaged over space, a transformer's layer over its tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from ibpwf.errors import InputError, unknown
from ibpwf.inference.base import Context, Features, State
from ibpwf.parts import Auto, register, require

FIRST, LAST = 1, -1  # where the channels are: N×C×…, or N×…×C


@register
class Layer(Features):
    """The outputs of one or several layers under the first task's weights, for all tasks: the paper's φ."""

    kind: ClassVar[str] = "layer"
    fixed: ClassVar[frozenset[str]] = frozenset({"layers"})

    layers: Auto | tuple[str, ...] = Field(
        "auto", description="which layers φ reads, by name; 'auto': the first one with a weight"
    )
    _read: tuple[str, ...] = PrivateAttr(())

    def bound(self, context: Context) -> Self:
        other = super().bound(context)
        net = other.model.net
        other._read = (first_layer(net),) if self.layers == "auto" else self.layers
        check_layers(net, other._read)
        return other

    @property
    def layers_read(self) -> tuple[str, ...]:
        """By name, also where the settings say 'auto'."""
        return self._read

    def __call__(self, x: Tensor) -> Tensor:
        with self.model.shell() as net:
            return features(net, self._weights(), self._read, x)

    def _weights(self) -> Mapping[str, Tensor]:
        return self.model.reference_state()

    def check(self, x: Tensor) -> None:
        """A layer that never runs is named now."""
        with self.model.shell() as net:
            features(net, {}, self._read, x)

    def width_for(self, shape: tuple[int, ...]) -> int:
        net, one = self.model.net, torch.zeros(1, *shape, device=self.model.device, dtype=torch.float32)
        return features(net, dict(net.state_dict()), self._read, one).shape[1]

    def export_module(self) -> nn.Module:
        """A copy of the network up to the layer that is read."""
        net, layers = self.model.net, self._read
        names = [name for name, _ in net.named_children()]
        plain = type(net).forward is nn.Sequential.forward and len(layers) == 1 and layers[0] in names
        module = net.get_submodule(layers[0])
        if not plain or not isinstance(module, (nn.Linear, _ConvNd)):
            raise InputError(
                f"tasks are inferred from layer {', '.join(layers)}, inside a network that is no plain sequence, "
                "which cannot be put into one graph; export one task at a time with --task."
            )
        weights = self._weights()
        parts = [
            _with(net.get_submodule(name), {k: v for k, v in weights.items() if k.startswith(f"{name}.")}, name)
            for name in names[: names.index(layers[0]) + 1]
        ]
        return _UpToLayer(parts, isinstance(module, _ConvNd))

    def unread(self) -> tuple[str, ...]:
        return unread_by(self.model.net, self._read)

    def state(self) -> State:
        return {"layers": list(self._read)}, {}

    def load_state(self, content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        layers = content["layers"]
        if tensors or not isinstance(layers, list) or not layers or not all(isinstance(one, str) for one in layers):
            raise ValueError(f"the features read {layers!r}, which is no list of layers")
        check_layers(self.model.net, layers)
        self._read = tuple(layers)


@register
class Factors(Layer):
    """What each selected factor of one layer makes of the input, λ ⊙ (W_aᵀ x): more than the layer's outputs tell,
    where it has more factors than outputs."""

    kind: ClassVar[str] = "factors"

    def check_settings(self) -> None:
        single = self.layers == "auto" or len(self.layers) == 1
        require(
            single,
            "layers",
            list(self.layers),
            "'factors' reads one; name one, or use kind 'layer'",
        )

    def _weights(self) -> Mapping[str, Tensor]:
        return self.model.factor_state(self._read[0])

    def width_for(self, shape: tuple[int, ...]) -> int:
        kept = self.model.reference or self.model.tasks[0]
        return int(kept.selected[self._read[0]].sum())


class _Enough(Exception):
    """Raised inside the forward pass once the last wanted layer has answered."""


def first_layer(net: nn.Module) -> str:
    """The first layer with a weight matrix: the paper's choice of φ, read before its activation. Not one that an
    attention module reads directly: it gives no output of its own."""
    attention = [f"{name}." for name, module in net.named_modules() if isinstance(module, nn.MultiheadAttention)]
    for name, parameter in net.named_parameters():
        if parameter.ndim >= 2 and name.endswith(".weight") and not name.startswith(tuple(attention)):
            return name.removesuffix(".weight")
    raise InputError("the network has no layer with a weight to infer tasks from; name one in features.layers.")


def check_layers(net: nn.Module, names: Sequence[str]) -> None:
    known = [name for name, _ in net.named_modules() if name]
    for name in names:
        if name not in known:
            raise unknown("layer of the features", name, known)


def unread_by(net: nn.Module, layers: Sequence[str]) -> tuple[str, ...]:
    """Prefixes of what φ cannot depend on, whatever the input: the modules of an `nn.Sequential` that come after the
    last of `layers` (everything, if there are none). Nothing is said of the insides of any other module, which may
    run its parts in any order."""
    if not layers:
        return ("",)
    if type(net).forward is not nn.Sequential.forward:
        return ()
    children = [name for name, _ in net.named_children()]
    last = max(children.index(layer.partition(".")[0]) for layer in layers)
    here = children[last]
    inner = [layer.partition(".")[2] for layer in layers if layer.partition(".")[0] == here]
    deeper = unread_by(net.get_submodule(here), inner) if all(inner) else ()
    return (*(f"{name}." for name in children[last + 1 :]), *(f"{here}.{prefix}" for prefix in deeper))


def _channels(module: nn.Module) -> tuple[int, int] | None:
    """How many channels a layer of torch's own gives, and where; None for anything else."""
    if isinstance(module, _ConvNd):
        return module.out_channels, FIRST
    if isinstance(module, _NormBase):
        return module.num_features, FIRST
    if isinstance(module, nn.GroupNorm):
        return module.num_channels, FIRST
    if isinstance(module, nn.Linear):
        return module.out_features, LAST
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
        return int(module.normalized_shape[-1]), LAST
    if isinstance(module, nn.Embedding):
        return module.embedding_dim, LAST
    if isinstance(module, nn.MultiheadAttention):
        return module.embed_dim, LAST
    return None


@dataclass
class _Layout:
    """The latest layer whose channels are known: it tells how to read a module of another kind that follows."""

    channels: int = 0
    place: int = FIRST
    dims: int = 0

    def place_in(self, output: Tensor) -> int:
        """The dimension of `output` that has the channels: the one of their number, or by the layer itself."""
        fitting = [place for place in (FIRST, LAST) if output.shape[place] == self.channels]
        if len(fitting) == 1:
            return fitting[0]
        if self.dims == output.ndim:
            return self.place
        return LAST if output.ndim == 3 else FIRST


class _Ambiguous(Exception):
    """As many tokens as rows: it cannot be seen which dimension is which."""


@dataclass
class _Reading:
    """Reads the wanted layers as they run."""

    rows: int
    wanted: Sequence[str]
    found: dict[str, Tensor] = field(default_factory=dict)
    layout: _Layout = field(default_factory=_Layout)

    def note(self, module: nn.Module, inputs: object, output: object) -> None:
        known, value = _channels(module), _first_tensor(output)
        if known is not None and value is not None:
            self.layout = _Layout(*known, value.ndim)

    def keep(self, name: str) -> Callable[[nn.Module, object, object], None]:
        def hook(module: nn.Module, inputs: object, output: object) -> None:
            value = _first_tensor(output)
            if value is None:
                raise InputError(
                    f"features.layers: '{name}' gives a {type(output).__name__} and no tensor; name another layer."
                )
            known = _channels(module)
            layout = self.layout if known is None else _Layout(*known, value.ndim)
            if isinstance(module, (_ConvNd, nn.Linear)):  # whose weight may have been lent, with more channels
                layout = _Layout(value.shape[layout.place], layout.place, value.ndim)
            self.found[name] = self._averaged(name, value, layout, isinstance(module, (_ConvNd, _NormBase)))
            if len(self.found) == len(set(self.wanted)):
                raise _Enough

        return hook

    def _averaged(self, name: str, value: Tensor, layout: _Layout, rows_first: bool) -> Tensor:
        """N×C: everything but rows and channels averaged."""
        if value.ndim == 3 and not rows_first and value.shape[1] == self.rows:  # attention may take tokens first
            if len(value) == self.rows > 1:
                raise _Ambiguous
            if len(value) != self.rows:
                value = value.transpose(0, 1)
        if value.ndim < 2 or len(value) != self.rows:
            raise InputError(
                f"features.layers: '{name}' gives an output of shape {tuple(value.shape)} for {self.rows} inputs, "
                "not one row per input; name another layer."
            )
        if value.ndim == 2:
            return value
        return value.movedim(layout.place_in(value), 1).flatten(2).mean(2)


def _first_tensor(output: object) -> Tensor | None:
    """A layer's output; the first of several, as of an attention module that also gives its weights."""
    if isinstance(output, (tuple, list)):
        return next((part for part in output if isinstance(part, Tensor)), None)
    return output if isinstance(output, Tensor) else None


def features(net: nn.Module, state: Mapping[str, Tensor], layers: Sequence[str], x: Tensor) -> Tensor:
    """The layers' outputs under the weights `state`, averaged over space (or tokens) and concatenated: N×D.

    The forward pass stops as soon as all of them have answered. Hooks hang on `net` meanwhile, so it must be the
    caller's alone.
    """
    reading = _Reading(len(x), layers)
    handles, unclear = [], False
    if any(_channels(net.get_submodule(name)) is None for name in layers):
        known = [module for module in net.modules() if _channels(module) is not None]
        handles += [module.register_forward_hook(reading.note) for module in known]
    handles += [net.get_submodule(name).register_forward_hook(reading.keep(name)) for name in layers]
    try:
        net.eval()
        with torch.no_grad():
            functional_call(net, dict(state), (x,), tie_weights=False)
    except _Enough:
        pass
    except _Ambiguous:
        unclear = True
    finally:
        for handle in handles:
            handle.remove()
    if unclear:
        return torch.cat([features(net, state, layers, part) for part in (x[:1], x[1:])])
    for name in layers:
        if name not in reading.found:
            raise InputError(f"features.layers: '{name}' gives no output when the network runs; name another layer.")
    return torch.cat([reading.found[name] for name in layers], dim=1)


class _UpToLayer(nn.Module):
    """The output of a layer of an `nn.Sequential`, averaged over space for a convolution."""

    def __init__(self, parts: Sequence[nn.Module], average: bool) -> None:
        super().__init__()
        self.parts = nn.Sequential(*parts)
        self.average = average

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.parts(x)
        return out.flatten(2).mean(2) if self.average else out


def _with(module: nn.Module, state: dict[str, Tensor], prefix: str) -> nn.Module:
    """A copy of a module with other tensors, whatever their shapes."""
    module = copy.deepcopy(module).eval().cpu()
    for name, value in state.items():
        parent, _, leaf = name.removeprefix(f"{prefix}.").rpartition(".")
        owner = module.get_submodule(parent)
        fixed = value.detach().cpu().clone()
        setattr(owner, leaf, nn.Parameter(fixed) if leaf in owner._parameters else fixed)
    return module
