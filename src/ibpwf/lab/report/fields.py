"""Typed access to JSON that someone else may have written: what does not fit is named, never guessed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from ibpwf.errors import StoreError


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


class Fields:
    """A JSON object and the place it was found at."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise StoreError(f"{where} is a {type(value).__name__} where an object is expected.")
        self.values: dict[str, Any] = value
        self.where = where

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def _fail(self, name: str, expected: str) -> StoreError:
        if name not in self.values:
            return StoreError(f"{self.where} has no field '{name}'.")
        shown = repr(self.values[name])
        shown = shown if len(shown) <= 60 else shown[:59] + "…"
        return StoreError(f"{self.where}: field '{name}' is {shown}, which is not {expected}.")

    def text(self, name: str, default: str | None = None) -> str:
        value = self.values.get(name, default)
        if not isinstance(value, str):
            raise self._fail(name, "text")
        return value

    def number(self, name: str) -> float:
        value = self.values.get(name)
        if not is_number(value):
            raise self._fail(name, "a number")
        return float(self.values[name])

    def maybe_number(self, name: str) -> float | None:
        return self.number(name) if name in self else None

    def count(self, name: str) -> int:
        value = self.number(name)
        if value < 0 or value != int(value):
            raise self._fail(name, "a whole number from 0")
        return int(value)

    def items(self, name: str) -> list[Any]:
        value = self.values.get(name)
        if not isinstance(value, list):
            raise self._fail(name, "a list")
        return value

    def numbers(self, name: str) -> list[float]:
        value = self.items(name)
        if not all(is_number(item) for item in value):
            raise self._fail(name, "a list of numbers")
        return [float(item) for item in value]

    def child(self, name: str) -> Fields:
        if not isinstance(self.values.get(name), dict):
            raise self._fail(name, "an object")
        return Fields(self.values[name], f"{self.where}: {name}")

    def children(self, name: str) -> list[Fields]:
        return [Fields(item, f"{self.where}: {name}[{i}]") for i, item in enumerate(self.items(name))]

    def plain(self, name: str) -> dict[str, Any]:
        """An object taken as it is, for showing only; empty where there is none."""
        return self.child(name).values if name in self else {}

    def named(self) -> Iterator[tuple[str, Fields]]:
        for name, value in self.values.items():
            yield name, Fields(value, f"{self.where}: {name}")
