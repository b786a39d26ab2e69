"""A model folder in which every kind of part is there, for tests that damage it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from killed_learner import examples, fresh

from ibpwf import ContinualClassifier

KINDS = ("learner", "classifier")


def save_whole(kind: str, path: Path) -> Path:
    """Three tasks, the first of four forgotten."""
    if kind == "classifier":
        classifier = ContinualClassifier(
            hidden=(6,), epochs=2, settings={"inference.features.width": 12}, device="cpu"
        )
        for number in range(4):
            x, y = examples(number)
            classifier.learn(x.numpy(), np.array([f"é{number}", "b"])[y.numpy()], task=f"t{number}")
        classifier.forget("t0")
        classifier.save(path)
    else:
        learner = fresh()
        for number in range(4):
            learner.learn(*examples(number), task=f"t{number}")
        learner.forget("t0")
        learner.save(path, extra={"names": ["é", 1.5, None]})
    return path
