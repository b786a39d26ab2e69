"""The models of a run, scored again with other settings of task inference."""

from __future__ import annotations

from pathlib import Path

import pytest

from ibpwf.errors import InputError
from ibpwf.lab.experiments.rescore import main, rescore
from ibpwf.lab.experiments.run import run
from ibpwf.lab.experiments.run_config import RunConfig
from ibpwf.storage.files import read_json

CHANGES = {"epochs": 4, "finetune_epochs": 2}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rescore") / "run"
    config = RunConfig("split-digits", preset="quick", seeds=(0, 1), changes=CHANGES, tasks=3, device="cpu")
    run(config, folder, command="the command")
    return folder


def test_with_the_same_settings_every_number_is_the_same(finished: Path) -> None:
    old, again = read_json(finished / "result.json"), rescore(finished, {}, "cpu", "again")
    for key in ("accuracy", "task_inference", "matrix", "forgetting", "factors", "seconds", "command"):
        assert again[key] == old[key]
    assert again["rescored"]["settings"] == []


def test_with_others_answers_change_where_the_task_is_inferred_and_nowhere_else(
    finished: Path, tmp_path: Path
) -> None:
    out = tmp_path / "again.json"
    arguments = [str(finished), "--set", "ridge=0.5", "--set", "shrinkage=0.9", "--device", "cpu", "--out", str(out)]
    assert main(arguments) == 0
    old, again = read_json(finished / "result.json"), read_json(out)
    assert again["accuracy"]["task"] == old["accuracy"]["task"]
    assert again["task_inference"] != old["task_inference"]
    assert again["changes"] == {**CHANGES, "ridge": 0.5, "shrinkage": 0.9}
    assert again["rescored"]["settings"] == ["ridge", "shrinkage"]


def test_another_network_than_the_presets_stays_that(tmp_path: Path) -> None:
    network = {"builder": "mlp", "hidden": [30]}
    run(
        RunConfig("split-digits", preset="quick", changes=CHANGES, tasks=2, device="cpu", network=network),
        tmp_path,
        command="",
    )
    assert rescore(tmp_path, {}, "cpu", "")["network"] == network


def test_what_was_trained_cannot_be_changed(finished: Path) -> None:
    with pytest.raises(InputError, match="trained with 4"):
        rescore(finished, {"epochs": 5}, "cpu", "")
