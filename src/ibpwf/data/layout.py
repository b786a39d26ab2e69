"""What a model must remember of the first file, to read the next one the same way."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StrictBool, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from ibpwf.data.dates import PARTS, Order
from ibpwf.data.opening import spelled
from ibpwf.errors import InputError, StoreError

ColumnKind = Literal["number", "boolean", "category", "date", "text"]
Kind = Literal["table", "images", "arrays"]
Pixels = Literal["bytes", "floats"]

RESTORE = "Restore it from a copy, or train and save again."
_WORDS: dict[Kind, str] = {"table": "tables", "images": "images", "arrays": "arrays"}
_REMEDY: dict[Kind, str] = {
    "table": "a .csv, .tsv or .parquet file",
    "images": "a folder of images, an IDX file, or an .npz file of images",
    "arrays": "an .npz file",
}
_LATER = (
    "unknown",
    "pixels",
    "range",
    "encoder",
    "digest",
    "width",
    "order",
)  # fields that the first versions did not write
_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, config=_STRICT)
class Column:
    """One column of a table. A category column has one feature per category, one of dates, written in some `order`,
    those of `dates.PARTS`, one of texts as many (`width`) as the `encoder` with that `digest` gives, every other
    column one."""

    name: str
    kind: ColumnKind = "number"
    categories: tuple[str, ...] = ()
    encoder: str = ""
    digest: str = ""
    width: Annotated[int, Field(ge=0, le=1 << 16)] = 0
    order: Order = ""

    @property
    def feature_names(self) -> tuple[str, ...]:
        if self.kind == "text":
            return tuple(f"{self.name}[{number}]" for number in range(self.width))
        if self.kind == "date":
            return tuple(f"{self.name} ({part})" for part in PARTS)
        if self.kind == "category":
            return tuple(f"{self.name}={category}" for category in self.categories)
        return (self.name,)


@dataclass(frozen=True, config=_STRICT)
class Layout:
    """How examples are laid out: `shape` of one example, and for tables the columns in their order.

    `resize` and `convert` say that images of another size or colour were brought to `shape` when the first
    file was read, so that later ones are too. `means` are those of a table's features in the first file, which
    `missing` values take if it says "mean"; `unknown` says what becomes of categories it did not have. `pixels` says
    whether images came as bytes, which are read as 0 to 1, or as floats, which are taken as they are, and `range` has
    the least and the largest of these; both are None for tables, and for models of versions that did not note it.
    """

    kind: Kind
    shape: Annotated[tuple[Annotated[int, Field(gt=0)], ...], Field(min_length=1)]
    columns: tuple[Column, ...] = ()
    label: str | None = None
    ignored: tuple[str, ...] = ()
    resize: StrictBool = False
    convert: StrictBool = False
    means: tuple[float, ...] = ()
    missing: Literal["error", "mean"] = "error"
    unknown: Literal["error", "zeros"] = "error"
    pixels: Pixels | None = None
    range: tuple[float, float] | None = None

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """The name of every feature of a table, in the order of `x`; None for images and arrays."""
        if self.kind != "table":
            return None
        return tuple(name for column in self.columns for name in column.feature_names)

    def to_json(self) -> dict[str, Any]:
        """The layout as JSON holds it."""
        plain: dict[str, Any] = TypeAdapter(Layout).dump_python(self, mode="json")
        return plain

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Layout:
        """The layout that `to_json` gave; anything else is a `StoreError` that names the field."""
        try:
            layout = TypeAdapter(Layout).validate_python(values)
        except ValidationError as error:
            raise StoreError(f"{_fault(error)} {RESTORE}") from None
        for where, given, kind in [
            ("the layout", values, Layout),
            *((f"column {n} of the layout", column, Column) for n, column in enumerate(values["columns"])),
        ]:
            absent = [field.name for field in fields(kind) if field.name not in (*given, *_LATER)]
            if absent:
                raise StoreError(f"{where} has no field {absent[-1]!r}. {RESTORE}")
        features = layout.feature_names
        for what, has in (("shape", layout.shape), ("means", (len(layout.means),))):
            if features is not None and has != (len(features),):
                raise StoreError(f"the layout has {what} {has} for {len(features)} features. {RESTORE}")
        return layout

    def expect(self, kind: Kind, file: str) -> None:
        """Refuses a file of another kind than the first."""
        if kind != self.kind:
            raise InputError(
                f"{file} holds {_WORDS[kind]}, but earlier files held {_WORDS[self.kind]}; give {_REMEDY[self.kind]}."
            )

    def expect_shape(self, shape: tuple[int, ...], file: str) -> None:
        """Refuses examples of another shape than the first file's."""
        if shape != self.shape:
            raise InputError(
                f"{file} holds examples of shape {spelled(shape)}, but earlier files held {spelled(self.shape)}; "
                f"give {math.prod(self.shape):,} numbers an example in that order."
            )

    def expect_pixels(self, pixels: Pixels, low: float, high: float, file: str) -> None:
        """Refuses images on another scale than the first file's: bytes are read as 0 to 1, floats as they are."""
        if self.pixels == "bytes" and pixels == "floats" and not 0 <= low <= high <= 1:
            raise InputError(
                f"{file} holds floats from {low:g} to {high:g}, but earlier images were bytes, which are read as "
                "0 to 1; give bytes (uint8), or floats from 0 to 1."
            )
        learnt = self.range
        if self.pixels == "floats" and pixels == "bytes" and learnt and not 0 <= learnt[0] <= learnt[1] <= 1:
            raise InputError(
                f"{file} holds bytes, which are read as 0 to 1, but earlier images were floats from {learnt[0]:g} to "
                f"{learnt[1]:g}; convert it to those in an .npz file."
            )


def _fault(error: ValidationError) -> str:
    """The first thing that is wrong, as a sentence."""
    first = error.errors()[0]
    place = list(first["loc"])
    where = "the layout"
    if place[:1] == ["columns"] and len(place) > 2:
        where = f"column {place[1]} of the layout"
        del place[:2]
    if not place:
        return f"the layout is a {type(first['input']).__name__}, not an object."
    if first["type"] == "missing":
        return f"{where} has no field {place[0]!r}."
    if first["type"] == "unexpected_keyword_argument":
        return f"{where} has the unknown field {place[0]!r}."
    return f"{where} has {place[0]}={first['input']!r}, which it cannot have."
