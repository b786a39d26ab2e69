"""A trained network as features: what goes in, and what comes out at each of its depths."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ibpwf.backbones.resizing import Resize, resized
from ibpwf.errors import InputError
from ibpwf.torch_state import depends_on_default, pinned

PIXEL_LEVELS = 255.0


class StagedNetwork(nn.Module, ABC):
    """A network that can be read at several depths. `vocabulary` is how many word pieces it knows; None where it
    reads no texts, or does not say. `places` says that what it gives at a depth is an image of its own, which tells
    where something is."""

    vocabulary: int | None = None
    places: bool = False

    @abstractmethod
    def stages(self, x: Tensor) -> Iterator[Tensor]:
        """One vector a row at each depth, N×C; with `places` one for each place, N×C×H×W. Whoever has seen enough
        stops asking, and no more is computed."""


@dataclass(frozen=True)
class ImageInput:
    """Color images of size × size; of pixels from 0 to 255 `mean` is taken away, and the rest divided by `std`.
    `resize` is how the network's makers resized what it was trained on."""

    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    resize: Resize = "bilinear"

    def __call__(self, pixels: Tensor, size: int | None = None, resize: Resize | None = None) -> Tensor:
        """Images N×1×H×W or N×3×H×W with pixels from 0 to 255, as the network takes them; gray ones get three equal
        channels, and all are resized to `size`, by default the network's own, in its own way unless `resize` names
        another."""
        if pixels.ndim != 4 or pixels.shape[1] not in (1, 3):
            raise InputError(
                f"pixels have shape {tuple(pixels.shape)}; give images as (N, 1, height, width) or "
                "(N, 3, height, width), with pixels from 0 to 255."
            )
        images = resized(pixels.float(), size or self.size, resize or self.resize)
        mean, std = (images.new_tensor(values).view(3, 1, 1) for values in (self.mean, self.std))
        return (images.expand(-1, 3, -1, -1) - mean) / std


@dataclass(frozen=True)
class TextInput:
    """Texts as numbers of word pieces, by a `tokenizer` of the library tokenizers; `padding` stands behind a text's
    end. What is beyond `longest` pieces is not read."""

    tokenizer: Any
    longest: int
    padding: int = 0

    def __call__(self, texts: Sequence[str], length: int | None = None) -> Tensor:
        """N×L; `length` is L, by default that of the longest text."""
        most = min(length or self.longest, self.longest)
        for row, text in enumerate(texts):
            if not isinstance(text, str) or not text.strip():
                raise InputError(f"text {row} is {text!r}; give words to read, one text for each row.")
        pieces = [found.ids for found in self.tokenizer.encode_batch(list(texts))]
        pieces = [
            ids if len(ids) <= most else [*ids[: most - 1], ids[-1]] for ids in pieces
        ]  # the last one is an end
        ids = torch.full((len(pieces), length or max(map(len, pieces), default=0)), self.padding)
        for row, found in zip(ids, pieces, strict=True):
            row[: len(found)] = torch.tensor(found)
        return ids


class Backbone(nn.Module):
    """A trained network. `input` makes what it takes, `widths` are the numbers of features at its depths, counted
    from 1, and `digest` is the sha256 of the file its weights were read from."""

    def __init__(
        self,
        name: str,
        digest: str,
        net: StagedNetwork,
        prepare: ImageInput | TextInput,
        widths: tuple[int, ...],
    ) -> None:
        super().__init__()
        self.name, self.digest, self.net = name, digest, net
        self.input, self.widths = prepare, widths
        depends_on_default(*net.modules())
        self.eval()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        depends_on_default(*self.net.modules())

    @property
    def width(self) -> int:
        """How many features the deepest level has."""
        return self.widths[-1]

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)

    def features(self, x: Tensor, depths: Sequence[int] | None = None, grid: int | Sequence[int] = 1) -> Tensor:
        """The features of inputs that `input` has made, at the depths asked for, side by side; by default at the
        deepest. They are averaged over the whole image, or over each cell of a `grid` of so many rows and columns,
        the same for all depths or one for each."""
        wanted = checked_depths(self.name, len(self.widths), depths)
        cells = dict(zip(wanted, checked_grid(wanted, grid), strict=True))
        self.check_places(cells.values())
        found: dict[int, Tensor] = {}
        for depth, features in enumerate(self.net.stages(x), 1):
            if depth in wanted:
                found[depth] = averaged(features, cells[depth])
            if depth == max(wanted):
                break
        return torch.cat([found[depth] for depth in wanted], 1) if len(wanted) > 1 else found[wanted[0]]

    def check_places(self, cells: Iterable[int]) -> None:
        """Refuse cells of an image where there is none to divide."""
        most = max(cells)
        if most > 1 and not self.net.places:
            raise InputError(
                f"grid is {most}, and backbone '{self.name}' does not tell where in an image something is; "
                "set grid=1, or give a convolutional network of the catalog."
            )

    @pinned()
    def encode(
        self, examples: Tensor | Sequence[str], depths: Sequence[int] | None = None, at_once: int = 64
    ) -> Tensor:
        """The features of pixels from 0 to 255, or of texts, some at a time."""
        device = next(self.parameters()).device
        made = (examples[start : start + at_once] for start in range(0, len(examples), at_once))
        parts = [self.features(self.input(part).to(device), depths) for part in made]  # type: ignore[arg-type]
        wanted = checked_depths(self.name, len(self.widths), depths)
        width = sum(self.widths[depth - 1] for depth in wanted)
        return torch.cat(parts) if parts else torch.empty(0, width, device=device, dtype=torch.float32)


def averaged(features: Tensor, grid: int) -> Tensor:
    """Of images, N×C×H×W, the mean of each channel in each of grid × grid cells, N×(C·grid²); one vector a row stays
    as it is."""
    if features.ndim == 2:
        return features
    return features.mean((2, 3)) if grid == 1 else F.adaptive_avg_pool2d(features, grid).flatten(1)


def word_pieces_of(net: nn.Module) -> int | None:
    """How many word pieces a network knows that begins with a backbone for texts; None of any other."""
    while isinstance(net, nn.Sequential) and len(net):
        net = net[0]
    return net.net.vocabulary if isinstance(net, Backbone) else None


def checked_depths(name: str, levels: int, depths: Sequence[int] | None) -> tuple[int, ...]:
    """The depths asked for, each from 1 to `levels` and once; by default the deepest."""
    wanted = (levels,) if depths is None else tuple(depths)
    if not wanted or len(set(wanted)) < len(wanted) or not all(1 <= depth <= levels for depth in wanted):
        raise InputError(
            f"depths are {list(wanted)}; backbone '{name}' has {levels}: give some of 1 to {levels}, each once."
        )
    return wanted


def checked_grid(depths: Sequence[int], grid: int | Sequence[int]) -> tuple[int, ...]:
    """How many rows and columns of cells there are at each of the depths."""
    cells = (grid,) * len(depths) if isinstance(grid, int) else tuple(grid)
    if len(cells) != len(depths) or min(cells) < 1:
        raise InputError(
            f"grid is {grid if isinstance(grid, int) else list(grid)}, and the backbone is read at depths "
            f"{list(depths)}; give one number from 1 on, or one for each depth."
        )
    return cells
