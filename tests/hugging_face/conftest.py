"""Small random networks of transformers, and learners that have learnt three tasks with them."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from hugging_face_networks import CONFIGURATIONS, SETTINGS, Taught, batch, labels
from ibpwf import Learner


@pytest.fixture(scope="session")
def build(transformers: ModuleType) -> Callable[..., nn.Module]:
    """Makes a small network by its name, with the same initial values every time."""

    def make(name: str, **changes: Any) -> nn.Module:
        kind = getattr(transformers, CONFIGURATIONS[name][0])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            net: nn.Module = kind(kind.config_class(**CONFIGURATIONS[name][1] | changes))
        return net

    return make


@pytest.fixture(scope="session")
def taught(build: Callable[..., nn.Module]) -> Callable[[str, str], Taught]:
    """Learners of three tasks by network and base. Read them, teach them nothing."""
    known: dict[tuple[str, str], Taught] = {}

    def teach(name: str, base: str) -> Taught:
        if (name, base) not in known:
            learner, logits = Learner(build(name), SETTINGS.replace(base=base), seed=3, device="cpu"), {}
            for number, task in enumerate(("first", "second", "third")):
                learner.learn(batch(name, number), labels(number, classes=2 + number % 2), task=task)
                logits[task] = learner.logits(batch(name, 9), task)
            known[name, base] = Taught(learner, logits)
        return known[name, base]

    return teach
