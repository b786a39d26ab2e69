"""Tables of a thousand rows and more: what is learned, kept, told apart, and weighed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

from ibpwf import ContinualClassifier, load
from ibpwf.errors import InputError

SHORT: dict[str, Any] = {"epochs": 3, "settings": {"finetune_epochs": 6}}


def bands(rows: int, seed: int, shift: float = 0.0) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Classes lie in bands of one column, which no linear model can tell; another column has a wild scale."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 5)) + shift
    x[:, 1] = np.exp(3 * x[:, 1])
    return x, (np.floor(2 * (x[:, 0] - shift)) % 2).astype(int) + int(10 * shift)


@pytest.fixture(scope="module")
def learned() -> ContinualClassifier:
    classifier = ContinualClassifier(epochs=8)
    for shift in (0.0, 1.0):
        classifier.learn(*bands(1_500, 0, shift), task=f"shift {shift:.0f}")
    return classifier


def test_bands_are_told_apart_that_no_linear_model_can(learned: ContinualClassifier) -> None:
    assert learned.recipe_ == "table"
    for task, shift in (("shift 0", 0.0), ("shift 1", 1.0)):
        x, y = bands(500, 1, shift)
        held_out = learned.learner_.info(task).held_out
        assert held_out is not None
        assert learned.score(x, y, task=task) > 0.85 > LogisticRegression().fit(*bands(1_500, 0, shift)).score(x, y)
        assert 100 * learned.score(x, y, task=task) == pytest.approx(held_out.accuracy, abs=10)


def test_a_stored_table_model_answers_with_the_same_bits_and_is_small(
    learned: ContinualClassifier, tmp_path: Path
) -> None:
    learned.save(tmp_path / "model")
    again, (x, _) = load(tmp_path / "model"), bands(300, 2)
    np.testing.assert_array_equal(learned.predict_proba(x), again.predict_proba(x))
    np.testing.assert_array_equal(learned.novelty(x), again.novelty(x))
    assert sum(file.stat().st_size for file in (tmp_path / "model").rglob("*") if file.is_file()) < 3e6


def test_a_column_that_stands_still_in_the_first_task_is_read_in_the_second() -> None:
    x, y = bands(1_500, 0)
    still = np.column_stack([np.full(len(y), 0.422915), x[:, 2]])
    moving, same = np.column_stack([x[:, 0], x[:, 2]]), bands(500, 1)
    classifier = ContinualClassifier(epochs=8).learn(still, (x[:, 2] > 0).astype(int)).learn(moving, y, task="moves")
    asked = np.column_stack([same[0][:, 0], same[0][:, 2]])
    assert classifier.score(asked, same[1], task="moves") > 0.85


def test_balanced_classes_find_what_is_rare() -> None:
    rng = np.random.default_rng(0)
    y = (np.arange(6_000) % 100 == 0).astype(int)
    x = rng.normal(size=(6_000, 6)) + 1.2 * y[:, None]
    rare = rng.normal(size=(500, 6)) + 1.2
    found = {}
    for weight in (None, "balanced", {0: 1.0, 1: 100.0}):
        classifier = ContinualClassifier(class_weight=weight, **SHORT).fit(x, y)
        found[str(weight)] = float((classifier.predict(rare) == 1).mean())
    assert min(found["balanced"], found["{0: 1.0, 1: 100.0}"]) > found["None"] + 0.1


def test_weights_of_rows_are_those_of_their_classes() -> None:
    x, y = bands(1_200, 0)
    by_class = ContinualClassifier(class_weight={0: 1.0, 1: 3.0}, **SHORT).fit(x, y)
    by_row = ContinualClassifier(**SHORT).fit(x, y, sample_weight=np.where(y == 1, 3.0, 1.0))
    np.testing.assert_array_equal(by_class.predict_proba(x), by_row.predict_proba(x))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sample_weight": [1.0, 2.0]}, "sample_weight has shape"),
        ({"sample_weight": np.full(1_200, -1.0)}, "weights holds negative numbers"),
    ],
)
def test_weights_that_cannot_be_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        ContinualClassifier(**SHORT).learn(*bands(1_200, 0), **given)


def test_weights_of_classes_that_cannot_be_are_refused_and_others_are_stored(tmp_path: Path) -> None:
    x, y = bands(300, 0)
    with pytest.raises(InputError, match="class_weight is 'heavy'"):
        ContinualClassifier(class_weight="heavy", epochs=1).fit(x, y)
    ContinualClassifier(class_weight={0: 1.0, 1: 2.0}, epochs=1).fit(x, y).save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert dict(again.class_weight) == {0: 1.0, 1: 2.0}
    again.learn(*bands(300, 1, 1.0))


def test_names_of_columns_are_kept_and_asked_for() -> None:
    x, y = bands(200, 0)
    frame = pd.DataFrame(x, columns=list("abcde"))
    classifier = ContinualClassifier(epochs=2).fit(frame, y)
    assert classifier.feature_names_in_.tolist() == list("abcde")
    with pytest.raises(ValueError, match="feature names"):
        classifier.predict(frame.rename(columns={"a": "z"}))


def test_every_row_is_answered_by_a_model_that_did_not_see_it_in_a_pipeline_and_two_processes() -> None:
    x, y = bands(2_400, 0)
    answers = cross_val_predict(make_pipeline(MinMaxScaler(), ContinualClassifier(epochs=5)), x, y, cv=2, n_jobs=2)
    assert (answers == y).mean() > 0.6
