"""Every method by name: IBP-WF, the baselines of this folder, what installed packages register, `module:Name`.

A module in this folder that defines a `Method` with a `name` is found by itself. A package brings methods of its own
as entry points of the group `ibpwf.methods`. `NAME+turns` is a method that also learns how images were turned.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import warnings
from functools import cache
from typing import Any

from ibpwf import registry
from ibpwf.errors import InputError
from ibpwf.lab.names import METHODS
from ibpwf.method import IBPWF
from ibpwf.training.method import Method


@cache
def own_methods() -> dict[str, type[Method]]:
    """The methods of this package by name, in the order of the tables; anything else follows by name."""
    found: dict[str, type[Method]] = {IBPWF.name: IBPWF}
    for module in pkgutil.iter_modules(__path__):
        for _, thing in inspect.getmembers(importlib.import_module(f"{__name__}.{module.name}"), inspect.isclass):
            if issubclass(thing, Method) and not inspect.isabstract(thing) and "name" in vars(thing):
                found[thing.name] = thing
    rank = {name: place for place, name in enumerate(METHODS)}
    return {name: found[name] for name in sorted(found, key=lambda name: (rank.get(name, len(rank)), name))}


def methods() -> dict[str, type[Method]]:
    """All methods by name: ours, then those of installed packages. One that cannot be used is named in a warning."""
    found = dict(own_methods())
    for name in registry.names(registry.METHODS, found):
        try:
            found[name] = method_named(name)
        except InputError as error:
            warnings.warn(f"method '{name}' is left out: {error}", stacklevel=2)
    return found


def method_named(name: str) -> type[Method]:
    """The method of that name, or an error that suggests the nearest. `module:Name` runs code of the caller's."""
    return _checked(name, registry.find(registry.METHODS, name, own_methods()))


def _checked(name: str, found: Any) -> type[Method]:
    """Refuse what does not name a usable method."""
    wanted = "derive it from ibpwf.lab.methods.dense.DenseMethod or ibpwf.training.method.Method"
    if not (inspect.isclass(found) and issubclass(found, Method)):
        raise InputError(f"method '{name}' is {found!r}, which is no method; give a class and {wanted}.")
    missing = [field for field in ("name", "summary", "stores") if not isinstance(getattr(found, field, None), str)]
    if missing:
        raise InputError(f"method '{name}' has no {' and no '.join(missing)}; give the class such texts.")
    if inspect.isabstract(found):
        lacking = ", ".join(sorted(found.__abstractmethods__))
        raise InputError(f"method '{name}' lacks {lacking}; write them, or {wanted.partition(' or ')[0]}.")
    return found
