"""Optimizers of few kernels take the steps of torch's plain ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ibpwf.data.rows import IndexedRows
from ibpwf.dispatch import accelerated, stand_ins
from ibpwf.training.objective import Fit, Loss
from ibpwf.training.phase import Phase, make_optimizer
from ibpwf.training.step import Step, make_step

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = ((5, 7), (11,), (1, 3), ())


def moved(phase: Phase, accelerate: bool, seed: int) -> list[Tensor]:
    """Parameters after 20 steps with gradients from a fixed random stream."""
    generator = torch.Generator().manual_seed(seed)
    parameters = [nn.Parameter(torch.randn(shape, generator=generator).to(DEVICE)) for shape in SHAPES]
    with accelerated(accelerate):
        optimizer = make_optimizer(phase, parameters)
    for _ in range(20):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator).to(DEVICE)
        if phase.clip is not None and not hasattr(optimizer, "clip"):
            nn.utils.clip_grad_value_(parameters, phase.clip)
        optimizer.step()
    return [parameter.detach() for parameter in parameters]


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(["adam", "sgd", "adagrad"]),
    rate=st.floats(-5, -1).map(lambda e: 10.0**e),
    decay=st.one_of(st.just(0.0), st.floats(1e-4, 0.1)),
    clip=st.one_of(st.none(), st.floats(0.1, 2.0)),
    seed=st.integers(0, 1000),
)
def test_twenty_steps_are_those_of_the_reference(
    kind: str, rate: float, decay: float, clip: float | None, seed: int
) -> None:
    phase = Phase("p", 1, 1, rate, kind, decay, clip)
    for got, expected in zip(moved(phase, True, seed), moved(phase, False, seed), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


def trained(device: str, accelerate: bool, kind: str) -> tuple[Tensor, Tensor]:
    """A layer's weight after three epochs, and what was measured in the last."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(64, 6, generator=generator).to(device), (torch.arange(64) % 3).to(device)
    weight = nn.Parameter((torch.randn(6, 3, generator=generator) * 0.1).to(device))

    def loss(rows: Tensor, labels: Tensor) -> Loss:
        logits = rows @ weight
        return Loss(nn.functional.cross_entropy(logits, labels), weight.square().sum())

    phase = Phase("p", 3, 16, 0.05, kind, 0.01, clip=0.5)
    with accelerated(accelerate):
        step: Any = make_step(Fit([weight], loss, tf32=False), phase, IndexedRows(x, y))
        shuffle = torch.Generator().manual_seed(1)
        for _ in range(3):
            step.start_epoch(shuffle)
            while step.gradients():
                step.move()
    assert (type(step) is Step) == (device == "cpu" or not accelerate)
    return weight.detach().cpu(), step.measured().cpu()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_a_recorded_step_is_the_step_that_was_recorded(kind: str) -> None:
    for got, expected in zip(trained("cuda", True, kind), trained("cuda", False, kind), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_steps_on_a_cpu_are_those_of_the_reference(kind: str) -> None:
    for got, expected in zip(trained("cpu", True, kind), trained("cpu", False, kind), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6, equal_nan=True)
    assert stand_ins(make_step), "a GPU has a stand-in"
