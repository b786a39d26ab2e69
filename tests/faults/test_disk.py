"""A full or locked disk, and model folders that were damaged: said in one sentence, nothing lost."""

from __future__ import annotations

import builtins
import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ibpwf import Learner
from ibpwf.errors import IBPWFError, StoreError
from ibpwf.lab.data.tasks import Scenario
from ibpwf.lab.experiments.run import run
from ibpwf.lab.experiments.run_config import RunConfig
from ibpwf.storage.folder import open_folder, save_folder

FULL, DENIED = errno.ENOSPC, errno.EACCES
SENTENCE = {
    FULL: "the disk is full. Free some space and try again; what was saved before is untouched.",
    DENIED: "permission denied. Check who owns it and its access rights.",
}


def failing(monkeypatch: pytest.MonkeyPatch, number: int, after: int = 0) -> None:
    """Writing fails with this error, from write number `after` on; reading goes on as usual."""
    count = [0]

    def fails() -> bool:
        count[0] += 1
        return count[0] > after

    real_open, real_write = os.open, builtins.open

    def open_(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        if flags & os.O_WRONLY and fails():
            raise OSError(number, os.strerror(number), str(path))
        return real_open(path, flags, *rest, **options)

    def append(path: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        if mode.startswith("a") and fails():
            raise OSError(number, os.strerror(number), str(path))
        return real_write(path, mode, *rest, **options)

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(builtins, "open", append)


@pytest.mark.parametrize("number", [FULL, DENIED])
@pytest.mark.parametrize("after", [0, 1])
def test_a_save_that_fails_keeps_the_old_model_and_the_learner_and_works_later(
    learned: Learner, digits: Scenario, tmp_path: Path, number: int, after: int
) -> None:
    folder = tmp_path / "model"
    learned.save(folder)
    expected = learned.predict(digits[0].test.x).probabilities
    learned.learn(digits[2].train.x, digits[2].train.y, task="4/5")
    with pytest.MonkeyPatch.context() as patch:
        failing(patch, number, after)
        with pytest.raises(StoreError) as caught:
            learned.save(folder)
    assert str(caught.value).startswith(f"cannot write '{folder}/")
    assert str(caught.value).endswith(SENTENCE[number])
    old = Learner.load(folder)
    assert [task.name for task in old.tasks] == ["0/1", "2/3"]
    assert torch.equal(old.predict(digits[0].test.x).probabilities, expected)
    learned.save(folder)
    assert [task.name for task in Learner.load(folder).tasks] == ["0/1", "2/3", "4/5"]


@pytest.mark.parametrize("number", [FULL, DENIED])
def test_a_run_that_meets_a_full_or_locked_disk_can_be_resumed_afterwards(tmp_path: Path, number: int) -> None:
    changes = {"alpha": 8.0, "epochs": 1, "finetune_epochs": 1, "batch_size": 64}
    config = RunConfig("split-digits", preset="quick", tasks=2, changes=changes)
    with pytest.MonkeyPatch.context() as patch:
        failing(patch, number, after=9)  # the first task is stored, the second is not
        with pytest.raises(StoreError) as caught:
            run(config, tmp_path / "r", command="")
    assert str(caught.value).endswith(SENTENCE[number])
    assert len(Learner.load(tmp_path / "r" / "seed-0" / "model").tasks) == 1
    resumed = run(config, tmp_path / "r", command="", resume=True)
    undisturbed = run(config, tmp_path / "other", command="")
    assert resumed["matrix"] == undisturbed["matrix"]


# Damaged folders


def part(folder: Path, name: str) -> Path:
    return next(folder.glob(f"{name}.*.safetensors"))


def cut(path: Path, share: float = 0.5) -> None:
    os.truncate(path, int(path.stat().st_size * share))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(bytes(data))


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest and seal it again, as a program with a fault of its own might."""
    opened = open_folder(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    parts = {name: opened.tensors(name) for name in opened.files}
    shutil.rmtree(folder)
    save_folder(
        folder,
        kind=manifest["kind"],
        content=manifest["content"],
        files={name: tensors for name, tensors in parts.items() if name in manifest["files"]},
    )


def configuration(manifest: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = manifest["content"]["configuration"]
    return found


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    return lambda folder: rewrite(folder, change)


def of_part(name: str, harm: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda folder: harm(part(folder, name))


def renamed(folder: Path) -> None:
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"2/3"', '"2/4"'))


MANIFEST = r"manifest\.json"
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "manifest cut": (lambda f: cut(f / "manifest.json"), MANIFEST),
    "manifest empty": (lambda f: cut(f / "manifest.json", 0), MANIFEST),
    "manifest gone": (lambda f: (f / "manifest.json").unlink(), MANIFEST),
    "manifest changed": (renamed, "SHA-256"),
    "task cut": (of_part("task-0001", cut), r"task-0001\..* \d+ bytes instead of \d+"),
    "task changed": (of_part("task-0000", flip), r"task-0000\..*SHA-256"),
    "task gone": (of_part("task-0001", Path.unlink), r"task-0001\."),
    "template gone": (of_part("template", Path.unlink), r"template\."),
    "folder gone": (shutil.rmtree, "model"),
    "another kind": (edited(lambda m: m.update(kind="cake")), "'cake', not a 'ibpwf-model'"),
    "a part too few": (edited(lambda m: m["files"].pop("task-0001")), "task-0001"),
    "factors too few": (edited(lambda m: m["files"].pop("factors-0000")), "factors-0000"),
    "factors that are not there": (
        edited(lambda m: m["content"]["state"]["tasks"][0].update(factors=0)),
        "'factors-0000'",
    ),
    "a field too few": (edited(lambda m: m["content"].pop("tasks")), f"{MANIFEST}.*'tasks'"),
    "tasks that are none": (edited(lambda m: m["content"].update(tasks=[1, 2])), f"{MANIFEST}.*'tasks\\.0' is 1"),
    "settings that are none": (edited(lambda m: configuration(m)["settings"].update(kappa=7)), "kappa is 7"),
    "a layer that is none": (edited(lambda m: configuration(m).update(layers=["hidden9"])), "hidden9|model"),
    "moments of nothing": (
        edited(lambda m: m["content"]["state"]["inference"].update(absolute_ridge=None)),
        "model",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_model_folder_is_refused_with_the_file_and_a_remedy(
    learnt_folder: Path, tmp_path: Path, damage: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(learnt_folder, folder)
    harm, message = DAMAGE[damage]
    harm(folder)
    with pytest.raises(IBPWFError, match=message) as caught:
        Learner.load(folder)
    assert "\n" not in str(caught.value)


def test_a_model_of_a_newer_version_asks_for_an_upgrade(learnt_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(learnt_folder, folder)
    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(text.replace('"schema": 3', '"schema": 99'))
    with pytest.raises(StoreError, match="written by a newer ibpwf; upgrade ibpwf to read it"):
        Learner.load(folder)


def test_a_file_is_not_a_model_folder(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("")
    with pytest.raises(StoreError, match=r"part of the path is a file, not a folder\. Check the path"):
        Learner.load(tmp_path / "model")


def test_a_save_over_a_damaged_manifest_is_refused_and_elsewhere_works(learned: Learner, tmp_path: Path) -> None:
    learned.save(tmp_path / "model")
    cut(tmp_path / "model" / "manifest.json")
    with pytest.raises(StoreError, match=r"manifest\.json' is not whole JSON"):
        learned.save(tmp_path / "model")
    learned.save(tmp_path / "elsewhere")
    assert Learner.load(tmp_path / "elsewhere").tasks == learned.tasks
