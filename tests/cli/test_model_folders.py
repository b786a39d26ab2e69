"""`ibpwf verify`, `inspect` and `forget`, as a user meets them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from ibpwf import Learner, Settings
from ibpwf.lab.data.tasks import Scenario
from ibpwf.storage.inspection import inspect_model
from processes import Finished

Command = Callable[..., Finished]


@pytest.fixture
def folder(learnt_folder: Path, tmp_path: Path) -> Path:
    """A model of the tasks '0/1' and '2/3'."""
    shutil.copytree(learnt_folder, tmp_path / "model")
    return tmp_path / "model"


# verify


def test_every_corrupt_missing_and_foreign_file_is_named_and_the_code_is_1(folder: Path, command: Command) -> None:
    assert command("verify", "model").code == 0
    cut, gone = next(folder.glob("task-0000.*")), next(folder.glob("task-0001.*"))
    cut.write_bytes(cut.read_bytes()[:-3])
    gone.unlink()
    (folder / "notes.txt").write_text("mine")
    done = command("verify", "model")
    assert done.code == 1
    for name in (cut.name, gone.name, "notes.txt"):
        assert name in done.out
    found = json.loads(command("verify", "model", "--json").out)
    assert [(problem["kind"], problem["file"]) for problem in found["problems"]] == [
        ("damaged", cut.name),
        ("missing", gone.name),
    ]
    assert (found["whole"], found["foreign"]) == (False, ["notes.txt"])


def test_a_foreign_file_alone_is_no_damage(folder: Path, command: Command) -> None:
    (folder / "notes.txt").write_text("mine")
    done = command("verify", "model")
    assert done.code == 0
    assert "foreign: notes.txt" in done.out


def test_what_a_killed_save_left_is_named_and_the_code_is_1_until_a_command_takes_the_lock(
    folder: Path, command: Command
) -> None:
    left = folder / "task-0000.safetensors.tmp-0123456789abcdef"
    left.write_bytes(b"x")
    done = command("verify", "model")
    assert done.code == 1
    assert f"leftover: {left.name}: " in done.out
    found = json.loads(command("verify", "model", "--json").out)
    assert (found["whole"], found["leftovers"], found["foreign"]) == (True, [left.name], [])
    assert command("forget", "model", "no such task").code == 2
    assert not left.exists()
    assert command("verify", "model").code == 0


def test_a_broken_manifest_is_damage_and_no_folder_at_all_is_an_error(folder: Path, command: Command) -> None:
    (folder / "manifest.json").write_text("{")
    assert command("verify", "model").code == 1
    assert command("verify", "model/manifest.json").code == 2
    missing = command("verify", "none")
    assert missing.code == 2
    assert "'none'" in missing.err


# inspect


def test_the_model_of_a_run_shows_the_accuracies_that_the_run_measured(finished_run: Path, command: Command) -> None:
    rows = json.loads((finished_run / "seed-0" / "rows.json").read_text())["rows"]
    tasks = json.loads(command("inspect", str(finished_run / "seed-0" / "model"), "--json").out)["tasks"]
    assert [task["accuracy"] for task in tasks] == [row["task_accuracy"][-1] for row in rows]


def test_inspect_shows_tasks_factors_bytes_and_history(folder: Path, command: Command) -> None:
    done = command("inspect", "model", COLUMNS="100")
    assert done.code == 0, done.err
    for words in ("2 tasks", "0/1", "2, 3", "hidden1: ", " reused, ", "█", "task 2 '2/3' (ibpwf 0.1.0)"):
        assert words in done.out


def test_the_json_says_what_the_learner_says(folder: Path, learned: Learner, command: Command) -> None:
    learned = Learner.load(folder)
    learned.note_accuracy("2/3", 97.25)
    learned.save(folder, extra={"names": ["a"]})
    told: dict[str, Any] = json.loads(command("inspect", "model", "--json").out)
    assert told == inspect_model(folder).to_json() | {"path": "model"}
    assert [(task["name"], tuple(task["classes"]), task["examples"]) for task in told["tasks"]] == [
        (task.name, task.classes, task.examples) for task in learned.tasks
    ]
    assert [task["accuracy"] for task in told["tasks"]] == [None, 97.25]
    assert [task["factors"] for task in told["tasks"]] == [learned.method.use(number) for number in range(2)]
    assert told["layers"] == {name: dictionary.locked for name, dictionary in learned.model.layers.items()}
    assert told["bytes"] == sum(path.stat().st_size for path in folder.iterdir())
    assert told["extra"] == {"names": ["a"]}
    assert told["in_progress"] is None


def test_inspect_says_that_a_base_is_needed_and_which(tmp_path: Path, command: Command, folder: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    learner = Learner(net, Settings(base="frozen", epochs=1, finetune_epochs=0), device="cpu")
    learner.learn(torch.randn(16, 4), torch.arange(16) % 2)
    learner.save(tmp_path / "beside")
    told = json.loads(command("inspect", "beside", "--json").out)["base"]
    assert len(told) == 64
    assert told[:12] in command("inspect", "beside", COLUMNS="200").out
    assert json.loads(command("inspect", "model", "--json").out)["base"] is None


def test_every_stored_number_is_counted_feature_statistics_too(folder: Path, command: Command) -> None:
    learner = Learner.load(folder)
    stored = [load_file(path) for path in folder.glob("*.safetensors")]
    numbers = json.loads(command("inspect", "model", "--json").out)["numbers"]
    assert sum(numbers.values()) == sum(tensor.numel() for tensors in stored for tensor in tensors.values())
    width = learner.method.inference.groups[0].mean.numel()  # one Gaussian a task
    assert numbers["feature statistics"] == 2 * (width + width**2)
    layers = learner.model.layers.values()
    assert numbers["factors"] == sum(d.locked * (d.inputs + d.outputs + 1) for d in layers)  # 1: its position
    assert numbers["network"] == sum(tensor.numel() for tensor in learner.model.net.state_dict().values())
    assert list(numbers) == ["factors", "task vectors", "own parameters", "feature statistics", "network"]
    assert f"\n{sum(numbers.values()):,} numbers stored: factors " in command("inspect", "model").out


def test_folders_with_a_forgotten_task_and_other_methods_can_be_inspected(
    folder: Path, tmp_path: Path, digits: Scenario
) -> None:
    learner = Learner.load(folder)
    learner.learn(digits[2].train.x, digits[2].train.y, task="4/5")
    learner.forget("0/1")
    learner.save(folder)
    report = inspect_model(folder)
    uses = [{layer: vars(use) for layer, use in task.factors.items()} for task in report.tasks]
    assert uses == [learner.method.use(number) for number in range(2)]
    assert report.layers == {name: dictionary.locked for name, dictionary in learner.model.layers.items()}
    from ibpwf.lab.methods import method_named
    from ibpwf.lab.methods.dense import Problem

    other = Learner(method_named("sgd")(Problem((64,), 10, "task")))  # type: ignore[call-arg]
    other.learn(digits[0].train.x[:64], digits[0].train.y[:64], task="0/1")
    other.save(tmp_path / "other")
    assert [task.name for task in inspect_model(tmp_path / "other").tasks] == ["0/1"]


# forget


def test_forget_removes_the_task_and_says_what_was_removed(
    folder: Path, learned: Learner, digits: Scenario, command: Command
) -> None:
    expected = learned.logits(digits[1].test.x, "2/3")
    done = command("forget", "model", "0/1")
    assert done.code == 0, done.err
    for named in ("'0/1'", "hidden1: ", ": 2/3."):
        assert named in done.out
    left = Learner.load(folder)
    assert [task.name for task in left.tasks] == ["2/3"]
    assert torch.equal(left.logits(digits[1].test.x, "2/3"), expected)
    assert command("verify", "model").code == 0
    assert "forgot task 1" in command("inspect", "model").out


def test_forgetting_an_unknown_task_suggests_the_nearest_and_changes_nothing(folder: Path, command: Command) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    done = command("forget", "model", "0-1")
    assert (done.code, done.out) == (2, "")
    assert "'0/1'" in done.err
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert command("forget", "none", "0/1").code == 2
    assert not (folder.parent / "none").exists()


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        return out


def test_a_network_of_ones_own_class_is_verified_and_inspected_and_forgotten_in_python(
    tmp_path: Path, command: Command
) -> None:
    learner = Learner(Own(), Settings(epochs=1, finetune_epochs=0), device="cpu")
    learner.learn(torch.randn(8, 4), torch.arange(8) % 2, task="a")
    learner.save(tmp_path / "model")
    assert command("verify", "model").code == 0
    assert command("inspect", "model").code == 0
    done = command("forget", "model", "a")
    assert done.code == 2
    assert "net=MyNet()" in done.err
