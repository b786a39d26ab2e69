"""Scores of a learner are the shares of right answers, counted one by one."""

from __future__ import annotations

import pytest
import torch

from ibpwf import Learner
from ibpwf.lab.data.tasks import Scenario
from ibpwf.lab.evaluation.evaluate import percent, score, zero_shot
from ibpwf.lab.experiments.run_config import RunConfig
from ibpwf.lab.experiments.seed_training import new_learner


def test_a_score_counts_right_labels_right_tasks_and_both(learned: Learner, digits: Scenario) -> None:
    for number, task in enumerate(digits[:2]):
        right = {"task": 0, "class": 0, "inference": 0}
        for x, y in zip(task.test.x, task.test.y.tolist(), strict=True):
            given = learned.predict(x.unsqueeze(0), task=number)
            inferred = learned.predict(x.unsqueeze(0))
            right["task"] += int(given.labels[0]) == y
            right["inference"] += int(inferred.task[0]) == number
            right["class"] += int(inferred.task[0]) == number and int(inferred.labels[0]) == y
        found = score(learned, number, task.test.x, task.test.y)
        share = 100 / len(task.test)
        assert found.task == pytest.approx(right["task"] * share)
        assert found.class_ == pytest.approx(right["class"] * share)
        assert found.task_inference == pytest.approx(right["inference"] * share)


def test_the_right_label_of_the_wrong_task_is_not_the_right_class(fresh: Learner, digits: Scenario) -> None:
    """Both tasks call their classes 0 and 1, so the label alone is right half of the time by accident."""
    for task in digits[:2]:
        fresh.learn(task.train.x, task.train.y % 2, task=task.name)
    test = digits[0].test
    found = score(fresh, 1, test.x, test.y % 2)  # task 0's images, held to be task 1's
    right_task = percent(fresh.predict(test.x).task == 1)
    assert right_task < 50
    assert found.task_inference == pytest.approx(right_task)
    assert found.class_ <= found.task_inference
    assert percent(fresh.predict(test.x).labels == test.y % 2) > 90


def test_before_the_first_task_there_is_no_zero_shot_accuracy(fresh: Learner, digits: Scenario) -> None:
    task = digits[0]
    assert zero_shot(fresh, task.classes, task.test.x, task.test.y) is None


def test_zero_shot_answers_with_the_latest_task_classes_taken_in_order(learned: Learner, digits: Scenario) -> None:
    task = digits[2]
    plain = learned.merge("2/3")
    right = 0
    for x, y in zip(task.test.x, task.test.y.tolist(), strict=True):
        with torch.no_grad():
            first, second = plain(x.unsqueeze(0))[0].tolist()
        right += (task.classes[0] if first >= second else task.classes[1]) == y
    found = zero_shot(learned, task.classes, task.test.x, task.test.y)
    assert found == pytest.approx(100 * right / len(task.test))
    assert zero_shot(learned, task.classes[::-1], task.test.x, task.test.y) == pytest.approx(100 - (found or 0.0))


def test_zero_shot_needs_as_many_classes(learned: Learner, digits: Scenario) -> None:
    task = digits[2]
    assert zero_shot(learned, (4, 5, 6), task.test.x, task.test.y) is None


@pytest.mark.mnist
def test_split_mnist_is_learned_and_nothing_of_it_forgotten() -> None:
    """The paper's settings on the first two tasks of the real data, with fewer passes over it."""
    config = RunConfig(
        "split-mnist", preset="paper", changes={"epochs": 1, "finetune_epochs": 1}, tasks=2, device="cpu"
    )
    stream = config.stream(0)
    learner = new_learner(config, 0, stream, ("task", "class"))
    first, second = stream
    learner.learn(first.train.x, first.train.y, task=first.name)
    logits = learner.logits(first.test.x, 0)
    learner.learn(second.train.x, second.train.y, task=second.name)
    assert torch.equal(learner.logits(first.test.x, 0), logits)
    after = [score(learner, number, task.test.x, task.test.y) for number, task in enumerate(stream)]
    assert sum(found.task for found in after) / 2 > 98
    assert sum(found.task_inference for found in after) / 2 > 90
