"""φ(x) as a module that can be traced, whichever features a model has."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd

from ibpwf.errors import InputError
from ibpwf.inference.base import Features
from ibpwf.inference.features.inputs import InputFeatures
from ibpwf.inference.features.joined import JoinedFeatures
from ibpwf.inference.features.layer import FactorFeatures, LayerFeatures
from ibpwf.inference.features.patches import BLANK, PatchFeatures, pooling_matrix
from ibpwf.inference.features.quantiles import QuantileFeatures, weighted
from ibpwf.inference.features.random import RandomFeatures
from ibpwf.method import IBPWF

RESPONSES = 2**18
"""Of patches to filters, of one image, that are held at a time: 1 MB."""


class _RandomPhi(nn.Module):
    def __init__(self, layer: RandomFeatures) -> None:
        super().__init__()
        self.register_buffer("weight", layer.weight.cpu())
        self.register_buffer("bias", layer.bias.cpu())
        self.encoding = copy.deepcopy(layer.encoding).cpu() if isinstance(layer, QuantileFeatures) else None

    def forward(self, x: Tensor) -> Tensor:
        if self.encoding is not None:
            x = weighted(self.encoding, x.flatten(1).double())
        weight, bias = self.get_buffer("weight").double(), self.get_buffer("bias").double()
        return torch.addmm(bias, x.flatten(1).double(), weight).relu()


class _PatchPhi(nn.Module):
    """Patches of one size. Whitened they are a convolution, their cosines with the filters a product. Of large
    images and many filters responses are made and averaged for some lines of places after others."""

    def __init__(self, features: PatchFeatures) -> None:
        super().__init__()
        content, tensors = features.state()
        fitted = {name: tensor.cpu() for name, tensor in tensors.items()}
        channels, height, width = self.image = tuple(content["image"])
        patch, filters = content["patch"], fitted["filters"]
        self.threshold, self.mirror = float(content["threshold"]), bool(content["mirror"])
        lines, across = height - patch + 1, width - patch + 1
        self.at_once = across * max(1, RESPONSES // (across * len(filters)))
        cells = math.isqrt(len(fitted["mean"]) // (2 * len(filters)))
        self.register_buffer("whitening", fitted["whitening"].T.reshape(-1, channels, patch, patch).contiguous())
        self.register_buffer("filters", filters.T.contiguous())
        self.register_buffer("pooling", pooling_matrix(lines, across, cells).to(filters))
        self.register_buffer("mean", fitted["mean"])
        self.register_buffer("deviation", fitted["deviation"])

    def forward(self, x: Tensor) -> Tensor:
        images = x.float().reshape(-1, *self.image)
        if not self.mirror:
            return self._standardized(images)
        both = self._standardized(torch.cat([images, images.flip(-1)]))
        return both.reshape(2, -1, both.shape[1]).mean(0)

    def _standardized(self, images: Tensor) -> Tensor:
        directions = F.conv2d(images, self.get_buffer("whitening")).flatten(2).transpose(1, 2)
        directions = directions / torch.linalg.vector_norm(directions, dim=2, keepdim=True).clamp(min=BLANK)
        filters, total = self.get_buffer("filters"), torch.zeros((), dtype=torch.float32)
        for start in range(0, directions.shape[1], self.at_once):
            places = slice(start, start + self.at_once)
            pooling, response = self.get_buffer("pooling")[:, places], directions[:, places] @ filters
            beyond = F.softshrink(response, self.threshold)  # relu(h − b) − relu(−h − b)
            total = total + torch.stack([pooling @ beyond.relu(), pooling @ (-beyond).relu()], 1)
        # The mean is that of relu(h − b) + b.
        return (total.flatten(1) - self.get_buffer("mean")) / self.get_buffer("deviation")


class _SideBySide(nn.Module):
    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self.parts], 1)


class _LayerPhi(nn.Module):
    """The output of a layer of an `nn.Sequential`, averaged over space for a convolution."""

    def __init__(self, parts: Sequence[nn.Module], average: bool) -> None:
        super().__init__()
        self.parts = nn.Sequential(*parts)
        self.average = average

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.parts(x)
        return out.flatten(2).mean(2) if self.average else out


def phi_of(method: IBPWF) -> nn.Module:
    """φ(x) as a module of its own: the random layer, patches, or a copy of the network up to the layer
    it is read from, or several of them side by side."""
    return _module_of(method.features, method)


def _module_of(features: Features, method: IBPWF) -> nn.Module:
    if isinstance(features, JoinedFeatures):
        return _SideBySide([_module_of(part, method) for part in features.parts])
    if isinstance(features, InputFeatures):
        return nn.Flatten()
    if isinstance(features, RandomFeatures):
        return _RandomPhi(features)
    if isinstance(features, PatchFeatures):
        sizes = [_PatchPhi(one) for one in features.alone()]
        return sizes[0] if len(sizes) == 1 else _SideBySide(sizes)
    if not isinstance(features, LayerFeatures):
        raise InputError(
            f"tasks are inferred from {type(features).__name__}, which cannot be put into one graph; export one task "
            "at a time with --task."
        )
    net, layers = method.model.net, features.layers
    names = [name for name, _ in net.named_children()]
    plain = type(net).forward is nn.Sequential.forward and len(layers) == 1 and layers[0] in names
    module = net.get_submodule(layers[0])
    if not plain or not isinstance(module, (nn.Linear, _ConvNd)):
        raise InputError(
            f"tasks are inferred from layer {', '.join(layers)}, inside a network that is no plain sequence, which "
            "cannot be put into one graph; export one task at a time with --task."
        )
    factors = isinstance(features, FactorFeatures)
    state = method.model.factor_state(layers[0]) if factors else method.model.reference_state()
    parts = []
    for name in names[: names.index(layers[0]) + 1]:
        parts.append(
            _with(net.get_submodule(name), {k: v for k, v in state.items() if k.startswith(f"{name}.")}, name)
        )
    return _LayerPhi(parts, isinstance(module, _ConvNd))


def _with(module: nn.Module, state: dict[str, Tensor], prefix: str) -> nn.Module:
    """A copy of a module with other tensors, whatever their shapes."""
    module = copy.deepcopy(module).eval().cpu()
    for name, value in state.items():
        parent, _, leaf = name.removeprefix(f"{prefix}.").rpartition(".")
        owner = module.get_submodule(parent)
        fixed = value.detach().cpu().clone()
        setattr(owner, leaf, nn.Parameter(fixed) if leaf in owner._parameters else fixed)
    return module
