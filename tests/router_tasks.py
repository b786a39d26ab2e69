"""Three small tasks of digits for a learner with a router, and what router and experts say of them, in NumPy."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from ibpwf import Learner, Settings
from ibpwf.inference.base import Features
from ibpwf.inference.features.patches import Patches
from ibpwf.inference.features.random import Random
from ibpwf.inference.fusion import EXPERT_WEIGHT, ROUTER_WEIGHT, Calibration, expert_weight
from ibpwf.inference.router import SHARPNESS, Router

CLASSES = ((0, 1), (2, 3), (4, 5, 6))
COLUMNS = tuple((task, label) for task, labels in enumerate(CLASSES) for label in labels)
OWNER = np.array([task for task, _ in COLUMNS])
FEATURES = ("random", "patches")
SMALL: dict[str, Features] = {"random": Random(width=40), "patches": Patches(filters=10, grid=2)}
"""Features of these kinds, as few as tell the tasks here apart."""
SETTINGS = Settings(
    alpha=8.0,
    epochs=3,
    finetune_epochs=2,
    batch_size=16,
    learning_rate=0.02,
    inference="router",
    **{"inference.features": SMALL["random"]},
)


def network(outputs: int = 12, *, flat: bool = False) -> nn.Sequential:
    """Of images of 8×8 pixels, or of what they are as flat rows."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [
            nn.Conv2d(1, 4, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64, 16),
            nn.Tanh(),
        ]
        layers.append(nn.Linear(16, outputs))
        return nn.Sequential(*([nn.Unflatten(1, (1, 8, 8))] if flat else []), *layers)


@functools.cache
def digits() -> tuple[Tensor, Tensor]:
    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(0))
    return torch.from_numpy(found.images).float().unsqueeze(1)[order] / 16, torch.from_numpy(found.target)[order]


def examples(labels: tuple[int, ...], first: int = 0, last: int = 80) -> tuple[Tensor, Tensor]:
    """Some of the images of these digits."""
    x, y = digits()
    chosen = torch.isin(y, torch.tensor(labels))
    return x[chosen][first:last], y[chosen][first:last].long()


X = torch.cat([examples(labels, 80, 110)[0] for labels in CLASSES])
"""Images that no task has learned."""


@functools.cache
def _taught(changes: tuple[tuple[str, Any], ...], tasks: int, seed: int) -> Learner:
    learner = Learner(network(), SETTINGS.replace(**dict(changes)), seed=seed, device="cpu")
    for labels in CLASSES[:tasks]:
        learner.learn(*examples(labels), task=str(labels))
    return learner


def taught(tasks: int = 3, seed: int = 5, **changes: Any) -> Learner:
    return _taught(tuple(sorted(changes.items())), tasks, seed).fork()


def learned(settings: Settings, tasks: int, *, flat: bool = False, **changes: Any) -> Learner:
    """Of so many tasks, whose names are their numbers; images, or flat rows."""
    learner = Learner(network(flat=flat), settings.replace(**changes), seed=1, device="cpu")
    for number in range(tasks):
        x, y = examples(CLASSES[number])
        learner.learn(x.flatten(1) if flat else x, y, task=str(number))
    return learner


def with_settings(learner: Learner, **changes: Any) -> Learner:
    other = learner.fork()
    other.settings = other.settings.replace(**changes)
    return other


def calibrations(learner: Learner) -> list[Calibration]:
    assert all(one is not None for one in learner.method.calibrations)
    return [one for one in learner.method.calibrations if one is not None]


def router_scores(learner: Learner, x: Tensor = X) -> np.ndarray:
    """r, from the sums alone: ridge regression in NumPy with the λ that was found."""
    router = learner.method.inference
    assert isinstance(router, Router)
    phi, sums = learner.method.features(x).double().numpy(), router._sums
    counts = np.concatenate([task.counts.numpy() for task in sums.tasks])
    means = np.concatenate([task.means.numpy() for task in sums.tasks])
    upper = sum(scatter.double().numpy() for scatter in sums.scatters())
    center = counts @ means / counts.sum()
    apart = means - center
    gram = np.triu(upper) + np.triu(upper, 1).T + apart.T @ (apart * counts[:, None])
    penalty = router.solution().ridge * np.diag(gram).mean() * np.eye(len(gram))
    weight = np.linalg.solve(gram + penalty, (apart * counts[:, None]).T)
    found: np.ndarray = SHARPNESS * (counts / counts.sum() + (phi - center) @ weight)
    return found


def expert_scores(learner: Learner, x: Tensor = X) -> np.ndarray:
    return np.concatenate([learner.logits(x, task).double().numpy() for task in range(len(learner.tasks))], 1)


def fused_weights(learner: Learner) -> tuple[float, float]:
    known = [one for one in learner.method.calibrations if one is not None]
    if not known:
        return ROUTER_WEIGHT, EXPERT_WEIGHT
    return known[-1].router or 0.0, expert_weight(known)


def same_models(left: Learner, right: Learner, *, calibrated: bool = True) -> bool:
    """Whether all that would be stored of two learners is the same to the bit."""
    (one, parts), (other, others) = left.method.state(), right.method.state()
    if not calibrated:
        for state in (one, other):
            for task in state["tasks"]:
                task["calibration"] = None
    return (
        one == other
        and parts.keys() == others.keys()
        and all(parts[name].keys() == others[name].keys() for name in parts)
        and all(torch.equal(tensor, others[name][key]) for name in parts for key, tensor in parts[name].items())
    )


def same_answers(left: Learner, right: Learner, x: Tensor = X) -> bool:
    one, other = (learner.predict(x, marginal=True) for learner in (left, right))
    return torch.equal(one.probabilities, other.probabilities) and torch.equal(one.labels, other.labels)
