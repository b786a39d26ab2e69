"""Settings that are checked once and frozen, and the parts of a model, each of which owns its settings.

A part's fields are its settings; its private attributes are its state, such as what it has learned. Its `kind` is its
name within a `group` ("router" in "inference"). `build` makes a part from an instance, a class, a kind or a tree such
as `{"kind": "router", "ridge": 0.01}`, which is also how parts are given on the command line and kept in JSON.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, NoReturn, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, model_validator
from pydantic_core import core_schema

from ibpwf import registry
from ibpwf.errors import InputError, unknown
from ibpwf.settings_words import in_range, spell

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Probability = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Auto = Literal["auto"]

Tree = dict[str, Any]


class UnknownKindError(InputError):
    """A part is of a kind that is not known here."""


@dataclass(frozen=True)
class _Building:
    """What is being built: the settings around it by name, and whether it may name modules to import."""

    prefix: str = ""
    imports: bool = True


_PLAIN = _Building()
_BUILDING: ContextVar[_Building] = ContextVar("building", default=_PLAIN)


@contextmanager
def _inside(**changes: Any) -> Iterator[None]:
    token = _BUILDING.set(replace(_BUILDING.get(), **changes))
    try:
        yield
    finally:
        _BUILDING.reset(token)


def _dotted(name: str) -> str:
    """The name of a field with those of the parts around it, such as `inference.ridge`."""
    return _BUILDING.get().prefix + name


class FrozenSettings(BaseModel):
    """Settings that are checked when they are made, cannot be changed in place, and go to JSON and back.

    A bad value is an `InputError` that names the field, the value and what it should be.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True, protected_namespaces=()
    )

    fixed: ClassVar[frozenset[str]] = frozenset()
    """Settings that all tasks share."""
    at_prediction: ClassVar[frozenset[str]] = frozenset()
    """Settings that only predictions read. Any setting in neither of these sets may change from task to task."""

    def __init__(self, **values: Any) -> None:
        if any("." in name for name in values):
            values = type(self).merged(values)
        for name in values:
            if name not in type(self).model_fields:
                _suggest_part(type(self), name)
                raise unknown(self._called(), _dotted(name), map(_dotted, type(self).model_fields))
        try:
            super().__init__(**values)
        except ValidationError as error:
            self._refuse(error)

    @classmethod
    def _called(cls) -> str:
        """What an unknown setting of these is called in the message."""
        return "setting"

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, values: Any) -> Any:
        """NumPy's numbers and lists as plain ones and tuples; None where a choice is called 'none'."""
        plain = {}
        for name, value in values.items():
            if type(value).__module__ == "numpy" and hasattr(value, "item"):  # from a sweep over a NumPy array
                value = value.item()
            elif isinstance(value, list):
                value = tuple(value)
            elif isinstance(value, Mapping) and "kind" not in value and name in part_fields(cls):
                value = cls.merged({name: value})[name]  # of the kind that is the default
            elif value is None and "none" in typing.get_args(cls.model_fields[name].annotation):
                value = "none"
            plain[name] = value
        return plain

    @model_validator(mode="after")
    def _checked(self) -> Self:
        self.check_settings()
        return self

    def check_settings(self) -> None:
        """What a child rejects beyond the types and ranges of single fields, by `require`."""

    @classmethod
    def _refuse(cls, error: ValidationError) -> NoReturn:
        found = error.errors()
        raised = found[0].get("ctx", {}).get("error")
        if isinstance(raised, InputError):  # from `check_settings`, or of a part
            raise raised from None
        name = str(found[0]["loc"][0])
        mine = [one for one in found if str(one["loc"][0]) == name]
        for one in mine:
            if one["type"] in _RANGES:
                raise InputError(f"{_dotted(name)} is {one['input']}; {in_range(cls, name)}.") from None
        given = next((one["input"] for one in mine if len(one["loc"]) == 1), None)
        value = given if given is not None else _given(mine)
        expected = spell(cls.model_fields[name].annotation)
        raise InputError(f"{_dotted(name)} is {value!r}; expected {expected}.") from None

    def to_json(self) -> Tree:
        """All settings; a part is a tree with its kind."""
        plain = self.model_dump(mode="json", exclude=set(part_fields(type(self))))
        return {
            name: plain[name] if name in plain else _as_tree(getattr(self, name), Part.to_json)
            for name in type(self).model_fields
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`. It never imports a module that the values name."""
        with _inside(imports=False):
            return cls(**values)

    def given(self) -> Tree:
        """The settings that were given, and of parts those that were given to them."""
        return {name: _as_tree(getattr(self, name), Part.given) for name in self._given_names()}

    def _given_names(self) -> list[str]:
        return [name for name in type(self).model_fields if name in self.model_fields_set]

    def fixed_difference(self, other: FrozenSettings) -> tuple[str, Any, Any] | None:
        """The first setting that all tasks share in which others of the same kind differ: its dotted name, its value
        here and its value there."""
        parts = part_fields(type(self))
        for name in type(self).model_fields:
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, Part) and type(mine) is type(theirs) and name in parts:
                found = mine.fixed_difference(theirs)
                if found is not None:
                    return f"{name}.{found[0]}", found[1], found[2]
            elif name in self.fixed and mine != theirs:
                kinds_differ = isinstance(mine, Part) and isinstance(theirs, Part)
                return (name, mine.kind_name(), theirs.kind_name()) if kinds_differ else (name, mine, theirs)
        return None

    def with_fixed_of(self, other: Self) -> Self:
        """These settings with those of others that all tasks share."""
        changes: Tree = {}
        parts = part_fields(type(self))
        for name in type(self).model_fields:
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, Part) and type(mine) is type(theirs) and name in parts:
                changes[name] = mine.with_fixed_of(theirs)
            elif name in self.fixed:
                changes[name] = theirs
        return self.model_copy(update=changes)

    def replace(self, **changes: Any) -> Self:
        """A copy with some settings changed, those of parts by their dotted names (`{"inference.ridge": 0.01}`); an
        unknown name is rejected with the nearest one suggested."""
        found = type(self).merged(self.given(), changes)
        return type(self)(**{name: value for name, value in found.items() if name != "kind"})

    @classmethod
    def merged(cls, *layers: Mapping[str, Any]) -> Tree:
        """Settings given in layers, such as a preset's and then a user's, as one tree.

        A later layer replaces what earlier ones say of a setting. Of a part, a dotted name (`inference.ridge`) or a
        tree without a kind refines what is there; another kind drops what was said about the old one.
        """
        found: Tree = {}
        for layer in layers:
            for name in sorted(layer, key=lambda name: name.count(".")):  # a kind, then what refines it
                _merge(cls, found, name, layer[name])
        return found


class Part(FrozenSettings):
    """A part of a model that can be replaced by another kind of its group.

    Its fields are its settings. Private attributes (`PrivateAttr`) are its state, which is copied with the part and
    has no say in whether two parts are equal.

    Examples
    --------
    >>> class Animal(Part):
    ...     group: ClassVar[str] = "animals"
    >>> @register
    ... class Cat(Animal):
    ...     kind: ClassVar[str] = "cat"
    ...     lives: Count = 9
    >>> build("animals", {"kind": "cat", "lives": 7})
    Cat(lives=7)
    """

    group: ClassVar[str] = ""
    """What parts may take each other's place; the class that names it is the one all of them derive from."""
    kind: ClassVar[str] = ""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if "group" in vars(cls):
            _BASES[cls.group] = cls

    @classmethod
    def spelled(cls, kind: str) -> Any:
        """What a name stands for that a group reads in a way of its own: a kind, or a tree."""
        return kind

    def adjusted(self, settings: Self) -> Self:
        """This part, and its state, with the settings of another of its kind."""
        return self.model_copy(update={name: getattr(settings, name) for name in type(self).model_fields})

    @classmethod
    def kind_name(cls) -> str:
        """Its kind; of a class that names none, or only inherits it, where it is to be imported from."""
        return str(vars(cls).get("kind") or f"{cls.__module__}:{cls.__qualname__}")

    @classmethod
    def _called(cls) -> str:
        return f"setting of {cls.group} '{cls.kind_name()}'"

    def to_json(self) -> Tree:
        return {"kind": self.kind_name(), **super().to_json()}

    def given(self) -> Tree:
        return {"kind": type(self), **super().given()}

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = BaseModel.__hash__


_BASES: dict[str, type[Part]] = {}
_KINDS: dict[str, dict[str, type[Part]]] = {}

P = TypeVar("P", bound=Part)


def register(part: type[P]) -> type[P]:
    """Make a kind of part known by its name in this process, also to model folders that are opened in it."""
    _KINDS.setdefault(part.group, {})[part.kind_name()] = part
    return part


def kinds(group: str) -> list[str]:
    """The names of all kinds of a group: registered ones, then what installed packages bring."""
    return registry.names(f"ibpwf.{group}", _KINDS.get(group, {}))


@dataclass(frozen=True)
class OfGroup:
    """Marks a field that holds a part: `inference: Annotated[TaskInference, OfGroup("inference")]`. Whatever `build`
    takes may be given for it."""

    group: str

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        def built(value: Any, info: ValidationInfo) -> Part:
            return build(self.group, value, field=info.field_name or self.group)

        return core_schema.with_info_plain_validator_function(built)


@lru_cache
def part_fields(settings: type[FrozenSettings]) -> dict[str, str]:
    """The fields that hold parts, with their groups."""
    found = {}
    for name, field in settings.model_fields.items():
        inner = [m for arg in typing.get_args(field.annotation) for m in getattr(arg, "__metadata__", ())]
        marks = [m for m in (*field.metadata, *inner) if isinstance(m, OfGroup)]
        if marks:
            found[name] = marks[0].group
    return found


def _suggest_part(settings: type[FrozenSettings], name: str) -> None:
    """Reject a setting of a part that is given without the part's name."""
    for field, group in part_fields(settings).items():
        for part in _KINDS.get(group, {}).values():
            if name in part.model_fields:
                raise InputError(f"unknown setting '{_dotted(name)}'. Did you mean '{_dotted(field)}.{name}'?")


def build(group: str, value: object, *, field: str = "") -> Part:
    """A part of a group.

    Parameters
    ----------
    group
        Such as "inference".
    value
        A part, a class, a kind, `module:Name`, or a tree with "kind" and settings.
    field
        What it is called in errors, `group` by default; the settings of the part come after it, as in
        `inference.ridge`.

    Raises
    ------
    InputError
        For an unknown kind or setting, with the nearest known one, and for a bad value.
    """
    base, field = _BASES[group], field or group
    if isinstance(value, base):
        return value
    value = base.spelled(value) if isinstance(value, str) else value
    kind, settings = (value.get("kind"), value) if isinstance(value, Mapping) else (value, {})
    found = _kind(group, kind, field) if isinstance(kind, str) else kind
    if not isinstance(found, type) or not issubclass(found, base):
        named = getattr(found, "__name__", repr(found))
        shown = named if found is kind else f"'{kind}', a {named}"
        known = " or ".join(f"'{name}'" for name in kinds(group))
        raise InputError(f"{_dotted(field)} is {shown}; expected a {base.__name__} or its kind: {known}.")
    with _inside(prefix=f"{_dotted(field)}."):
        return found(**{name: inner for name, inner in settings.items() if name != "kind"})


def _kind(group: str, name: str, field: str) -> Any:
    known, imports = _KINDS.get(group, {}), _BUILDING.get().imports
    try:
        return registry.find(f"ibpwf.{group}", name, known, imports=imports, called=_dotted(field))
    except InputError as error:
        raise UnknownKindError(str(error)) from error


def _as_tree(value: Any, tree: Any) -> Any:
    """A part as a tree; several parts as a list of them."""
    if isinstance(value, Part):
        return tree(value)
    if isinstance(value, tuple):
        return [_as_tree(one, tree) for one in value]
    return value


def _merge(settings: type[FrozenSettings], found: Tree, name: str, value: object) -> None:
    """Put a setting over what earlier layers say."""
    name, _, rest = name.partition(".")
    group = part_fields(settings).get(name)
    if name not in settings.model_fields and _merge_into_one_of_several(settings, found, name, {rest: value}):
        return
    if rest and group is None:
        require(name not in settings.model_fields, f"{name}.{rest}", value, f"{name} is no part, and has no settings")
        raise unknown(settings._called(), _dotted(name), map(_dotted, settings.model_fields))
    value = {rest: value} if rest else value
    if group is None or not isinstance(value, (Mapping, str, type)):
        found[name] = value
        return
    below = found.get(name, settings.model_fields[name].get_default(call_default_factory=True))
    found[name] = _merged_part(group, name, below, value)


def _merged_part(group: str, name: str, below: Any, value: object) -> Any:
    """What a later layer says of a part, over what was said `below`."""
    value = _BASES[group].spelled(value) if isinstance(value, str) else value
    below = _BASES[group].spelled(below) if isinstance(below, str) else below
    given = dict(value) if isinstance(value, Mapping) else {"kind": value}
    tree: Any = _as_layer(below)
    old = _kind(group, tree["kind"], name) if isinstance(tree["kind"], str) else tree["kind"]
    kind = given.pop("kind", old)
    kind = _kind(group, kind, name) if isinstance(kind, str) else kind
    tree = tree if kind is old else {"kind": kind}
    with _inside(prefix=f"{_dotted(name)}."):
        for inner in sorted(given, key=lambda inner: inner.count(".")):
            _merge(kind, tree, inner, given[inner])
    return tree


def _merge_into_one_of_several(settings: type[FrozenSettings], found: Tree, name: str, value: Tree) -> bool:
    """Refine the part of kind `name` among several side by side, such as `features.patches.filters` of features
    'patches+backbone'. False if there is none."""
    for field, group in part_fields(settings).items():
        several = list(found.get(field) or ())
        for place, one in enumerate(several):
            kind = _as_layer(one)["kind"]
            if name == (kind if isinstance(kind, str) else kind.kind_name()) and "" not in value:
                merged = [_merged_part(group, name, one, value)]
                found[field] = [*several[:place], *merged, *several[place + 1 :]]
                return True
    return False


def _as_layer(value: Any) -> Tree:
    """What was said about a part, as a tree of one's own."""
    if isinstance(value, Part):
        return value.given()
    return dict(value) if isinstance(value, Mapping) else {"kind": value}


_RANGES = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")


def _given(errors: list[Any]) -> object:
    """What was handed in for a field of several kinds: the widest of the inputs its kinds complain about."""
    inputs = [one["input"] for one in sorted(errors, key=lambda one: len(one["loc"]))]
    return next((value for value in inputs if isinstance(value, (dict, tuple))), inputs[0])


def require(ok: bool, field: str, value: object, remedy: str) -> None:
    if not ok:
        raise InputError(f"{_dotted(field)} is {value}; {remedy}.")


def parse_assignment(text: str) -> tuple[str, Any]:
    """`name=value` from the command line; values are JSON where they can be, text otherwise."""
    name, sign, raw = text.partition("=")
    if not sign or not name.strip():
        raise InputError(f"'{text}' is not a setting; write --set name=value, such as --set alpha=300.")
    try:
        value = json.loads(raw)
    except json.JSONDecodeError:
        value = None if raw.strip().lower() == "none" else raw.strip()
    return name.strip().replace("-", "_"), value
