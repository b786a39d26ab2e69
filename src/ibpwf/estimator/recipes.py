"""Recipes: what a classifier is made of for one kind of data. The kind decides, unless one is chosen by its name.

A recipe says how rows are prepared, which network learns them, and which settings are the best known for such data;
whatever the user gives counts more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from torch import nn

from ibpwf.backbones.loading import is_cached
from ibpwf.errors import InputError, unknown
from ibpwf.estimator.preparing import BackbonePreparation, Image, PixelPreparation, Preparation, smaller
from ibpwf.images import BackboneImages
from ibpwf.models import mlp, resnet9, table_network
from ibpwf.preprocessing import Standardizer
from ibpwf.settings import Settings
from ibpwf.table_encoding import MOST_COLUMNS, are_many

AUTO = "auto"
Hidden = Sequence[int] | None
"""Widths of a perceptron's hidden layers; None: what the recipe has."""

BACKBONE = "efficientnet-lite0"
BACKBONE_SIZE = 128
SMALLEST_SIDE = 8
"""Of images that a small network of convolutions can read."""


FIRST_ROWS = 100_000
"""Rows of a table that say which of its columns hold many different numbers."""


def has_many(column: Any) -> bool:
    """Whether a column, dense or sparse, holds many different numbers, or will."""
    some = column[:FIRST_ROWS]
    return are_many(np.unique(some.toarray() if hasattr(some, "toarray") else some).tolist())


@dataclass(frozen=True)
class FirstTask:
    """What the first task's examples are like: rows, numbers in each, what images they are if any, and in which
    columns of a table there are many different numbers."""

    rows: int
    inputs: int
    image: Image | None = None
    many: tuple[int, ...] = ()

    @classmethod
    def of(cls, x: Any, image: Image | None) -> Self:
        """Of examples as rows of numbers."""
        several = range(x.shape[1]) if image is None and x.shape[1] <= MOST_COLUMNS else ()
        many = tuple(column for column in several if has_many(x[:, [column]]))
        return cls(x.shape[0], x.shape[1], image, many)


@dataclass(frozen=True)
class Recipe:
    """How one kind of data is learned.

    `settings` are those it sets, below what the user gives. `prepare` fits what is done to rows to those of the first
    task. `network` is made for inputs of a shape, a number of outputs and the user's hidden layers.
    """

    name: str
    summary: str
    settings: Callable[[FirstTask], dict[str, Any]]
    prepare: Callable[[Any, FirstTask, Settings], Preparation]
    network: Callable[[FirstTask, tuple[int, ...], int, Hidden], nn.Module]
    training: Callable[[FirstTask, int], dict[str, Any]] = lambda first, rows: {}
    """More settings, by how many rows the task has that is to be learned."""
    reads_images: bool = False  # and nothing else
    has_hidden: bool = True  # whether its network is a perceptron


@dataclass(frozen=True)
class Plan:
    """A recipe, and the first task that it was chosen for."""

    recipe: Recipe
    first: FirstTask

    @classmethod
    def choose(cls, name: str, first: FirstTask) -> Self:
        """The recipe called so, or what suits the data."""
        if name == AUTO:
            name = suitable(first)
        if name not in RECIPES:
            raise unknown("recipe", name, [AUTO, *RECIPES])
        recipe = RECIPES[name]
        if recipe.reads_images and first.image is None:
            raise InputError(
                f"recipe is '{name}', which reads images, but X has rows of numbers; give images, N×height×width or "
                "N×height×width×channels, or another recipe."
            )
        if recipe.reads_images and first.image is not None and min(first.image[1:]) < SMALLEST_SIDE:
            height, width = first.image[1:]
            raise InputError(
                f"recipe is '{name}', which reads images from {SMALLEST_SIDE}×{SMALLEST_SIDE} pixels, but these are "
                f"{height}×{width}; give larger images, or recipe 'plain'."
            )
        return cls(recipe, first)

    def network(self, shape: tuple[int, ...], outputs: int, hidden: Hidden) -> nn.Module:
        if hidden is not None and not self.recipe.has_hidden:
            raise InputError(
                f"hidden is {tuple(hidden)}, but recipe '{self.recipe.name}' has a network of convolutions, and "
                "hidden layers are a perceptron's; leave it out, or choose recipe 'plain'."
            )
        return self.recipe.network(self.first, shape, outputs, hidden)

    def settings(self, rows: int | None = None) -> dict[str, Any]:
        """Those for a task of so many rows; for the first, where nothing is said."""
        rows = self.first.rows if rows is None else rows
        return {**self.recipe.settings(self.first), **self.recipe.training(self.first, rows)}

    def to_json(self) -> dict[str, Any]:
        return {"name": self.recipe.name, **asdict(self.first)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        image = None if values["image"] is None else tuple(values["image"])
        first = FirstTask(values["rows"], values["inputs"], image, tuple(values["many"]))
        return cls(RECIPES[values["name"]], first)


def suitable(first: FirstTask) -> str:
    """The recipe for data like these. A trained network is never fetched unasked: it is taken where it is already."""
    if first.image is None:
        return "table" if first.rows >= MANY_ROWS and first.inputs <= MOST_COLUMNS else "plain"
    if min(first.image[1:]) < SMALLEST_SIDE:
        return "plain"
    return "backbone" if first.image[0] == 3 and is_cached(BACKBONE) else "images"


def _perceptron(first: FirstTask, shape: tuple[int, ...], outputs: int, hidden: Hidden) -> nn.Module:
    return mlp(math.prod(shape), (400,) if hidden is None else hidden, outputs)


TABLE_HIDDEN = (256, 128)
HELD_OUT = 0.1
"""Share of rows that nothing is learnt from: they end the training, and say what is usual for a task."""


def _table(first: FirstTask, shape: tuple[int, ...], outputs: int, hidden: Hidden) -> nn.Module:
    return table_network(math.prod(shape), first.many, TABLE_HIDDEN if hidden is None else hidden, outputs)


MANY_ROWS = 1_000
"""From here on each class's own covariance is known well enough to tell tasks apart by, and rows can be held out."""
WIDEST = 300


def _table_settings(first: FirstTask) -> dict[str, Any]:
    """A perceptron that is trained for as long as held-out rows gain, beside a Gaussian per class, whose statistics
    take no more than some times the bytes of the rows."""
    if first.rows < MANY_ROWS:
        return _plain_settings(first)
    return {
        **_plain_settings(first),
        "inference": {"kind": "gaussian", "per": "class", "shrinkage": 0.2, "ridge": 0.02},
        "inference.features": {
            "kind": "quantiles",
            "width": max(64, min(WIDEST, math.isqrt(first.rows * first.inputs))),
        },
        "init": "anew",
    }


ENOUGH_ROWS, HELD_OUT_OF_FEW, DECAY = 200, 0.2, 0.01
"""Chosen on held-out rows of small tables: of 0, 0.003, 0.01, 0.02 and 0.03 this decay had the most right and the
least log-loss; 0.03 leaves little more than a linear model."""


def _plain_training(first: FirstTask, rows: int) -> dict[str, Any]:
    """What keeps a network from learning few rows by heart, and its probabilities honest: where the first task has
    few, weights are drawn to zero in every task, and from some rows on a part of them says when to stop. Of fewer all
    are needed to learn from. Where the first task has many, later ones share its factors: nothing is drawn to zero.
    """
    if first.image is not None:
        return {}
    few = first.rows < MANY_ROWS
    decay = {"weight_decay": DECAY if few else 0.0}
    if rows < ENOUGH_ROWS:
        return decay
    if rows < MANY_ROWS:
        return {"validation_fraction": HELD_OUT_OF_FEW, "early_stopping": True, **decay}
    return {"validation_fraction": HELD_OUT, **({"early_stopping": True, **decay} if few else {})}


def _table_training(first: FirstTask, rows: int) -> dict[str, Any]:
    if first.rows < MANY_ROWS:
        return _plain_training(first, rows)
    return {"validation_fraction": HELD_OUT, "early_stopping": True}


def _columns(x: Any, first: FirstTask, settings: Settings) -> Preparation:
    return (Standardizer.of_pixels if settings.inference.features.reads_pixels else Standardizer.fit)(x)


def _plain_settings(first: FirstTask) -> dict[str, Any]:
    """Of a table, random features whose statistics take no more than some times the bytes of the rows."""
    if first.image is not None:
        return {"input.shape": first.image}
    width = max(LEAST, min(1_000, math.isqrt(TIMES_THE_ROWS * first.rows * first.inputs)))
    # Weights that are drawn to zero need factors of their own in every task: those of others would hardly be used.
    features = {"kind": "random", "width": width}
    return {"inference.features": features, **({"init": "anew"} if first.rows < MANY_ROWS else {})}


def _pixels(x: Any, first: FirstTask, settings: Settings) -> Preparation:
    assert first.image is not None
    return PixelPreparation.fit(x, first.image)


ROUTER_BYTES = 8_000_000
TIMES_THE_ROWS = 5
"""A router's sums take at most so much, and at most so many times the bytes of the first task's pixels."""
LEAST = 128
"""Random features of the smallest table: 128 KB a task."""


FEW_IMAGES = 2_000
EPOCHS, STEPS, MOST_EPOCHS = 8, 300, 40
"""A network of convolutions learns for so many passes, or so many steps where images are few, and as many again."""


def router_width(rows: int, numbers: int) -> int:
    """How many features a router may have after a first task of so many rows: D²/2 sums of four bytes."""
    most = min(ROUTER_BYTES, TIMES_THE_ROWS * rows * numbers)
    return max(64, math.isqrt(most // 2))


def _image_settings(first: FirstTask) -> dict[str, Any]:
    """Experts that learn turns, beside a router on patches."""
    assert first.image is not None
    channels = first.image[0]
    height, width = smaller(first.image)
    grid, color = (4 if channels == 1 else 2), channels == 3
    batch = 16 if first.rows < FEW_IMAGES else 32
    epochs = min(max(EPOCHS, math.ceil(STEPS / max(1, first.rows // batch))), MOST_EPOCHS)
    return {
        "inference": {
            "kind": "router",
            "precision": "float32",
            "features": {
                "kind": "patches",
                "grid": grid,
                "filters": max(8, router_width(first.rows, first.inputs) // (2 * grid**2)),
                "mirror": color,
            },
        },
        "turns": 4 if height == width else 1,
        "mirror": color,
        "augment": "crop-flip" if color and min(height, width) >= 24 else "none",
        "schedule": "cosine",
        "batch_size": batch,
        "learning_rate": 4e-3,
        "epochs": epochs,
        "finetune_epochs": epochs,
    }


def _convolutions(first: FirstTask, shape: tuple[int, ...], outputs: int, hidden: Hidden) -> nn.Module:
    return resnet9(width=8, classes=outputs, in_channels=shape[0])


def _backbone_settings(first: FirstTask) -> dict[str, Any]:
    """Small networks on features that are good already, and a router on the same."""
    return {
        "init": "random",  # of factors fitted to a first network, later tasks would get no others
        "inference": {"kind": "router", "precision": "float32", "features": "inputs"},
        "input": {"kind": "backbone", "name": BACKBONE, "size": BACKBONE_SIZE},
    }


def _features(x: Any, first: FirstTask, settings: Settings) -> Preparation:
    assert first.image is not None
    seen = settings.input
    if not isinstance(seen, BackboneImages):
        raise InputError(
            f"input is '{seen.kind_name()}', but recipe 'backbone' lets a pretrained network look at "
            "images; leave input out, or set input=backbone."
        )
    return BackbonePreparation.fit(x, first.image, seen.name, None if seen.size == "auto" else seen.size)


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "table",
            "table (a perceptron on numbers and their quantiles, as long as held-out rows gain; class Gaussians)",
            settings=_table_settings,
            training=_table_training,
            prepare=_columns,
            network=_table,
        ),
        Recipe(
            "images",
            "images (a small residual network with turns, a patch router)",
            settings=_image_settings,
            prepare=_pixels,
            network=_convolutions,
            reads_images=True,
            has_hidden=False,
        ),
        Recipe(
            "backbone",
            f"backbone (a small perceptron and a router on what {BACKBONE}, trained on photographs, sees in images)",
            settings=_backbone_settings,
            prepare=_features,
            network=lambda first, shape, outputs, hidden: mlp(
                math.prod(shape), (64,) if hidden is None else hidden, outputs
            ),
            reads_images=True,
        ),
        Recipe(
            "plain",
            "plain (a perceptron on numbers as they come, Gaussians on random features)",
            settings=_plain_settings,
            training=_plain_training,
            prepare=_columns,
            network=_perceptron,
        ),
    )
}
