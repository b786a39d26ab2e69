"""Comparing methods: what is run, what is not run again, what a failure does, and what the table says."""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path

import pytest

from ibpwf.errors import InputError
from ibpwf.lab.data.scenarios import scenario
from ibpwf.lab.experiments import baselines
from ibpwf.lab.experiments import compare as comparing
from ibpwf.lab.experiments.paper import Target, targets
from ibpwf.lab.experiments.run_config import RunConfig
from ibpwf.lab.experiments.seed_training import new_learner
from ibpwf.lab.methods import method_named, methods
from ibpwf.parts import parse_assignment
from ibpwf.storage.files import read_json, write_json

QUICK = {"epochs": 1, "hidden": [16], "batch_size": 64}


def config(method: str, **changes: object) -> RunConfig:
    return RunConfig("split-digits", method=method, preset="quick", changes={**QUICK, **changes}, tasks=2)


def test_every_method_of_the_papers_tables_is_there():
    named = {target.method for target in targets()} - {"vae"}
    assert named <= set(methods())


def test_an_unknown_method_is_refused_with_the_nearest_name():
    with pytest.raises(InputError, match="Did you mean 'online-ewc'"):
        method_named("online-ewcc")
    with pytest.raises(InputError, match="Did you mean 'adam'"):
        comparing.chosen_methods("sgd,adm", "split-mnist")


def test_all_means_all_and_repeated_names_count_once():
    assert comparing.chosen_methods("all", "split-mnist") == list(methods())
    assert comparing.chosen_methods("adam, sgd,adam", "split-mnist") == ["adam", "sgd"]
    with pytest.raises(InputError, match="empty"):
        comparing.chosen_methods(" , ", "split-mnist")


def test_the_command_of_a_run_survives_a_shell(tmp_path: Path):
    changes = {"augment": "none", "max_factors": {"stem": 60, "*": 80}, "inference": "gaussian"}
    asked = RunConfig("split-cifar10", changes=changes, tasks=2, examples=50)
    words = shlex.split(shlex.join(asked.command_line(tmp_path / "a folder")))
    assert words[-2:] == ["--out", str(tmp_path / "a folder")]
    assert words[words.index("--examples") + 1] == "50"
    given = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
    assert dict(parse_assignment(text) for text in given) == changes


def test_a_finished_run_is_not_run_again(tmp_path: Path):
    first = comparing.compare([config("adam")], tmp_path)
    stamp = (tmp_path / "adam" / "result.json").stat().st_mtime_ns
    again = comparing.compare([config("adam")], tmp_path)
    assert (tmp_path / "adam" / "result.json").stat().st_mtime_ns == stamp
    assert again[0].result == read_json(tmp_path / "adam" / "result.json")
    assert first[0].error is None


def test_a_run_with_other_settings_needs_another_folder(tmp_path: Path):
    comparing.compare([config("adam")], tmp_path)
    with pytest.raises(InputError, match="holds an unfinished or different run"):
        comparing.compare([config("adam", learning_rate=0.01)], tmp_path)


def test_one_failure_does_not_stop_the_others_and_is_in_the_table(tmp_path: Path):
    configs = [config("rehearsal", memory_size=100_000), config("sgd")]
    outcomes = comparing.compare(configs, tmp_path)
    assert outcomes[0].result is None
    assert "memory_size" in (outcomes[0].error or "")
    assert outcomes[1].result is not None
    table = comparing.write_tables(tmp_path, outcomes)
    assert [row["method"] for row in table] == ["rehearsal", "sgd"]
    assert "failed" in (tmp_path / "comparison.md").read_text()
    with open(tmp_path / "comparison.csv", newline="") as file:
        assert [row["method"] for row in csv.DictReader(file)] == ["rehearsal", "sgd"]
    rows = json.loads((tmp_path / "comparison.json").read_text())["rows"]
    assert rows[1]["task_mean"] == pytest.approx(outcomes[1].result["accuracy"]["task"]["mean"])


def test_a_method_may_have_settings_of_its_own_in_one_setting(monkeypatch: pytest.MonkeyPatch):
    special = {"split-mnist": {"l2": {"class": {"coefficient": 7.0}}}}
    monkeypatch.setattr(baselines, "FOUND_FOR", special)
    chosen = config("l2")
    assert chosen.settings_for() == {"class": {"coefficient": 7.0}}
    assert chosen.settings("class").to_json()["coefficient"] == 7.0
    assert chosen.settings("task").to_json() == chosen.settings().to_json()
    assert "7.0} in the class setting" in chosen.to_json()["note"]
    assert config("l2", coefficient=3.0).settings_for() == {}  # what is asked for holds in both
    stream = scenario("split-digits", tasks=2)
    learners = {setting: new_learner(chosen, 0, stream, (setting,)) for setting in ("task", "class")}
    assert learners["class"].method.settings.coefficient == 7.0
    assert learners["task"].method.settings.coefficient == chosen.settings().to_json()["coefficient"]


def test_results_made_with_other_settings_in_one_setting_are_not_taken_for_these(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    comparing.compare([config("l2")], tmp_path)
    assert comparing.finished(tmp_path / "l2", config("l2")) is not None
    monkeypatch.setattr(baselines, "FOUND_FOR", {"split-mnist": {"l2": {"class": {"coefficient": 7.0}}}})
    assert comparing.finished(tmp_path / "l2", config("l2")) is None


def test_without_models_the_results_are_the_same_and_no_model_is_stored(tmp_path: Path):
    with_models, without = config("sgd"), config("sgd").replace(models=False)
    results = [comparing.compare([c], tmp_path / str(c.models))[0].result for c in (with_models, without)]
    assert results[0]["accuracy"] == results[1]["accuracy"]
    assert list((tmp_path / "True").rglob("*.safetensors"))
    assert not list((tmp_path / "False").rglob("*.safetensors"))
    assert "--no-models" in results[1]["command"]


def test_methods_in_processes_of_their_own_give_the_same_result(tmp_path: Path):
    here = comparing.compare([config("sgd"), config("adam")], tmp_path / "here")
    apart = comparing.compare([config("sgd"), config("adam")], tmp_path / "apart", jobs=2)
    for one, other in zip(here, apart, strict=True):
        assert one.result is not None
        assert other.result is not None, other.error
        assert one.result["accuracy"] == other.result["accuracy"]


@pytest.mark.parametrize(
    ("ours", "std", "passes"),
    [
        (89.1, 0.1, True),
        (88.9, 0.1, False),
        (87.1, 1.0, True),
        (86.9, 1.0, False),
        (99.0, 0.1, True),
        (89.0, None, True),
    ],
)
def test_a_row_reproduces_within_one_point_or_three_deviations_or_better(
    ours: float, std: float | None, passes: bool
):
    paper = Target("table1", "split-mnist", "task", "adam", False, 90.0, std, "")
    assert comparing.reproduces(ours, paper) is passes


def test_the_floors_of_split_mnist_are_a_half_and_a_tenth_and_a_fifth():
    result = {"tasks": [{"classes": [2 * t, 2 * t + 1]} for t in range(5)]}
    floors = comparing.floors(result)
    assert floors["guessing"] == {"task": 50.0, "class": 10.0}
    assert floors["only the last task"] == {"task": 60.0, "class": 20.0}


def test_a_method_that_answers_one_setting_leaves_the_other_empty(tmp_path: Path):
    outcomes = comparing.compare([config("separate")], tmp_path)
    assert outcomes[0].error is None
    row = comparing.rows(outcomes)[0]
    assert row["class_mean"] is None
    assert row["task_mean"] > 50


def test_a_figure_of_fewer_tasks_is_compared_after_as_many_tasks():
    paper = next(
        t for t in targets() if t.benchmark == "permuted-mnist" and t.method == "ibnn" and t.setting == "task"
    )
    assert (paper.mean, paper.after_tasks) == (95.6, 5)
    matrix = [[96.0] * (row + 1) + [None] * (9 - row) for row in range(9)] + [[50.0] * 10]
    result = {
        "scenario": "permuted-mnist",
        "tasks": [{"classes": list(range(10))}] * 10,
        "accuracy": {"task": {"mean": 50.0, "std": None}, "class": None},
        "matrix": [{"seed": 0, "task": matrix, "class": None}],
        "paper": {"task": {"mean": 95.6, "std": 0.2}},
        "seconds": {"train": 1.0},
        "seeds": [0],
        "command": "",
        "commit": "",
        "memory": None,
    }
    outcomes = [comparing.Outcome("ibnn", result)]
    (row,) = comparing.rows(outcomes)
    assert row["task_mean"] == 50.0
    assert row["task_difference"] == pytest.approx(0.4)
    assert row["task_reproduces"] is True
    assert "95.60 ± 0.20 after 5 tasks (ours 96.00)" in comparing.markdown([row], outcomes)


def test_methods_trained_for_another_time_than_in_the_paper_are_named_by_the_settings_they_had() -> None:
    def outcome(method: str, scenario: str = "split-cifar10", **settings: int) -> comparing.Outcome:
        note = "7 epochs a task instead of the paper's 160"  # a preset's, which the run may have changed
        return comparing.Outcome(method, {"scenario": scenario, "method": method, "settings": settings, "note": note})

    short = [outcome(name, epochs=6) for name in ("ewc", "l2")]
    mine = outcome("ibpwf", epochs=40, finetune_epochs=40)
    same = outcome("si", epochs=160)
    elsewhere = outcome("ewc", "split-digits", epochs=3)
    assert comparing.lengths([*short, same, mine, elsewhere, comparing.Outcome("mas", None, "failed")]) == (
        "Trained for another time than in the paper: ewc, l2 6 epochs a task instead of the paper's 160; "
        "ibpwf 40 + 40 epochs a task instead of the paper's 160."
    )
    assert comparing.lengths([same]) == ""


def test_a_run_says_what_it_changed_of_its_preset() -> None:
    config = comparing.RunConfig("split-cifar10", preset="default", changes={"epochs": 10})
    assert config.note().startswith("40 + 40 epochs a task instead of the paper's 160")
    assert config.note().endswith("changed in this run: epochs=10")
    assert comparing.RunConfig("split-cifar10", preset="default").note() == config.chosen().note


def test_a_finished_run_of_another_network_is_not_the_one_asked_for(tmp_path: Path) -> None:
    config = RunConfig("split-digits", preset="quick")
    result = {
        "seeds": [0],
        "settings": config.settings().to_json(),
        "settings_for": {},
        "network": config.network_spec(),
    }
    write_json(tmp_path / "result.json", result)
    assert comparing.finished(tmp_path, config) == result
    write_json(tmp_path / "result.json", {**result, "network": {"builder": "mlp", "hidden": [9]}})
    assert comparing.finished(tmp_path, config) is None
