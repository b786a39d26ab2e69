"""Public names that are fetched when first used, so that `ibpwf --help` need not wait for torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping


def lazy_names(package: str, places: Mapping[str, str]) -> Callable[[str], object]:
    """A module's `__getattr__` (PEP 562) for names that live in other modules."""

    def fetch(name: str) -> object:
        if name not in places:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(importlib.import_module(places[name]), name)

    return fetch
