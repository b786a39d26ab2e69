"""What looks new to router and experts, tasks of one class, and images that come as flat rows."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from ibpwf import Learner, Settings
from ibpwf.errors import InputError
from ibpwf.lab.methods import method_named
from ibpwf.lab.methods.dense import Problem
from ibpwf.training.callbacks import Callback, EpochEnd
from router_tasks import (
    CLASSES,
    FEATURES,
    SETTINGS,
    SMALL,
    X,
    examples,
    network,
    same_answers,
    with_settings,
)

# What is new


WELL = {
    "validation_fraction": 0.3,
    "turns": 4,
    "epochs": 8,
    "finetune_epochs": 4,
    "inference.features": SMALL["patches"],
    "inference.features.filters": 40,
}


@functools.cache
def knows_two_tasks(seed: int) -> Learner:
    """Digits 0 to 3, from most of their images."""
    learner = Learner(network(), SETTINGS.replace(**WELL), seed=seed, device="cpu")
    for labels in CLASSES[:2]:
        learner.learn(*examples(labels, 0, 260))
    return learner


FRESH = [examples(labels, 260, 400)[0] for labels in CLASSES[:2]]


def test_images_unlike_anything_learned_look_newer_than_fresh_ones_of_what_was() -> None:
    learner = knows_two_tasks(0)
    known = learner.method.novelty(torch.cat(FRESH), 0.05).log()
    noise = torch.rand(100, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    for new, least in ((noise, 0.97), (examples((4, 5, 6, 7, 8, 9), 0, 300)[0], 0.85)):
        scores = learner.method.novelty(new, 0.05).log()
        truth = np.r_[np.zeros(len(known)), np.ones(len(new))]
        assert roc_auc_score(truth, np.r_[known.numpy(), scores.numpy()]) > least
        assert float((scores > 0).double().mean()) > 3 * 0.05


def test_of_fresh_images_of_the_newest_task_about_the_stated_share_looks_new() -> None:
    """On average over what was held out; those of the older task, whose scores the newer has moved, a little more."""
    shares = [
        [float((knows_two_tasks(seed).method.novelty(x, 0.1) > 1).double().mean()) for x in FRESH]
        for seed in range(3)
    ]
    older, newest = np.mean(shares, 0)
    assert newest < 0.1 + 0.05
    assert older < 0.2


def test_a_higher_rate_gives_no_fewer_alarms_and_only_rates_are_taken() -> None:
    learner, x = knows_two_tasks(0), torch.cat(FRESH)
    counts = [int((learner.method.novelty(x, rate) > 1).sum()) for rate in (0.001, 0.01, 0.05, 0.07, 0.3)]
    assert counts == sorted(counts)
    for rate in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(InputError):
            learner.method.novelty(x, rate)


@pytest.mark.parametrize("experts", [0, 1, "likely"])
def test_what_is_new_is_told_whichever_experts_are_asked(experts: Any) -> None:
    learner = with_settings(knows_two_tasks(0), **{"inference.experts": experts})
    found = learner.method.novelty(torch.cat(FRESH), 0.05)
    assert bool(torch.isfinite(found).all())
    assert bool(
        (found >= knows_two_tasks(0).method.novelty(torch.cat(FRESH), 0.05)).all()
    )  # fewer tasks may claim it


# One class alone


def test_tasks_of_one_class_each_are_learned_with_turns_and_told_apart(tmp_path: Path) -> None:
    learner = Learner(
        network(),
        SETTINGS.replace(turns=4, validation_fraction=0.1, **{"inference.features": SMALL["patches"]}),
        seed=2,
        device="cpu",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for label in (3, 7, 0):
            learner.learn(*examples((label,), 0, 60), task=str(label))
    for task, label in enumerate((3, 7, 0)):
        x, _ = examples((label,), 60, 120)
        answer = learner.predict(x)
        assert float((answer.labels == label).double().mean()) > 0.9
        assert float((answer.task == task).double().mean()) > 0.9
        given = learner.predict(x, task=task)
        assert given.labels.unique().tolist() == [label]
        assert given.probabilities[:, task].unique().tolist() == [1.0]
    learner.save(tmp_path / "model")
    assert same_answers(learner, Learner.load(tmp_path / "model", device="cpu"))


def test_one_class_in_all_is_every_images_answer_until_there_is_another() -> None:
    learner = Learner(network(), SETTINGS.replace(turns=4, validation_fraction=0.1), seed=2, device="cpu")
    learner.learn(*examples((3,), 0, 60))
    answer = learner.predict(X, marginal=True)
    assert answer.probabilities.unique().tolist() == [1.0]
    assert answer.labels.unique().tolist() == [3]
    assert bool(torch.isfinite(learner.method.novelty(X, 0.05)).all())


def test_gaussians_too_tell_a_task_of_one_class_from_others() -> None:
    settings = Settings(
        epochs=20,
        finetune_epochs=10,
        heads="per-task",
        **{"inference.features": "random", "inference.features.width": 60},
    )
    learner = Learner(network(), settings, device="cpu")
    for labels in ((7,), (0, 1), (4,)):
        learner.learn(*examples(labels))
    for task, labels in enumerate([(7,), (0, 1), (4,)]):
        x, y = examples(labels, 80, 160)
        assert float((learner.predict(x, task=task).labels == y).float().mean()) > 0.9
        assert float((learner.predict(x).labels == y).float().mean()) > 0.8


def test_a_method_that_needs_two_classes_says_so() -> None:
    learner = Learner(method_named("sgd")(Problem((4,), 2, "task")))  # type: ignore[call-arg]
    with pytest.raises(InputError, match=r"task 'sevens' has one class only \(7\); this method needs at least two"):
        learner.learn(torch.zeros(8, 4), torch.full((8,), 7), task="sevens")
    assert not learner.tasks


class Epochs(Callback):
    """Writes down every epoch that is trained."""

    def __init__(self, seen: list[int]) -> None:
        self.seen = seen

    def epoch_end(self, epoch: EpochEnd) -> None:
        self.seen.append(epoch.epoch)


def test_a_router_takes_classes_one_at_a_time_and_nothing_is_trained_for_them(tmp_path: Path) -> None:
    learner = Learner(
        network(), SETTINGS.replace(validation_fraction=0.2, epochs=20, finetune_epochs=10), device="cpu"
    )
    learner.learn(*examples((0, 1)))
    before = learner.logits(FRESH[0], 0)
    seen: list[int] = []
    for label in (7, 4):
        learner.learn(*examples((label,)), task=f"only {label}", callbacks=[Epochs(seen)])
    assert seen == []
    assert torch.equal(learner.logits(FRESH[0], 0), before)
    for task, labels in enumerate([(0, 1), (7,), (4,)]):
        x, y = examples(labels, 80, 160)
        assert float((learner.predict(x, task=task).labels == y).float().mean()) > 0.9
        assert float((learner.predict(x).labels == y).float().mean()) > 0.8
    learner.save(tmp_path / "model")
    assert same_answers(Learner.load(tmp_path / "model", device="cpu"), learner)


# Images as flat rows


@pytest.mark.parametrize("features", FEATURES)
def test_flat_rows_give_the_bits_that_images_do(features: str) -> None:
    settings = SETTINGS.replace(
        turns=4, validation_fraction=0.2, mirror=True, **{"inference.features": SMALL.get(features, features)}
    )
    images = Learner(network(), settings, seed=5, device="cpu")
    flat = Learner(network(flat=True), settings.replace(**{"input.shape": (1, 8, 8)}), seed=5, device="cpu")
    for labels in CLASSES[:2]:
        x, y = examples(labels)
        images.learn(x, y)
        flat.learn(x.flatten(1), y)
    for task in range(2):
        assert torch.equal(images.logits(X, task), flat.logits(X.flatten(1), task))
    one, other = images.predict(X, marginal=True), flat.predict(X.flatten(1), marginal=True)
    assert torch.equal(one.probabilities, other.probabilities)
    assert images.method.calibrations == flat.method.calibrations
    assert torch.equal(
        images.predict(X, posterior_samples=2).probabilities,
        flat.predict(X.flatten(1), posterior_samples=2).probabilities,
    )


@pytest.mark.parametrize(
    ("shape", "features", "words"),
    [
        ((1, 7, 9), "random", r"shape is \[1, 7, 9\], but examples have shape \(64,\)"),
        ((3, 8, 8), "random", r"shape is \[3, 8, 8\], but examples have shape \(64,\)"),
        ((1, 4, 16), "random", "turns is 4, which needs square images"),
        ((3, 8, 8), "patches", "shape"),
        ("auto", "random", "shape"),
        ("auto", "patches", "shape"),
    ],
)
def test_a_wrong_image_shape_is_refused_by_name_before_anything_is_learned(
    shape: Any, features: str, words: str
) -> None:
    settings = SETTINGS.replace(
        turns=4, **{"input.shape": shape, "inference.features": SMALL.get(features, features)}
    )
    learner = Learner(network(flat=True), settings, seed=5, device="cpu")
    x, y = examples(CLASSES[0])
    with pytest.raises(InputError, match=words):
        next(learner.learn_steps(x.flatten(1), y))
    assert not learner.tasks
