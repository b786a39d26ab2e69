"""Killed at any call to the disk, a model folder is whole: the old one or the new one, and of the same bits."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from killed_learner import TASKS, examples, fresh

from ibpwf import Learner
from ibpwf.errors import StoreError
from ibpwf.learner import open_model
from ibpwf.storage.checkpoint_folder import task_in_progress
from ibpwf.storage.folder import MANIFEST
from ibpwf.storage.model_folder import verify_model
from ibpwf.training.checkpoint import Checkpoint
from killed_writes import run_until

X = torch.cat([examples(number)[0][:8] for number in range(TASKS)])


def learnt(tasks: int) -> Learner:
    learner = fresh()
    for number in range(tasks):
        learner.learn(*examples(number), task=f"t{number}")
    return learner


def save_more(folder: Path) -> None:
    learner = Learner.load(folder, device="cpu")
    learner.learn(*examples(2), task="t2")
    learner.save(folder)


def forget(folder: Path) -> None:
    learner = Learner.load(folder, device="cpu")
    learner.forget("t0")
    learner.save(folder)


def overwrite(folder: Path) -> None:
    learner = fresh()
    learner.learn(*examples(5), task="other")
    learner.save(folder, overwrite=True)


def learn_into(folder: Path) -> None:
    """With a checkpoint after every step."""
    with open_model(folder, device="cpu") as learner:
        learner.learn(*examples(2), task="t2", callbacks=[Checkpoint(folder, every=0, resume=True)])
        learner.save(folder)


def first_save(folder: Path) -> None:
    learnt(1).save(folder)


WORK: dict[str, Callable[[Path], None]] = {
    "save": save_more,
    "forget": forget,
    "overwrite": overwrite,
    "learn": learn_into,
    "first save": first_save,
}


def answers(folder: Path) -> str:
    """The bits of all answers."""
    learner = Learner.load(folder, device="cpu")
    total = hashlib.sha256(",".join(task.name for task in learner.tasks).encode())
    for number in range(len(learner.tasks)):
        total.update(learner.logits(X, number).numpy().tobytes())
    return total.hexdigest()


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("begun") / "model"
    learnt(2).save(folder)
    return folder


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("step", [37, pytest.param(1, marks=pytest.mark.faults)])
def test_a_folder_killed_at_any_call_to_the_disk_is_the_old_one_or_the_new_one(
    begun: Path, tmp_path: Path, work: str, step: int, tally: Callable[..., None]
) -> None:
    torch.set_num_threads(1)
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "letter.txt").write_text("mine")
    folder = tmp_path / "model"

    def anew() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        if work != "first save":
            shutil.copytree(begun, folder)

    anew()
    allowed = {answers(folder)} if folder.exists() else set()
    code, events = run_until(lambda: WORK[work](folder), 0)
    assert code == 0
    assert events > 15
    allowed.add(answers(folder))
    assert len(allowed) == 1 + (work != "first save")
    kills = lost = wrong = tracebacks = 0
    for at in range(1, events + 1, step):
        anew()
        code, _ = run_until(lambda: WORK[work](folder), at)
        assert code == -9
        kills += 1
        try:
            if not (folder / MANIFEST).exists():
                lost += work != "first save"
                first_save(folder)
            unfinished = task_in_progress(folder)
            lost += bool(verify_model(folder).problems)
            now = answers(folder)
            wrong += now not in allowed
            loaded = Learner.load(folder, device="cpu")
            if unfinished is not None and unfinished.serial == len(loaded.tasks) and at % (10 * step) == 1:
                learn_into(folder)  # goes on from the checkpoint
                wrong += answers(folder) not in allowed
            else:
                loaded.save(folder)  # and clears what the killed one has left
                wrong += answers(folder) != now
            lost += bool(verify_model(folder).problems)
            wrong += bool(verify_model(folder).foreign)
        except (StoreError, LookupError, RuntimeError, ValueError, TypeError) as error:
            print(work, at, repr(error))
            tracebacks += 1
    outside = sorted(path.name for path in tmp_path.iterdir()) != ["beside", "model"] or len([*beside.iterdir()]) != 1
    tally("kills at a call to the disk", kills, lost=lost, wrong=wrong, tracebacks=tracebacks, outside=int(outside))
