"""What would take more than anybody has is refused in a sentence that states the limit, before it is begun."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from ibpwf import ContinualClassifier, Learner, Random, Settings, factorize, models
from ibpwf.device import choose_device
from ibpwf.errors import InputError, StoreError
from ibpwf.inference.gaussian import MomentAccumulator
from ibpwf.storage.files import write_text


@pytest.mark.parametrize("alpha", [1e300, 1e6, 10_001])
def test_an_alpha_far_beyond_the_layer_is_refused(alpha: float) -> None:
    with pytest.raises(InputError, match=r"in a layer of 4×5\. Give at most 10,000"):
        factorize(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)), alpha=alpha)


def test_a_wide_layer_may_have_a_larger_alpha() -> None:
    factorize(nn.Sequential(nn.Linear(1200, 1100), nn.ReLU(), nn.Linear(1100, 1050)), alpha=10_100)


@pytest.mark.parametrize("posterior_samples", [10**9, 10_001])
def test_more_draws_than_can_be_held_are_refused(learned: Learner, posterior_samples: int) -> None:
    with pytest.raises(InputError, match="at most 10,000, such as 100"):
        learned.predict(torch.zeros(1, 64), posterior_samples=posterior_samples)


def test_a_network_that_no_memory_holds_is_not_built() -> None:
    with pytest.raises(InputError, match=r"from 192,000,000 inputs to 400: 76,800,000,000 weights, 307 GB"):
        models.mlp(8000 * 8000 * 3, [400], 2)


def test_features_whose_covariance_no_memory_holds_are_refused() -> None:
    with pytest.raises(InputError, match=r"width is 100000; give at least 1 and at most 20,000\."):
        Random(width=100_000)
    with pytest.raises(InputError, match="100,000 features, whose covariance takes 80 GB; at most 20,000"):
        MomentAccumulator().add(torch.zeros(1, 100_000))


@pytest.mark.parametrize("rate", [1e-17, 0.0, 1.0, float("nan")])
def test_a_rate_of_false_alarms_that_means_nothing_is_refused(rate: float) -> None:
    x = np.random.default_rng(0).normal(size=(20, 2))
    with pytest.raises(InputError, match="give a share between 1e-09 and 1"):
        ContinualClassifier((4,), epochs=1, false_alarm_rate=rate).fit(x, x[:, 0] > 0)


def test_the_smallest_rate_of_false_alarms_works() -> None:
    x = np.random.default_rng(0).normal(size=(20, 2))
    classifier = ContinualClassifier((4,), epochs=1, false_alarm_rate=1e-9).fit(x, x[:, 0] > 0)
    assert not classifier.is_novel(x).any()


@pytest.mark.parametrize("device", ["mps", "xpu", "meta", "gpu", "cpu:3", "cuda:-1", "", "\x1b[31m"])
def test_a_device_that_nothing_is_tested_on_is_refused(device: str) -> None:
    with pytest.raises(InputError, match="give 'auto', 'cpu' or 'cuda'"):
        choose_device(device)


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert choose_device("cuda:0") == torch.device("cuda:0")
    with pytest.raises(InputError, match="this machine's GPUs are numbered 0 to 0"):
        choose_device("cuda:7")


def test_a_gradient_is_cut_to_what_float32_can_hold() -> None:
    with pytest.raises(InputError, match="clip is 1e\\+300; it must be above 0 and at most 1e\\+30, or none"):
        Settings(clip=1e300)


def test_no_file_takes_the_place_of_a_device_or_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreError, match="it is a pipe or a device"):
        write_text(tmp_path / "pipe", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
