"""`ibpwf forget` killed at any call to the disk: whoever takes the lock next removes what it has left."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from killed_learner import examples, fresh

from ibpwf import Learner
from ibpwf.cli.forget import Forget
from ibpwf.cli.verify import CORRUPT, Verify
from ibpwf.errors import InputError
from ibpwf.estimator.files import learn_file
from ibpwf.learner import open_model
from ibpwf.storage.checkpoint_folder import IN_PROGRESS
from ibpwf.storage.files import read_json
from ibpwf.storage.folder import MANIFEST, lock_folder, open_folder
from ibpwf.storage.model_folder import verify_model
from ibpwf.training.checkpoint import Checkpoint
from killed_writes import run_until

X = torch.cat([examples(number)[0][:8] for number in range(3)])
DELETED = "t2"


class Stop(Exception):
    """Ends a task in the middle."""


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tasks, and a checkpoint of a fourth, whose prior is the posterior of the third."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("begun") / "model"
    learner = fresh()
    for number in range(3):
        learner.learn(*examples(number), task=f"t{number}")
    learner.save(folder)
    asked: list[int] = []
    checkpoint = Checkpoint(folder, every=100, stop=lambda: asked.append(1) or len(asked) > 3)  # type: ignore[func-returns-value]
    with pytest.raises(KeyboardInterrupt):
        learner.learn(*examples(3), task="t3", callbacks=[checkpoint])
    assert (folder / IN_PROGRESS / MANIFEST).exists()
    return folder


def forget(folder: Path) -> None:
    Forget(model=folder, task=DELETED, json=True).run()


def contents(folder: Path) -> bytes:
    """All bytes under a folder."""
    return b"\n".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def tensors_of(folder: Path) -> list[bytes]:
    opened = open_folder(folder)
    return [tensor.numpy().tobytes() for name in opened.files for tensor in opened.tensors(name).values()]


def answers(folder: Path) -> list[torch.Tensor]:
    learner = Learner.load(folder, device="cpu")
    return [learner.logits(X, number) for number in range(2)]


# What takes the lock of the folder, whether or not it can do what it was asked for.


def forget_again(folder: Path) -> None:
    with contextlib.suppress(InputError):  # there is no such task any more
        forget(folder)


def hold(folder: Path) -> None:
    with lock_folder(folder):
        pass


def save(folder: Path) -> None:
    Learner.load(folder, device="cpu").save(folder)


def use(folder: Path) -> None:
    with open_model(folder, device="cpu"):
        pass


def learn_no_file(folder: Path) -> None:
    with contextlib.suppress(Exception):
        learn_file(folder, folder / "none.csv", "new")


LOCKING = (forget_again, hold, save, use, learn_no_file)


@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.faults)])
def test_what_a_killed_forget_has_left_is_reported_and_removed_by_whoever_takes_the_lock(
    begun: Path, tmp_path: Path, step: int, tally: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"

    def anew() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(begun, folder)

    expected = answers(begun)
    anew()
    forget(folder)
    left = contents(folder)
    deleted = {data for data in tensors_of(begun) if len(data) >= 16 and data not in left}
    assert len(deleted) > 5
    assert any(data in contents(begun / IN_PROGRESS) for data in deleted)
    anew()
    code, events = run_until(lambda: forget(folder), 0)
    assert code == 0
    kills = kept = lost = unreported = deleted_then = 0
    for at in range(1 + step // 2, events + 1, step):
        anew()
        assert run_until(lambda: forget(folder), at)[0] == -9
        kills += 1
        names = [task["name"] for task in read_json(folder / MANIFEST)["content"]["tasks"]]
        if DELETED in names:
            forget(folder)
        else:
            found = any(data in contents(folder) for data in deleted)
            deleted_then += found
            capsys.readouterr()
            code = Verify(model=folder, json=True).run()
            said = json.loads(capsys.readouterr().out)
            lost += bool(said["problems"])
            unreported += found and not (said["leftovers"] and code == CORRUPT)
            LOCKING[at % len(LOCKING)](folder)
        now = contents(folder)
        kept += any(data in now for data in deleted)
        checked = verify_model(folder)
        lost += bool(checked.problems)
        kept += bool(checked.leftovers or checked.foreign)
        lost += not all(torch.equal(was, one) for was, one in zip(expected, answers(folder), strict=True))
    assert deleted_then or step > 1
    tally("kills of ibpwf forget at a call to the disk", kills, lost=lost, kept=kept, unreported=unreported)
