"""Tables of a few hundred rows: probabilities that can be believed, rows kept apart, doubts that are said."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.utils import shuffle

from ibpwf import ContinualClassifier
from ibpwf.estimator.recipes import RECIPES, FirstTask, Plan

Array = np.ndarray[Any, Any]


def noisy(rows: int, seed: int, noise: float = 0.6) -> tuple[Array, Array]:
    """A line between two classes, and so much noise that nobody is always right."""
    rng, slope = np.random.default_rng(seed), np.random.default_rng(1).normal(size=10)
    x = rng.normal(size=(rows, 10))
    return x, (x @ slope / np.sqrt(10) + rng.normal(0, noise, rows) > 0).astype(int)


def test_noisy_rows_are_not_learned_by_heart() -> None:
    classifier = ContinualClassifier(random_state=0).learn(*noisy(300, 1))
    x, y = noisy(2_000, 2)
    found, linear = classifier.predict_proba(x), LogisticRegression().fit(*noisy(300, 1))
    assert log_loss(y, found) < log_loss(y, linear.predict_proba(x)) + 0.1  # by heart: 1.0 and more, beside 0.49
    assert found.max(1).mean() == pytest.approx(classifier.score(x, y), abs=0.07)


@pytest.mark.parametrize("recipe", ["plain", "table"])
def test_all_tasks_of_a_model_that_began_with_few_rows_are_drawn_to_zero(recipe: str) -> None:
    few, many = (Plan(RECIPES[recipe], FirstTask(rows, 10)) for rows in (999, 1_000))
    assert [few.settings(rows)["weight_decay"] for rows in (50, 500, 999, 1_000, 50_000)] == [0.01] * 5
    assert all(few.settings(rows)["early_stopping"] for rows in (200, 999, 1_000, 50_000))
    assert not any(many.settings(rows).get("weight_decay") for rows in (50, 500, 1_000, 50_000))


def test_later_tasks_of_few_rows_are_learned_as_well_as_the_first() -> None:
    x, y = shuffle(*load_digits(return_X_y=True), random_state=0)
    classifier = ContinualClassifier(random_state=0)
    tasks = {str(low): np.flatnonzero((y == low) | (y == low + 1)) for low in (0, 2, 4)}
    for task, rows in tasks.items():
        classifier.learn(x[rows[:220]], y[rows[:220]], task=task)
        held_out = classifier.learner_.info(task).held_out
        assert held_out is not None
        assert held_out.linear is not None
    assert all(classifier.score(x[rows[220:]], y[rows[220:]], task=task) > 0.95 for task, rows in tasks.items())
    assert classifier.is_novel(np.random.default_rng(0).uniform(0, 16, (100, 64))).mean() > 0.9
    assert classifier.is_novel(np.concatenate([x[rows[220:]] for rows in tasks.values()])).mean() < 0.06


def test_rows_that_say_nothing_of_their_classes_are_warned_of_and_good_ones_are_not() -> None:
    rng = np.random.default_rng(0)
    with pytest.warns(UserWarning, match="hardly better than by guessing: .* rows held out"):
        ContinualClassifier(random_state=0).learn(rng.normal(size=(400, 8)), rng.integers(0, 2, 400))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        ContinualClassifier(random_state=0).learn(*noisy(400, 3, 0.2))


def test_of_very_few_rows_all_are_learned_from() -> None:
    classifier = ContinualClassifier(random_state=0).learn(*noisy(120, 4, 0.2))
    assert classifier.learner_.info(0).held_out is None
    assert not hasattr(classifier, "stream_log_")
    assert "predict" in dir(classifier)
