"""The JSON of a model's manifest as records: every field checked for type and range before anything is made of it.

The limits are those of docs/model-format.md.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from ibpwf.storage.folder import MANIFEST, MOST_ENTRIES, OpenedFolder
from ibpwf.storage.records import Record, read_record

MOST_NUMBERS = 1 << 31  # in one example

Count = Annotated[int, Field(ge=0, lt=1 << 53)]
Serial = Annotated[int, Field(ge=0, lt=1_000_000_000)]
PerCent = Annotated[float, Field(ge=0, le=100)]
Class = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=10_000)]
Names = Annotated[list[Name], Field(max_length=1_000_000)]


class StoredHeldOut(Record):
    """How well a task's held-out rows were answered, beside simple ways."""

    rows: Count
    accuracy: PerCent
    majority: PerCent
    linear: PerCent | None


class StoredTask(Record):
    """What a manifest says of a task."""

    name: Name
    classes: list[Class]
    examples: Count
    accuracy: PerCent | None
    training_accuracy: PerCent | None
    held_out: StoredHeldOut | None
    further_factors: dict[Name, Annotated[int, Field(ge=1)]] | None = None
    version: Annotated[int, Field(ge=1)] = 1
    version_of: Name | None = None  # of an older version, the task that has a newer one

    @model_validator(mode="after")
    def _classes_in_order(self) -> Self:
        if any(first >= second for first, second in itertools.pairwise(self.classes)):
            raise ValueError(f"the classes of task '{self.name}' are not each there once, in order")
        return self


class Event(Record):
    """A line of the history."""

    event: Literal["learnt", "updated", "forgot"]
    serial: Serial
    version: str | None


class ModelContent(Record):
    """The content of a model's manifest, of any method."""

    method: Name
    configuration: dict[str, Any]
    seed: Annotated[int, Field(ge=0, lt=1 << 63)]
    input_shape: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1, max_length=8)] | None
    tasks: Annotated[list[StoredTask], Field(max_length=MOST_ENTRIES)]
    state: dict[str, Any]
    history: Annotated[list[Event], Field(max_length=MOST_ENTRIES)]
    face: dict[str, Any] | None
    extra: dict[str, Any]

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if len({task.name for task in self.tasks}) < len(self.tasks):
            raise ValueError("field 'tasks' has the same name twice")
        names = {task.name for task in self.tasks if task.version_of is None}
        if any(task.version_of is not None and task.version_of not in names for task in self.tasks):
            raise ValueError("field 'tasks' has an older version of a task that is not there")
        if self.input_shape is not None and math.prod(self.input_shape) > MOST_NUMBERS:
            raise ValueError(f"field 'input_shape' is {self.input_shape}, more than {MOST_NUMBERS} numbers")
        if self.input_shape is None and self.tasks:
            raise ValueError("field 'input_shape' is None although there are tasks")
        return self


class StoredField(Record):
    """A named input of a network, as it is packed."""

    name: Name
    shape: Annotated[list[Annotated[int, Field(ge=1, le=MOST_NUMBERS)]], Field(max_length=8)]
    kind: Literal["bool", "int64", "float32"]


class StoredPacking(Record):
    """How a network's named inputs are packed into one row an example, the main one first."""

    fields: Annotated[list[StoredField], Field(min_length=1, max_length=1_000)]
    padding: Annotated[int, Field(ge=-(1 << 24), le=1 << 24)]

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if len({field.name for field in self.fields}) < len(self.fields):
            raise ValueError("field 'fields' has the same name twice")
        return self


class Configuration(Record):
    """What makes an untrained learner of IBP-WF again."""

    settings: dict[str, Any]
    network: dict[str, Any] | None
    signature: list[Annotated[tuple[Name, list[Annotated[int, Field(ge=0)]], Name], Field(strict=False)]]
    head: Name
    layers: Annotated[Names, Field(min_length=1)]
    frozen: Names
    parts: Names
    base: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None  # of a frozen base, which is not stored
    packing: StoredPacking | None  # of a network whose inputs have names

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        for field in ("layers", "frozen"):
            if len(set(getattr(self, field))) < len(getattr(self, field)):
                raise ValueError(f"field '{field}' has the same name twice")
        return self


def manifest_of(opened: OpenedFolder) -> str:
    return str(Path(opened.path) / MANIFEST)


def read_content(opened: OpenedFolder) -> ModelContent:
    """The checked content of a model's manifest."""
    return read_record(ModelContent, opened.content, manifest_of(opened))
