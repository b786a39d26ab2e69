"""A learner whose router and experts answer together: every answer against NumPy on what each of them says alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import special
from torch import Tensor

from ibpwf.errors import InputError
from ibpwf.inference.fusion import asked
from ibpwf.method import IBPWF
from router_tasks import (
    CLASSES,
    COLUMNS,
    FEATURES,
    OWNER,
    SMALL,
    X,
    examples,
    expert_scores,
    fused_weights,
    router_scores,
    same_answers,
    taught,
    with_settings,
)


@pytest.mark.parametrize("held_out", [0.0, 0.2])
@pytest.mark.parametrize("features", FEATURES)
def test_answers_are_those_of_the_weighted_sum_of_what_router_and_experts_say(features: str, held_out: float) -> None:
    learner = taught(validation_fraction=held_out, **{"inference.features": SMALL.get(features, features)})
    alpha, beta = fused_weights(learner)
    joint = alpha * router_scores(learner) + beta * expert_scores(learner)
    p, best = special.softmax(joint, axis=1), joint.argmax(1)
    mixed, told = learner.predict(X, marginal=True), learner.predict(X)
    assert mixed.classes == told.classes == COLUMNS
    np.testing.assert_allclose(mixed.probabilities.numpy(), p, atol=1e-6)
    for answer in (mixed, told):
        assert answer.labels.tolist() == [COLUMNS[column][1] for column in best]
        assert answer.task.tolist() == OWNER[best].tolist()
        by_task = np.stack([p[:, task == OWNER].sum(1) for task in range(3)], 1)
        np.testing.assert_allclose(answer.task_probabilities.numpy(), by_task, atol=1e-6)
        np.testing.assert_allclose(learner.method.task_probabilities(X).numpy(), by_task, atol=1e-6)
        np.testing.assert_allclose(answer.probabilities.sum(1).numpy(), 1)
        entropy = special.entr(answer.probabilities.numpy()).sum(1)
        np.testing.assert_allclose(answer.entropy.numpy(), entropy, atol=1e-9)
    given_the_task = np.where(OWNER[best][:, None] == OWNER, p, 0)
    given_the_task /= given_the_task.sum(1, keepdims=True)
    np.testing.assert_allclose(told.probabilities.numpy(), given_the_task, atol=1e-6)


def test_answers_are_right_more_often_than_those_of_the_router_or_of_the_best_expert() -> None:
    learner = taught(validation_fraction=0.2, epochs=12, **{"inference.features": SMALL["patches"]})
    y = torch.cat([examples(labels, 80, 110)[1] for labels in CLASSES]).numpy()
    labels = np.array([label for _, label in COLUMNS])

    def right(scores: np.ndarray) -> float:
        return float((labels[scores.argmax(1)] == y).mean())

    together = float((learner.predict(X).labels.numpy() == y).mean())
    assert together > 0.9
    assert together >= max(right(router_scores(learner)), right(expert_scores(learner))) - 0.02


def test_with_experts_0_the_router_answers_alone_and_no_expert_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = with_settings(taught(validation_fraction=0.2), **{"inference.experts": 0})
    newest = learner.method.calibrations[-1]
    assert newest is not None and newest.alone is not None  # noqa: PT018
    expected = special.softmax(newest.alone * router_scores(learner), axis=1)

    def refuse(*_: object) -> Tensor:
        raise AssertionError("an expert was asked")

    monkeypatch.setattr(IBPWF, "logits", refuse)
    answer = learner.predict(X, marginal=True)
    np.testing.assert_allclose(answer.probabilities.numpy(), expected, atol=1e-6)
    assert same_answers(
        with_settings(learner, **{"inference.expert_weight": 0.0, "inference.experts": "all"}),
        with_settings(learner, **{"inference.expert_weight": 7.0}),
    )


@pytest.mark.parametrize("experts", ["likely", 1, 2])
def test_tasks_that_are_not_asked_have_no_share_and_the_others_what_the_sum_gives_them(experts: Any) -> None:
    learner = with_settings(taught(validation_fraction=0.2), **{"inference.experts": experts})
    alpha, beta = fused_weights(learner)
    router = router_scores(learner)
    mask = asked(torch.from_numpy(router), [len(labels) for labels in CLASSES], experts).numpy()
    assert not mask.all()
    joint = np.where(mask[:, OWNER], alpha * router + beta * expert_scores(learner), -np.inf)
    answer = learner.predict(X, marginal=True)
    np.testing.assert_allclose(answer.probabilities.numpy(), special.softmax(joint, axis=1), atol=1e-6)
    assert bool((answer.task_probabilities[torch.from_numpy(~mask)] == 0).all())


@pytest.mark.parametrize("weight", [0.3, 2.0])
def test_a_weight_of_the_users_own_stands_beside_a_routers_of_1(weight: float) -> None:
    learner = with_settings(taught(validation_fraction=0.2), **{"inference.expert_weight": weight})
    joint = router_scores(learner) + weight * expert_scores(learner)
    found = learner.predict(X, marginal=True).probabilities.numpy()
    np.testing.assert_allclose(found, special.softmax(joint, axis=1), atol=1e-6)


def test_how_much_is_asked_may_change_at_any_time_and_back() -> None:
    learner = taught(validation_fraction=0.2, turns=4)
    before = learner.predict(X, marginal=True).probabilities
    others = (
        {"inference.experts": 0},
        {"inference.experts": 1},
        {"inference.experts": "likely"},
        {"views": "plain"},
        {"inference.expert_weight": 3.0},
    )
    for change in others:
        changed = with_settings(learner, **change)
        assert not torch.equal(changed.predict(X, marginal=True).probabilities, before)
        back = with_settings(changed, views="all", **{"inference.experts": "all", "inference.expert_weight": "auto"})
        assert torch.equal(back.predict(X, marginal=True).probabilities, before)
    plain = with_settings(learner, views="plain")
    for task, labels in enumerate(CLASSES):
        outputs = learner.model.ready(task)(X).detach()[:, : len(labels)]
        torch.testing.assert_close(plain.logits(X, task), outputs)


def test_settings_that_every_task_reads_may_not_change() -> None:
    learner = taught(2)
    for change in (
        {"inference.keep_sums_per_task": True},
        {"inference.features.width": 41},
        {"input.shape": (1, 8, 8)},
    ):
        with pytest.raises(InputError, match=next(iter(change))):
            learner.settings = learner.settings.replace(**change)


def test_with_posterior_draws_the_task_is_still_the_joint_rules() -> None:
    learner = taught(validation_fraction=0.2)
    drawn = learner.predict(X, posterior_samples=3)
    assert torch.equal(drawn.task, learner.method.task_probabilities(X).argmax(1))
    assert drawn.mutual_information is not None
    torch.testing.assert_close(drawn.probabilities.sum(1), torch.ones(len(X), dtype=torch.float64))


# No forgetting


@pytest.mark.parametrize("held_out", [0.0, 0.2])
@pytest.mark.parametrize("features", FEATURES)
def test_what_experts_say_of_old_tasks_never_changes(features: str, held_out: float) -> None:
    early, late = (
        taught(2, validation_fraction=held_out, **{"inference.features": SMALL.get(features, features)}),
        taught(3, validation_fraction=held_out, **{"inference.features": SMALL.get(features, features)}),
    )
    for task in range(2):
        assert torch.equal(early.logits(X, task), late.logits(X, task))
        mine = OWNER[:4] == task
        one, other = (learner.predict(X, task=task).probabilities[:, :4][:, mine] for learner in (early, late))
        assert torch.equal(one, other)
    assert early.method.calibrations == late.method.calibrations[:2]
