"""A run leaves a folder from which everything it claims can be checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ibpwf import Learner
from ibpwf.errors import InputError, StoreError
from ibpwf.lab.data.tasks import Scenario
from ibpwf.lab.experiments import run as experiments
from ibpwf.lab.experiments.run_config import RunConfig
from ibpwf.lab.experiments.run_folder import check_folder, remove_run
from ibpwf.storage.files import read_jsonl
from ibpwf.storage.folder import lock_folder, open_folder
from processes import Finished

TIMES = ("seconds", "samples_per_second", "command")
FIELDS = {
    *(
        "schema",
        "scenario",
        "method",
        "preset",
        "changes",
        "settings",
        "settings_for",
        "network",
        "note",
        "tasks",
        "order",
        "validation",
        "calibration_error",
        "novelty",
        "examples",
        "seeds",
    ),
    *("accuracy", "task_inference", "matrix", "forgetting", "backward_transfer", "forward_transfer", "uncertainty"),
    *(
        "factors",
        "parameters",
        "memory",
        "paper",
        "seconds",
        "samples_per_second",
        "environment",
        "command",
        "commit",
    ),
}
Command = Callable[..., Finished]


def result_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def without_times(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key not in TIMES}


def model_files(folder: Path) -> dict[str, bytes]:
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.glob("seed-*/model/*") if p.name != ".lock"}
    assert found
    return found


@pytest.fixture
def result(finished_run: Path) -> dict[str, Any]:
    return result_of(finished_run)


def test_the_folder_holds_what_the_documentation_lists_and_nothing_else(finished_run: Path) -> None:
    names = {str(p.relative_to(finished_run)) for p in finished_run.rglob("*") if p.is_file() and p.name != ".lock"}
    safetensors = {name for name in names if name.endswith(".safetensors")}
    events = {name for name in names if name.startswith("tensorboard/events.out.tfevents.")}
    assert len(events) == 1
    # So short a run opens factors in its first task only, so there is one block of them.
    parts = ("template", "task-0000", "task-0001", "task-0002", "factors-0000")
    assert {name.split(".")[0] for name in safetensors} == {
        f"seed-{seed}/model/{part}" for seed in (0, 1) for part in parts
    }
    rest = {"config.json", "metrics.jsonl", "result.json", "report.html"}
    rest |= {f"seed-{seed}/{name}" for seed in (0, 1) for name in ("rows.json", "model/manifest.json")}
    assert names - safetensors - events == rest


def test_the_result_has_exactly_the_documented_fields(result: dict[str, Any]) -> None:
    assert set(result) == FIELDS
    assert result["schema"] == 1
    assert (result["scenario"], result["method"], result["preset"]) == ("split-digits", "ibpwf", "quick")
    assert result["changes"] == {"alpha": 16, "epochs": 3, "finetune_epochs": 2, "batch_size": 16}
    assert result["settings"]["epochs"] == 3
    assert result["settings"]["learning_rate"] == 1e-3
    assert result["network"] == {"builder": "mlp", "hidden": [100]}
    assert result["seeds"] == [0, 1]
    assert result["tasks"] == [
        {"name": "0/1", "classes": [0, 1]},
        {"name": "2/3", "classes": [2, 3]},
        {"name": "4/5", "classes": [4, 5]},
    ]
    spreads = [*result["accuracy"].values(), result["task_inference"], result["parameters"]]
    spreads += [result[key] for key in ("forgetting", "backward_transfer", "forward_transfer")]
    for spread in spreads:
        assert set(spread) == {"mean", "std", "per_seed"}
        assert len(spread["per_seed"]) == 2
    assert set(result["accuracy"]) == {"task", "class"}
    assert set(result["seconds"]) == {"train", "eval"}
    assert set(result["paper"]) == {"task", "class", "task-inference"}
    expected = {"ibpwf", "python", "torch", "system", "machine", "cores", "threads", "device"}
    assert set(result["environment"]) == expected
    assert result["environment"]["device"] == "cpu"
    assert result["command"].startswith("ibpwf run split-digits --preset quick --tasks 3 --set alpha=16")


def test_the_accuracies_are_those_of_the_stored_models(
    finished_run: Path, result: dict[str, Any], digits: Scenario
) -> None:
    for number, entry in enumerate(result["matrix"]):
        learner = Learner.load(finished_run / f"seed-{entry['seed']}" / "model")
        given, both, found = [], [], []
        for index, task in enumerate(digits[:3]):
            answer, inferred = learner.predict(task.test.x, task=index), learner.predict(task.test.x)
            given.append(100 * float((answer.labels == task.test.y).double().mean()))
            right = inferred.task == index
            found.append(100 * float(right.double().mean()))
            both.append(100 * float((right & (inferred.labels == task.test.y)).double().mean()))
        assert entry["task"][-1] == pytest.approx(given)
        assert entry["class"][-1] == pytest.approx(both)
        assert result["accuracy"]["task"]["per_seed"][number] == pytest.approx(sum(given) / 3)
        assert result["accuracy"]["class"]["per_seed"][number] == pytest.approx(sum(both) / 3)
        assert result["task_inference"]["per_seed"][number] == pytest.approx(sum(found) / 3)


def test_the_matrix_is_lower_triangular_and_no_task_is_forgotten(result: dict[str, Any]) -> None:
    for entry in result["matrix"]:
        for key in ("task", "class"):
            empty = [[value is None for value in row] for row in entry[key]]
            assert empty == [[False, True, True], [False, False, True], [False, False, False]]
        columns = list(zip(*entry["task"], strict=True))
        assert all(len({value for value in column if value is not None}) == 1 for column in columns)
    assert result["forgetting"]["per_seed"] == [0.0, 0.0]
    assert result["backward_transfer"]["per_seed"] == [0.0, 0.0]


def test_factors_and_parameters_are_those_in_the_files(finished_run: Path, result: dict[str, Any]) -> None:
    for number, entry in enumerate(result["factors"]):
        opened = open_folder(finished_run / f"seed-{entry['seed']}" / "model")
        stored = 0
        total = {"hidden1": 0, "head": 0}
        assert len(entry["per_task"]) == 3
        for task, uses in enumerate(entry["per_task"]):
            tensors = opened.tensors(f"task-{task:04d}")
            block = opened.tensors(f"factors-{task:04d}") if f"factors-{task:04d}" in opened.files else {}
            assert set(uses) == set(total)
            for layer, use in uses.items():
                active = int(tensors[f"posterior/{layer}/selected"].sum())
                new = len(block.get(f"factors/{layer}/positions", ()))
                total[layer] += new
                assert use == {"active": active, "new": new, "reused": active - new, "total": total[layer]}
                stored += sum(block[f"factors/{layer}/{side}"].numel() for side in "ab" if new) + active
            stored += sum(tensor.numel() for name, tensor in tensors.items() if name.startswith("own/"))
        assert result["parameters"]["per_seed"][number] == stored


def test_forward_transfer_is_measured_before_a_task_is_learnt(
    finished_run: Path, result: dict[str, Any], digits: Scenario
) -> None:
    for number, seed in enumerate(result["seeds"]):
        learner = Learner.load(finished_run / f"seed-{seed}" / "model")
        leads = []
        for index in (1, 2):
            task = digits[index]
            guess = torch.tensor(task.classes)[learner.logits(task.test.x, index - 1).argmax(1)]
            leads.append(100 * float((guess == task.test.y).double().mean()) - 50)
        assert result["forward_transfer"]["per_seed"][number] == pytest.approx(sum(leads) / 2)


def test_metrics_have_a_line_per_epoch_and_per_finished_task(finished_run: Path, result: dict[str, Any]) -> None:
    lines = read_jsonl(finished_run / "metrics.jsonl")
    keys = {"task", "phase", "epoch", "epochs", "loss", "extra", "accuracy", "active", "new", "reused", "samples"}
    for seed in (0, 1):
        for task in range(3):
            mine = [line for line in lines if (line["seed"], line["task_number"]) == (seed, task)]
            *epochs, last = mine
            assert [(line["phase"], line["epoch"]) for line in epochs] == [
                *(("elbo", epoch) for epoch in (1, 2, 3)),
                *(("finetune", epoch) for epoch in (1, 2)),
            ]
            assert all(set(line) == keys | {"seed", "training", "task_number"} for line in epochs)
            assert {line["training"] for line in mine} == {f"seed-{seed}"}
            rows = json.loads((finished_run / f"seed-{seed}" / "rows.json").read_text())["rows"]
            assert last["finished"] == rows[task]
            assert rows[task]["task_accuracy"] == result["matrix"][seed]["task"][task][: task + 1]
    assert len(lines) == 2 * 3 * 6


def test_tensorboard_shows_the_same_numbers_by_task_and_epoch(finished_run: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(finished_run / "tensorboard")).Reload()
    lines = [line for line in read_jsonl(finished_run / "metrics.jsonl") if "finished" not in line]
    keys = ("loss", "penalty", "accuracy", "active", "new", "reused")
    tags = {f"seed-{seed}/{key}" for seed in (0, 1) for key in keys}
    assert set(events.Tags()["scalars"]) == tags
    for tag in tags:
        seed, key = tag.removeprefix("seed-").split("/")
        scalars = events.Scalars(tag)
        assert [scalar.step for scalar in scalars] == [
            1000 * task + epoch for task in range(3) for epoch in range(1, 6)
        ]
        written = "extra" if key == "penalty" else key
        expected = [line[written] for line in lines if line["seed"] == int(seed)]
        assert [scalar.value for scalar in scalars] == pytest.approx(expected, rel=1e-6)


def test_the_same_command_gives_the_same_result_and_the_same_model_files(
    finished_run: Path, result: dict[str, Any], run_words: tuple[str, ...], command: Command, tmp_path: Path
) -> None:
    assert command(*run_words, "--seeds", "2", "--out", "again").code == 0
    assert without_times(result_of(tmp_path / "again")) == without_times(result)
    assert model_files(tmp_path / "again") == model_files(finished_run)


def test_a_seed_alone_gives_what_it_gives_among_others(
    finished_run: Path, run_words: tuple[str, ...], command: Command, tmp_path: Path
) -> None:
    assert command(*run_words, "--seed", "1", "--out", "one").code == 0
    among = {name: content for name, content in model_files(finished_run).items() if name.startswith("seed-1/")}
    assert model_files(tmp_path / "one") == among


def test_a_folder_with_a_run_is_neither_reused_nor_replaced_unasked(
    run_words: tuple[str, ...], command: Command, tmp_path: Path
) -> None:
    words = (*run_words, "--tasks", "1", "--out", "r")
    assert command(*words).code == 0
    before = (tmp_path / "r" / "result.json").read_bytes()
    refused = command(*words)
    assert refused.code == 2
    for option in ("--out", "--resume", "--overwrite"):
        assert option in refused.err
    assert (tmp_path / "r" / "result.json").read_bytes() == before
    assert command(*words, "--overwrite", "--seed", "3").code == 0
    assert result_of(tmp_path / "r")["seeds"] == [3]
    assert not (tmp_path / "r" / "seed-0").exists()


def test_a_run_that_was_refused_at_its_first_task_is_not_in_the_way_of_the_next(
    run_words: tuple[str, ...], command: Command, tmp_path: Path
) -> None:
    words = (*run_words, "--tasks", "1", "--seed", "0", "--out", "r")
    refused = command(
        *words, "--set", "inference.features=patches", "--set", "inference.features.sizes=[32]"
    )  # of images of 8 × 8
    assert refused.code == 2
    assert sorted(path.name for path in (tmp_path / "r").iterdir()) == [".lock", "config.json"]
    assert command(*words).code == 0
    assert "patches" not in (tmp_path / "r" / "config.json").read_text()


@pytest.mark.parametrize("content", ["all of it", "{}", '{"scenario": "split-digits"}', "[]"])
def test_a_file_of_the_users_that_is_called_as_ours_is_left_alone(
    content: str, run_words: tuple[str, ...], command: Command, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(content)
    assert command(*run_words, "--out", "mine").code == 2
    assert (tmp_path / "mine" / "config.json").read_text() == content


def test_a_folder_of_the_users_is_left_alone(run_words: tuple[str, ...], command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    for extra in ((), ("--resume",), ("--overwrite",)):
        refused = command(*run_words, "--out", "mine", *extra)
        assert refused.code == 2
        assert refused.err == "error: mine is not empty and holds no run; choose another --out.\n"
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
    refused = command(*run_words, "--out", "mine/thesis.txt")
    assert (refused.code, refused.err) == (2, "error: mine/thesis.txt is a file; choose a folder as --out.\n")


def test_overwriting_removes_our_files_and_nothing_else(tmp_path: Path) -> None:
    ours = ["config.json", "result.json", "metrics.jsonl", "report.html", "tensorboard/events.out.tfevents.1.host"]
    ours += ["seed-0/rows.json", "seed-0/model/manifest.json", "seed-0/model/task-0000.0123456789ab.safetensors"]
    ours += ["seed-12/rows.json", "seed-12/model/.lock"]
    theirs = [
        "notes.txt",
        "seed-0/figure.png",
        "seed-words/rows.json",
        "tensorboard/mine.txt",
        "models/a.safetensors",
    ]
    for name in ours + theirs:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    remove_run(tmp_path)
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()) == sorted(theirs)
    assert not (tmp_path / "seed-12").exists()


def test_resuming_with_other_choices_names_the_first_that_differs(
    run_words: tuple[str, ...], command: Command, tmp_path: Path
) -> None:
    assert command(*run_words, "--tasks", "1", "--out", "r").code == 0
    other = command(*run_words, "--tasks", "1", "--set", "epochs=4", "--out", "r", "--resume")
    assert other.code == 2
    assert "epochs = 3, now epochs = 4" in other.err
    other = command(*run_words, "--tasks", "2", "--out", "r", "--resume")
    assert "tasks = 1, now tasks = 2" in other.err
    both = command(*run_words, "--out", "r", "--resume", "--overwrite")
    assert both.code == 2
    assert "--overwrite" in both.err


def test_more_seeds_may_be_added_by_resuming(
    finished_run: Path, run_words: tuple[str, ...], command: Command, tmp_path: Path
) -> None:
    assert command(*run_words, "--seed", "0", "--out", "r").code == 0
    assert command(*run_words, "--seeds", "2", "--out", "r", "--resume").code == 0
    assert without_times(result_of(tmp_path / "r")) == without_times(result_of(finished_run))
    assert model_files(tmp_path / "r") == model_files(finished_run)


def test_what_cannot_be_run_leaves_no_folder_behind(
    run_words: tuple[str, ...], command: Command, tmp_path: Path
) -> None:
    mistakes = {
        ("--tasks", "9"): "error: tasks=9: there are only 5 tasks here.",
        (
            "--set",
            'inference.features.layers=["hidden"]',
        ): "error: unknown layer of the features 'hidden'. Did you mean 'hidden1'?",
        ("--set", "kappa=1.5"): "error: kappa is 1.5; it is a probability strictly between 0 and 1.",
        ("--seed", "-1"): "error: --seed is -1",
    }
    for words, message in mistakes.items():
        refused = command(*run_words, "--out", "r", *words)
        assert refused.code == 2
        assert refused.err.startswith(message)
        assert refused.err.count("\n") == 1
        assert not (tmp_path / "r").exists()


def test_a_run_in_progress_cannot_be_overwritten(
    finished_run: Path, run_words: tuple[str, ...], command: Command
) -> None:
    before = model_files(finished_run)
    with lock_folder(finished_run):
        refused = command(*run_words, "--seeds", "2", "--out", str(finished_run), "--overwrite")
    assert refused.code == 2
    assert "is being written by another process" in refused.err
    assert model_files(finished_run) == before


def test_rows_that_are_missing_are_not_made_up(run_words: tuple[str, ...], command: Command, tmp_path: Path) -> None:
    assert command(*run_words, "--tasks", "1", "--out", "r").code == 0
    (tmp_path / "r" / "seed-0" / "rows.json").unlink()
    refused = command(*run_words, "--tasks", "1", "--out", "r", "--resume")
    assert refused.code == 2
    assert "rows.json has 0 rows for 1 learnt tasks; restore it from a copy, or start again with --overwrite" in (
        refused.err
    )


def test_a_config_is_checked_when_it_is_made() -> None:
    with pytest.raises(InputError, match=r"unknown method 'ibpfw'\. Did you mean 'ibpwf'\?"):
        RunConfig("split-digits", method="ibpfw")
    for seeds in ((), (1, 1), (0, -1)):
        with pytest.raises(InputError, match="give different whole numbers from 0"):
            RunConfig("split-digits", seeds=seeds)
    with pytest.raises(InputError, match="device is 'gpu'; give 'auto', 'cpu' or 'cuda'"):
        RunConfig("split-digits", device="gpu")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    config = RunConfig("split-digits", preset="quick", tasks=1)
    with pytest.raises(StoreError, match=r"cannot make the folder '/proc/none/r': .*Check the path"):
        experiments.run(config, Path("/proc/none/r"), command="")


def test_a_run_that_was_killed_while_it_wrote_its_first_file_begins_anew(tmp_path: Path) -> None:
    begun = tmp_path / "run"
    begun.mkdir()
    (begun / ".lock").touch()
    (begun / "config.json.tmp-0123456789abcdef").write_text('{"scen')
    config = RunConfig("split-digits", preset="quick", tasks=1, changes={"epochs": 1}, device="cpu")
    for resume in (True, False):
        check_folder(begun, config, resume=resume, overwrite=False)
    experiments.run(config, begun, resume=True)
    assert (begun / "result.json").exists()
    experiments.run(config, begun, overwrite=True)
    assert not list(begun.glob("*.tmp-*"))
    (begun / "config.json").unlink()
    with pytest.raises(InputError, match="is not empty and holds no run"):
        check_folder(begun, config, resume=True, overwrite=False)


def test_a_run_goes_on_in_the_order_and_on_the_rows_it_began_with(tmp_path: Path) -> None:
    config = RunConfig("split-digits", preset="quick", tasks=1, changes={"epochs": 1}, device="cpu", order="random")
    result = experiments.run(config, tmp_path / "run")
    assert result["order"] == "random"
    check_folder(tmp_path / "run", config, resume=True, overwrite=False)
    for changed, field in (({"order": (3, 1, 0, 2, 4, 5, 6, 7, 8, 9)}, "order"), ({"validation": 0.2}, "validation")):
        with pytest.raises(InputError, match=f"was started with {field} = "):
            check_folder(tmp_path / "run", config.replace(**changed), resume=True, overwrite=False)


@pytest.mark.parametrize("removed", range(6))
def test_a_run_half_removed_by_a_killed_overwrite_can_be_overwritten_again(
    removed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ("config.json", "result.json", "metrics.jsonl", "seed-0/rows.json", "seed-0/model/manifest.json")
    for name in (*files, "seed-0/model/a.safetensors"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    real, left = Path.unlink, [removed]

    def unlink(path: Path) -> None:
        if not left[0]:
            raise KeyboardInterrupt  # stands for the end of the process
        left[0] -= 1
        real(path)

    monkeypatch.setattr(Path, "unlink", unlink)
    config = RunConfig("split-digits", preset="quick")
    with pytest.raises(KeyboardInterrupt):
        remove_run(tmp_path)
    check_folder(tmp_path, config, resume=False, overwrite=True)
