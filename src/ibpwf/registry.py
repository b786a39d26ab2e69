"""Parts from outside the package by name: methods, kinds of task inference, features, scenarios.

A name stands for one of ours, for what an installed package has registered as an entry point, or, written as
`module:Name`, for anything that can be imported. A model folder is data: what it names is looked up among the first
two only, so that opening one never imports a module of its choosing.

`NAME+WORD` is a method that another one makes of NAME: WORD is an entry point of the group `ibpwf.method_wrappers`, a
function of the method's class and the whole name.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from ibpwf.errors import InputError, unknown

METHODS, INFERENCE, FEATURES, SCENARIOS = "ibpwf.methods", "ibpwf.inference", "ibpwf.features", "ibpwf.scenarios"
WRAPPERS = "ibpwf.method_wrappers"
KINDS = {METHODS: "method", INFERENCE: "inference", FEATURES: "features", SCENARIOS: "scenario"}


def names(group: str, known: Mapping[str, Any]) -> list[str]:
    """All names of a group: ours first, then what installed packages bring."""
    return [*known, *sorted(entry.name for entry in entry_points(group=group) if entry.name not in known)]


def find(group: str, name: str, known: Mapping[str, Any], *, imports: bool = True, called: str = "") -> Any:
    """What a name stands for; `imports` says whether `module:Name` may be imported. It is `called` so in errors."""
    called = called or KINDS[group]
    if name in known:
        return known[name]
    for entry in entry_points(group=group):
        if entry.name == name:
            return _loaded(entry)
    inner, wrapper = unwrapped(group, name)
    if wrapper is not None:
        return _loaded(wrapper)(find(group, inner, known, imports=imports, called=called), name)
    if imports and ":" in name:
        return _imported(called, name)
    raise unknown(called, name, names(group, known))


def unwrapped(group: str, name: str) -> tuple[str, EntryPoint | None]:
    """The name of the method within `NAME+WORD`, and what WORD stands for; the name itself where it is no such."""
    inner, _, word = name.rpartition("+")
    for entry in entry_points(group=WRAPPERS) if group == METHODS and inner else ():
        if entry.name == word:
            return inner, entry
    return name, None


def _loaded(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"'{entry.name}' is registered as {entry.value}, which cannot be imported ({error}); mend or remove the "
            "package that registers it."
        ) from error


def _imported(kind: str, text: str) -> Any:
    """`module:Name`, the module from the folder one is in where it is not installed."""
    module, _, attribute = text.partition(":")
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.append(here)
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"{kind} '{text}' cannot be imported: {error}; write it as module:Name, with the module installed or in "
            "the folder you are in."
        ) from error
    finally:
        if added:
            sys.path.remove(here)
    return found
