"""What a model calculates, as one torch module without Python decisions: it can be traced into any graph format.

A graph takes the user's own numbers and gives probabilities: preprocessing, network, softmax; for a whole learner
also φ(x) and the Gaussians that say whose task an input is (paper, eq. task_inf).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ibpwf.errors import InputError
from ibpwf.files.layout import Layout
from ibpwf.inference.features.layer import FactorFeatures, LayerFeatures
from ibpwf.inference.features.random import RandomFeatures
from ibpwf.inference.gaussian import GaussianTaskInference
from ibpwf.inference.shared import SharedGaussianInference
from ibpwf.method import IBPWF
from ibpwf.preprocessing import LINEAR_TO, Standardizer


class _Standardize(nn.Module):
    """`Standardizer` in torch: in float64 up to the last step, as there."""

    def __init__(self, standardizer: Standardizer) -> None:
        super().__init__()
        self.register_buffer("mean", torch.from_numpy(standardizer.mean))
        self.register_buffer("scale", torch.from_numpy(standardizer.scale))

    def forward(self, x: Tensor) -> Tensor:
        z = (x - self.get_buffer("mean")) / self.get_buffer("scale")
        beyond = 1 + torch.log(z.abs().clamp(min=LINEAR_TO) / LINEAR_TO)  # 1 up to ±5
        return (z.clamp(-LINEAR_TO, LINEAR_TO) * beyond).float()


class _Pixels(nn.Module):
    """Images as files hold them, N×height×width×channels, as the reader of files makes rows of them: colours first,
    bytes as 0 to 1, in float32."""

    def __init__(self, are_bytes: bool) -> None:
        super().__init__()
        self.are_bytes = are_bytes

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 3, 1, 2).float()
        return (x / 255 if self.are_bytes else x).flatten(1).double()


class _FillIn(nn.Module):
    """The first file's means for values that are missing."""

    def __init__(self, means: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("means", torch.tensor(means, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x.isnan(), self.get_buffer("means"), x)


def prepare(standardizer: Standardizer | None, layout: Layout | None = None) -> nn.Module:
    """The preprocessing that belongs in the graph: none for a learner, whose inputs are its user's affair."""
    if standardizer is None:
        return nn.Identity()
    steps: list[nn.Module] = [_Standardize(standardizer)]
    if layout is not None and layout.kind == "images":
        steps.insert(0, _Pixels(layout.pixels == "bytes"))
    if layout is not None and layout.missing == "mean":
        steps.insert(0, _FillIn(layout.means))
    return nn.Sequential(*steps)


class TaskGraph(nn.Module):
    """One task: p(c|x,t), a column per class of the task."""

    outputs = ("probabilities",)

    def __init__(self, prepare: nn.Module, net: nn.Module) -> None:
        super().__init__()
        self.prepare, self.net = prepare, net

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(self.prepare(x))
        return logits.double().softmax(1).float()


class WholeGraph(nn.Module):
    """All tasks: P(c|x) = Σ_t P(t|φ(x)) p(c|x,t), a column per label, and P(t|φ(x)), a column per task."""

    outputs = ("probabilities", "task_probabilities")

    def __init__(
        self, prepare: nn.Module, method: IBPWF, nets: Sequence[nn.Module], columns: Sequence[Tensor], labels: int
    ) -> None:
        """`columns` has, per task, the place of each of its classes among the `labels`."""
        super().__init__()
        self.prepare = prepare
        self.phi = _phi(method)
        if not isinstance(method.inference, GaussianTaskInference):
            raise InputError(
                f"tasks are inferred by a {type(method.inference).__name__}, which cannot be put into one graph; "
                "export one task at a time with --task."
            )
        self.scores = _Scores(method.inference)
        self.nets = nn.ModuleList(nets)
        for task, places in enumerate(columns):
            spread = torch.zeros(len(places), labels, dtype=torch.float64)
            spread[torch.arange(len(places)), places] = 1.0
            self.register_buffer(f"columns{task}", spread)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.prepare(x)
        tasks = self.scores(self.phi(z)).log_softmax(1).exp()
        parts = []
        for task, net in enumerate(self.nets):
            p = net(z).double().softmax(1) * tasks[:, task : task + 1]
            parts.append(p @ self.get_buffer(f"columns{task}"))
        return torch.stack(parts).sum(0).float(), tasks.float()


class _Scores(nn.Module):
    """log P(t|φ) up to a constant: the sum over a task's groups (see `inference.gaussian` and `inference.shared`)."""

    def __init__(self, inference: GaussianTaskInference) -> None:
        super().__init__()
        means, matrix, constant = (tensor.cpu() for tensor in inference.prepared())
        self.shared = isinstance(inference, SharedGaussianInference)
        self.register_buffer("matrix", matrix)
        self.register_buffer("constant", constant)
        if not self.shared:
            self.register_buffer("shift", means.unsqueeze(1) @ matrix)
        self.groups = [
            [group for group, owner in enumerate(inference.owner) if owner == task]
            for task in range(1 + max(inference.owner))
        ]

    def forward(self, phi: Tensor) -> Tensor:
        phi = phi.double()
        matrix, constant = self.get_buffer("matrix"), self.get_buffer("constant")
        if self.shared:
            scores = phi @ matrix + constant
        else:
            z = phi.unsqueeze(0) @ matrix - self.get_buffer("shift")
            scores = constant - 0.5 * z.square().sum(-1).T
        # A task's groups are neighbours: they are added task by task, and forgotten together.
        return torch.stack([scores[:, own[0] : own[-1] + 1].logsumexp(1) for own in self.groups], 1)


class _RandomPhi(nn.Module):
    def __init__(self, layer: RandomFeatures) -> None:
        super().__init__()
        self.register_buffer("weight", layer.weight.cpu())
        self.register_buffer("bias", layer.bias.cpu())

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.get_buffer("weight").double(), self.get_buffer("bias").double()
        return torch.addmm(bias, x.flatten(1).double(), weight).relu()


class _LayerPhi(nn.Module):
    """The output of a layer of an `nn.Sequential`, averaged over space for a convolution."""

    def __init__(self, parts: Sequence[nn.Module], average: bool) -> None:
        super().__init__()
        self.parts = nn.Sequential(*parts)
        self.average = average

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.parts(x)
        return out.flatten(2).mean(2) if self.average else out


def _phi(method: IBPWF) -> nn.Module:
    """φ(x) as a module of its own: the random layer, or a copy of the network up to the layer it is read from."""
    features = method.features
    if isinstance(features, RandomFeatures):
        return _RandomPhi(features)
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
