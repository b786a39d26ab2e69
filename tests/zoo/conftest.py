"""The model zoos, each where it is installed: `pip install ibpwf[zoo]`."""

from __future__ import annotations

import contextlib
import importlib
from types import ModuleType

import pytest

from zoos import torchvision


@pytest.fixture(scope="session")
def zoo() -> dict[str, ModuleType]:
    """The zoos that can be had, by name."""
    found: dict[str, ModuleType] = {}
    with contextlib.suppress(ImportError):
        torchvision()
        found["torchvision"] = importlib.import_module("torchvision.models")
    with contextlib.suppress(ImportError):
        found["timm"] = importlib.import_module("timm")
    return found
