"""Public names that are fetched when first used, so that `ibpwf --help` need not wait for torch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping


def lazy_names(package: str, places: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """A module's `__getattr__` and `__dir__` (PEP 562), for names that live in other modules; all that is public is
    in its `__all__`."""

    def fetch(name: str) -> object:
        if name not in places:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(importlib.import_module(places[name]), name)

    return fetch, lambda: sorted(sys.modules[package].__all__)
