"""A shared covariance on random features: linear discriminant analysis, checked against scikit-learn's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from ibpwf import Learner, Settings, models
from ibpwf.errors import InputError
from ibpwf.inference.features.random import Random
from ibpwf.inference.gaussian import MomentAccumulator
from ibpwf.inference.shared import SharedGaussian, class_moments
from ibpwf.lab.data.tasks import Scenario


def test_each_class_as_a_task_gives_scikit_learns_posterior() -> None:
    x, y = load_iris(return_X_y=True)
    inference = SharedGaussian(ridge=1e-12)
    for task in range(3):
        groups = class_moments([(torch.tensor(x[y == task]), torch.zeros(50, dtype=torch.long))], 1)
        if not task:
            inference.set_scale(groups)
        inference.add(task, groups[0])
    ours = inference.log_scores(torch.tensor(x)).softmax(1)
    theirs = LinearDiscriminantAnalysis(solver="lsqr").fit(x, y).predict_proba(x)
    # scikit-learn's covariance is over all rows, as ours is.
    np.testing.assert_allclose(ours.numpy(), theirs, atol=1e-6)


def test_moments_in_batches_are_those_of_each_class() -> None:
    x, y = load_iris(return_X_y=True)
    phi, numbers = torch.tensor(x), torch.tensor(y)
    order = torch.randperm(150, generator=torch.Generator().manual_seed(0))
    batches = [(phi[part], numbers[part]) for part in order.split(40)]
    groups = class_moments(batches, 3)
    within = torch.zeros(4, 4, dtype=torch.float64)
    for number, group in enumerate(groups):
        one = MomentAccumulator()
        one.add(phi[numbers == number])
        alone = one.finish()
        torch.testing.assert_close(group.mean, alone.mean)
        within += alone.covariance / 3
        assert group.count == 50
        assert group.covariance is groups[0].covariance
    torch.testing.assert_close(groups[0].covariance, within)


def test_random_features_do_not_mind_the_scale_or_offset_of_the_inputs() -> None:
    x = torch.randn(200, 7, generator=torch.Generator().manual_seed(0))
    found = []
    for rows in (x, 250 * x + 40):
        features = Random(width=30)
        batches = [(part, torch.zeros(len(part))) for part in rows.split(60)]
        features.fit(batches, len(rows), torch.Generator().manual_seed(1))
        found.append(features(rows))
    plain, moved = found
    torch.testing.assert_close(plain, moved, rtol=1e-3, atol=1e-3)
    assert 0.3 < float((plain > 0).float().mean()) < 0.7


def test_a_learner_with_random_features_is_stored_whole(digits: Scenario, tmp_path: object) -> None:
    settings = Settings(
        epochs=1,
        finetune_epochs=0,
        inference="shared-gaussian",
        **{"inference.features": "random", "inference.features.width": 50, "inference.ridge": 0.2},
    )
    learner = Learner(models.mlp(64, [20], 2), settings, device="cpu")
    for task in list(digits)[:2]:
        learner.learn(task.train.x, task.train.y)
    learner.save(f"{tmp_path}/model")
    again = Learner.load(f"{tmp_path}/model", device="cpu")
    x = digits[0].test.x
    for one in (learner, again):
        one.learn(digits[2].train.x, digits[2].train.y)
    assert torch.equal(learner.predict(x, marginal=True).probabilities, again.predict(x, marginal=True).probabilities)
    memory = learner.method.memory()["feature statistics"]
    assert memory == 8 * (6 * 50 + 3 * 50 * 50) + 4 * (64 * 50 + 50)


def test_a_first_task_of_many_rows_gets_more_random_features_and_later_tasks_change_nothing(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    settings = Settings(
        alpha=2.0,
        epochs=1,
        finetune_epochs=0,
        batch_size=500,
        inference="shared-gaussian",
        **{"inference.features": "random"},
    )
    assert settings.inference.features == Random(width="auto")
    for first, then, width in ((1000, 20, 2000), (999, 1000, 1000)):
        learner = Learner(models.mlp(3, [4], 2), settings, device="cpu")
        for rows in (first, then):
            learner.learn(torch.randn(rows, 3, generator=generator), torch.arange(rows) % 2)
        learner.save(tmp_path / str(width))
        again = Learner.load(tmp_path / str(width), device="cpu")
        for one in (learner, again):
            assert one.method.features(torch.zeros(2, 3)).shape == (2, width)  # type: ignore[attr-defined]


def test_random_features_is_a_number_or_auto() -> None:
    for wrong in (0, "many"):
        with pytest.raises(InputError, match=r"^inference\.features\.width is"):
            Settings(**{"inference.features": {"kind": "random", "width": wrong}})
