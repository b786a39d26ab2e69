"""`result.json` is computed from the rows of a run, and from nothing else."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import ibpwf
import ibpwf.lab
from ibpwf.lab.data.tasks import Scenario
from ibpwf.lab.experiments.result import commit, environment, make_result, shown_command
from ibpwf.lab.experiments.run_config import RunConfig


def row(given: list[float], inferred: list[float], before: float | None, train: float = 2.0) -> dict[str, Any]:
    return {
        "task": "t",
        "task_accuracy": given,
        "class_accuracy": inferred,
        "task_inference": [90.0] * len(given),
        "before": before,
        "factors": {"head": {"active": 3, "new": 1, "reused": 2, "total": 4}},
        "parameters": 100 * len(given),
        "memory": {"dictionary": 10 * len(given)},
        "samples": 1500,
        "seconds": {"train": train, "eval": 0.5},
    }


def result_of(*seeds: list[dict[str, Any]], stream: Scenario) -> dict[str, Any]:
    config = RunConfig("split-digits", preset="quick", seeds=tuple(range(len(seeds))), tasks=len(seeds[0]))
    records = [{"seed": seed, "answers": ["task", "class"], "rows": rows} for seed, rows in enumerate(seeds)]
    return make_result(config, stream[: len(seeds[0])], records, "ibpwf run …")


def test_numbers_over_seeds_and_tasks(digits: Scenario) -> None:
    one = [row([90.0], [80.0], None), row([85.0, 70.0], [60.0, 50.0], 40.0)]
    two = [row([100.0], [90.0], None), row([100.0, 80.0], [70.0, 60.0], 70.0)]
    found = result_of(one, two, stream=digits)
    assert found["accuracy"]["task"]["per_seed"] == [77.5, 90.0]
    assert found["accuracy"]["class"]["per_seed"] == [55.0, 65.0]
    assert found["accuracy"]["task"]["mean"] == 83.75
    assert found["accuracy"]["task"]["std"] == pytest.approx(12.5 / 2**0.5)
    assert found["forgetting"]["per_seed"] == [5.0, 0.0]
    assert found["backward_transfer"]["per_seed"] == [-5.0, 0.0]
    assert found["forward_transfer"]["per_seed"] == [-10.0, 20.0]
    assert found["matrix"][0] == {
        "seed": 0,
        "task": [[90.0, None], [85.0, 70.0]],
        "class": [[80.0, None], [60.0, 50.0]],
    }
    assert found["parameters"]["mean"] == 200
    assert found["seconds"] == {"train": 8.0, "eval": 2.0}
    assert found["samples_per_second"] == pytest.approx(4 * 1500 / 8)
    assert found["memory"] == {"dictionary": 20}


def test_a_method_trained_for_each_setting_has_one_seed_and_both_accuracies(digits: Scenario) -> None:
    given, inferred = row([90.0], [0.0], None), row([0.0], [70.0], None)
    for key in ("class_accuracy", "task_inference"):
        del given[key]
    del inferred["task_accuracy"]
    records = [
        {"seed": 4, "answers": ["task"], "rows": [given]},
        {"seed": 4, "answers": ["class"], "rows": [inferred]},
    ]
    found = make_result(RunConfig("split-digits", preset="quick", seeds=(4,), tasks=1), digits[:1], records, "")
    assert found["seeds"] == [4]
    assert found["accuracy"]["task"]["per_seed"] == [90.0]
    assert found["accuracy"]["class"]["per_seed"] == [70.0]
    assert found["matrix"] == [{"seed": 4, "task": [[90.0]], "class": [[70.0]]}]


def test_a_setting_that_a_method_does_not_answer_is_missing_and_not_zero(digits: Scenario) -> None:
    only = row([90.0], [0.0], None)
    for key in ("class_accuracy", "task_inference"):
        del only[key]
    records = [{"seed": 0, "answers": ["task"], "rows": [only]}]
    found = make_result(RunConfig("split-digits", preset="quick", tasks=1), digits[:1], records, "")
    assert found["accuracy"]["class"] is None
    assert found["task_inference"] is None
    assert found["matrix"][0]["class"] is None


def test_the_papers_numbers_belong_to_the_whole_scenario_only() -> None:
    stream = ibpwf.lab.scenario("split-digits")
    records = [{"seed": 0, "answers": ["task", "class"], "rows": [row([90.0], [80.0], None)]}]
    whole = make_result(RunConfig("split-mnist"), stream[:1], records, "")
    part = make_result(RunConfig("split-mnist", tasks=1), stream[:1], records, "")
    other = make_result(RunConfig("split-mnist", network={"builder": "vit_tiny"}), stream[:1], records, "")
    assert set(other["paper"].values()) == {None}
    assert whole["paper"]["task-inference"] == {"mean": 92.63, "std": 0.12}
    assert part["paper"] == {"task": None, "class": None, "task-inference": None}


def test_the_environment_names_what_made_the_numbers() -> None:
    found = environment("cpu")
    assert found["ibpwf"] == ibpwf.__version__
    assert found["torch"] == torch.__version__
    assert found["device"] == "cpu"
    assert found["threads"] == torch.get_num_threads()


def test_the_commit_is_gits(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(ibpwf.__file__).resolve().parents[2]
    if not (root / ".git").exists():
        monkeypatch.setenv("IBPWF_COMMIT", "0123abcd")
        assert commit() == "0123abcd"
        return
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True)
    clean = subprocess.run(["git", "diff", "--quiet", "HEAD"], cwd=root, check=False).returncode == 0
    assert commit() == head.stdout.strip() + ("" if clean else "-dirty")


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("python a.py --out /home/me/x.json --seeds 3", "python a.py --out x.json --seeds 3"),
        ("python a.py --out=/home/me/x.json", "python a.py --out=x.json"),
        ("python a.py --keep ~/z --source=~me/tables", "python a.py --keep z --source=tables"),
        ("python a.py --set backbone=/home/me/x/net", "python a.py --set backbone=net"),
        ("/home/me/python a.py --set=backbone=/home/me=1/x/net", "python a.py --set=backbone=net"),
        ("python a.py --set --out runs/x --part 1/4 a=b/c", "python a.py --set --out runs/x --part 1/4 a=b/c"),
        ("python a.py --out / --keep ~", "python a.py --out / --keep ~"),
    ],
)
def test_a_command_is_shown_without_the_folders_of_one_machine(typed: str, shown: str) -> None:
    assert shown_command(typed) == shown
