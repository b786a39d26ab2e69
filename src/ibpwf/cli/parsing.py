"""A command is a dataclass: its docstring is the help, its fields are the options, `run` does it.

A field says everything about its option once: help, default, limits. Commands that share an option inherit the
dataclass that declares it. Nothing here needs more than the standard library, so that help and mistakes are
answered at once.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import shutil
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from ibpwf.errors import InputError, printable, unknown

T = TypeVar("T")


class Fraction(float):
    """Strictly between 0 and 1."""


class Command(Protocol):
    """What the program calls."""

    def run(self) -> int | None: ...


def option(default: Any, help: str, *flags: str, **more: Any) -> Any:
    """A field that is an option, `--name-of-the-field` unless `flags` say otherwise; of a bool, those that begin with
    `!` set it to False. A default of `...` means that it must be given.

    `more` are fields of `Option`: `metavar`; `usual` says what happens by default where the default value does not;
    `least` and `most` are the limits of a number; `check` names a function (module:function) that rejects a value,
    imported when there is one; `read` makes the value from a word and the option's name.
    """
    default = MISSING if default is ... else default
    return dataclasses.field(default=default, metadata={"help": help, "flags": flags, **more})


def argument(metavar: str, help: str, default: Any = ..., **more: Any) -> Any:
    """A field that is given by its place."""
    return option(default, help, metavar=metavar, place=True, **more)


@dataclass(frozen=True)
class Option:
    """One option or argument of a command."""

    name: str
    kind: Any
    many: bool
    choices: tuple[str, ...]
    default: Any
    help: str
    flags: tuple[str, ...]
    metavar: str
    place: bool = False
    usual: str = ""
    least: float = -math.inf
    most: float = math.inf
    check: str = ""
    read: Callable[[str, str], Any] | None = None

    @property
    def on(self) -> tuple[str, ...]:
        return tuple(flag for flag in self.flags if not flag.startswith("!"))

    @property
    def off(self) -> tuple[str, ...]:
        return tuple(flag[1:] for flag in self.flags if flag.startswith("!"))

    @property
    def written(self) -> str:
        """As help shows it."""
        if self.place:
            return self.metavar if self.default is MISSING else f"[{self.metavar}]"
        words = "/".join([", ".join(self.on), *self.off])
        return words if self.kind is bool else f"{words} {self.metavar}"

    @property
    def by_default(self) -> str:
        """The default in words; empty where there is nothing to say."""
        if self.default is MISSING:
            return "" if self.place else "required"
        if isinstance(self.default, float):
            return f"{self.default:g}"
        return self.usual or ("" if self.default in (None, False, ()) else f"{self.default}")

    @property
    def about(self) -> str:
        return self.help + (" Repeatable." if self.many and not self.place else "")

    def value(self, word: str, flag: str) -> Any:
        """The value that a word stands for."""
        shown = printable(word)
        if self.choices and word not in self.choices:
            raise unknown(flag, word, self.choices)
        if self.read is not None:
            value = self.read(word, flag)
        elif issubclass(self.kind, (int, float)):
            value = self._number(word, shown, flag)
        else:
            value = self.kind(word)
        if self.check:
            module, _, name = self.check.partition(":")
            getattr(importlib.import_module(module), name)(value)
        return value

    def _number(self, word: str, shown: str, flag: str) -> float:
        try:
            value: float = self.kind(word)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise InputError(f"{flag} is '{shown}'; give a {'whole ' * (self.kind is int)}number.")
        if self.kind is Fraction and not 0 < value < 1:
            raise InputError(f"{flag} is {shown}; give a fraction between 0 and 1, such as 0.1.")
        if not self.least <= value <= self.most:
            limits = f"from {self.least} to {self.most}" if self.most < math.inf else f"of at least {self.least}"
            raise InputError(f"{flag} is {shown}; give a number {limits}.")
        return value


METAVARS = {int: "N", float: "NUMBER", Fraction: "FRACTION", Path: "PATH"}


def options_of(command: type) -> list[Option]:
    """A command's arguments, those that it inherits first, then its options, its own first."""
    hints = typing.get_type_hints(command)
    known = {one.name: one for one in dataclasses.fields(command) if one.metadata}
    named = [list(inspect.get_annotations(base)) for base in command.__mro__]
    inherited, own = (dict.fromkeys(name for names in order for name in names) for order in (named[::-1], named))
    found = {name: _option(one, hints[name]) for name, one in known.items()}
    return [
        *(found[name] for name in inherited if name in found and found[name].place),
        *(found[name] for name in own if name in found and not found[name].place),
    ]


def _option(field: dataclasses.Field[Any], hint: Any) -> Option:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        hint = next(one for one in typing.get_args(hint) if one is not type(None))
    told = dict(field.metadata)
    many = typing.get_origin(hint) is tuple and "read" not in told
    kind = typing.get_args(hint)[0] if many else hint
    choices = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
    if not told.get("place"):
        told["flags"] = told["flags"] or (f"--{field.name.replace('_', '-')}",)
    told.setdefault("metavar", "|".join(choices) or METAVARS.get(kind, "TEXT"))
    return Option(field.name, str if choices else kind, many, choices, field.default, **told)


def parse(command: type[T], words: Sequence[str], name: str) -> T:
    """The command with what the words say; the first mistake is an `InputError`."""
    options = options_of(command)
    by_flag = {flag: one for one in options for flag in (*one.on, *one.off)}
    given: dict[str, Any] = {}
    places: list[str] = []
    left = iter(words)
    for word in left:
        if word == "--":
            places += left
        elif word == "-" or not word.startswith("-"):
            places.append(word)
        else:
            flag, sign, text = word.partition("=")
            if not flag.startswith("--") and len(flag) > 2:  # -oFILE
                flag, sign, text = word[:2], "=", word[2:]
            one = by_flag.get(flag)
            if one is None:
                raise unknown("option", flag, [*by_flag, "--help"])
            if one.kind is bool:
                if sign:
                    raise InputError(f"{flag} takes no value.")
                given[one.name] = flag not in one.off
                continue
            if not sign:
                text = next(left, "--")
                if text == "--" or text in by_flag:
                    raise InputError(f"{flag} needs a value: {flag} {one.metavar}.")
            value = one.value(text, flag)
            given[one.name] = (*given.get(one.name, ()), value) if one.many else value
    given |= _arguments([one for one in options if one.place], places, name, usage(command, name))
    missing = [one.flags[0] for one in options if one.default is MISSING and one.name not in given]
    if missing:
        raise InputError(f"{missing[0]} is missing; see `{name} --help`.")
    return command(**given)


def _arguments(options: list[Option], words: list[str], name: str, usage: str) -> dict[str, Any]:
    """Values by place; one that takes many takes the rest."""
    given: dict[str, Any] = {}
    for one in options:
        if one.many and words:
            given[one.name], words = tuple(one.value(word, one.metavar) for word in words), []
        elif words:
            given[one.name] = one.value(words[0], one.metavar)
            words = words[1:]
        elif one.default is MISSING:
            raise InputError(f"{one.metavar} is missing. Usage: {usage}")
    if words:
        raise InputError(f"unexpected argument '{printable(words[0])}'. Usage: {usage}")
    return given


def usage(command: type, name: str) -> str:
    options = options_of(command)
    words = [one.written for one in options if one.place]
    return " ".join([name, *words, *(["[options]"] if len(words) < len(options) else [])])


WIDEST = 100
"""Columns of help on a wide terminal."""


def help_text(command: type, name: str) -> str:
    """What `--help` prints."""
    options = options_of(command)
    lines = [f"Usage: {usage(command, name)}", ""]
    for paragraph in inspect.cleandoc(command.__doc__ or "").split("\n\n"):
        lines += [*wrapped(paragraph, "  ", "  "), ""]
    for title, part in (
        ("Arguments", [one for one in options if one.place]),
        ("Options", [one for one in options if not one.place]),
    ):
        if part:
            rows = [(one.written, one.about + (f" [{one.by_default}]" if one.by_default else "")) for one in part]
            lines += [f"{title}:", *described(rows), ""]
    return "\n".join(lines).rstrip()


def described(rows: Sequence[tuple[str, str]], most: int = 28) -> Iterator[str]:
    """Two columns; what is too long for the first has a line of its own."""
    first = min(max(len(name) for name, _ in rows), most) + 4
    for name, text in rows:
        head = f"  {name}".ljust(first)
        if len(head) > first:
            yield head
            head = " " * first
        yield from wrapped(text, head, " " * first)


def wrapped(text: str, first: str, later: str) -> list[str]:
    """Lines that fit the terminal, each with what stands before it."""
    width = max(min(shutil.get_terminal_size().columns, WIDEST), 40)
    lines = textwrap.wrap(text, width, initial_indent=first, subsequent_indent=later, break_on_hyphens=False)
    return lines or [first]
