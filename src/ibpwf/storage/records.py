"""Records read from JSON: every field is checked, and an error names the file, the field and what is wrong."""

from __future__ import annotations

import reprlib
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from ibpwf.errors import StoreError
from ibpwf.storage.files import RESTORE


class Record(BaseModel):
    """A frozen object of named fields; other fields, and values of another type than the field's, are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


R = TypeVar("R", bound=Record)


def read_record(kind: type[R], value: object, where: str) -> R:
    """The record that a value from JSON holds; `where` names its file in errors."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        what = f"it holds a {type(value).__name__} instead of an object"
        if isinstance(value, dict):
            what = first_problem(error)
        raise StoreError(f"{where!r}: {what}. It was not written by ibpwf, or was damaged. {RESTORE}") from None


def first_problem(error: ValidationError) -> str:
    """The first of pydantic's complaints, without a full stop: "field 'files.base.bytes' is -1; it should be ..."."""
    first = error.errors(include_url=False)[0]
    field = f"field '{'.'.join(map(str, first['loc']))}'"
    match first["type"]:
        case "missing":
            return f"{field} is missing"
        case "extra_forbidden":
            return f"{field} is unknown"
        case "value_error":  # raised by a validator of ours, whose sentence is whole
            return str(first["ctx"]["error"])
        case "dict_type" | "model_type":
            return f"{field} is {reprlib.repr(first['input'])}; it should be an object"
    should = first["msg"].partition(" should ")[2]
    return f"{field} is {reprlib.repr(first['input'])}; it should {should}"
