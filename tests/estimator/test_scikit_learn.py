"""The estimator is one of scikit-learn's: its own checks, pipelines, searches and clones."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from ibpwf import ContinualClassifier

SMALL: dict[str, Any] = {"hidden": (20,), "epochs": 15, "settings": {"inference.features.width": 50}}


DRAWN = "rows are drawn as often as their weight says, so they are the same on average, not to the digit"
NOT_TO_THE_DIGIT = {f"check_sample_weight_equivalence_on_{kind}_data": DRAWN for kind in ("dense", "sparse")}


# Small and quick: what is checked is how it behaves, not how well it learns.
@parametrize_with_checks([ContinualClassifier(**SMALL)], expected_failed_checks=lambda _: NOT_TO_THE_DIGIT)
def test_scikit_learns_own_checks(estimator: ContinualClassifier, check: Callable[[Any], None]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


def test_it_works_in_a_pipeline_and_a_search() -> None:
    x, y = load_iris(return_X_y=True)
    search = GridSearchCV(
        make_pipeline(MinMaxScaler(), ContinualClassifier(**SMALL)),
        {"continualclassifier__learning_rate": [1e-6, 1e-2]},
        cv=3,
    )
    search.fit(x, y)
    assert search.best_params_ == {"continualclassifier__learning_rate": 1e-2}
    assert search.best_score_ > 0.9


def test_a_clone_with_the_same_random_state_gives_the_same_bits_and_another_does_not() -> None:
    x, y = load_iris(return_X_y=True)
    first = ContinualClassifier(random_state=3, **SMALL).fit(x, y)
    again = clone(first).fit(x, y)
    other = clone(first).set_params(random_state=4).fit(x, y)
    np.testing.assert_array_equal(first.predict_proba(x), again.predict_proba(x))
    assert not np.array_equal(first.predict_proba(x), other.predict_proba(x))
    drawn = [ContinualClassifier(**{**SMALL, "random_state": np.random.RandomState(s)}).fit(x, y) for s in (0, 0)]
    np.testing.assert_array_equal(drawn[0].predict_proba(x), drawn[1].predict_proba(x))


def test_a_pickled_estimator_learns_the_next_task_to_the_same_bits() -> None:
    x, y = load_iris(return_X_y=True)
    first = ContinualClassifier(**SMALL).fit(x[:100], y[:100])
    copy = pickle.loads(pickle.dumps(first))
    for one in (first, copy):
        one.learn(x[50:], y[50:])
    np.testing.assert_array_equal(first.predict_proba(x), copy.predict_proba(x))
    np.testing.assert_array_equal(first.novelty(x), copy.novelty(x))
