"""The model folder: what a save costs, what a caller may keep in it, and folders that were written once."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import ibpwf
from ibpwf import ContinualClassifier, Learner, Settings
from ibpwf.errors import StoreError
from ibpwf.lab.data.tasks import Scenario
from ibpwf.storage import files
from ibpwf.storage import folder as folder_module
from ibpwf.storage.checkpoint_folder import IN_PROGRESS
from ibpwf.storage.directory import Directory
from ibpwf.storage.folder import verify_folder
from ibpwf.storage.model_folder import verify_model

FOLDERS = Path(__file__).parent / "model-folders"
LEARNERS = ("convolution-head-per-task", "first-task-forgotten", "mlp-shared-head")
QUICK = Settings(epochs=1, finetune_epochs=0, alpha=2.0, batch_size=16, learning_rate=0.05, kappa=0.3)


def small_task(number: int) -> tuple[Tensor, Tensor]:
    """32 examples of two classes, elsewhere for every number."""
    generator = torch.Generator().manual_seed(number)
    y = torch.arange(32) % 2
    return torch.randn(32, 6, generator=generator) + 3 * torch.randn(2, 6, generator=generator)[y], y


def small_learner() -> Learner:
    torch.manual_seed(0)
    return Learner(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)), QUICK, seed=1, device="cpu")


# Stored folders


@pytest.mark.parametrize("name", LEARNERS)
def test_a_stored_folder_answers_as_when_it_was_written(name: str) -> None:
    """The stored tensors come back bit for bit (their digests are checked); what is calculated from them may differ
    in the last digits from one processor to another, so answers are compared to 1e-5."""
    stored = load_file(FOLDERS / name / "answers.safetensors")
    learner = Learner.load(FOLDERS / name, device="cpu")

    def close(mine: Tensor, theirs: Tensor) -> None:
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)

    for number in range(len(learner.tasks)):
        close(learner.logits(stored["x"], number), stored[f"logits/{number}"])
    predicted = learner.predict(stored["x"])
    assert torch.equal(predicted.labels, stored["labels"])
    close(predicted.probabilities, stored["probabilities"])
    close(predicted.task_probabilities, stored["task_probabilities"])
    close(learner.predict(stored["x"], task=1, posterior_samples=5, seed=1).probabilities, stored["drawn"])


def test_a_stored_classifier_is_one_again_and_answers_as_when_it_was_written(tmp_path: Path) -> None:
    folder = FOLDERS / "classifier"
    stored = {name: tensor.numpy() for name, tensor in load_file(folder / "answers.safetensors").items()}
    shutil.copytree(folder, tmp_path / "model")
    loaded = ibpwf.load(tmp_path / "model", device="cpu")
    loaded.save(tmp_path / "model")
    for classifier in (loaded, ibpwf.load(tmp_path / "model", device="cpu")):
        assert type(classifier) is ContinualClassifier
        assert classifier.tasks_ == ["species", "length"]
        assert classifier.extra_ == {"written by": "a classifier"}
        np.testing.assert_array_equal(classifier.predict(stored["x"]), stored["labels"])
        np.testing.assert_allclose(classifier.predict_proba(stored["x"]), stored["probabilities"], atol=1e-6)
        np.testing.assert_allclose(classifier.novelty(stored["x"]), stored["novelty"], rtol=1e-5)


@pytest.mark.parametrize("name", LEARNERS)
def test_a_stored_folder_can_be_learned_into(name: str, tmp_path: Path) -> None:
    shutil.copytree(FOLDERS / name, tmp_path / "model")
    stored = load_file(tmp_path / "model" / "answers.safetensors")
    learner = Learner.load(tmp_path / "model", device="cpu")
    answers = [learner.logits(stored["x"], number) for number in range(len(learner.tasks))]
    x, y = stored["x"], torch.arange(len(stored["x"])) % 2
    learner.learn(x, y, task="another")
    learner.save(tmp_path / "model")
    assert verify_folder(tmp_path / "model") == []
    assert (tmp_path / "model" / "answers.safetensors").exists()  # not ours to remove
    again = Learner.load(tmp_path / "model", device="cpu")
    assert [task.name for task in again.tasks][-1] == "another"
    for number, expected in enumerate(answers):
        assert torch.equal(again.logits(stored["x"], number), expected)


# What a save costs


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """What reaches the disk and what is encoded for it: file names and sizes, part names."""
    seen: dict[str, list[Any]] = {"written": [], "encoded": [], "read": []}
    stage, encode, read = Directory.stage, files.encode_tensors, Directory.read

    def staged(folder: Directory, name: str, data: bytes) -> str:
        seen["written"].append((name, len(data)))
        return stage(folder, name, data)

    def encode_tensors(tensors: Any, where: str) -> bytes:
        seen["encoded"].append(where)
        return encode(tensors, where)

    def read_file(folder: Directory, name: str) -> bytes:
        seen["read"].append(name)
        return read(folder, name)

    monkeypatch.setattr(Directory, "stage", staged)
    monkeypatch.setattr(Directory, "read", read_file)
    monkeypatch.setattr(folder_module, "encode_tensors", encode_tensors)
    return seen


@pytest.mark.parametrize("loaded_every_time", [False, True])
def test_fifty_tasks_each_write_their_own_files_and_what_they_write_does_not_grow_with_the_model(
    loaded_every_time: bool, tmp_path: Path, disk: dict[str, list[Any]]
) -> None:
    learner = small_learner()
    folder = tmp_path / "model"
    learner.save(folder)
    manifests = []
    for number in range(50):
        if loaded_every_time:
            learner = Learner.load(folder, device="cpu")
        learner.learn(*small_task(number))
        for seen in disk.values():
            seen.clear()
        learner.save(folder)
        use = learner.model.use(number).values()
        mine = {f"task-{number:04d}", *([f"factors-{number:04d}"] if sum(u.new for u in use) else [])}
        assert set(disk["encoded"]) == mine  # nothing older is encoded, hashed or read, let alone written
        assert set(disk["read"]) == {"manifest.json"}
        sizes = {name.split(".")[0]: size for name, size in disk["written"]}
        assert sizes.keys() == mine | {"manifest"}
        manifests.append(sizes.pop("manifest"))
        # New factors with their positions, the task's vectors (r, logit, c, d, selection), its biases and moments,
        # and safetensors' header.
        layers = learner.model.layers
        new = sum(
            use.new * (4 * (layers[n].inputs + layers[n].outputs) + 8) for n, use in learner.model.use(number).items()
        )
        vectors = sum(17 * dictionary.width for dictionary in layers.values())
        own = 4 * (8 + 2) + 8 * (8 + 64)
        assert sum(sizes.values()) <= new + vectors + own + 2600
    grown = [later - earlier for earlier, later in itertools.pairwise(manifests)]
    assert max(grown) < 1200  # the manifest grows by one task's lines, whatever came before
    assert Learner.load(folder).tasks == learner.tasks


def test_a_part_that_was_lost_is_put_back_although_it_is_unchanged(tmp_path: Path) -> None:
    learner = small_learner()
    learner.learn(*small_task(0))
    learner.save(tmp_path / "model")
    lost = next((tmp_path / "model").glob("task-0000.*"))
    lost.unlink()
    cut = next((tmp_path / "model").glob("template.*"))
    cut.write_bytes(cut.read_bytes()[:-1])
    learner.save(tmp_path / "model")
    assert verify_folder(tmp_path / "model") == []


def test_a_learner_saved_to_two_folders_writes_both_whole(tmp_path: Path) -> None:
    learner = small_learner()
    for number in range(2):
        learner.learn(*small_task(number))
        learner.save(tmp_path / "a")
        learner.save(tmp_path / "b")
    for name in "ab":
        assert verify_folder(tmp_path / name) == []
        assert Learner.load(tmp_path / name).tasks == learner.tasks


# What others keep in it


def test_what_a_caller_keeps_beside_the_model_comes_back_and_stays(tmp_path: Path) -> None:
    learner = small_learner()
    assert learner.extra == {}
    extra = {"classes": ["cat", "Hündin"], "scale": [0.5, None], "nested": {"deep": True}}
    learner.save(tmp_path / "model", extra=extra)
    assert learner.extra == extra
    loaded = ibpwf.load(tmp_path / "model")
    assert loaded.extra == extra
    loaded.learn(*small_task(0))
    loaded.save(tmp_path / "model")
    assert ibpwf.load(tmp_path / "model").extra == extra
    loaded.save(tmp_path / "model", extra={})
    assert ibpwf.load(tmp_path / "model").extra == {}


def test_what_json_cannot_hold_is_refused_by_name_and_nothing_is_written(tmp_path: Path) -> None:
    learner = small_learner()
    learner.save(tmp_path / "model", extra={"a": 1})
    with pytest.raises(StoreError, match=r"content\.extra\.mean is a Tensor, which JSON cannot hold"):
        learner.save(tmp_path / "model", extra={"mean": torch.ones(2)})
    assert learner.extra == ibpwf.load(tmp_path / "model").extra == {"a": 1}


def test_an_accuracy_is_kept_with_its_task(tmp_path: Path, digits: Scenario) -> None:
    learner = small_learner()
    learner.learn(*small_task(0), task="first")
    learner.note_accuracy("first", 98.5)
    learner.save(tmp_path / "model")
    assert Learner.load(tmp_path / "model").tasks[0].accuracy == 98.5
    with pytest.raises(ValueError, match="accuracy is 101; give per cent"):
        learner.note_accuracy(0, 101)


# Others who write


def test_a_save_over_what_another_has_saved_meanwhile_is_refused(tmp_path: Path) -> None:
    small_learner().save(tmp_path / "model")
    one, other = (Learner.load(tmp_path / "model") for _ in range(2))
    one.learn(*small_task(0), task="one")
    one.save(tmp_path / "model")
    other.learn(*small_task(1), task="other")
    before = (tmp_path / "model" / "manifest.json").read_bytes()
    with pytest.raises(StoreError, match=r"was saved by another process since .* save to another folder"):
        other.save(tmp_path / "model")
    assert (tmp_path / "model" / "manifest.json").read_bytes() == before
    other.save(tmp_path / "elsewhere")
    one.save(tmp_path / "model")
    assert [task.name for task in Learner.load(tmp_path / "model").tasks] == ["one"]


@pytest.mark.parametrize("tasks", [0, 1])
def test_a_model_that_a_learner_has_never_read_is_not_saved_over_unless_asked(tmp_path: Path, tasks: int) -> None:
    folder = tmp_path / "model"
    mine = small_learner()
    for number in range(tasks):
        mine.learn(*small_task(number), task=f"mine {number}")
    mine.save(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    other = small_learner()
    other.learn(*small_task(5), task="other")
    with pytest.raises(StoreError, match=r"holds a model that this learner was not loaded from.* overwrite=True"):
        other.save(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    other.save(folder, overwrite=True)
    assert [task.name for task in Learner.load(folder).tasks] == ["other"]
    assert (verify_model(folder).problems, verify_model(folder).foreign) == ([], [])
    other.learn(*small_task(6), task="more")
    other.save(folder)  # its own now
    with pytest.raises(StoreError, match="was saved by another process"):
        mine.save(folder)


def test_a_folder_that_was_moved_is_still_the_learners_own(tmp_path: Path) -> None:
    learner = small_learner()
    learner.save(tmp_path / "model")
    (tmp_path / "model").rename(tmp_path / "moved")
    learner.learn(*small_task(0))
    learner.save(tmp_path / "moved")
    assert len(Learner.load(tmp_path / "moved").tasks) == 1


def test_after_an_older_manifest_was_restored_the_newer_tasks_files_stay(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    learner = small_learner()
    learner.learn(*small_task(0), task="first")
    learner.save(folder)
    old = (folder / "manifest.json").read_bytes()
    learner.learn(*small_task(1), task="second")
    learner.save(folder)
    newer = {path.name for path in folder.glob("*-0001.*")}
    (folder / "manifest.json").write_bytes(old)
    back = Learner.load(folder)
    back.forget("first")
    back.save(folder)
    assert newer <= {path.name for path in folder.iterdir()}
    assert set(verify_model(folder).foreign) == newer


def test_verify_names_what_does_not_belong(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    small_learner().save(folder)
    (folder / "notes.txt").write_text("mine")
    (folder / "link").symlink_to(tmp_path)
    (folder / IN_PROGRESS).mkdir()
    (folder / IN_PROGRESS / "letter.txt").write_text("mine")
    checked = verify_model(folder)
    assert (checked.problems, checked.foreign) == ([], ["link", "notes.txt", f"{IN_PROGRESS}/letter.txt"])
    shutil.rmtree(folder / IN_PROGRESS)
    (folder / IN_PROGRESS).symlink_to(tmp_path)
    assert [problem.file for problem in verify_model(folder).problems] == [IN_PROGRESS]


def test_the_manifest_says_what_happened(tmp_path: Path) -> None:
    learner = small_learner()
    for number in range(3):
        learner.learn(*small_task(number))
    learner.forget(1)
    learner.save(tmp_path / "model")
    content = json.loads((tmp_path / "model" / "manifest.json").read_text())["content"]
    assert [(line["event"], line["serial"]) for line in content["history"]] == [
        *(("learnt", number) for number in range(3)),
        ("forgot", 1),
    ]
