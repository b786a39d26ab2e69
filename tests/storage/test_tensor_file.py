"""Of a folder with many parts, those are read that are asked for; what comes of it is the same to the bit."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from ibpwf import Gaussian, Learner, Settings
from ibpwf.errors import StoreError
from ibpwf.models import mlp
from ibpwf.storage import tensor_file
from ibpwf.storage.folder import OpenedFolder

X = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def taught(tasks: int = 4, **settings: object) -> Learner:
    torch.manual_seed(0)
    small = Settings(alpha=3.0, epochs=1, finetune_epochs=1, batch_size=20)
    learner = Learner(mlp(6, [8], 2), small.replace(**settings), seed=0, device="cpu")
    for task in range(tasks):
        learner.learn(X.roll(task, 1) + task, Y)
    return learner


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The parts that are read, in a folder that counts as one of many."""
    monkeypatch.setattr(tensor_file, "FEW", 0)
    seen: list[str] = []
    tensors = OpenedFolder.tensors

    def noted(self: OpenedFolder, name: str) -> dict[str, torch.Tensor]:
        seen.append(name)
        return tensors(self, name)

    monkeypatch.setattr(OpenedFolder, "tensors", noted)
    return seen


@pytest.mark.parametrize("inference", ["gaussian", Gaussian(per="class"), "shared-gaussian"])
def test_a_task_that_is_given_is_read_alone(tmp_path: Path, reads: list[str], inference: Any) -> None:
    learner = taught(inference=inference)
    learner.save(tmp_path / "model")
    late = Learner.load(tmp_path / "model", device="cpu")
    wanted = learner.predict(X, task=1)
    found = late.predict(X, task=1)
    assert torch.equal(found.probabilities, wanted.probabilities)
    assert "task-0001" in reads
    assert "task-0002" not in reads
    for asked in (None, 3):
        assert torch.equal(late.predict(X + 2, task=asked).probabilities, learner.predict(X + 2, asked).probabilities)
    assert torch.equal(late.predict(X, marginal=True).probabilities, learner.predict(X, marginal=True).probabilities)
    assert sorted(set(reads)) == sorted(reads), "nothing is read twice"


def test_learning_on_and_saving_writes_what_is_new(tmp_path: Path, reads: list[str]) -> None:
    learner = taught()
    learner.save(tmp_path / "model")
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "model").glob("*.safetensors")}
    late = Learner.load(tmp_path / "model", device="cpu")
    late.save(tmp_path / "model")
    assert "task-0001" not in reads
    for one in (learner, late):
        one.learn(-X, Y, task="another")
    late.save(tmp_path / "model")
    assert "task-0001" not in reads
    now = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "model").glob("*.safetensors")}
    assert before.items() <= now.items()
    late.save(tmp_path / "copy")
    learner.save(tmp_path / "eager")
    names = [
        sorted(path.name for path in (tmp_path / one).glob("*.safetensors")) for one in ("model", "copy", "eager")
    ]
    assert names[0] == names[1] == names[2]  # a name has the digest of what is in it


def test_forgetting_more_rows_and_copies_are_as_ever(tmp_path: Path, reads: list[str]) -> None:
    learner = taught()
    learner.save(tmp_path / "model")
    late = Learner.load(tmp_path / "model", device="cpu")
    copied = copy.deepcopy(late)
    again = pickle.loads(pickle.dumps(late.method.model.tasks[1]))
    assert torch.equal(again.selected["hidden1"], learner.method.model.tasks[1].selected["hidden1"])
    for one in (learner, late, copied):
        one.forget(0)
        one.update(X.roll(2, 1) + 2, Y, task="task-2", keep="always")
    wanted = learner.predict(X + 1).probabilities
    assert torch.equal(late.predict(X + 1).probabilities, wanted)
    assert torch.equal(copied.predict(X + 1).probabilities, wanted)
    late.save(tmp_path / "late")
    learner.save(tmp_path / "eager")
    names = [sorted(path.name for path in (tmp_path / one).glob("*.safetensors")) for one in ("late", "eager")]
    assert names[0] == names[1]


def test_what_is_missing_is_found_at_once_and_damage_when_it_is_read(tmp_path: Path, reads: list[str]) -> None:
    taught().save(tmp_path / "model")
    (part,) = (tmp_path / "model").glob("task-0002.*")
    whole = part.read_bytes()
    part.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    late = Learner.load(tmp_path / "model", device="cpu")
    late.predict(X, task=0)
    with pytest.raises(StoreError, match="task-0002"):
        late.predict(X, task=2)
    with pytest.raises(StoreError, match="task-0002"):
        late.predict(X)
    with pytest.raises(StoreError, match="task-0002"), tensor_file.everything_now():
        Learner.load(tmp_path / "model", device="cpu")
    part.write_bytes(whole[:-1])
    with pytest.raises(StoreError, match="bytes instead of"):
        Learner.load(tmp_path / "model", device="cpu")
    part.unlink()
    with pytest.raises(StoreError, match="is missing"):
        Learner.load(tmp_path / "model", device="cpu")
