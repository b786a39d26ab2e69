"""Split CIFAR-10 by a router alone, on features of EfficientNet-Lite0: which depths, and how wide a projection.

The network reads every image once, at all its depths; then each way of making φ of them is tried.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from torch import Tensor

from ibpwf import backbones
from ibpwf.device import choose_device
from ibpwf.inference.features.backbone import ROWS_AT_ONCE, PixelScale
from ibpwf.inference.features.scaled import projection_matrix
from ibpwf.inference.router import RidgeRouter
from ibpwf.lab import scenario
from ibpwf.lab.data.catalog import CIFAR10
from trained.images import BACKBONE, VALIDATION, percent, rows_of

DEPTHS = ((8,), (7, 8), (6, 7, 8), (5, 6, 7, 8), (4, 5, 6, 7, 8))
PROJECTIONS = (0, 5_000, 10_000)


def measure(seed: int, asked: argparse.Namespace) -> dict[str, Any]:
    device = choose_device(asked.device)
    stream = scenario(
        "split-cifar10", examples=asked.examples, validation=VALIDATION if asked.validation else 0.0, seed=seed
    )
    started = time.perf_counter()
    learned = [(task.train.x.to(device), task.train.y.to(device), task.classes) for task in stream]
    features = [(views(x, asked.size), torch.searchsorted(torch.tensor(c, device=device), y)) for x, y, c in learned]
    x, y, _ = rows_of(stream, asked.validation, device)
    tests, found = views(x, asked.size), {"seconds_of_features": time.perf_counter() - started}
    for depths in DEPTHS:
        for projection in PROJECTIONS:
            found[f"depths {list(depths)}, projection {projection}"] = accuracy(
                features, (tests, y), depths, projection
            )
            print({name: round(value, 2) for name, value in list(found.items())[-1:]}, flush=True)
    return found


@torch.no_grad()
def views(x: Tensor, size: int | None) -> Tensor:
    """What the network makes of images and of their mirror images, 2×N×D, at all its depths side by side."""
    net = backbones.load(BACKBONE).to(x.device)
    assert isinstance(net.input, backbones.ImageInput)
    scale, at_once = PixelScale(CIFAR10.mean, CIFAR10.std), ROWS_AT_ONCE[x.device.type]
    made = []
    for way in (x, x.flip(-1)):
        parts = (net.input(scale.pixels(rows), size) for rows in torch.split(way, at_once))
        made.append(torch.cat([net.features(part, range(1, len(net.widths) + 1)) for part in parts]))
    return torch.stack(made)


def accuracy(
    features: list[tuple[Tensor, Tensor]], tests: tuple[Tensor, Tensor], depths: tuple[int, ...], projection: int
) -> float:
    """Per cent of the tests whose class is the router's best, with φ as `BackboneFeatures` makes it."""
    columns = columns_of(depths).to(tests[1].device)
    first = features[0][0][:, :, columns].flatten(0, 1).double()
    mean, deviation = first.mean(0).float(), (first.var(0, correction=0) + 1e-8).sqrt().float()

    def phi(raw: Tensor) -> Tensor:
        made = (raw[..., columns] - mean) / deviation
        if not projection:
            return made
        return (made @ projection_matrix(len(columns), projection, made.device)).relu_()

    router = RidgeRouter(precision="mixed")
    for number, (raw, labels) in enumerate(features):
        classes = int(labels.max()) + 1
        router.learn(number, ((phi(way), labels) for way in raw), classes)
    both = (phi(tests[0][0]) + phi(tests[0][1])) / 2
    return percent(router.class_scores(both).argmax(1) == tests[1])


def columns_of(depths: tuple[int, ...]) -> Tensor:
    widths = backbones.BACKBONES[BACKBONE].widths
    starts = [sum(widths[:place]) for place in range(len(widths))]
    return torch.cat([torch.arange(starts[at - 1], starts[at - 1] + widths[at - 1]) for at in depths])
