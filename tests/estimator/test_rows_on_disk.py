"""A classifier that is given files, shards, a DataLoader or a Dataset learns what it learns from arrays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from ibpwf import ContinualClassifier
from ibpwf.errors import DataError, InputError

MEANS = np.random.default_rng(7).normal(0, 3, (5, 6))
NAMES = [f"f{number}" for number in range(6)]
QUICK = {"epochs": 3, "hidden": (12,), "settings": {"inference.features.width": 32}, "device": "cpu"}


def blobs(classes: tuple[int, ...], rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.choice(classes, rows)
    return (MEANS[y] + rng.normal(size=(rows, 6))).astype(np.float32), y


X, Y = blobs((0, 1, 2), 300)
LATER_X, LATER_Y = blobs((3, 4), 200, seed=1)


class Rows(IterableDataset[tuple[np.ndarray, int]]):
    """Of a length that nobody knows."""

    def __iter__(self) -> Iterator[tuple[np.ndarray, int]]:
        yield from zip(X, Y.tolist(), strict=True)


def table(path: Path, x: np.ndarray, y: Any) -> Path:
    import pandas

    frame = pandas.DataFrame(x, columns=NAMES)
    frame["label"] = y
    frame.to_parquet(path, row_group_size=64)
    return path


def taught(*given: Any, **changed: Any) -> ContinualClassifier:
    return ContinualClassifier(**{**QUICK, **changed}).learn(*given, task="a")


def same(left: ContinualClassifier, right: ContinualClassifier) -> bool:
    asked = np.concatenate([X, LATER_X, 9 + X])
    answers = (one.prediction(asked) for one in (left, right))
    one, other = ([a.labels.astype(str), a.probability, a.entropy, a.novelty] for a in answers)
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    "source",
    [
        DataLoader(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), batch_size=32),
        TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
        Rows(),
        DataLoader(Rows(), batch_size=70),
        [(X[:100], Y[:100]), (X[100:], Y[100:])],
    ],
    ids=["DataLoader", "Dataset", "IterableDataset", "DataLoader of unknown length", "list of batches"],
)
def test_what_gives_batches_is_learned_as_arrays_are(source: Any) -> None:
    memory, stored = taught(X, Y), taught(source)
    assert same(memory, stored)
    assert stored.classes_.tolist() == [0, 1, 2]
    assert stored.classes_.dtype == memory.classes_.dtype


def test_a_table_and_its_shards_are_learned_as_arrays_are_task_after_task(tmp_path: Path) -> None:
    words = np.array(["ash", "elm", "oak", "fir", "yew"])
    (tmp_path / "s").mkdir()
    for number, rows in enumerate(np.array_split(np.arange(300), 3)):
        table(tmp_path / "s" / f"{number}.parquet", X[rows], words[Y[rows]])
    later = table(tmp_path / "later.parquet", LATER_X, words[LATER_Y])
    memory = taught(X, words[Y]).learn(LATER_X, words[LATER_Y], "b")
    for first in (tmp_path / "s", sorted((tmp_path / "s").iterdir()), str(tmp_path / "s" / "*.parquet")):
        assert same(memory, taught(first).learn(later, task="b"))


def test_the_recipe_for_many_rows_holds_rows_out_and_comes_to_the_same_bits() -> None:
    x, y = blobs((0, 1, 2), 1_200)
    both = [
        ContinualClassifier(epochs=1, hidden=(12,), settings={"inference.features.width": 32}, device="cpu").learn(
            *given
        )
        for given in ((x, y), (DataLoader(TensorDataset(torch.from_numpy(x), torch.from_numpy(y)), 100),))
    ]
    assert [one.recipe_ for one in both] == ["table", "table"]
    assert both[0].learner_.tasks == both[1].learner_.tasks
    assert both[0].learner_.tasks[0].held_out is not None
    assert same(*both)


@pytest.mark.parametrize("weight", ["balanced", {0: 5.0, 2: 0.1}])
def test_classes_weigh_what_they_weigh_in_memory(weight: Any) -> None:
    pairs = [(X, Y)]
    assert same(taught(X, Y, class_weight=weight), taught(pairs, class_weight=weight))


def test_images_by_batches_are_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, 10, 9, 3)).astype(np.uint8)
    labels = np.arange(40) % 2
    images[labels == 1, :5] //= 4
    few = {"epochs": 1, "settings": {"inference.features.filters": 8, "finetune_epochs": 1}}
    both = [
        ContinualClassifier(recipe="images", device="cpu", **few).learn(*given)
        for given in ((images, labels), ([(images[:25], labels[:25]), (images[25:], labels[25:])],))
    ]
    assert np.array_equal(both[0].predict_proba(images), both[1].predict_proba(images))


def test_a_scale_that_looks_like_another_unit_is_said_once() -> None:
    classifier = taught(X, Y)
    with pytest.warns(UserWarning, match="another scale") as said:
        classifier.learn([(1e4 * LATER_X[:100], LATER_Y[:100]), (1e4 * LATER_X[100:], LATER_Y[100:])], task="b")
    assert sum("another scale" in str(one.message) for one in said) == 1


class Unlabelled(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, row: int) -> Any:
        return X[row]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            DataLoader(TensorDataset(torch.zeros(0, 6), torch.zeros(0)), batch_size=4),
            "the DataLoader is empty; a task",
        ),
        (Unlabelled(), r"item 0 of the Dataset is not an \(example, label\) pair"),
        ([(X, Y), (X[:, :5], Y)], r"batch 1 of the list has examples of shape \(5,\), the first has \(6,\)"),
        (
            [(X, Y[:-1])],
            r"batch 0 of the list has 300 examples and labels of shape \(299,\); give one",
        ),
        ([(X, Y), (np.full((1, 6), np.nan), [1])], "batch 1 of the list holds NaN or infinite numbers"),
        ([({"ids": X}, Y)], r"batch 0 of the list holds objects; give numbers"),
        ("gone.parquet", "cannot read 'gone.parquet': there is no such file"),
    ],
    ids=["empty", "no labels", "another shape", "labels too few", "NaN", "names", "no file"],
)
def test_what_cannot_be_learned_is_refused_in_one_sentence(source: Any, words: str) -> None:
    with pytest.raises((InputError, DataError), match=words):
        taught(source)


def test_weights_of_single_rows_are_for_arrays() -> None:
    with pytest.raises(InputError, match="sample_weight was given beside files or batches"):
        ContinualClassifier(**QUICK).learn([(X, Y)], sample_weight=np.ones(300))


def test_a_classifier_that_has_learned_nothing_of_it_is_as_before() -> None:
    classifier = taught(X, Y)
    before = classifier.predict_proba(X)
    with pytest.raises(InputError, match="batch 1"):
        classifier.learn([(X, Y), (X[:, :5], Y)], task="b")
    assert np.array_equal(classifier.predict_proba(X), before)
    assert classifier.tasks_ == ["a"]
