"""Packages of networks that nobody here wrote, each where it is installed."""

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


def transformers() -> ModuleType:
    """Hugging Face's transformers, which imports torchvision where there is one."""
    with contextlib.suppress(ImportError):
        torchvision()
    return importlib.import_module("transformers")


def imported(name: str) -> ModuleType:
    """A package that imports torchvision where that is there; the test is skipped where the package is missing."""
    with contextlib.suppress(ImportError):
        torchvision()
    module: ModuleType = pytest.importorskip(name)
    return module
