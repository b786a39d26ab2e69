"""What a model must remember of the first file, to read the next one the same way."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from ibpwf.errors import InputError, StoreError
from ibpwf.storage.files import RESTORE

ColumnKind = Literal["number", "boolean", "category"]
Kind = Literal["table", "images", "arrays"]

WORDS: dict[Kind, str] = {"table": "tables", "images": "images", "arrays": "arrays"}
_REMEDY: dict[Kind, str] = {
    "table": "a .csv, .tsv or .parquet file",
    "images": "a folder of images, an IDX file, or an .npz file of images",
    "arrays": "an .npz file",
}


@dataclass(frozen=True)
class Column:
    """One column of a table. A category column has one feature per category, every other column one."""

    name: str
    kind: ColumnKind = "number"
    categories: tuple[str, ...] = ()

    @property
    def feature_names(self) -> tuple[str, ...]:
        if self.kind == "category":
            return tuple(f"{self.name}={category}" for category in self.categories)
        return (self.name,)


@dataclass(frozen=True)
class Layout:
    """How examples are laid out: `shape` of one example, and for tables the columns in their order.

    `resize` and `convert` say that images of another size or colour were brought to `shape` when the first
    file was read, so that later ones are too. `means` are those of a table's features in the first file, which
    `missing` values take if it says "mean".
    """

    kind: Kind
    shape: tuple[int, ...]
    columns: tuple[Column, ...] = ()
    label: str | None = None
    ignored: tuple[str, ...] = ()
    resize: bool = False
    convert: bool = False
    means: tuple[float, ...] = ()
    missing: Literal["error", "mean"] = "error"

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """The name of every feature of a table, in the order of `x`; None for images and arrays."""
        if self.kind != "table":
            return None
        return tuple(name for column in self.columns for name in column.feature_names)

    def to_json(self) -> dict[str, Any]:
        """The layout as JSON holds it."""
        plain = asdict(self)
        return {
            **plain,
            "shape": list(self.shape),
            "ignored": list(self.ignored),
            "means": list(self.means),
            "columns": [{**column, "categories": list(column["categories"])} for column in plain["columns"]],
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Layout:
        """The layout that `to_json` gave; anything else is a `StoreError` that names the field."""
        if not isinstance(values, Mapping):
            raise StoreError(f"the layout is a {type(values).__name__}, not an object. {RESTORE}")
        checks = {
            "kind": lambda value: value in get_args(Kind),
            "shape": lambda value: _list_of(value, int) and bool(value) and min(value) > 0,
            "columns": lambda value: _list_of(value, dict),
            "label": lambda value: value is None or isinstance(value, str),
            "ignored": lambda value: _list_of(value, str),
            "resize": lambda value: isinstance(value, bool),
            "convert": lambda value: isinstance(value, bool),
            "means": lambda value: _list_of(value, (int, float)),
            "missing": lambda value: value in ("error", "mean"),
        }
        _check(values, checks, "the layout")
        columns = tuple(_column(number, column) for number, column in enumerate(values["columns"]))
        lists = {name: tuple(values[name]) for name in ("shape", "ignored", "means")}
        layout = cls(**{**values, **lists, "columns": columns})
        features = layout.feature_names
        if features is not None and layout.shape != (len(features),):
            raise StoreError(f"the layout has shape {layout.shape} for {len(features)} features. {RESTORE}")
        if features is not None and len(layout.means) != len(features):
            raise StoreError(f"the layout has {len(layout.means)} means for {len(features)} features. {RESTORE}")
        return layout

    def expect(self, kind: Kind, file: str) -> None:
        """Refuses a file of another kind than the first."""
        if kind != self.kind:
            raise InputError(
                f"{file} holds {WORDS[kind]}, but earlier files held {WORDS[self.kind]}; give {_REMEDY[self.kind]}."
            )

    def expect_shape(self, shape: tuple[int, ...], file: str) -> None:
        """Refuses examples of another shape than the first file's."""
        if shape != self.shape:
            raise InputError(
                f"{file} holds examples of shape {spelled(shape)}, but earlier files held {spelled(self.shape)}; "
                f"give {math.prod(self.shape):,} numbers an example in that order."
            )


def spelled(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))


def _column(number: int, values: Mapping[str, Any]) -> Column:
    checks = {
        "name": lambda value: isinstance(value, str),
        "kind": lambda value: value in get_args(ColumnKind),
        "categories": lambda value: _list_of(value, str),
    }
    _check(values, checks, f"column {number} of the layout")
    return Column(values["name"], values["kind"], tuple(values["categories"]))


def _check(values: Mapping[str, Any], checks: Mapping[str, Any], where: str) -> None:
    for field in sorted({*checks, *values}):
        if field not in checks:
            raise StoreError(f"{where} has the unknown field {field!r}. {RESTORE}")
        if field not in values:
            raise StoreError(f"{where} has no field '{field}'. {RESTORE}")
        if not checks[field](values[field]):
            raise StoreError(f"{where} has {field}={values[field]!r}, which it cannot have. {RESTORE}")


def _list_of(value: object, kind: type | tuple[type, ...]) -> bool:
    return isinstance(value, list | tuple) and all(
        isinstance(item, kind) and not isinstance(item, bool) for item in value
    )
