"""A run that is killed, wherever that happens, and then resumed ends as if nothing had happened."""

from __future__ import annotations

import json
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ibpwf import Learner
from ibpwf.lab.experiments.run import run
from ibpwf.lab.experiments.run_config import RunConfig
from ibpwf.lab.experiments.seed_training import RunCallback
from ibpwf.storage import files
from ibpwf.storage.directory import Directory
from ibpwf.storage.files import read_jsonl
from ibpwf.storage.folder import MANIFEST
from processes import Finished, Started

TIMES = ("seconds", "samples_per_second", "command")


def without_times(value: Any) -> Any:
    """A result, a row or a line of metrics without what a clock has measured."""
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if key not in TIMES}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def outcome(folder: Path) -> dict[str, Any]:
    """All that a run leaves, but for times: the result, the metrics, the rows, and the model files' bytes."""
    models = {str(p.relative_to(folder)): p.read_bytes() for p in folder.glob("seed-*/model/*") if p.name != ".lock"}
    assert models
    return {
        "result": without_times(json.loads((folder / "result.json").read_text())),
        "metrics": sorted(json.dumps(without_times(line)) for line in read_jsonl(folder / "metrics.jsonl")),
        "rows": [without_times(json.loads(p.read_text())) for p in sorted(folder.glob("seed-*/rows.json"))],
        **models,
    }


@pytest.mark.parametrize("chance", [1, 2, 3])
def test_a_run_killed_at_random_moments_and_resumed_ends_like_one_that_was_not(
    chance: int,
    finished_run: Path,
    run_words: tuple[str, ...],
    started: Callable[..., Started],
    tmp_path: Path,
) -> None:
    rng = random.Random(chance)
    words = (*run_words, "--seeds", "2", "--out", "r")
    metrics = tmp_path / "r" / "metrics.jsonl"

    def written() -> int:
        return metrics.stat().st_size if metrics.exists() else 0

    kills = 0
    while kills < 4:
        process = started(*words, *(["--resume"] if kills else []))
        goal = written() + rng.randrange(1, 2500)
        if not process.wait_until(lambda goal=goal: written() >= goal):  # type: ignore[misc]
            break
        process.send(signal.SIGKILL)
        assert process.finish().code == -signal.SIGKILL
        kills += 1
    assert kills >= 2
    last = started(*words, "--resume").finish()
    assert last.code == 0, last.err
    assert outcome(tmp_path / "r") == outcome(finished_run)


class Killed(BaseException):
    """Stands for the end of the process at one write; from then on nothing reaches the disk."""


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Counts what a run writes; write number `at` and all later ones do not happen."""
    state = {"count": 0, "at": 10**9}

    def counted(real: Any) -> Any:
        def call(*args: Any) -> Any:
            state["count"] += 1
            if state["count"] >= state["at"]:
                raise Killed
            return real(*args)

        return call

    monkeypatch.setattr(Directory, "stage", counted(Directory.stage))
    for name in ("write_bytes", "append_jsonl"):
        real = getattr(files, name)
        wrapped = counted(real)
        for module in [*sys.modules.values()]:  # each that imports the function has its own name for it
            if module.__name__.startswith("ibpwf.") and getattr(module, name, None) is real:
                monkeypatch.setattr(module, name, wrapped)
    return state


def test_whichever_write_is_the_last_the_run_can_be_resumed(tmp_path: Path, writes: dict[str, int]) -> None:
    changes = {"alpha": 8.0, "epochs": 1, "finetune_epochs": 0, "batch_size": 64}
    config = RunConfig("split-digits", preset="quick", tasks=2, changes=changes)
    run(config, tmp_path / "whole", command="")
    expected = outcome(tmp_path / "whole")
    total = writes["count"]
    assert total > 10
    for at in range(2, total + 1):  # the first write is config.json; without it there is nothing to resume
        folder = tmp_path / f"killed-{at}"
        writes.update(count=0, at=at)
        with pytest.raises(Killed):
            run(config, folder, command="")
        writes["at"] = 10**9
        model = folder / "seed-0" / "model"
        done = [task.name for task in Learner.load(model).tasks] if (model / MANIFEST).exists() else []
        learnt_now = []
        watch = RunCallback()
        watch.task_end = lambda training, row, names=learnt_now: names.append(row["task"])  # type: ignore[misc]
        run(config, folder, resume=True, watch=watch)
        assert done + learnt_now == ["0/1", "2/3"]  # what was finished is not learnt again
        assert outcome(folder) == expected


def test_ctrl_c_ends_with_one_line_and_code_130_and_the_run_can_be_resumed(
    finished_run: Path,
    run_words: tuple[str, ...],
    started: Callable[..., Started],
    command: Callable[..., Finished],
    tmp_path: Path,
) -> None:
    process = started(*run_words, "--seeds", "2", "--out", "r")
    assert process.wait_until((tmp_path / "r" / "seed-1" / "model" / "manifest.json").exists)
    process.send(signal.SIGINT)
    ended = process.finish()
    assert ended.code == 130
    assert "--resume" in ended.err
    resumed = command(*run_words, "--seeds", "2", "--out", "r", "--resume")
    assert resumed.code == 0
    learnt_now = [line.split()[:2] for line in resumed.out.splitlines() if line.startswith(("0 ", "1 "))]
    assert learnt_now[-2:] == [["0", "4/5"], ["1", "4/5"]]
    assert ["0", "0/1"] not in learnt_now
    assert outcome(tmp_path / "r") == outcome(finished_run)


def test_ctrl_c_in_a_run_that_overwrites_does_not_advise_to_overwrite_again(
    run_words: tuple[str, ...], started: Callable[..., Started], tmp_path: Path
) -> None:
    process = started(*run_words, "--overwrite", "--out", "r")
    assert process.wait_until((tmp_path / "r" / "metrics.jsonl").exists)
    process.send(signal.SIGINT)
    ended = process.finish()
    assert ended.code == 130
    assert "--resume instead of --overwrite" in ended.err
