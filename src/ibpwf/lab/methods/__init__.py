"""Every method under one roof. A module in this folder that defines a `Method` with a `name` is found by itself."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import cache

from ibpwf import registry
from ibpwf.method import IBPWF
from ibpwf.training.method import Method

# The order of the paper's tables; anything else follows by name.
_ORDER = (
    *("sgd", "adam", "adagrad", "l2", "ewc", "online-ewc", "si", "mas", "lwf", "vcl", "ibnn"),
    *("rehearsal", "vcl-coreset", "gem", "dgr", "rtf"),
    *("pnn", "side-tuning", "separate", "joint", "slda", "ridge", "gen-classifier", "const-wf", "ibpwf"),
)


@cache
def methods() -> dict[str, type[Method]]:
    """All methods by name, in the order of the tables."""
    found: dict[str, type[Method]] = {}
    for module in pkgutil.iter_modules(__path__):
        for _, thing in inspect.getmembers(importlib.import_module(f"{__name__}.{module.name}"), inspect.isclass):
            if issubclass(thing, Method) and not inspect.isabstract(thing) and "name" in vars(thing):
                found[thing.name] = thing
    found[IBPWF.name] = IBPWF
    rank = {name: place for place, name in enumerate(_ORDER)}
    return {name: found[name] for name in sorted(found, key=lambda n: (rank.get(n, len(rank)), n))}


def method_named(name: str) -> type[Method]:
    """The method of that name, also from outside the package, or an error that suggests the nearest."""
    found: type[Method] = registry.find(registry.METHODS, name, methods())
    return found
