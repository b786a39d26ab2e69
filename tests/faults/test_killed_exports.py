"""An export that is killed over an older one of another task leaves the old files, the new files, or a mixture that
predict.py names."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

import ibpwf
from ibpwf import ContinualClassifier, Learner, Settings, models
from ibpwf.exporting import writing
from ibpwf.exporting.writing import SCRIPT, script
from ibpwf.storage import whole_folder
from ibpwf.storage.leftovers import hold
from ibpwf.storage.model_folder import verify_model
from killed_writes import run_until
from peft_networks import taught

FILES, FOLDERS = ("onnx", "pt2", "safetensors"), ("peft", "mlflow")
Export = Callable[[str, Path], object]


def a_learner() -> Learner:
    torch.manual_seed(0)
    learner = Learner(models.mlp(4, [6], 2), Settings(alpha=3.0, epochs=1, finetune_epochs=0), device="cpu")
    for name in ("old", "new"):
        learner.learn(torch.randn(16, 4), torch.arange(16) % 2, task=name)
    return learner


def a_classifier(task: str) -> ContinualClassifier:
    made = ContinualClassifier(hidden=(6,), epochs=1, settings={"inference.features.width": 8}, device="cpu")
    x = np.random.default_rng(0).normal(size=(16, 4))
    return made.learn(x, np.array([f"{task} a", f"{task} b"] * 8), task=task)


@pytest.fixture
def export(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Export]:
    """For a format, the function that exports `old` or `new` over whatever lies at a path. Graphs are traced once:
    what is killed are the calls to the disk."""

    def chosen(to: str) -> Export:
        if to == "mlflow":
            made = {task: a_classifier(task) for task in ("old", "new")}
            return lambda task, path: ibpwf.export(made[task], None, "mlflow", path, overwrite=True)
        if to == "peft":
            adapted, number = taught("mlp"), {"old": 0, "new": 1}
            return lambda task, path: ibpwf.export(adapted, number[task], "peft", path, overwrite=True)
        learner, traced = a_learner(), {}
        for name in ("as_onnx", "as_pt2"):
            real = getattr(writing, name)

            def once(graph: Any, x: Any, about: Any, *more: Any, real: Any = real) -> Any:
                if about["task"] not in traced:
                    traced[about["task"]] = real(graph, x, about, *more)
                return traced[about["task"]]

            monkeypatch.setattr(writing, name, once)
        return lambda task, path: ibpwf.export(learner, task, to, path, overwrite=True)  # type: ignore[arg-type]

    return chosen


def contents(path: Path) -> dict[str, bytes]:
    return {str(one.relative_to(path)): one.read_bytes() for one in path.rglob("*") if one.is_file()}


def checked_by_script(folder: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, SCRIPT, "m.safetensors"]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)


def whole_mlflow(folder: Path, names: set[str]) -> bool:
    """Every save has an id and a time of its own, so bytes cannot be compared."""
    record = json.loads((folder / "MLmodel").read_text())
    tasks = [task.name for task in ContinualClassifier.load(folder / "model").learner_.tasks]
    found = {name for name in contents(folder) if not name.endswith(".safetensors")} - {"model/.lock"}
    return (
        found == names
        and bool(record["signature"])
        and not verify_model(folder / "model").problems
        and tasks
        in (
            ["old"],
            ["new"],
        )
    )


@pytest.mark.parametrize(
    ("to", "step"),
    [
        *(("pt2", 3), ("safetensors", 3), ("peft", 7), ("mlflow", 30)),
        *(pytest.param(to, 1, marks=pytest.mark.faults) for to in (*FILES, *FOLDERS)),
    ],
)
def test_an_export_killed_at_any_call_to_the_disk_is_old_or_new_or_named_as_mixed(
    export: Callable[[str], Export], to: str, step: int, tmp_path: Path, tally: Callable[..., None]
) -> None:
    if to == "onnx":
        pytest.importorskip("onnxscript")
    work = export(to)
    place = tmp_path / "exported"
    target = place if to in FOLDERS else place / f"m.{to}"
    allowed, begun = {}, tmp_path / "begun"
    for task in ("new", "old"):
        shutil.rmtree(place, ignore_errors=True)
        if to in FILES:
            place.mkdir()
        work(task, target)
        allowed[task] = contents(place)
    assert allowed["old"] != allowed["new"]
    names = {name for name in allowed["old"] if not name.endswith(".safetensors")} - {"model/.lock"}
    shutil.copytree(place, begun)
    code, events = run_until(lambda: work("new", target), 0)
    assert (code, events > 8) == (0, True)
    lost = mixed = unnamed = misled = 0
    kills = range(1, events + 1, step)
    for at in kills:
        shutil.rmtree(place)
        shutil.copytree(begun, place)
        assert run_until(lambda: work("new", target), at)[0] == -9
        for left in tmp_path.glob("*.tmp-*"):
            shutil.rmtree(left)
        if to == "mlflow":
            lost += not whole_mlflow(place, names)
            continue
        now = {name: data for name, data in contents(place).items() if ".tmp-" not in name}
        if to in FOLDERS:
            lost += now not in allowed.values()
            continue
        lost += (
            now[f"m.{to}"] not in [one[f"m.{to}"] for one in allowed.values()]
            or now.get(SCRIPT, script()) != script()
        )
        if to == "safetensors":
            mixture = now not in allowed.values()
            said = checked_by_script(place)
            mixed += mixture
            unnamed += mixture and (said.returncode != 1 or "m.json" not in said.stderr or "\n" in said.stderr[:-1])
            unnamed += not mixture and said.returncode != 0
            with safe_open(target, "pt") as opened:  # the file alone always knows its own task
                task = json.loads(opened.metadata()["ibpwf"])["task"]
            misled += now[target.name] != allowed[task][target.name]
    if to == "safetensors" and step == 1:
        assert mixed > 0
    tally("kills of an export", len(kills), lost=lost, unnamed=unnamed, misled=misled)


@pytest.mark.parametrize("to", ["safetensors", "peft"])
def test_the_next_export_removes_what_killed_ones_left_and_nothing_else(
    export: Callable[[str], Export], to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, target = export(to), tmp_path / f"m.{to}"
    work("old", target)
    clean = sorted(path.name for path in tmp_path.iterdir())
    if to == "peft":
        monkeypatch.setattr(whole_folder, "_exchanged", lambda one, other: False)
    _, events = run_until(lambda: work("new", target), 0)
    most = 0
    for at in range(1, events + 1, events // 6):
        assert run_until(lambda: work("new", target), at)[0] == -9
        most = max(most, len(list(tmp_path.iterdir())) - len(clean))
    assert most > 0
    own = ["m.tmp-mine", f"other.{to}.tmp-0123456789abcdef", f"m.{to}.tmp-0123456789ABCDEF"]
    for name in own:
        (tmp_path / name).write_text("the user's")
    held = tmp_path / f"m.{to}.tmp-0123456789abcdef"  # another program is writing it
    with held.open("w") as file:
        hold(file.fileno())
        work("new", target)
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*clean, *own, held.name])
    work("old", target)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*clean, *own])


def test_weights_beside_notes_of_another_task_are_refused_by_predict_py(
    export: Callable[[str], Export], tmp_path: Path
) -> None:
    work = export("safetensors")
    work("old", tmp_path / "m.safetensors")
    notes = (tmp_path / "m.json").read_bytes()
    assert checked_by_script(tmp_path).returncode == 0
    work("new", tmp_path / "m.safetensors")
    assert "task new" in checked_by_script(tmp_path).stdout
    (tmp_path / "m.json").write_bytes(notes)
    said = checked_by_script(tmp_path)
    assert (said.returncode, said.stdout) == (1, "")
    assert "m.json" in said.stderr
    assert "m.safetensors" in said.stderr


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.faults)])
def test_where_the_system_cannot_swap_folders_a_kill_leaves_each_of_them_whole(
    export: Callable[[str], Export],
    step: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tally: Callable[..., None],
) -> None:
    monkeypatch.setattr(whole_folder, "_exchanged", lambda one, other: False)
    work, place = export("peft"), tmp_path / "exported"
    allowed = []
    for task in ("new", "old"):
        work(task, place)
        allowed.append(contents(place))
    new, old = allowed
    _, events = run_until(lambda: work("new", place), 0)
    kills, lost = range(1, events + 1, step), 0
    for at in kills:
        for left in tmp_path.iterdir():
            shutil.rmtree(left)
        work("old", place)
        assert run_until(lambda: work("new", place), at)[0] == -9
        there = [contents(one) for one in tmp_path.iterdir()]
        lost += contents(place) not in allowed if place.exists() else not (old in there and new in there)
    tally("kills of an export where folders cannot be swapped", len(kills), lost=lost)


def test_a_link_to_a_folder_stays_and_what_it_leads_to_is_replaced(
    export: Callable[[str], Export], tmp_path: Path
) -> None:
    work = export("peft")
    work("old", tmp_path / "v1")
    before = contents(tmp_path / "v1")
    (tmp_path / "current").symlink_to("v1")
    work("new", tmp_path / "current")
    assert (tmp_path / "current").is_symlink()
    assert contents(tmp_path / "v1") != before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["current", "v1"]
