"""The model zoos, each where it is installed: `pip install ibpwf[zoo]`."""

from __future__ import annotations

import contextlib
import importlib
import sys
from types import ModuleType

import pytest
import torch


def torchvision() -> ModuleType:
    """torchvision, also where its compiled operators do not fit the installed torch (a wheel for CUDA beside a torch
    for the CPU): two operators that no model here uses must then be declared before it can be imported."""
    try:
        return importlib.import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for operator in ("nms", "qnms"):
            torch.library.define(f"torchvision::{operator}", "(Tensor boxes, Tensor scores, float limit) -> Tensor")
        return importlib.import_module("torchvision")


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
