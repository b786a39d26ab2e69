"""A process that is killed while it learns and saves loses nothing that was finished, and can be started again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from killed_at_random import ends_as_if_undisturbed
from killed_learner import TASKS, examples, fresh, hold, learn_all
from torch import Tensor

import processes
from ibpwf import Learner
from ibpwf.errors import StoreError
from ibpwf.learner import open_model
from ibpwf.storage.model_folder import verify_model
from ibpwf.training.checkpoint import Checkpoint

X = torch.cat([examples(number)[0][:8] for number in range(TASKS)])


def answers(folder: Path) -> list[Tensor]:
    learner = Learner.load(folder, device="cpu")
    assert learner.extra == ({"tasks": len(learner.tasks)} if learner.tasks else {})
    return [learner.logits(X, number) for number in range(len(learner.tasks))]


@pytest.mark.parametrize("kills", [20, pytest.param(200, marks=pytest.mark.faults)])
def test_a_folder_killed_at_random_moments_always_loads_and_ends_as_if_nothing_had_happened(
    kills: int, tmp_path: Path
) -> None:
    def check(folder: Path) -> None:
        expected = answers(tmp_path / "undisturbed")
        assert all(torch.equal(now, then) for now, then in zip(answers(folder), expected, strict=False))

    ends_as_if_undisturbed(learn_all, tmp_path, kills, 0.6, check)


def test_while_one_process_learns_into_a_folder_a_second_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    folder, holding = tmp_path / "model", tmp_path / "holding"
    process = processes.begin(hold, str(folder), str(holding))
    try:
        end = time.monotonic() + 240
        while not holding.exists():
            assert process.is_alive()
            assert time.monotonic() < end
            time.sleep(0.01)
        message = r"model' is being written by another process\. Wait for it"
        with pytest.raises(StoreError, match=message), open_model(folder, new=fresh):
            pass
        reader = Learner.load(folder, device="cpu")  # reading is anyone's
        assert [task.name for task in reader.tasks] == ["t0"]
        with pytest.raises(StoreError, match="is being written by another process"):
            reader.save(folder)
        with pytest.raises(StoreError, match="is being written by another process"):
            reader.learn(*examples(1), task="t1", callbacks=[Checkpoint(folder)])
        reader.learn(*examples(1), task="t1")  # elsewhere it may do as it likes
        reader.save(tmp_path / "other")
    finally:
        process.kill()
        process.join()
    assert verify_model(folder).problems == []
    with open_model(folder, device="cpu") as learner:
        assert [task.name for task in learner.tasks] == ["t0"]
        learner.learn(*examples(1), task="t1", callbacks=[Checkpoint(folder)])
        learner.save(folder)
    assert [task.name for task in Learner.load(folder).tasks] == ["t0", "t1"]


def test_a_path_without_a_model_is_made_one_only_if_asked_for(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no such file or folder"), open_model(tmp_path / "none"):
        pass
    assert not (tmp_path / "none").exists()
    with open_model(tmp_path / "model", new=fresh, device="cpu") as learner:
        learner.learn(*examples(0), task="t0", callbacks=[Checkpoint(tmp_path / "model")])  # the one who holds it may
        learner.save(tmp_path / "model")
    with open_model(tmp_path / "model", new=fresh, device="cpu") as learner:
        assert [task.name for task in learner.tasks] == ["t0"]
