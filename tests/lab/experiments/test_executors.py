"""Seeds in worker processes: the same bits as one after another, and a failure, a death or Ctrl-C is handled."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ibpwf.errors import TrainingError
from ibpwf.lab.experiments import executors
from ibpwf.lab.experiments.run import run
from ibpwf.lab.experiments.run_config import RunConfig
from ibpwf.lab.experiments.seed_training import RunCallback
from ibpwf.storage.files import read_jsonl
from ibpwf.training.callbacks import EpochEnd

CHANGES = {"epochs": 2, "finetune_epochs": 1}


def config(**changes: object) -> RunConfig:
    chosen = {"preset": "quick", "seeds": (0, 1), "changes": CHANGES, "tasks": 2, "device": "cpu", **changes}
    return RunConfig("split-digits", **chosen)


@pytest.fixture
def two_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "WORTH", 0)
    monkeypatch.setattr(executors, "cores", lambda: 2)


def files(out: Path) -> dict[str, bytes]:
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.glob("seed-*/model/*.safetensors"))}


def without_times(result: dict[str, object]) -> dict[str, object]:
    keys = ("accuracy", "task_inference", "forgetting", "parameters", "matrix", "uncertainty")
    return {key: result[key] for key in keys}


class Told(RunCallback):
    """Notes everything, and the process it was noted in."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, str]] = []
        self.steps: list[tuple[str, float]] = []
        self.processes: set[int] = set()

    def step_end(self, training: str, epochs: float, loss: float) -> None:
        self.steps.append((training, epochs))

    def epoch_end(self, training: str, epoch: EpochEnd) -> None:
        self.phases.append((training, epoch.phase))
        self.processes.add(os.getpid())

    def task_end(self, training: str, row: dict[str, Any]) -> None:
        self.phases.append((training, row["task"]))


def test_models_are_byte_identical_to_those_of_seeds_one_after_another(
    tmp_path: Path, two_workers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told()
    together = run(config(), tmp_path / "together", watch=told)
    monkeypatch.setattr(executors, "WORTH", 10**12)
    alone = run(config(), tmp_path / "alone")
    assert files(tmp_path / "together") == files(tmp_path / "alone") != {}
    assert without_times(together) == without_times(alone)
    assert told.processes == {os.getpid()}
    for name in ("seed-0", "seed-1"):
        own = [what for training, what in told.phases if training == name]
        assert own == ["elbo", "elbo", "finetune", "0/1", "elbo", "elbo", "finetune", "2/3"]
        assert any(training == name and 0 < epochs < 1 for training, epochs in told.steps)  # in the first epoch
    lines = [read_jsonl(tmp_path / each / "metrics.jsonl") for each in ("together", "alone")]
    kept = [sorted((line["training"], line["task_number"], "finished" in line) for line in part) for part in lines]
    assert kept[0] == kept[1]
    assert multiprocessing.active_children() == []


def test_a_seed_that_fails_stops_the_run_with_its_own_error(tmp_path: Path, two_workers: None) -> None:
    with pytest.raises(TrainingError, match="not a number"):
        run(config(changes={**CHANGES, "learning_rate": 1e20}), tmp_path / "run")
    assert not (tmp_path / "run" / "result.json").exists()
    assert multiprocessing.active_children() == []


class Interrupting(RunCallback):
    """As Ctrl-C after the first task."""

    def task_end(self, training: str, row: dict[str, Any]) -> None:
        raise KeyboardInterrupt


@pytest.mark.slow
def test_an_interrupted_run_ends_its_workers_and_goes_on_to_the_same_bits(
    tmp_path: Path, two_workers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(config(), tmp_path / "run", watch=Interrupting())
    assert multiprocessing.active_children() == []
    assert not (tmp_path / "run" / "result.json").exists()
    again = run(config(), tmp_path / "run", resume=True)
    monkeypatch.setattr(executors, "WORTH", 10**12)
    alone = run(config(), tmp_path / "alone")
    assert files(tmp_path / "run") == files(tmp_path / "alone")
    assert without_times(again) == without_times(alone)


def test_workers_start_only_where_they_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "cores", lambda: 4)
    assert executors.workers_for(10, executors.WORTH) == 4
    assert executors.workers_for(3, executors.WORTH) == 3
    assert executors.workers_for(1, executors.WORTH) == 0
    assert executors.workers_for(10, executors.WORTH - 1) == 0
    monkeypatch.setattr(executors, "cores", lambda: 1)
    assert executors.workers_for(10, executors.WORTH) == 0


def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def works(number: int) -> None:
    executors.tell(number)


def waits() -> None:
    executors.tell(os.getpid())
    time.sleep(600)


def one_after_another(*chains: list[executors.Job]) -> list[executors.Chain]:
    return [(job for job in chain) for chain in chains]


def test_a_worker_that_dies_is_one_error_that_says_how_to_go_on() -> None:
    with pytest.raises(TrainingError, match=r"ended without a word .*--resume goes on"):
        executors.side_by_side(one_after_another([dies], [waits]), executors.Processes(2), lambda message: None)
    assert multiprocessing.active_children() == []


def test_jobs_of_a_chain_follow_one_another_and_all_is_told() -> None:
    told: list[int] = []
    chains = [[partial(works, 10 * chain + place) for place in range(3)] for chain in range(3)]
    executors.side_by_side(one_after_another(*chains), executors.Processes(2), told.append)
    assert sorted(told) == [0, 1, 2, 10, 11, 12, 20, 21, 22]
    for chain in range(3):
        assert [number for number in told if number // 10 == chain] == [10 * chain + place for place in range(3)]


def is_gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{process}/stat").read_text().split()[2] == "Z"  # dead, nobody has asked how


def two_that_wait(numbers: str) -> None:
    def told(process: int) -> None:
        with open(numbers, "a") as file:
            file.write(f"{process}\n")

    signal.signal(signal.SIGINT, signal.default_int_handler)
    executors.side_by_side(one_after_another([waits], [waits]), executors.Processes(2), told)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_outlives_the_run_whatever_ends_it(tmp_path: Path, number: int) -> None:
    numbers = tmp_path / "numbers"
    process = multiprocessing.get_context("spawn").Process(target=two_that_wait, args=(str(numbers),))
    process.start()
    wait_for(lambda: numbers.exists() and len(numbers.read_text().split()) == 2, 120)
    assert process.pid is not None
    os.kill(process.pid, number)
    process.join(120)
    assert process.exitcode is not None
    workers = [int(word) for word in numbers.read_text().split()]
    wait_for(lambda: all(map(is_gone, workers)), 120)


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
