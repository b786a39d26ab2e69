"""Labels keep their kind, their type and their value for ever, on disk too, or are refused before training."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ibpwf import ContinualClassifier, labels
from ibpwf.errors import InputError
from ibpwf.labels import LabelBook, label_array

QUICK: dict[str, Any] = {"hidden": (8,), "epochs": 1, "settings": {"inference.features.width": 16}, "device": "cpu"}
X = np.random.default_rng(0).normal(size=(20, 3))


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["b", "a", "b"]),
        np.array(["b", "a"], dtype=object),
        np.array([3, -1]),
        np.array([1.5, 2.0]),
        np.array([True, False]),
    ],
)
def test_labels_go_to_numbers_and_json_and_back(labels: np.ndarray) -> None:
    book = LabelBook().with_labels(labels)
    again = LabelBook.from_json(json.loads(json.dumps(book.to_json())))
    assert again.classes.dtype == labels.dtype
    np.testing.assert_array_equal(again.classes, np.unique(labels))
    np.testing.assert_array_equal(again.classes[again.columns()[again.numbers(labels)]], labels)


def test_a_labels_number_never_changes_and_longer_names_are_not_cut() -> None:
    book = LabelBook().with_labels(np.array(["m", "z"]))
    more = book.with_labels(np.array(["aardvark", "z"]))
    assert more.numbers(np.array(["m", "z", "aardvark"])).tolist() == [0, 1, 2]
    assert more.classes.tolist() == ["aardvark", "m", "z"]
    assert book.classes.tolist() == ["m", "z"]
    with pytest.raises(InputError, match="y holds whole numbers, earlier tasks had text"):
        book.with_labels(np.array([1, 2]))


BIG = 2**53 + 1
KEPT: dict[str, Any] = {
    "whole numbers that no float keeps": np.array([BIG, BIG - 1] * 10),
    "bytes": np.array([3, 200] * 10, dtype=np.uint8),
    "unsigned": np.array([2**63 - 1, 2**63 - 2] * 10, dtype=np.uint64),
    "truth values": np.array([True, False] * 10),
    "whole floats": np.array([1.0, 2.0] * 10, dtype=np.float32),
    "text": np.array(["b", "a"] * 10),
    "text as objects": np.array(["b", np.str_("aé")] * 10, dtype=object),
    "a list of text": ["b", "a"] * 10,
    "a list of large numbers": [BIG, BIG - 1] * 10,
    "NumPy's new text": np.array(["b", "a"] * 10, dtype=np.dtypes.StringDType()),
    "text that ends in NUL": np.array(["a", "a\0"] * 10, dtype=object),
    "a categorical": pd.Categorical(["u", "v"] * 10),
    "a categorical of numbers": pd.Series(pd.Categorical([BIG, BIG - 1] * 10)),
    "pandas' own integers": pd.Series([BIG, BIG - 1] * 10, dtype="Int64"),
    "whole numbers as objects": np.array([BIG, -5] * 10, dtype=object),
}


@pytest.mark.parametrize("kind", KEPT)
def test_labels_are_answered_as_they_were_given_after_saving_and_loading_too(kind: str, tmp_path: Path) -> None:
    y = KEPT[kind]
    given = sorted({str(label) if isinstance(label, str) else label for label in np.asarray(y, dtype=object)})
    classifier = ContinualClassifier(**QUICK).learn(X, y)
    classifier.save(tmp_path / "model")
    again = ContinualClassifier.load(tmp_path / "model", device="cpu")
    for one in (classifier, again):
        assert one.classes_.tolist() == given
        assert [type(label) for label in one.classes_.tolist()] == [type(label) for label in given]
        assert set(one.predict(X).tolist()) <= set(given)
    assert again.classes_.dtype == classifier.classes_.dtype


REFUSED: dict[str, tuple[Any, str]] = {
    "dates": (np.array(["2020-01-01", "2020-01-02"] * 10, dtype="M8[D]"), r"y holds dates; write them as text"),
    "time spans": (np.array([1, 2] * 10, dtype="m8[s]"), "y holds time spans; write them as text"),
    "pandas' dates": (pd.Series(pd.to_datetime(["2020-01-01", "2021-01-01"] * 10)), "y holds dates"),
    "Python's dates": (
        [datetime.date(2020, 1, 1), datetime.date(2021, 1, 1)] * 10,
        "of type date; give text",
    ),
    "bytes as text": (np.array([b"a", b"b"] * 10), "y holds bytes; decode them to text"),
    "numbers too large": (np.array([1, 2**63] * 10, dtype=np.uint64), "9223372036854775808, beyond 64-bit integers"),
    "Python's numbers too large": ([1, 2**70] * 10, "1180591620717411303424, beyond 64-bit integers"),
    "nothing": (["a", None] * 10, "y holds None, which is no label; remove rows without a label"),
    "nothing in pandas": (pd.Series(["a", None] * 10), "y holds nan, which is no label|contains NaN"),
    "text and numbers": (
        ["a", 1] * 10,
        r"y mixes text \(such as 'a'\) and whole numbers \(such as 1\); give one kind",
    ),
    "text and numbers as objects": (np.array(["a", 1] * 10, dtype=object), "y mixes text"),
    "truth values and numbers": ([True, 2] * 10, "y mixes truth values"),
    "floats and large numbers": ([BIG, 0.5] * 10, "y mixes whole numbers"),
    "half a character": (["\udc80", "a"] * 10, "which is not Unicode; correct that label"),
    "tuples": ([(1, 2), (3, 4)] * 10, "y holds objects of type tuple"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_labels_that_could_not_be_kept_are_refused_before_training(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    y, words = REFUSED[kind]
    monkeypatch.setattr("ibpwf.learner.Learner.learn", lambda *words, **options: pytest.fail("it was trained"))
    classifier = ContinualClassifier(**QUICK)
    with pytest.raises(ValueError, match=words) as caught:
        classifier.learn(X, y)
    assert "\n" not in str(caught.value)
    assert not hasattr(classifier, "learner_")


KINDS = {
    "whole numbers": np.array([BIG, 3] * 10),
    "floats": np.array([1.0, 2.0] * 10),
    "truth values": np.array([True, False] * 10),
    "text": np.array(["1", "2"] * 10),
}


@pytest.mark.parametrize("first", KINDS)
def test_a_task_of_another_kind_is_refused_by_name_and_old_answers_stay(first: str) -> None:
    classifier = ContinualClassifier(**QUICK).learn(X, KINDS[first])
    before = classifier.predict(X)
    for other in KINDS.keys() - {first}:
        with pytest.raises(InputError, match=f"y holds {other}, earlier tasks had {first} \\(such as"):
            classifier.learn(X, KINDS[other])
    assert classifier.predict(X).tolist() == before.tolist()
    assert classifier.predict(X).dtype == before.dtype


@pytest.mark.parametrize(("first", "then"), [("int64", "uint64"), ("int8", "int64"), ("uint64", "int64")])
def test_whole_numbers_of_any_width_follow_each_other(first: str, then: str) -> None:
    classifier = ContinualClassifier(**QUICK).learn(X, np.array([1, 2] * 10, dtype=first))
    classifier.learn(X + 9, np.array([2, 300] * 10).astype(then))
    assert classifier.classes_.tolist() == [1, 2, 300]
    assert classifier.classes_.dtype.kind in "iu"
    negative = classifier.learn(X - 9, np.array([-7, BIG] * 10))
    assert negative.classes_.tolist() == [-7, 1, 2, 300, BIG]


def test_more_labels_than_a_head_could_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels, "MOST_CLASSES", 5)
    with pytest.raises(InputError, match="y has 20 different labels, more than the 5 that one task may have"):
        ContinualClassifier(**QUICK).learn(X, np.arange(20))


def test_a_forgotten_label_leaves_a_number_and_nothing_else() -> None:
    book = LabelBook().with_labels(np.array(["m", "z"])).with_labels(np.array(["extraordinary", "z"]))
    left = book.without([2])
    assert "extra" not in json.dumps(left.to_json())
    assert "13" not in json.dumps(left.to_json()), "not even how long it was"
    assert left.classes.tolist() == ["m", "z"]
    assert left.columns().tolist() == [0, 1, -1]
    again = LabelBook.from_json(json.loads(json.dumps(left.to_json())))
    more = again.with_labels(np.array(["extraordinary", "a"]))
    assert more.numbers(np.array(["m", "z", "a", "extraordinary"])).tolist() == [0, 1, 3, 4]


@pytest.mark.parametrize(
    "values",
    [
        {"dtype": "M8[D]", "labels": ["2020-01-01"]},
        {"dtype": "<i8", "labels": [1, "2"]},
        {"dtype": "<i8", "labels": [1, True]},
        {"dtype": "U", "labels": ["a", "a"]},
        {"dtype": "S3", "labels": ["a"]},
    ],
)
def test_stored_labels_of_another_kind_than_they_say_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"^labels "):
        LabelBook.from_json(values)


def test_a_label_array_is_checked_once_for_all_its_users() -> None:
    assert label_array(pd.Series(["a", "b"])).tolist() == ["a", "b"]


def test_after_a_made_up_first_task_nothing_of_a_forgotten_one_is_left(tmp_path: Path) -> None:
    """The way that docs/model-format.md names: what all tasks read through is then of rows that nobody has."""
    made_up, secret = np.array([[-8.0] * 3, [8.0] * 3] * 10), X + 0.123456
    names = np.array(["u", "v"] * 10)

    def taught(*tasks: str) -> ContinualClassifier:
        classifier = ContinualClassifier(**QUICK).learn(made_up, names, task="made up")
        for task in tasks:
            classifier.learn(secret if task == "secret" else X, np.char.add(task, names), task=task)
        return classifier

    classifier = taught("secret", "kept")
    classifier.forget("secret")
    classifier.forget("made up")
    classifier.save(tmp_path / "model")
    text = (tmp_path / "model" / "manifest.json").read_text()
    assert "secret" not in text
    face = json.loads(text)["content"]["face"]
    assert face["standardizer"] == taught()._standardizer.to_json()
    assert face["labels"]["labels"] == [None, None, None, None, "keptu", "keptv"]
    assert classifier.classes_.tolist() == ["keptu", "keptv"]
    assert classifier.predict_proba(X).shape == (20, 2)
    assert len(face["novelty"]["limits"]) == 1
