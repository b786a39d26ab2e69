"""Seeds in worker processes: the same bits as one after another, and a failure, a gap or an end is handled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ibpwf.errors import TrainingError
from ibpwf.lab.experiments import run as runs
from ibpwf.lab.experiments import side_by_side as workers
from ibpwf.lab.experiments.run import Events, run
from ibpwf.lab.experiments.run_config import RunConfig
from ibpwf.storage import folder as store

CHANGES = {"epochs": 2, "finetune_epochs": 1}


def config(**changes: object) -> RunConfig:
    chosen = {"preset": "quick", "seeds": (0, 1), "changes": CHANGES, "tasks": 2, "device": "cpu", **changes}
    return RunConfig("split-digits", **chosen)  # type: ignore[arg-type]


@pytest.fixture
def two_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "WORTH", 0)
    monkeypatch.setattr(workers, "cores", lambda: 2)


def files(out: Path) -> dict[str, bytes]:
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.glob("seed-*/model/*.safetensors"))}


def without_times(result: dict[str, object]) -> dict[str, object]:
    return {key: result[key] for key in ("accuracy", "task_inference", "forgetting", "parameters", "matrix")}


def test_models_are_byte_identical_to_those_of_seeds_one_after_another(
    tmp_path: Path, two_workers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, str]] = []
    events = Events(
        epoch=lambda name, progress: told.append((name, progress.phase)),
        task=lambda name, row: told.append((name, row["task"])),
    )
    together = run(config(), tmp_path / "together", command="", events=events)
    monkeypatch.setattr(workers, "WORTH", 10**12)
    alone = run(config(), tmp_path / "alone", command="")
    assert files(tmp_path / "together") == files(tmp_path / "alone") != {}
    assert without_times(together) == without_times(alone)
    for name in ("seed-0", "seed-1"):
        own = [what for training, what in told if training == name]
        assert own[:3] == ["elbo", "elbo", "finetune"]
        assert len(own) == 2 * (3 + 1)
    lines = [store.read_jsonl(tmp_path / each / "metrics.jsonl") for each in ("together", "alone")]
    kept = [sorted((line["training"], line["task_number"], "finished" in line) for line in part) for part in lines]
    assert kept[0] == kept[1]


def test_a_seed_that_fails_stops_the_run_with_its_own_error(tmp_path: Path, two_workers: None) -> None:
    with pytest.raises(TrainingError, match="not a number"):
        run(config(changes={**CHANGES, "learning_rate": 1e20}), tmp_path / "run", command="")
    assert not (tmp_path / "run" / "result.json").exists()


@pytest.mark.slow
def test_an_interrupted_run_ends_its_workers_and_goes_on_to_the_same_bits(
    tmp_path: Path, two_workers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(name: str, row: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config(), tmp_path / "run", command="", events=Events(task=interrupted))
    assert not (tmp_path / "run" / "result.json").exists()
    again = run(config(), tmp_path / "run", command="", resume=True)
    monkeypatch.setattr(workers, "WORTH", 10**12)
    alone = run(config(), tmp_path / "alone", command="")
    assert files(tmp_path / "run") == files(tmp_path / "alone")
    assert without_times(again) == without_times(alone)


def test_workers_start_only_where_they_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "cores", lambda: 4)
    assert workers.workers_for(10, workers.WORTH) == 4
    assert workers.workers_for(3, workers.WORTH) == 3
    assert workers.workers_for(1, workers.WORTH) == 0
    assert workers.workers_for(10, workers.WORTH - 1) == 0
    monkeypatch.setattr(workers, "cores", lambda: 1)
    assert workers.workers_for(10, workers.WORTH) == 0


def test_a_worker_that_ends_without_a_word_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers.sys, "executable", "/bin/false")
    with pytest.raises(TrainingError, match="ended without a word"):
        workers.side_by_side([[{"seed": 0}]], 1, lambda message: None)
    assert runs.workers_for is workers.workers_for


@pytest.mark.parametrize(
    ("scenario", "method", "changes", "small"),
    [
        ("split-mnist", "ibpwf", {}, True),
        ("permuted-mnist", "ibpwf", {}, False),  # two layers of 1,000 units: torch's threads pay
        ("split-mnist", "adam", {}, True),
        ("permuted-mnist", "adam", {}, False),
        ("split-mnist", "adam", {"hidden": [2000]}, False),
        ("split-cifar10", "ibpwf", {}, False),
        ("split-cifar10", "ewc", {}, False),
        ("split-mnist", "slda", {}, False),
    ],
)
def test_only_narrow_perceptrons_keep_to_one_thread(
    scenario: str, method: str, changes: dict[str, Any], small: bool
) -> None:
    assert RunConfig(scenario, method, changes=changes).is_small() is small
