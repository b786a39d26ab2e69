"""What a run records of its uncertainty, against predictions made one test set at a time."""

from __future__ import annotations

import pytest
from torch import nn

from ibpwf.lab import scenario
from ibpwf.lab.evaluation.uncertainty import DRAWS, ROWS, seen_and_unseen
from ibpwf.learner import Learner
from ibpwf.settings import Settings


def test_entropies_are_those_of_predict_and_the_last_task_has_none_to_tell_apart() -> None:
    stream = scenario("split-digits", tasks=2)
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    learner = Learner(net, Settings(alpha=16.0, epochs=4, finetune_epochs=2), device="cpu")
    tests = [task.test.x for task in stream]
    for task in stream:
        learner.learn(task.train.x, task.train.y, task=task.name)
        found = seen_and_unseen(learner, tests)
        for x, mean in zip(tests, found["entropy"], strict=True):
            truth = learner.predict(x[:ROWS], marginal=True, posterior_samples=DRAWS).entropy.mean()
            assert mean == pytest.approx(float(truth), abs=1e-4)
        assert (found["auroc"] is None) == (task.index == 1)
