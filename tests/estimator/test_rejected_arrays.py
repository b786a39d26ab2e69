"""Rows, labels and weights that hold no plain numbers are rejected by every function that takes them, and the cell
or the type is named; what only comes in an unusual form is read as the numbers it stands for."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from scipy import sparse
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ibpwf import ContinualClassifier, Learner, Settings
from ibpwf.errors import InputError
from tallies import Tally

ROWS, COLUMNS, CELL = 24, 3, (7, 1)
SEED = 35
X = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype(np.float32)
Y = np.arange(ROWS) % 2
QUICK: dict[str, Any] = {"hidden": (8,), "epochs": 1, "settings": {"inference.features.width": 16}, "device": "cpu"}


def with_cell(value: Any, dtype: Any = None) -> np.ndarray:
    x = np.abs(X).astype(X.dtype if dtype is None else dtype)
    x[CELL] = value
    return x


def masked(x: np.ndarray = X) -> np.ma.MaskedArray[Any, Any]:
    mask = np.zeros(x.shape, bool)
    mask[CELL[: x.ndim]] = True
    return np.ma.array(x, mask=mask)


def of_objects(rows: Any) -> np.ndarray:
    """An array whose elements are rows."""
    array = np.empty(len(rows), object)
    array[:] = list(rows)
    return array


def with_masked_object() -> np.ndarray:
    column = X[:, 1].astype(object)
    column[7] = np.ma.masked
    return column


def frame(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], **columns})


def ragged() -> list[torch.Tensor]:
    return [row[: 1 + at % 3] for at, row in enumerate(T)]


def records() -> np.ndarray:
    return np.array([tuple(row) for row in X.tolist()], dtype=[("a", "f4"), ("b", "f4"), ("c", "f4")])


T = torch.from_numpy(X)
IN_CELL, IN_COLUMN = "row 7, column 1", "row 7, column 'b'"
DAYS = pd.date_range("2026-01-01", periods=ROWS)

BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "a masked cell": (masked, IN_CELL),
    "masked rows in a list": (lambda: [masked(X)[row] for row in range(ROWS)], r"\[7\].* row 1"),
    "masked rows in an array of objects": (lambda: of_objects(masked()), r"\[7\].* row 1"),
    "masked rows of images in lists": (lambda: [[row, row] for row in masked()], r"\[7\]\[0\].* row 1"),
    "a masked value in a list": (lambda: [[1.0, np.ma.masked, 2.0]] * ROWS, r"\[0\]\[1\].* row 0"),
    "text": (lambda: X.astype(str), "text"),
    "bytes": (lambda: X.astype("S"), "text"),
    "NumPy's new text": (lambda: X.astype(str).astype(np.dtypes.StringDType()), "text"),
    "lists of text": (lambda: X.astype(str).tolist(), "text"),
    "bytes among objects": (lambda: with_cell(bytearray(b"1"), object), f"text.* {IN_CELL}"),
    "text among objects": (lambda: with_cell("1_05", object), f"1_05.* {IN_CELL}"),
    "None among objects": (lambda: with_cell(None, object), f"None.* {IN_CELL}"),
    "dates": (lambda: X.astype("datetime64[s]"), "dates"),
    "spans": (lambda: X.astype("timedelta64[s]"), "time spans"),
    "a date among objects": (lambda: with_cell(np.datetime64("2026-01-31"), object), f"2026-01-31.* {IN_CELL}"),
    "complex numbers": (lambda: X.astype(np.complex64), "complex"),
    "a complex number among objects": (lambda: with_cell(1j, object), f"complex.* {IN_CELL}"),
    "records": (records, "records"),
    "void": (lambda: X.view("V4"), "records"),
    "an integer that no float keeps": (lambda: with_cell(2**53 + 1, np.int64), f"9007199254740993 in {IN_CELL}"),
    "an unsigned one": (lambda: with_cell(2**63, np.uint64), f"9223372036854775808 in {IN_CELL}"),
    "one among objects": (lambda: with_cell(-(2**53) - 1, object), f"-9007199254740993.* {IN_CELL}"),
    "a decimal one": (lambda: with_cell(Decimal(2**53 + 1), object), f"9007199254740993.* {IN_CELL}"),
    "a decimal that is no number": (lambda: with_cell(Decimal("nan"), object), f"objects|{IN_CELL}"),
    "a frame with missing cells": (lambda: frame(b=pd.array([1] * 7 + [None] * 17, "Int64")), IN_COLUMN),
    "a frame with missing floats": (lambda: frame(b=pd.array([1.5] * 7 + [None] * 17, "Float64")), "row 7"),
    "a frame with missing truths": (lambda: frame(b=pd.array([True] * 7 + [None] * 17, "boolean")), IN_COLUMN),
    "a frame of text": (lambda: frame(b=["5"] * ROWS), "text.* row 0, column 'b'"),
    "a frame of Arrow's text": (lambda: frame(b=pd.array(["5"] * ROWS, "string")), "text.* row 0, column 'b'"),
    "a frame of categories": (lambda: frame(b=pd.Categorical(["u", "v"] * 12)), "text.* row 0, column 'b'"),
    "a frame with a date": (lambda: frame(b=DAYS), "date.* row 0, column 'b'"),
    "a frame of dates": (lambda: frame(a=DAYS, b=DAYS, c=DAYS), "date"),
    "a frame of zoned dates": (lambda: frame(b=DAYS.tz_localize("UTC")), "date.* row 0, column 'b'"),
    "a frame of spans": (lambda: frame(b=DAYS - DAYS[0]), "(date or )?time.* row 0, column 'b'"),
    "a frame of identifiers": (lambda: frame(b=[1] * 7 + [2**53 + 1] * 17), f"9007199254740993 in {IN_COLUMN}"),
    "a frame with a period": (lambda: frame(b=DAYS.to_period("D")), "Period.* row 0, column 'b'"),
    "a frame with an interval": (lambda: frame(b=pd.interval_range(0, ROWS)), "Interval.* row 0, column 'b'"),
    "a table of Arrow's with text": (lambda: pa.table({"a": X[:, 0], "b": ["5"] * ROWS, "c": X[:, 2]}), "column 'b'"),
    "a table of identifiers": (
        lambda: pa.table({"a": X[:, 0], "b": [1] * 7 + [2**53 + 1] * 17, "c": X[:, 2]}),
        f"9007199254740993 in {IN_COLUMN}",
    ),
    "NaN": (lambda: with_cell(np.nan), "nan in row 7"),
    "infinity": (lambda: with_cell(-np.inf), "-inf in row 7"),
    "a sparse tensor": (lambda: T.to_sparse(), "sparse"),
    "a sparse CSR tensor": (lambda: T.to_sparse_csr(), "sparse"),
    "a quantized tensor": (lambda: torch.quantize_per_tensor(T, 0.1, 0, torch.qint8), "quantized"),
    "a meta tensor": (lambda: T.to("meta"), "meta"),
    "a fake tensor": (lambda: FakeTensorMode().from_tensor(T), "FakeTensor"),
    "a nested tensor": (
        lambda: torch.nested.nested_tensor(ragged()),
        "nested",
    ),
    "a jagged tensor": (
        lambda: torch.nested.nested_tensor(ragged(), layout=torch.jagged),
        "nested",
    ),
    "a masked tensor": (lambda: torch.masked.masked_tensor(T, T > 0), "masked"),
    "a tensor of four bits": (lambda: torch.empty(ROWS, COLUMNS, dtype=torch.uint4), "uint4"),
    "a tensor of bits": (lambda: torch.empty(ROWS, COLUMNS, dtype=torch.bits8), "bits8"),
    "a complex tensor": (lambda: T.to(torch.complex64), "complex"),
    "a long tensor": (lambda: torch.from_numpy(with_cell(2**53 + 1, np.int64)), f"9007199254740993 in {IN_CELL}"),
    "one in a list beside floats": (lambda: [[1.5, 2**53 + 1, 0.5]] * ROWS, "9007199254740993 in row 0, column 1"),
    "a masked value among objects": (lambda: with_cell(np.ma.masked, object), "masked"),
    "a frame with a masked value": (lambda: frame(b=with_masked_object()), f"masked value in {IN_COLUMN}"),
    "rows of different lengths": (lambda: [[1.0, 2.0, 3.0], [1.0]] * 12, "different lengths"),
}

SAME: dict[str, Callable[[], Any]] = {
    "a masked array without masked cells": lambda: np.ma.array(X),
    "a tensor with a gradient": lambda: T.clone().requires_grad_(),
    "a negated view": lambda: torch.conj(torch.complex(T, -T)).imag,
    "a tensor of longer strides": lambda: torch.cat([T, T])[::2].repeat_interleave(2, 0)[:0].new_tensor(X),
    "a transposed tensor": lambda: T.T.contiguous().T,
    "a list of tensors": lambda: list(T),
    "a list of rows": lambda: X.tolist(),
    "an array in another byte order": lambda: X.astype(">f4"),
    "an array with negative strides": lambda: X[::-1].copy()[::-1],
    "numbers as objects": lambda: X.astype(object),
    "rows as objects": lambda: of_objects(np.ma.array(X)),
}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(COLUMNS, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.fixture(scope="module")
def learned() -> ContinualClassifier:
    return ContinualClassifier(**QUICK).learn(X, Y, task="a")


@pytest.fixture(scope="module")
def learner() -> Learner:
    made = Learner(net(), Settings(epochs=1, finetune_epochs=0))
    made.learn(T, Y, task="a")
    return made


@pytest.fixture(scope="module")
def streamed() -> ContinualClassifier:
    return ContinualClassifier(**QUICK, stream=True).partial_fit(X, Y)


TAKES_X: dict[str, Callable[[ContinualClassifier, Any], object]] = {
    "fit": lambda _, x: ContinualClassifier(**QUICK).fit(x, Y),
    "learn": lambda c, x: c.learn(x, Y),
    "partial_fit": lambda c, x: c.partial_fit(x, Y),
    "update": lambda c, x: c.update(x, Y, "a"),
    "predict": lambda c, x: c.predict(x),
    "predict_proba": lambda c, x: c.predict_proba(x, task="a"),
    "predict_task": lambda c, x: c.predict_task(x),
    "answers": lambda c, x: c.prediction(x),
    "score": lambda c, x: c.score(x, Y),
    "uncertainty": lambda c, x: c.uncertainty(x),
    "novelty": lambda c, x: c.novelty(x),
    "is_novel": lambda c, x: c.is_novel(x),
    "batches": lambda c, x: c.learn([(x, Y)]),
}
STREAM = ("partial_fit", "predict", "uncertainty")
TAKES_ROWS: dict[str, Callable[[Learner, Any], object]] = {
    "learn": lambda learner, x: learner.learn(x, Y),
    "update": lambda learner, x: learner.update(x, Y, task="a"),
    "predict": lambda learner, x: learner.predict(x),
    "logits": lambda learner, x: learner.logits(x, "a"),
    "batches": lambda learner, x: learner.learn([(x, Y)]),
}


def rejected(call: Callable[[Any], object], value: Any, words: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # a warning is not enough
        with pytest.raises(InputError, match=words) as caught:
            call(value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("kind", BAD)
def test_every_function_of_a_classifier_rejects_rows_that_are_no_numbers(
    kind: str, learned: ContinualClassifier, streamed: ContinualClassifier
) -> None:
    make, words = BAD[kind]
    for name, call in TAKES_X.items():
        where = words if name != "batches" or ("nan" not in words and "inf" not in words) else "NaN or infinite"
        rejected(partial(call, learned), make(), where)
    for name in STREAM:
        rejected(partial(TAKES_X[name], streamed), make(), words)
    assert learned.tasks_ == ["a"]


@pytest.mark.parametrize("kind", BAD)
def test_every_function_of_a_learner_rejects_rows_that_are_no_numbers(kind: str, learner: Learner) -> None:
    make, words = BAD[kind]
    for call in TAKES_ROWS.values():
        rejected(partial(call, learner), make(), words)
    assert [task.name for task in learner.tasks] == ["a"]


@pytest.mark.parametrize("kind", SAME)
def test_numbers_in_an_unusual_form_are_read_as_what_they_are(
    kind: str, learned: ContinualClassifier, learner: Learner
) -> None:
    x = SAME[kind]()
    np.testing.assert_array_equal(learned.predict_proba(x), learned.predict_proba(X))
    assert torch.equal(learner.predict(x).probabilities, learner.predict(T).probabilities)


def test_tables_without_missing_cells_are_read_whatever_their_types() -> None:
    whole = np.arange(ROWS) % 5
    plain = pd.DataFrame({"a": X[:, 0], "b": whole, "c": whole > 2})
    own = pd.DataFrame({"a": pd.array(X[:, 0], "Float32"), "b": pd.array(whole, "Int64"), "c": pd.array(whole > 2)})
    arrow = pa.table({"a": X[:, 0], "b": whole, "c": whole > 2})
    classifier = ContinualClassifier(**QUICK).fit(plain, Y)
    expected = classifier.predict_proba(plain)
    for table in (own, arrow, plain.convert_dtypes(dtype_backend="pyarrow")):
        np.testing.assert_allclose(classifier.predict_proba(table), expected, atol=1e-6)
        assert ContinualClassifier(**QUICK).fit(table, Y).feature_names_in_.tolist() == ["a", "b", "c"]


def test_a_sparse_matrix_is_read_by_a_classifier_and_its_bad_cells_are_named(
    learned: ContinualClassifier, learner: Learner
) -> None:
    bad = {f"nan in {IN_CELL}": with_cell(np.nan)}
    bad |= {f"9007199254740993 in {IN_CELL}": with_cell(2**53 + 1, np.int64)}
    for make in (sparse.csr_matrix, sparse.coo_array, sparse.dok_array):
        np.testing.assert_array_equal(learned.predict_proba(make(X)), learned.predict_proba(X))
        for words, x in bad.items():
            rejected(learned.predict, make(x), words)
            rejected(lambda x: learned.learn(x, Y), make(x), words)
    for make in (sparse.csr_matrix, sparse.coo_array, sparse.dok_array):
        rejected(learned.predict, make(X.astype(np.complex64)), "complex")
    rejected(learner.predict, sparse.csr_matrix(X), "sparse")
    rejected(lambda x: learner.learn(x, Y), sparse.csr_matrix(X), "sparse")


LABELS: dict[str, tuple[Callable[[], Any], str]] = {
    "masked": (lambda: masked(Y), "row 7"),
    "masked text": (lambda: masked(Y.astype(str)), "row 7"),
    "sparse": (lambda: torch.from_numpy(Y).to_sparse(), "sparse"),
    "meta": (lambda: torch.from_numpy(Y).to("meta"), "meta"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.from_numpy(Y).float(), 1.0, 0, torch.quint8), "quantized"),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_that_are_masked_or_have_no_values_are_rejected(
    kind: str, learned: ContinualClassifier, streamed: ContinualClassifier, learner: Learner
) -> None:
    make, words = LABELS[kind]
    calls: list[Callable[[Any], object]] = [
        lambda y: ContinualClassifier(**QUICK).fit(X, y),
        lambda y: learned.learn(X, y),
        lambda y: learned.update(X, y, "a"),
        lambda y: learned.score(X, y),
        lambda y: learned.partial_fit(X, Y, classes=y),
        lambda y: learned.learn([(X, y)]),
        lambda y: streamed.partial_fit(X, y),
        lambda y: learner.learn(X, y),
        lambda y: learner.update(X, y, task="a"),
        lambda y: learner.learn([(X, y)]),
    ]
    for call in calls:
        rejected(call, make(), words)


class Items(torch.utils.data.Dataset[Any]):
    """A Dataset of these rows, as they come out of `x` and `y`."""

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, place: int) -> tuple[Any, Any]:
        return self.x[place], self.y[place]


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (masked(), Y),
        ([[1.0, np.ma.masked, 2.0]] * ROWS, Y),
        ([[row, row] for row in masked()], Y),
        (X, masked(Y)),
        (X, masked(np.arange(ROWS) * 1.0)),
    ],
    ids=["rows", "lists", "nested", "labels", "float labels"],
)
def test_masked_items_of_a_dataset_are_rejected(
    x: Any, y: Any, learned: ContinualClassifier, learner: Learner
) -> None:
    rejected(learner.learn, Items(x, y), "masked")
    rejected(learned.learn, Items(x, y), "masked")


TASKS = {**LABELS, "fake": (lambda: FakeTensorMode().from_tensor(torch.from_numpy(Y)), "FakeTensor")}


@pytest.mark.parametrize("kind", TASKS)
def test_tasks_that_are_masked_or_have_no_values_are_rejected(
    kind: str, learned: ContinualClassifier, learner: Learner
) -> None:
    make, words = TASKS[kind]
    calls: list[Callable[[Any], object]] = [
        lambda task: learned.predict(X, task=task),
        lambda task: learned.predict_proba(X, task=task),
        lambda task: learned.score(X, Y, task=task),
        lambda task: learner.predict(T, task=task),
    ]
    for call in calls:
        rejected(call, make(), f"task.*{words}")


@pytest.mark.parametrize("y", [Y.astype("S"), [b"0"] * ROWS, Y.astype("M8[D]")], ids=["bytes", "list", "dates"])
def test_a_score_rejects_labels_of_a_kind_that_is_never_learned(y: Any, learned: ContinualClassifier) -> None:
    rejected(lambda labels: learned.score(X, labels), y, "y holds (bytes|dates)")


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (masked(np.ones(ROWS)), "weight.* row 7"),
        (np.ones(ROWS).astype(str), "weight.* text"),
        (torch.ones(ROWS).to("meta"), "weight.* meta"),
        (torch.ones(ROWS).to_sparse(), "weight.* sparse"),
        (np.ones(ROWS, "datetime64[s]"), "weight.* dates"),
    ],
    ids=["masked", "text", "meta", "sparse", "dates"],
)
def test_weights_that_are_no_numbers_are_rejected(
    weights: Any, words: str, learned: ContinualClassifier, learner: Learner
) -> None:
    rejected(lambda w: ContinualClassifier(**QUICK).fit(X, Y, sample_weight=w), weights, words)
    rejected(lambda w: learned.learn(X, Y, sample_weight=w), weights, words)
    rejected(lambda w: learned.score(X, Y, sample_weight=w), weights, words)
    rejected(lambda w: learner.learn(X, Y, weights=w), weights, words)


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "Float64", "Int64", "bool"])
def test_weights_may_be_a_series_of_any_numbers(dtype: str) -> None:
    weights = pd.Series(np.ones(ROWS), dtype=dtype)
    expected = ContinualClassifier(**QUICK).fit(X, Y, sample_weight=np.ones(ROWS)).predict_proba(X)
    for fitted in (
        ContinualClassifier(**QUICK).fit(X, Y, sample_weight=weights),
        ContinualClassifier(**QUICK).learn(X, Y, sample_weight=weights),
    ):
        np.testing.assert_array_equal(fitted.predict_proba(X), expected)
    made = Learner(net(), Settings(epochs=1, finetune_epochs=0))
    made.learn(T, Y, task="a", weights=weights)
    assert made.tasks[0].examples == ROWS


def test_rows_that_come_as_a_series_are_rejected_by_their_shape(learned: ContinualClassifier) -> None:
    column = pd.Series(X[:, 0])
    for call in (lambda: learned.predict(column), lambda: ContinualClassifier(**QUICK).fit(column, Y)):
        with pytest.raises(ValueError, match=r"DataFrame|1D|shape"):
            call()


def test_zero_and_minus_zero_are_one_label_and_come_back_as_zero(tmp_path: Path) -> None:
    y = np.where(Y == 0, np.where(np.arange(ROWS) % 4 == 0, -0.0, 0.0), 1.0)
    classifier = ContinualClassifier(**QUICK).fit(X, y)
    assert [str(label) for label in classifier.classes_.tolist()] == ["0.0", "1.0"]
    classifier.save(tmp_path / "model")
    loaded = ContinualClassifier.load(tmp_path / "model", device="cpu")
    assert [str(label) for label in loaded.classes_.tolist()] == ["0.0", "1.0"]
    assert classifier.learn(X, -y, task="b").classes_.tolist() == [-1.0, 0.0, 1.0]


def test_more_images_of_a_task_come_as_images_as_its_first_did() -> None:
    images = np.random.default_rng(0).random((40, 12, 12))
    y = np.arange(40) % 2
    classifier = ContinualClassifier(**{**QUICK, "recipe": "plain"}).learn(images, y, task="a")
    assert classifier.update(images, y, "a", keep="always").kept
    rejected(lambda x: classifier.update(x, y, "a"), images[:, :9], "1×9×12")


WRONG_CELLS: list[Any] = [
    *(np.ma.masked, "5", b"5", None, pd.NA, pd.NaT, np.datetime64("2026-01-31")),
    *(pd.Timestamp("2026-01-31"), pd.Timedelta("1D"), 1j, np.nan, np.inf, -np.inf, 2**53 + 1, -(2**60)),
]


def in_lists(rows: list[list[Any]]) -> Any:
    return rows


def in_tuples(rows: list[list[Any]]) -> Any:
    return tuple(map(tuple, rows))


def in_masked_rows(rows: list[list[Any]]) -> Any:
    """Arrays in a list: those with a masked cell are masked, the others hold what there is."""
    hidden = [[cell is np.ma.masked for cell in row] for row in rows]
    plain = [[0.0 if cell is np.ma.masked else cell for cell in row] for row in rows]
    return [
        np.ma.array(row, mask=mask) if any(mask) else np.array(row, object)
        for row, mask in zip(plain, hidden, strict=True)
    ]


def in_objects(rows: list[list[Any]]) -> Any:
    found = np.empty((len(rows), len(rows[0])), object)
    for place in np.ndindex(found.shape):
        found[place] = rows[place[0]][place[1]]
    return found


def in_a_frame(rows: list[list[Any]]) -> Any:
    return pd.DataFrame(in_objects(rows), columns=list("abc"))


@pytest.mark.parametrize("times", [60, pytest.param(3_000, marks=pytest.mark.faults)])
def test_a_wrong_cell_anywhere_and_in_any_container_is_rejected_and_its_row_named(
    times: int, learned: ContinualClassifier, learner: Learner, tally: Tally
) -> None:
    chance = random.Random(SEED)
    calls = [
        *(partial(call, learned) for call in TAKES_X.values()),
        *(partial(call, learner) for call in TAKES_ROWS.values()),
    ]
    accepted = tracebacks = misnamed = 0
    for _ in range(times):
        rows, at, column = X.tolist(), chance.randrange(ROWS), chance.randrange(COLUMNS)
        rows[at][column] = chance.choice(WRONG_CELLS)
        container = chance.choice([in_lists, in_tuples, in_masked_rows, in_objects, in_a_frame])
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                chance.choice(calls)(container(rows))
            accepted += 1
        except InputError as error:
            misnamed += not re.search(rf"row {at}\b|\[{at}\]|NaN or infinite|holds (text|complex)", str(error))
        except Exception:
            tracebacks += 1
    assert (learned.tasks_, [task.name for task in learner.tasks]) == (["a"], ["a"])
    tally(
        "wrong cells in rows that are given in Python",
        times,
        seed=SEED,
        accepted=accepted,
        tracebacks=tracebacks,
        misnamed=misnamed,
    )
