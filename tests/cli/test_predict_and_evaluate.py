"""`ibpwf predict` and `ibpwf evaluate`: the columns, the files they are written to, and what is counted."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ibpwf import ContinualClassifier
from own_files import QUICK, blobs, model_bytes, pixels, table
from processes import Finished

Command = Callable[..., Finished]


@pytest.fixture
def rows(taught: Path) -> np.ndarray:
    """The numbers of test.csv and new.csv."""
    return np.loadtxt(taught / "new.csv", delimiter=",", skiprows=1)


# predict


def test_every_column_says_what_the_classifier_says(
    taught: Path, tmp_path: Path, rows: np.ndarray, command: Command
) -> None:
    done = command("predict", "model", "new.csv", "-o", str(tmp_path / "out.csv"), cwd=taught)
    assert done.code == 0, done.err
    with (tmp_path / "out.csv").open() as file:
        found = list(csv.DictReader(file))
    classifier = ContinualClassifier.load(taught / "model", device="cpu")
    x = rows.astype(np.float32)
    assert list(found[0]) == ["row", "label", "probability", "task", "entropy", "novelty", "novel"]
    assert [row["row"] for row in found] == [str(number) for number in range(1, 61)]
    assert [row["label"] for row in found] == classifier.predict(x).tolist()
    assert [row["task"] for row in found] == classifier.predict_task(x).tolist()
    probability = classifier.predict_proba(x)
    np.testing.assert_allclose([float(row["probability"]) for row in found], probability.max(1), atol=1e-5)
    logs = np.log(np.clip(probability, 1e-300, 1))
    np.testing.assert_allclose([float(row["entropy"]) for row in found], -(probability * logs).sum(1), atol=1e-5)
    np.testing.assert_allclose([float(row["novelty"]) for row in found], classifier.novelty(x), atol=1e-5)
    assert [row["novel"] for row in found] == [str(bool(novel)).lower() for novel in classifier.is_novel(x)]


def test_with_a_task_only_its_labels_are_answered(taught: Path, command: Command) -> None:
    done = command("predict", "model", "new.csv", "--task", "trees", "-o", "-", cwd=taught)
    found = list(csv.DictReader(done.out.splitlines()))
    assert {row["label"] for row in found} <= {"oak", "elm"}
    assert {row["task"] for row in found} == {"trees"}


def test_draws_add_the_mutual_information(taught: Path, command: Command) -> None:
    done = command("predict", "model", "new.csv", "--posterior-samples", "3", "-o", "-", cwd=taught)
    found = list(csv.DictReader(done.out.splitlines()))
    assert all(float(row["mutual_information"]) >= 0 for row in found)
    refused = command("predict", "model", "new.csv", "--posterior-samples", "-1", cwd=taught)
    assert refused.code == 2
    assert "--posterior-samples is -1" in refused.err


def test_the_label_column_is_not_looked_at(taught: Path, command: Command) -> None:
    bare = command("predict", "model", "new.csv", "-o", "-", cwd=taught)
    with_labels = command("predict", "model", "test.csv", "-o", "-", cwd=taught)
    assert bare.code == with_labels.code == 0
    assert bare.out == with_labels.out


def test_noise_is_flagged_and_ordinary_rows_are_not(taught: Path, tmp_path: Path, command: Command) -> None:
    table(tmp_path / "noise.csv", np.random.default_rng(0).uniform(-60, 60, (50, 16)), None)
    for file, few, many in ((str(tmp_path / "noise.csv"), 50, 50), ("new.csv", 0, 3)):
        assert few <= json.loads(command("predict", "model", file, "--json", cwd=taught).out)["novel"] <= many


def test_without_a_file_a_few_rows_and_a_summary_are_shown(taught: Path, command: Command) -> None:
    done = command("predict", "model", "new.csv", cwd=taught, COLUMNS="80")
    lines = done.out.splitlines()
    assert lines[0].split() == ["row", "label", "probability", "task", "entropy", "novelty", "novel"]
    assert "50 more rows" in lines[11]
    assert max(map(len, lines)) <= 80
    told = json.loads(command("predict", "model", "new.csv", "--json", cwd=taught).out)
    assert [list(row) for row in told["predictions"]] == 60 * [lines[0].split()]
    assert (told["rows"], sum(told["labels"].values()), sum(told["tasks"].values())) == (60, 60, 60)


def test_other_formats_hold_the_same(taught: Path, tmp_path: Path, command: Command) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    for name in ("a.csv", "a.tsv", "a.jsonl", "a.parquet"):
        done = command("predict", "model", "new.csv", "-o", str(tmp_path / name), cwd=taught)
        assert done.code == 0, done.err
        assert str(tmp_path / name) in done.out
    first = pandas.read_csv(tmp_path / "a.csv")
    for other in (
        pandas.read_csv(tmp_path / "a.tsv", sep="\t"),
        pandas.read_json(tmp_path / "a.jsonl", lines=True),
        pandas.read_parquet(tmp_path / "a.parquet"),
    ):
        pandas.testing.assert_frame_equal(first, other, check_dtype=False, atol=1e-5)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("none.csv",), "'none.csv'"),
        (("new.csv", "--task", "tree"), "'trees'"),
        (("new.csv", "-o", "out.xls"), "'.xls'"),
        (("new.csv", "-o", "-", "--json"), "--json"),
        (("copy.csv", "-o", "copy.csv"), "copy.csv"),
        (("new.csv", "-o", "no/where.csv"), "no "),
        (("late.csv", "-o", "out.csv"), "late.csv, line 3002, column 'f0'"),
    ],
)
def test_a_mistake_is_one_sentence_and_writes_nothing(
    words: tuple[str, ...], named: str, here: Path, invoke: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here)
    x, _ = blobs((0,), each=3000)
    table(here / "copy.csv", x, None)
    (here / "late.csv").write_text((here / "copy.csv").read_text() + ",".join(["x"] + ["0"] * 15) + "\n")
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    done = invoke("predict", "model", *words)
    assert (done.code, done.out) == (2, "")
    assert named in done.err
    assert done.err.count("\n") == 1
    assert {path: path.read_bytes() for path in here.rglob("*") if path.is_file()} == before


def test_images_of_another_size_are_resized_as_the_error_advises(tmp_path: Path, command: Command) -> None:
    image = pytest.importorskip("PIL.Image")
    x, y = blobs((0, 1))
    for number, (picture, kind) in enumerate(zip(pixels(x), y, strict=True)):
        place = tmp_path / "photos" / f"kind {kind}"
        place.mkdir(parents=True, exist_ok=True)
        image.fromarray(picture).save(place / f"{number}.png")
    assert command("learn", "m", "photos", *QUICK).code == 0
    image.fromarray(pixels(x)[0]).resize((8, 8)).save(tmp_path / "large.png")
    refused = command("predict", "m", "large.png")
    assert refused.code == 2
    assert "large.png is 8×8" in refused.err
    assert "--size 4x4" in refused.err
    assert command("predict", "m", "large.png", "--size", "4x4").code == 0
    wrong = command("predict", "m", "large.png", "--size", "5x5")
    assert "--size is 5×5" in wrong.err


# evaluate


def test_what_is_counted_is_what_can_be_counted_by_hand(
    taught: Path, tmp_path: Path, rows: np.ndarray, command: Command
) -> None:
    truth = [line.split(",")[0] for line in (taught / "test.csv").read_text().splitlines()[1:]]
    swapped = ["pear" if number < 4 else label for number, label in enumerate(truth)]  # four apples called pears
    table(tmp_path / "test.csv", rows, swapped)
    words = ("evaluate", "model", str(tmp_path / "test.csv"))
    done = command(*words, cwd=taught, COLUMNS="90")
    assert done.code == 0, done.err
    told = json.loads(command(*words, "--json", cwd=taught).out)
    x = rows.astype(np.float32)
    classifier = ContinualClassifier.load(taught / "model", device="cpu")
    answers = classifier.predict(x)
    tasks = ["fruit" if label in ("apple", "pear") else "trees" for label in swapped]
    assert told["rows"] == told["rows_with_task"] == 60
    assert told["accuracy"]["task_inferred"] == pytest.approx(100 * np.mean(answers == np.array(swapped)))
    given = classifier.predict(x, task=tasks)
    assert told["accuracy"]["task_given"] == pytest.approx(100 * np.mean(given == np.array(swapped)))
    assert told["task_inference"] == pytest.approx(100 * np.mean(classifier.predict_task(x) == np.array(tasks)))
    assert told["mean_entropy"] == pytest.approx(float(classifier.uncertainty(x).mean()), abs=1e-6)
    assert told["novel"] == pytest.approx(100 * classifier.is_novel(x).mean())
    assert (
        told["confusion"]["pear"]["apple"] == int(np.sum((np.array(swapped) == "pear") & (answers == "apple"))) >= 4
    )
    pear = next(entry for entry in told["classes"] if entry["label"] == "pear")
    assert pear["rows"] == swapped.count("pear")
    assert "apple (4)" in done.out
    assert "accuracy, task inferred" in done.out


def test_labels_never_learned_are_counted_apart(taught: Path, tmp_path: Path, command: Command) -> None:
    x, y = blobs((0, 10), each=10, seed=3)
    table(tmp_path / "odd.csv", x, np.where(y == 0, "apple", "stone"))
    told = json.loads(command("evaluate", "model", str(tmp_path / "odd.csv"), "--json", cwd=taught).out)
    assert told["rows"] == 10
    assert told["never_learned"]["labels"] == {"stone": 10}
    assert told["accuracy"]["task_inferred"] > 80
    assert "(stone)" in command("evaluate", "model", str(tmp_path / "odd.csv"), cwd=taught).out


def test_a_given_task_must_have_the_labels(taught: Path, command: Command) -> None:
    done = command("evaluate", "model", "test.csv", "--task", "fruit", cwd=taught)
    assert done.code == 2
    assert "task 'fruit' has no class 'oak'" in done.err
    assert command("evaluate", "model", "fruit.csv", "--task", "fruit", cwd=taught).code == 0
    done = command("evaluate", "model", "new.csv", cwd=taught)
    assert done.code == 2
    assert "'kind'" in done.err


def test_answers_with_the_task_given_survive_forgetting_another(here: Path, command: Command) -> None:
    line = ("predict", "model", "new.csv", "--task", "trees", "-o", "-")
    before = [row.rsplit(",", 2)[0] for row in command(*line).out.splitlines()]
    assert command("forget", "model", "fruit").code == 0
    assert [row.rsplit(",", 2)[0] for row in command(*line).out.splitlines()] == before
    assert command("verify", "model").code == 0
    assert json.loads(command("evaluate", "model", "trees.csv", "--json").out)["accuracy"]["task_inferred"] > 95
    assert model_bytes(here / "model")
