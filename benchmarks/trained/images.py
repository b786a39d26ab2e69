"""EfficientNet-Lite0 as the base of image tasks: which of its layers get factors, and what a task adds to it."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

from ibpwf import Learner, Settings, backbones, factorize
from ibpwf.backbones.inverted_residuals import ConvNorm
from ibpwf.lab.data.tasks import Scenario
from ibpwf.training.callbacks import Callback, EpochEnd

BACKBONE = "efficientnet-lite0"
LAYERS = ("pointwise", "late", "all")
"""Factors in all convolutions but those within single channels; in those of the last three stages; in all."""
NORMS = ("own", "statistics", "folded")
"""Of batch normalization, a task's own are scale, shift and statistics; the statistics alone; nothing: it is folded
into the convolutions, whose biases are then the task's own."""
LATE_STAGES = ("backbone.net.levels.5", "backbone.net.levels.6", "backbone.net.levels.7")
ROWS_ASKED = 2048
VALIDATION = 0.1
"""Share of the training images that are held out to choose settings by."""


class Progress(Callback):
    """A line for every epoch."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def epoch_end(self, epoch: EpochEnd) -> None:
        now = time.perf_counter()
        print(
            f"  {epoch.task} {epoch.phase} {epoch.epoch}/{epoch.epochs}: loss {epoch.loss:.4f}, "
            f"right {epoch.accuracy or 0:.2f} %, factors {epoch.active}, {now - self._last:.1f} s",
            flush=True,
        )
        self._last = now


def network(settings: Settings, size: int, norms: str) -> nn.Sequential:
    """Lite0 for images that come as the settings say; all but factors, heads and what `norms` names is frozen."""
    backbone = backbones.load(BACKBONE)
    assert settings.image_mean != "auto"
    assert settings.image_std != "auto"
    net = backbones.image_classifier(
        backbone, 2, size=size, image_mean=settings.image_mean, image_std=settings.image_std
    )
    net.requires_grad_(False)
    for module in list(net.modules()):
        if isinstance(module, ConvNorm) and norms == "folded":
            fold(module)
        elif isinstance(module, nn.BatchNorm2d) and norms == "own":
            module.requires_grad_(True)
    return net


def fold(layer: ConvNorm) -> None:
    """Let the convolution do what the normalization after it did with its trained statistics."""
    conv, norm = layer.conv, layer.norm
    assert isinstance(norm, nn.BatchNorm2d)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight.detach() / (norm.running_var + norm.eps).sqrt()
    conv.weight = nn.Parameter(conv.weight.detach() * scale.view(-1, 1, 1, 1), requires_grad=False)
    conv.bias = nn.Parameter(norm.bias.detach() - norm.running_mean * scale)
    layer.norm = nn.Identity()  # type: ignore[assignment]


def factor_layers(net: nn.Module, layers: str) -> list[str]:
    """The names of the convolutions that get factors."""
    found = [(name, module) for name, module in net.named_modules() if isinstance(module, nn.Conv2d)]
    if layers == "all":
        return [name for name, _ in found]
    names = [name for name, module in found if module.groups == 1]
    return [name for name in names if layers == "pointwise" or name.startswith(LATE_STAGES)]


def learner(settings: Settings, seed: int, asked: Any) -> Learner:
    net = network(settings, asked.size, asked.norms)
    model = factorize(net, include=factor_layers(net, asked.layers), **settings.factorization)
    return Learner(model, settings, seed=seed, device=asked.device)


def base_size(model: Any) -> int:
    """Trained numbers of the base, without a head and the statistics of its normalization."""
    return sum(parameter.numel() for parameter in model.net.get_submodule("backbone").parameters())


def added(learner: Learner) -> list[dict[str, Any]]:
    """What each task added to the base: ranks by layer, trained parameters, and with statistics all it keeps."""
    model, base = learner.model, base_size(learner.model)
    found = []
    for number, task in enumerate(model.tasks):
        use = model.use(number)
        factors = sum(use[name].new * (d.inputs + d.outputs) for name, d in model.layers.items())
        strengths = sum(each.active for each in use.values())
        fixed = model.fixed_tensors()
        own = {name: tensor.numel() for name, tensor in task.own.items() if name not in fixed}
        statistics = sum(size for name, size in own.items() if "running_" in name or "num_batches" in name)
        trained = factors + strengths + sum(own.values()) - statistics
        found.append(
            {
                "ranks": {name: each.active for name, each in use.items()},
                "new": {name: each.new for name, each in use.items()},
                "factors": factors,
                "trained": trained,
                "statistics": statistics,
                "percent": 100 * trained / base,
                "percent_with_statistics": 100 * (trained + statistics) / base,
            }
        )
    return found


def rows_of(stream: Scenario, validation: bool, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """All inputs to measure with, the columns of their classes, and their tasks."""
    x, places, tasks, first = [], [], [], 0
    for number, task in enumerate(stream):
        part = task.validation if validation else task.test
        assert part is not None
        x.append(part.x.to(device))
        order = {label: place for place, label in enumerate(task.classes)}
        places.append(torch.tensor([first + order[int(label)] for label in part.y], device=device))
        tasks.append(torch.full((len(part.y),), number, device=device))
        first += len(task.classes)
    return torch.cat(x), torch.cat(places), torch.cat(tasks)


def percent(right: Tensor) -> float:
    return 100 * float(right.double().mean())
