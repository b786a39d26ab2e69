"""One VAE per task tells the tasks apart."""

from __future__ import annotations

import pytest

from ibpwf.device import choose_device
from ibpwf.lab import scenario
from ibpwf.lab.experiments.vae_inference import VAESettings, run, task_inference


def test_vaes_tell_permutations_of_digits_apart_and_the_same_seed_gives_the_same() -> None:
    stream = scenario("permuted-digits", tasks=3)
    settings = VAESettings(hidden=(64,), latent=8, epochs=6, batch_size=32, learning_rate=3e-3)
    found = task_inference(stream, settings, 0, choose_device("cpu"))
    assert min(found) > 90  # three tasks: guessing is 33
    assert found == task_inference(stream, settings, 0, choose_device("cpu"))


def test_the_result_has_its_command_and_every_tasks_accuracy() -> None:
    result = run("split-digits", 1, VAESettings(hidden=(16,), latent=4, epochs=1), "cpu", "ibpwf reproduce table3")
    assert result["command"] == "ibpwf reproduce table3"
    assert result["task_inference"]["mean"] == pytest.approx(sum(result["per_task"][0]) / 5)
