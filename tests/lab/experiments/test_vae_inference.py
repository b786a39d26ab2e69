"""One VAE per task tells the tasks apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from ibpwf.errors import InputError, StoreError
from ibpwf.lab import scenario
from ibpwf.lab.experiments.vae_inference import VAESettings, main, task_inference
from ibpwf.learner import choose_device
from ibpwf.storage.files import read_json


def test_vaes_tell_permutations_of_digits_apart_and_the_same_seed_gives_the_same() -> None:
    stream = scenario("permuted-digits", tasks=3)
    settings = VAESettings(hidden=(64,), latent=8, epochs=6, batch_size=32, learning_rate=3e-3)
    found = task_inference(stream, settings, 0, choose_device("cpu"))
    assert min(found) > 90  # three tasks: guessing is 33
    assert found == task_inference(stream, settings, 0, choose_device("cpu"))


def test_the_result_file_has_its_command_and_conditions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "made" / "on the way" / "vae.json"
    words = ["split-digits", "--seeds", "1", "--epochs", "1", "--device", "cpu", "--out", str(out)]
    assert main(words) == 0
    result = read_json(out)
    assert result["command"].startswith("python -m ibpwf.lab.experiments.vae_inference split-digits --seeds 1")
    assert len(result["per_task"][0]) == 5
    assert result["task_inference"]["mean"] == pytest.approx(sum(result["per_task"][0]) / 5)
    assert "task inference" in capsys.readouterr().out
    with pytest.raises(InputError, match="--seeds is 0"):
        main(["split-digits", "--seeds", "0", "--out", str(out)])
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write"):
        main(["split-digits", "--epochs", "1", "--out", str(tmp_path / "file" / "vae.json")])
