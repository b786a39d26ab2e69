"""The records of a classifier in a model's manifest, around those of its learner."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from ibpwf.storage.model_record import Count, Finite, ModelContent, Name, Positive
from ibpwf.storage.records import Record

MOST_LETTERS = 1 << 27  # in the labels of a classifier, each as long as its type allows


class ClassifierFeatures(Record):
    count: Annotated[int, Field(ge=1)]
    names: list[str] | None


class ClassifierLabels(Record):
    """The labels in the order of their numbers, null for those of forgotten tasks, and numpy's name of their type."""

    dtype: Annotated[str, Field(pattern=r"^(O|U|[<>=|][biuf][1248]|[<>=|]f16|[<>]U[0-9]{1,9})$")]
    labels: Annotated[list[str | bool | int | float | None], Field(min_length=1)]

    @model_validator(mode="after")
    def _of_one_kind(self) -> Self:
        kind = self.dtype.lstrip("<>=|")[0]
        wanted = {"O": str, "U": str, "b": bool, "i": int, "u": int, "f": float}[kind]
        known = [label for label in self.labels if label is not None]
        wrong = [label for label in known if type(label) is not wanted]
        if wrong and not (kind == "f" and all(type(label) is int for label in wrong)):
            raise ValueError(f"field 'labels.labels' has {wrong[0]!r}, which is no {self.dtype}")
        if len(set(known)) < len(known):
            raise ValueError("field 'labels.labels' has the same label twice")
        if kind == "U" and int(self.dtype[2:] or 0) * len(self.labels) > MOST_LETTERS:
            raise ValueError(f"field 'labels.dtype' is {self.dtype}: {len(self.labels)} labels would take gigabytes")
        return self


class ClassifierScale(Record):
    mean: list[Finite]
    scale: list[Positive]
    low: Finite | None = None
    high: Finite | None = None

    def check_fits(self, count: int, shape: list[int] | None) -> None:
        """Refuse scales of other columns than those of rows, or that make what the learner does not take."""
        for field, numbers in (("mean", self.mean), ("scale", self.scale)):
            if len(numbers) != count:
                raise ValueError(f"field 'face.standardizer.{field}' has {len(numbers)} entries for {count} features")
        if shape != [count]:
            raise ValueError(f"field 'face.features.count' is {count}, but inputs have shape {shape}")


Side = Annotated[int, Field(ge=1, le=1 << 14)]
StoredImage = Annotated[list[Side], Field(min_length=3, max_length=3)]


class ClassifierPixels(Record):
    """Images on one scale, averaged down to `size`."""

    kind: Literal["pixels"]
    image: StoredImage
    size: Annotated[list[Side], Field(min_length=2, max_length=2)]
    mean: Finite
    scale: Positive
    low: Finite
    high: Finite

    def check_fits(self, count: int, shape: list[int] | None) -> None:
        small = all(new <= old for new, old in zip(self.size, self.image[1:], strict=True))
        if math.prod(self.image) != count or shape != [self.image[0], *self.size] or not small:
            what = f"{self.image} in {self.size} for {count} features and inputs of shape {shape}"
            raise ValueError(f"field 'face.standardizer.image' is {what}")


class ClassifierBackbone(Record):
    """Images as a trained network's features."""

    kind: Literal["backbone"]
    image: StoredImage
    name: Name
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    size: Annotated[int, Field(ge=32, le=1024)]
    levels: Positive
    resize: Literal["bilinear", "bicubic"]
    features: ClassifierScale

    def check_fits(self, count: int, shape: list[int] | None) -> None:
        if math.prod(self.image) != count:
            raise ValueError(f"field 'face.standardizer.image' is {self.image} for {count} features")
        self.features.check_fits(len(self.features.mean), shape)


class ClassifierRecipe(Record):
    """The recipe that tasks are learned by, and what it was chosen for."""

    name: Literal["table", "images", "backbone", "plain"]
    rows: Count
    inputs: Annotated[int, Field(ge=1)]
    image: StoredImage | None
    many: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=1_000_000)]


class ClassifierNovelty(Record):
    rate: Annotated[float, Field(gt=0, lt=1)]
    limits: list[Positive | None]


Auto = Literal["auto"]
AtLeastOne = Annotated[int, Field(ge=1)]


class ClassifierParameters(Record):
    """What a `ContinualClassifier` was made with."""

    recipe: str
    hidden: list[AtLeastOne] | Auto
    alpha: Positive | Auto
    epochs: AtLeastOne | Auto
    batch_size: AtLeastOne | Auto
    learning_rate: Positive | Auto
    settings: dict[str, Any] | None
    false_alarm_rate: Annotated[float, Field(gt=0, lt=1)]
    random_state: int
    device: str
    stream: bool | dict[str, Any]
    class_weight: Literal["balanced"] | list[Annotated[list[Any], Field(min_length=2, max_length=2)]] | None


class ClassifierFace(Record):
    """What stands around the learner of a `ContinualClassifier`."""

    kind: Literal["continual-classifier"]
    parameters: ClassifierParameters
    labels: ClassifierLabels
    recipe: ClassifierRecipe
    features: ClassifierFeatures
    standardizer: ClassifierScale | ClassifierPixels | ClassifierBackbone
    novelty: ClassifierNovelty | None
    stream: dict[str, Any] | None = None  # read by ibpwf.streaming.storing

    def check_fits(self, content: ModelContent) -> None:
        """Refuse a face that does not belong to the learner beside it."""
        count = self.features.count
        names = self.features.names
        if names is not None and len(names) != count:
            raise ValueError(f"field 'face.features.names' has {len(names)} entries for {count} features")
        self.standardizer.check_fits(count, content.input_shape)
        tasks = [task for task in content.tasks if task.version_of is None]
        if self.novelty is not None and len(self.novelty.limits) != len(tasks):
            raise ValueError(f"field 'face.novelty.limits' has {len(self.novelty.limits)} entries, not one per task")
        largest = max((task.classes[-1] for task in content.tasks), default=-1)
        lowest = min((task.classes[0] for task in content.tasks), default=0)
        labels = self.labels.labels
        if (
            largest >= len(labels)
            or lowest < 0
            or any(labels[c] is None for task in content.tasks for c in task.classes)
        ):
            raise ValueError(f"field 'face.labels' has {len(self.labels.labels)} labels, and none for some classes")
