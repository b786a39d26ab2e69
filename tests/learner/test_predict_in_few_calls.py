"""How many functions of ours stand between `learner.predict(x)` and the network's forward pass."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ibpwf import Learner, Settings
from ibpwf.errors import InputError

MOST = 8
X, Y = torch.randn(60, 16, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2

FEATURES: dict[str, Any] = {"inference.features": {"kind": "random", "width": 8}}


def ours(frame: FrameType | None) -> list[str]:
    """The functions of the library that have been called and not left, from the first."""
    found = []
    while frame is not None:
        if "/ibpwf/" in frame.f_code.co_filename.replace("\\", "/"):
            found.append(frame.f_code.co_qualname)
        frame = frame.f_back
    return found[::-1]


class Network(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


def ways(call: Callable[[], Any]) -> list[list[str]]:
    """The chain of our functions at every forward pass of the network."""
    found = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is Network.forward.__code__:
            found.append(ours(frame))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize(
    "settings", [{}, {"inference": "router", "validation_fraction": 0.2}], ids=["gaussians", "ensemble"]
)
@pytest.mark.parametrize("how", [{}, {"task": "a"}, {"marginal": True}], ids=["inferred", "given", "marginal"])
def test_a_prediction_reaches_the_network_in_few_calls(settings: dict[str, Any], how: dict[str, Any]) -> None:
    net = Network(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 8))
    learner = Learner(
        net,
        Settings(epochs=1, alpha=4, **settings, **FEATURES),
        device="cpu",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # one epoch is not enough
        learner.learn(X, Y, task="a")
        learner.learn(X + 1, Y + 2, task="b")
    found = ways(lambda: learner.predict(X[:9], **how))
    assert found
    for way in found:
        assert way[0] == "Learner.predict"
        assert len(way) <= MOST, " > ".join(way)


def test_novelty_beside_a_prediction_takes_no_second_pass() -> None:
    net = Network(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 8))
    settings = Settings(
        epochs=1,
        alpha=4,
        inference="router",
        validation_fraction=0.2,
        **FEATURES,
    )
    learner = Learner(net, settings, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        learner.learn(X, Y, task="a")
        learner.learn(X + 1, Y + 2, task="b")
    plain, beside = learner.predict(X[:9]), learner.predict(X[:9], novelty_rate=0.05)
    assert beside.novelty is not None
    assert torch.equal(beside.novelty, learner.novelty(X[:9], 0.05))
    assert torch.equal(beside.probabilities, plain.probabilities)
    assert len(ways(lambda: learner.predict(X[:9], novelty_rate=0.05))) == len(ways(lambda: learner.predict(X[:9])))


def test_a_prediction_has_the_same_fields_as_arrays() -> None:
    learner = Learner(nn.Sequential(nn.Linear(16, 8)), Settings(epochs=1, alpha=4), device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        learner.learn(X, Y, task="a")
        learner.learn(X + 1, Y + 2, task="b")
    for how in ({}, {"task": 1}, {"marginal": True}):
        found = learner.predict(X, **how)  # type: ignore[arg-type]
        arrays = found.numpy()
        for name in ("labels", "probabilities", "task", "task_probabilities", "entropy"):
            assert (getattr(arrays, name) == getattr(found, name).numpy()).all()
        assert arrays.classes == found.classes == ((0, 0), (0, 1), (1, 2), (1, 3))
        column = [found.classes.index((int(t), int(y))) for t, y in zip(found.task, found.labels, strict=True)]
        assert torch.equal(found.probability, found.probabilities[torch.arange(len(X)), column])
        assert torch.equal(found.rows(slice(3, 9)).labels, found.labels[3:9])


@pytest.mark.parametrize("given", [{"settings": Settings()}, {"device": "cpu"}, {"distributed": "auto"}])
def test_a_method_brings_its_own_settings_and_device(given: dict[str, Any]) -> None:
    method = Learner(nn.Sequential(nn.Linear(16, 8)), device="cpu").method
    assert Learner(method, seed=3).method is method
    with pytest.raises(InputError, match="method 'ibpwf'"):
        Learner(method, **given)
