"""Rows held out of a task: nothing is learned from them, and they tell how sure answers may be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import special
from torch import nn
from torch.utils.data import TensorDataset

from ibpwf import Gaussian, Learner
from ibpwf.data.rows import IndexedRows, Rows
from ibpwf.errors import InputError
from ibpwf.inference.fusion import EXPERT_WEIGHT, ROUTER_WEIGHT, Calibration
from ibpwf.inference.router import Router
from ibpwf.method import MOST_HELD_OUT
from router_tasks import (
    CLASSES,
    OWNER,
    SETTINGS,
    SMALL,
    X,
    calibrations,
    examples,
    expert_scores,
    fused_weights,
    network,
    router_scores,
    same_answers,
    same_models,
    taught,
)


def test_given_the_task_class_scores_are_divided_by_the_temperature_and_labels_stay() -> None:
    learner = taught(validation_fraction=0.2)
    for task, (labels, one) in enumerate(zip(CLASSES, calibrations(learner), strict=True)):
        assert one.temperature != 1
        logits = learner.logits(X, task).double().numpy()
        answer = learner.predict(X, task=task)
        expected = special.softmax(logits / one.temperature, axis=1)
        np.testing.assert_allclose(answer.probabilities.numpy()[:, task == OWNER], expected, atol=1e-12)
        assert answer.labels.tolist() == [labels[best] for best in logits.argmax(1)]


@pytest.mark.parametrize("per", ["task", "class"])
def test_without_a_router_held_out_rows_give_the_temperature_alone(per: str) -> None:
    learner = taught(validation_fraction=0.2, inference=Gaussian(per=per, features=SMALL["random"]))
    for task, one in enumerate(calibrations(learner)):
        assert one == Calibration(one.temperature)
        expected = special.softmax(learner.logits(X, task).double().numpy() / one.temperature, axis=1)
        found = learner.predict(X, task=task).probabilities.numpy()[:, task == OWNER]
        np.testing.assert_allclose(found, expected, atol=1e-12)
    with pytest.raises(InputError, match=r"inference is gaussian.*inference='router'"):
        learner.method.novelty(X, 0.01)


class Taken:
    """Replaces `IndexedRows.split` and keeps what that gave; with `poison`, rows that are held out
    are handed on as numbers no image has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, poison: float | None = None) -> None:
        self.parts: list[tuple[Rows, Rows]] = []
        real = IndexedRows.split

        def split(rows: IndexedRows, *arguments: Any) -> tuple[Rows, Rows] | None:
            found = real(rows, *arguments)
            assert found is not None
            if arguments[1] != MOST_HELD_OUT:  # to compare with a linear model, which is another purpose
                return found
            self.parts.append(found)
            if poison is None:
                return found
            x, y = found[1].tensors()
            return found[0], IndexedRows(torch.full_like(x, poison), y)

        monkeypatch.setattr(IndexedRows, "split", split)


@pytest.mark.parametrize(
    "changes",
    [
        {"inference.features": SMALL["random"]},
        {"inference.features": SMALL["patches"]},
        {"inference.features": "layer", "turns": 4},
    ],
)
def test_nothing_is_learned_from_rows_held_out(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is in them, and as if they had never been there."""
    straight = taught(2, validation_fraction=0.2, **changes)
    settings = SETTINGS.replace(validation_fraction=0.2, **changes)
    poisoned, without = (Learner(network(), settings, seed=5, device="cpu") for _ in range(2))
    taken = Taken(monkeypatch, poison=1e4)
    for labels in CLASSES[:2]:
        poisoned.learn(*examples(labels), task=str(labels))
    without.settings = settings.replace(validation_fraction=0.0, **without.settings.factorization)
    for labels, (kept, held) in zip(CLASSES[:2], taken.parts, strict=True):
        x, y = kept.tensors()
        assert len(held) == sum(int(0.2 * int(count)) for count in examples(labels)[1].unique(return_counts=True)[1])
        without.learn(x, torch.tensor(labels)[y], task=str(labels))
    assert same_models(straight, poisoned, calibrated=False)
    assert same_models(straight, without, calibrated=False)
    assert not same_models(straight, poisoned)
    assert without.method.calibrations == [None, None]


def test_rows_held_out_are_of_every_class_drawn_by_seed_and_the_router_counts_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = Taken(monkeypatch)
    for seed in (1, 1, 2):
        learner = Learner(network(), SETTINGS.replace(validation_fraction=0.25, epochs=1), seed=seed, device="cpu")
        learner.learn(*examples(CLASSES[2]))
        router = learner.method.inference
        assert isinstance(router, Router)
        kept, held = taken.parts[-1]
        _, y = examples(CLASSES[2])
        for place, label in enumerate(CLASSES[2]):
            rows = int((y == label).sum())
            assert int((held.tensors()[1] == place).sum()) == int(0.25 * rows) > 0
            assert int((kept.tensors()[1] == place).sum()) == rows - int(0.25 * rows)
        assert router.task_state(0)[0]["counts"] == kept.tensors()[1].bincount().tolist()
        assert learner.tasks[0].examples == len(y)
    first, again, other = (part[1].tensors()[0] for part in taken.parts)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_no_more_than_500_rows_of_a_task_are_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Taken(monkeypatch)
    x, y = torch.randn(1300, 3, generator=torch.Generator().manual_seed(0)), torch.arange(1300) % 3
    quick = SETTINGS.replace(
        validation_fraction=0.5, epochs=1, finetune_epochs=0, batch_size=400, **{"inference.features.width": 5}
    )
    Learner(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3)), quick, device="cpu").learn(x, y)
    assert MOST_HELD_OUT == 500
    assert 497 <= len(taken.parts[0][1]) <= 500


def test_a_dataset_gives_the_bits_that_its_tensors_do() -> None:
    tensors, stored = (
        taught(2, validation_fraction=0.2),
        Learner(network(), SETTINGS.replace(validation_fraction=0.2), seed=5, device="cpu"),
    )
    for labels in CLASSES[:2]:
        stored.learn(TensorDataset(*examples(labels)), task=str(labels))
    assert same_models(tensors, stored)
    assert same_answers(tensors, stored)


def test_of_ready_made_batches_nothing_is_held_out_and_what_is_new_cannot_be_told() -> None:
    learner = Learner(network(), SETTINGS.replace(validation_fraction=0.2), seed=5, device="cpu")
    for labels in CLASSES[:2]:
        x, y = examples(labels)
        learner.learn([*zip(x.split(16), y.split(16), strict=True)], task=str(labels))
    assert learner.method.calibrations == [None, None]
    assert float((learner.predict(X[:60]).task == torch.arange(2).repeat_interleave(30)).double().mean()) > 0.8
    joint = ROUTER_WEIGHT * router_scores(learner) + EXPERT_WEIGHT * expert_scores(learner)
    found = learner.predict(X, marginal=True).probabilities.numpy()
    np.testing.assert_allclose(found, special.softmax(joint, axis=1), atol=1e-6)
    with pytest.raises(InputError, match="task number 0 was learned without held-out rows"):
        learner.method.novelty(X, 0.01)


def test_rows_may_be_held_out_of_some_tasks_alone() -> None:
    learner = taught(1)
    learner.settings = learner.settings.replace(validation_fraction=0.2)
    learner.learn(*examples(CLASSES[1]))
    first, second = learner.method.calibrations
    assert first is None
    assert second is not None
    assert fused_weights(learner) == (second.router, second.experts)
    joint = fused_weights(learner)[0] * router_scores(learner) + fused_weights(learner)[1] * expert_scores(learner)
    found = learner.predict(X, marginal=True).probabilities.numpy()
    np.testing.assert_allclose(found, special.softmax(joint, axis=1), atol=1e-6)
    with pytest.raises(InputError, match="task number 0 was learned without held-out rows"):
        learner.method.novelty(X, 0.01)
