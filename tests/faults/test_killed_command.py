"""`ibpwf learn` killed at random moments and run again with --resume ends as if nothing had happened."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from killed_at_random import ends_as_if_undisturbed
from killed_command import TASKS, learn_all, write_files

from ibpwf import ContinualClassifier


def answers(folder: Path) -> dict[str, np.ndarray]:
    classifier, x = ContinualClassifier.load(folder, device="cpu"), np.random.default_rng(9).normal(size=(20, 8))
    return {task: classifier.learner_.logits(classifier._inputs(x), task).numpy() for task in classifier.tasks_}


@pytest.mark.parametrize("kills", [5, pytest.param(200, marks=pytest.mark.faults)])
def test_learning_from_files_killed_at_random_moments_ends_with_the_same_bits(kills: int, tmp_path: Path) -> None:
    write_files(tmp_path)

    def check(model: Path) -> None:
        expected = answers(tmp_path / "undisturbed")
        assert len(expected) == TASKS
        for task, now in answers(model).items():
            np.testing.assert_array_equal(expected[task], now)

    ends_as_if_undisturbed(learn_all, tmp_path, kills, 0.9, check)
