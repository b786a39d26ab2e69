"""Small networks with random weights in the place of trained ones: a name, files, a source, as real ones have."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn

from ibpwf.backbones.backbone import Backbone, ImageInput, StagedNetwork
from ibpwf.backbones.catalog import Content, TrainedNetwork
from ibpwf.backbones.weights import read_weights
from ibpwf.downloads.files import DataFile, Progress

NAME, FILE = "tiny", "tiny.safetensors"
WIDTHS = (4, 6)
INPUT = ImageInput(8, (100.0, 110.0, 120.0), (50.0, 60.0, 70.0), "bicubic")


class TinyNetwork(StagedNetwork):
    places = True

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 6, 3, 2, 1)

    def stages(self, x: Tensor) -> Iterator[Tensor]:
        x = self.first(x).relu()
        yield x
        yield self.second(x).relu()


def weights(seed: int = 0) -> bytes:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return save(TinyNetwork().state_dict())


def build(known: TrainedNetwork, content: Content) -> Backbone:
    net = TinyNetwork()
    net.load_state_dict(read_weights(FILE, content[FILE]))
    return Backbone(known.name, known.digest, net, INPUT, known.widths)


@dataclass
class Shelf:
    """A source that hands out what it holds, and counts how often it was asked."""

    content: dict[str, bytes] = field(default_factory=lambda: {FILE: weights()})
    label: str = "the shelf"
    asked: int = 0

    def files(
        self, wanted: Collection[DataFile], scratch: Path, progress: Progress
    ) -> Iterator[tuple[DataFile, bytes]]:
        self.asked += 1
        yield from ((file, self.content[file.name]) for file in wanted if file.name in self.content)


def tiny_network(source: Shelf, data: bytes | None = None) -> TrainedNetwork:
    data = weights() if data is None else data
    files = (DataFile(FILE, hashlib.sha256(data).hexdigest(), len(data)),)
    return TrainedNetwork(NAME, "Tiny", "none", "images", "images, 8×8", WIDTHS, files, (source,), build)
