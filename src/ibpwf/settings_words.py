"""What a setting may be, in words: for messages and for the page of all settings."""

from __future__ import annotations

import types
import typing
from typing import Annotated, Any, Literal

from pydantic import BaseModel


def limits_of(annotation: Any) -> list[Any]:
    """The `Field` limits anywhere inside an annotation."""
    found = []
    if typing.get_origin(annotation) is Annotated:
        found += [m for part in annotation.__metadata__ for m in getattr(part, "metadata", [])]
    for inner in typing.get_args(annotation):
        found += limits_of(inner)
    return found


def in_range(settings: type[BaseModel], name: str) -> str:
    """What a number must be, in words."""
    field = settings.model_fields[name]
    limits = [*field.metadata, *limits_of(field.annotation)]
    low, high = (
        next(((getattr(m, key), key) for m in limits for key in keys if hasattr(m, key)), (None, ""))
        for keys in (("gt", "ge"), ("lt", "le"))
    )
    if low == (0, "gt") and high == (1, "lt"):
        return "it is a probability strictly between 0 and 1"
    if low == (0, "gt") and high == (1, "le"):
        return "give more than 0 and at most 1"
    if low == (0, "ge") and high == (1, "le"):
        return "it is a share from 0 to 1"
    none = ", or none" if type(None) in typing.get_args(field.annotation) else ""
    if high[0] is not None:
        least = "it must be above" if low[1] == "gt" else "give at least"
        return f"{least} {low[0]:,} and at most {high[0]:,}{none}"
    if low == (0, "ge"):
        return "it cannot be negative"
    if low[1] == "gt":
        return f"it must be above {low[0]}{none}"
    return f"give at least {low[0]}{none}"


SEVERAL = {"a number": "numbers", "a whole number": "whole numbers", "text": "texts"}


def spell(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin is Annotated:
        return spell(typing.get_args(hint)[0])
    if origin is Literal:
        return " or ".join(repr(option) for option in typing.get_args(hint))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(spell(option) for option in typing.get_args(hint))
    if origin is dict:
        return "a mapping from layer patterns to numbers"
    if origin is tuple:
        inner = typing.get_args(hint)
        each, count = spell(inner[0]), "" if ... in inner else f"{len(inner)} "
        return f"a list of {count}{SEVERAL.get(each, each)}"
    names = {type(None): "none", float: "a number", int: "a whole number", str: "text", bool: "true or false"}
    return names.get(hint, str(hint))
