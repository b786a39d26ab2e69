"""`ibpwf learn` killed at random moments and run again with --resume ends as if nothing had happened."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from killed_command import TASKS, learn_all, write_files

import processes
from ibpwf import ContinualClassifier
from ibpwf.storage.folder import MANIFEST
from ibpwf.storage.model_folder import verify_model


def files_of(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def answers(folder: Path, x: np.ndarray) -> dict[str, np.ndarray]:
    classifier = ContinualClassifier.load(folder, device="cpu")
    return {task: classifier.learner_.logits(classifier._inputs(x), task).numpy() for task in classifier.tasks_}


@pytest.mark.parametrize("kills", [5, pytest.param(200, marks=pytest.mark.faults)])
def test_learning_from_files_killed_at_random_moments_ends_with_the_same_bits(kills: int, tmp_path: Path) -> None:
    write_files(tmp_path)
    x = np.random.default_rng(9).normal(size=(20, 8))
    processes.call(learn_all, str(tmp_path), "undisturbed")
    started = time.monotonic()
    processes.call(learn_all, str(tmp_path), "again")  # now that everything has been loaded once
    whole = time.monotonic() - started
    expected, undisturbed = answers(tmp_path / "undisturbed", x), files_of(tmp_path / "undisturbed")
    assert len(expected) == TASKS
    assert files_of(tmp_path / "again") == undisturbed
    chance = random.Random(kills)
    done = finished = inside_a_write = resumable = 0
    learned: Counter[int] = Counter()
    while done < kills:
        model = tmp_path / f"model-{finished}"
        process = processes.begin(learn_all, str(tmp_path), model.name)
        process.join(chance.uniform(0.0, 0.9 * whole))
        process.kill()
        process.join()
        if process.exitcode == 0:  # it was done first
            assert files_of(model) == undisturbed
            finished += 1
            continue
        assert process.exitcode == -signal.SIGKILL
        done += 1
        inside_a_write += any(".tmp-" in path.name for path in model.rglob("*"))
        resumable += (model / ".in-progress" / MANIFEST).exists()
        if (model / MANIFEST).exists():
            assert verify_model(model).problems == []
            now = answers(model, x)
            learned[len(now)] += 1
            for task, then in now.items():
                np.testing.assert_array_equal(then, expected[task])
    processes.call(learn_all, str(tmp_path), model.name)
    assert files_of(model) == undisturbed
    print(
        f"{done} kills, {inside_a_write} inside a write, {resumable} inside a task, {finished + 1} models finished;"
    )
    print(f"tasks finished when killed: {dict(sorted(learned.items()))}")
