"""A learner with a router saved, resumed, made to forget, and asked by many at once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special
from torch import Tensor

from ibpwf import Learner
from ibpwf.errors import InputError
from ibpwf.inference.fusion import expert_weight
from ibpwf.inference.router import Router
from ibpwf.training.checkpoint import Checkpoint
from router_tasks import (
    CLASSES,
    FEATURES,
    SMALL,
    X,
    calibrations,
    examples,
    expert_scores,
    router_scores,
    same_answers,
    same_models,
    taught,
    with_settings,
)

# Stored, resumed


@pytest.mark.parametrize(
    "changes",
    [
        {"inference.features": SMALL["random"], "inference.keep_sums_per_task": True},
        {"inference.features": SMALL["patches"]},
    ],
)
def test_saved_and_loaded_it_answers_and_learns_on_to_the_bit(changes: dict[str, Any], tmp_path: Path) -> None:
    learner = taught(2, validation_fraction=0.2, turns=4, **changes)
    learner.save(tmp_path / "model")
    again = Learner.load(tmp_path / "model", device="cpu")
    assert again.method.calibrations == learner.method.calibrations
    for _ in range(2):
        assert same_models(learner, again)
        assert same_answers(learner, again)
        assert torch.equal(learner.method.novelty(X, 0.03), again.method.novelty(X, 0.03))
        if len(again.tasks) == 2:
            for one in (learner, again):
                one.learn(*examples(CLASSES[2]), task=str(CLASSES[2]))
    assert same_models(learner, taught(3, validation_fraction=0.2, turns=4, **changes))


@pytest.mark.parametrize("stop", [4, 14])
def test_a_task_that_was_broken_off_and_resumed_has_the_same_bits(stop: int, tmp_path: Path) -> None:
    begun = taught(1, validation_fraction=0.2)
    steps = begun.learn_steps(*examples(CLASSES[1]), task=str(CLASSES[1]), callbacks=[Checkpoint(tmp_path, every=0)])
    for _ in range(stop):
        next(steps)
    steps.close()
    resumed = taught(1, validation_fraction=0.2)
    resumed.learn(*examples(CLASSES[1]), task=str(CLASSES[1]), callbacks=[Checkpoint(tmp_path, resume=True)])
    assert same_models(resumed, taught(2, validation_fraction=0.2))


def test_a_checkpoint_of_another_share_held_out_is_not_resumed(tmp_path: Path) -> None:
    begun = taught(1, validation_fraction=0.2)
    steps = begun.learn_steps(*examples(CLASSES[1]), task="second", callbacks=[Checkpoint(tmp_path, every=0)])
    for _ in range(4):
        next(steps)
    steps.close()
    other = with_settings(taught(1, validation_fraction=0.2), validation_fraction=0.3)
    with pytest.raises(Exception, match="checkpoint") as caught:
        other.learn(*examples(CLASSES[1]), task="second", callbacks=[Checkpoint(tmp_path, resume=True)])
    assert type(caught.value).__module__ == "ibpwf.errors"


# Forgetting


@pytest.mark.parametrize("gone", [0, 1, 2])
@pytest.mark.parametrize("features", FEATURES)
def test_a_forgotten_task_leaves_nothing_in_the_router_nor_among_the_weights(
    features: str, gone: int, tmp_path: Path
) -> None:
    learner = taught(
        validation_fraction=0.2,
        **{"inference.features": SMALL.get(features, features), "inference.keep_sums_per_task": True},
    )
    before = [learner.logits(X, task) for task in range(3)]
    kept = [one for task, one in enumerate(calibrations(learner)) if task != gone]
    others = [labels for task, labels in enumerate(CLASSES) if task != gone]
    never = Router(keep_sums_per_task=True)  # on the same features
    method = learner.method
    state = [method.inference.task_state(task) for task in range(3) if task != gone]
    never.load_state(({}, {}), state)
    learner.forget(gone)
    for place, task in enumerate(task for task in range(3) if task != gone):
        assert torch.equal(learner.logits(X, place), before[task])
    router = learner.method.inference
    assert isinstance(router, Router)
    assert router.columns() == [len(labels) for labels in others]
    assert torch.equal(router.class_scores(learner.method.features(X)), never.class_scores(method.features(X)))
    assert calibrations(learner) == kept
    alpha, beta = kept[-1].router, expert_weight(kept)
    joint = alpha * router_scores(learner) + beta * expert_scores(learner)
    found = learner.predict(X, marginal=True)
    np.testing.assert_allclose(found.probabilities.numpy(), special.softmax(joint, axis=1), atol=1e-6)
    assert {label for _, label in found.classes} == {label for labels in others for label in labels}
    learner.save(tmp_path / "model")
    assert same_answers(learner, Learner.load(tmp_path / "model", device="cpu"))


def test_the_newest_task_forgotten_is_as_if_it_had_never_been_there() -> None:
    learner = taught(3, validation_fraction=0.2, **{"inference.keep_sums_per_task": True})
    learner.forget(2)
    never = taught(2, validation_fraction=0.2, **{"inference.keep_sums_per_task": True})
    assert same_models(learner, never)
    assert same_answers(learner, never)
    assert torch.equal(learner.method.novelty(X, 0.02), never.method.novelty(X, 0.02))


def test_forgetting_is_refused_where_the_router_has_one_sum_and_the_refusal_changes_nothing() -> None:
    learner = taught(3, validation_fraction=0.2)
    for task in range(3):
        with pytest.raises(InputError, match="keep_sums_per_task=True"):
            learner.forget(task)
    assert same_models(learner, taught(3, validation_fraction=0.2))
    assert same_answers(learner, taught(3, validation_fraction=0.2))
    assert [task.name for task in learner.tasks] == [str(labels) for labels in CLASSES]
    alone = taught(1, validation_fraction=0.2)
    alone.forget(0)
    assert not alone.tasks
    assert alone.method.calibrations == []
    alone.learn(*examples(CLASSES[0]), task=str(CLASSES[0]))
    assert same_models(alone, taught(1, validation_fraction=0.2))


def test_four_threads_that_ask_at_once_get_what_one_gets(tmp_path: Path) -> None:
    taught(3, validation_fraction=0.2, turns=4).save(tmp_path / "model")
    truth = taught(3, validation_fraction=0.2, turns=4)
    expected = truth.predict(X, marginal=True).probabilities, truth.method.novelty(X, 0.02)
    learner = Learner.load(tmp_path / "model", device="cpu")  # nothing is solved for yet
    found: list[tuple[Tensor, Tensor]] = []
    start = threading.Barrier(4)

    def ask() -> None:
        start.wait()
        for _ in range(5):
            found.append((learner.predict(X, marginal=True).probabilities, learner.method.novelty(X, 0.02)))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20
    assert all(torch.equal(p, expected[0]) and torch.equal(n, expected[1]) for p, n in found)
