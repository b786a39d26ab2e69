"""`ibpwf learn` as a user meets it: files of every kind, tasks one after another, mistakes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from ibpwf.cli.learn import Learn
from ibpwf.cli.parsing import options_of
from ibpwf.estimator.records import ClassifierRecipe
from own_files import NAMES, QUICK, blobs, model_bytes, pixels, table
from processes import Finished

Command = Callable[..., Finished]


# Files of every kind


def csv(folder: Path, name: str, classes: tuple[int, ...]) -> str:
    x, y = blobs(classes)
    return table(folder / f"{name}.csv", x, y).name


def tsv(folder: Path, name: str, classes: tuple[int, ...]) -> str:
    x, y = blobs(classes)
    return table(folder / f"{name}.tsv", x, [f"größe {number}" for number in y]).name


def parquet(folder: Path, name: str, classes: tuple[int, ...]) -> str:
    x, y = blobs(classes)
    return table(folder / f"{name}.parquet", x, [f"类{number}" for number in y]).name


def npz(folder: Path, name: str, classes: tuple[int, ...]) -> str:
    x, y = blobs(classes)
    np.savez(folder / f"{name}.npz", x=x, kind=y)
    return f"{name}.npz"


def images(folder: Path, name: str, classes: tuple[int, ...]) -> str:
    image = pytest.importorskip("PIL.Image")
    x, y = blobs(classes)
    for number, (picture, kind) in enumerate(zip(pixels(x), y, strict=True)):
        place = folder / name / f"kind {kind}"
        place.mkdir(parents=True, exist_ok=True)
        image.fromarray(picture).save(place / f"{number}.png")
    return name


def idx(folder: Path, name: str, classes: tuple[int, ...]) -> str:
    x, y = blobs(classes)
    (folder / name).mkdir()
    for kind, array in (("images-idx3", pixels(x)), ("labels-idx1", y.astype(np.uint8))):
        head = bytes([0, 0, 8, array.ndim]) + b"".join(extent.to_bytes(4, "big") for extent in array.shape)
        (folder / name / f"train-{kind}-ubyte").write_bytes(head + array.tobytes())
    return name


@pytest.mark.parametrize("make", [csv, tsv, parquet, npz, images, idx])
def test_two_tasks_of_every_kind_of_file_are_learned_and_answered(
    make: Callable[[Path, str, tuple[int, ...]], str], tmp_path: Path, command: Command
) -> None:
    label = ("--label", "kind") if make in (csv, tsv, parquet, npz) else ()
    first, second = make(tmp_path, "first", (0, 1)), make(tmp_path, "second", (2, 3, 4))
    done = command("learn", "m", first, *label, *QUICK)
    assert done.code == 0, done.err
    assert "task 'first'" in done.out
    later = ("--label", "kind") if make is npz else ()
    done = command("learn", "m", second, *later, "--device", "cpu", "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert told["tasks"] == ["first", "second"]
    assert len(told["classes"]) == 3
    assert told["accuracy"] > 95
    assert told["accuracy_inferred"] > 95
    done = command("evaluate", "m", second, *later, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["accuracy"]["task_inferred"] > 95
    done = command("predict", "m", second, "-o", "out.csv")
    assert done.code == 0, done.err
    head, *rows = (tmp_path / "out.csv").read_text().splitlines()
    assert head == f"{'file' if make is images else 'row'},label,probability,task,entropy,novelty,novel"
    assert len(rows) == 120
    assert sum(",second," in row for row in rows) > 110
    if make is images:
        assert rows[0].startswith("second/kind 2/")


def test_columns_may_come_in_another_order(here: Path, command: Command) -> None:
    x, y = blobs((4, 5))
    table(here / "birds.csv", x, [f"bird {number}" for number in y], columns=NAMES[::-1])
    straight = command("learn", "model", "birds.csv", "--device", "cpu")
    assert straight.code == 0, straight.err
    x, _ = blobs((0, 1, 2, 3), each=15, seed=1)
    table(here / "turned.csv", x, None, columns=[*NAMES[5:], *NAMES[:5]])
    turned = command("predict", "model", "turned.csv", "-o", "-").out
    assert turned == command("predict", "model", "new.csv", "-o", "-").out


def test_the_same_label_may_come_back_in_a_later_task(here: Path, command: Command) -> None:
    x, y = blobs((6, 7))
    table(here / "more.csv", x, np.where(y == 6, "apple", "cherry"))
    assert command("learn", "model", "more.csv", "--device", "cpu").code == 0
    x, _ = blobs((6,), each=10, seed=2)
    table(here / "apples.csv", np.concatenate([x, blobs((0,), each=10, seed=2)[0]]), ["apple"] * 20)
    told = json.loads(command("evaluate", "model", "apples.csv", "--json").out)
    assert told["accuracy"]["task_inferred"] > 90
    assert told["rows_with_task"] == 0  # either task may be meant
    assert told["accuracy"]["task_given"] is None
    assert told["classes"][0]["tasks"] == ["fruit", "more"]


# What is kept


def test_inspect_shows_class_names_and_accuracies(here: Path, command: Command) -> None:
    out = command("inspect", "model", COLUMNS="100").out
    assert "apple, pear" in out
    tasks = json.loads(command("inspect", "model", "--json").out)["tasks"]
    assert [task["labels"] for task in tasks] == [["apple", "pear"], ["elm", "oak"]]
    assert all(task["accuracy"] > 95 for task in tasks)


def test_rows_held_out_are_not_learned_from_and_measured_on(tmp_path: Path, command: Command) -> None:
    csv(tmp_path, "first", (0, 1))
    words = ("first.csv", "--label", "kind", "--test-fraction")
    told = json.loads(command("learn", "m", *words, "0.25", *QUICK, "--json").out)
    assert (told["rows"], told["held_out"]) == (60, 20)
    noted = json.loads(command("inspect", "m", "--json").out)["tasks"][0]
    assert (noted["examples"], noted["accuracy"]) == (60, told["accuracy"])
    done = command("learn", "n", *words, "0.99")
    assert done.code == 2
    assert "class '0' has 40 examples" in done.err
    assert not (tmp_path / "n").exists()


def test_missing_values_are_filled_in_if_asked_for_and_from_then_on(tmp_path: Path, command: Command) -> None:
    path = tmp_path / csv(tmp_path, "first", (0, 1))
    lines = path.read_text().splitlines()
    cells = lines[3].split(",")
    lines[3] = ",".join([*cells[:4], "", *cells[5:]])
    path.write_text("\n".join(lines))
    done = command("learn", "m", "first.csv", "--label", "kind", *QUICK)
    assert done.code == 2
    assert "first.csv, line 4, column 'f3'" in done.err
    assert "--missing mean" in done.err
    assert not (tmp_path / "m").exists()
    assert command("learn", "m", "first.csv", "--label", "kind", "--missing", "mean", *QUICK).code == 0
    assert command("predict", "m", "first.csv", "-o", "out.csv").code == 0
    assert command("predict", "m", "first.csv", "--missing", "error").code == 2


# Mistakes


MISTAKES: list[tuple[tuple[str, ...], str]] = [
    (("none.csv",), "'none.csv'"),
    (("trees.csv",), "--task"),
    (("next.csv", "--seed", "4"), "seed is 4"),
    (("next.csv", "--hidden", "30"), "hidden is 30"),
    (("next.csv", "--epochs", "5"), "epochs is 5"),
    (("next.csv", "--alpha", "5"), "alpha is 5"),
    (("next.csv", "--set", "kappa=0.7"), "kappa is 0.7"),
    (("next.csv", "--set", "kapa=0.7"), "'kappa'"),
    (("unlabelled.csv",), "'kind'"),
    (("wide.csv",), "'id'"),
    (("narrow.csv",), "'f3'"),
    (("words.csv",), "line 3, column 'f0'"),
    (("a.npz",), "a.npz"),
    (("empty.csv",), "empty.csv"),
    (("next.csv", "--task", " "), "' '"),
    (("next.csv", "--test-fraction", "2"), "--test-fraction is 2"),
    (("next.csv", "--resume", "--restart"), "--restart"),
    (("next.csv", "--dry-run"), "--update"),
    (("next.csv", "--update", "trees", "--task", "trees"), "--task"),
    (("next.csv", "--checkpoint-minutes", "-1"), "--checkpoint-minutes is -1"),
    (("next.csv", "--device", "gpu"), "'gpu'"),
]


@pytest.fixture(scope="session")
def mistaken(taught: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model beside files that cannot be its next task. Nothing here writes to it, as the test checks."""
    folder = tmp_path_factory.mktemp("mistaken") / "here"
    shutil.copytree(taught, folder)
    x, y = blobs((8, 9))
    table(folder / "next.csv", x, y)
    table(folder / "unlabelled.csv", x, None)
    table(folder / "narrow.csv", x, y, columns=[name for name in NAMES if name != "f3"])
    lines = (folder / "next.csv").read_text().splitlines()
    wide = [line + (",id" if number == 0 else f",{number}") for number, line in enumerate(lines)]
    (folder / "wide.csv").write_text("\n".join(wide))
    lines[2] = ",".join([lines[2].split(",")[0], "x", *lines[2].split(",")[2:]])
    (folder / "words.csv").write_text("\n".join(lines))
    (folder / "empty.csv").write_text("")
    np.savez(folder / "a.npz", x=x, y=y)
    return folder


@pytest.mark.parametrize(("words", "named"), MISTAKES)
def test_a_mistake_is_one_sentence_that_names_it_and_the_model_is_untouched(
    words: tuple[str, ...], named: str, mistaken: Path, invoke: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(mistaken)
    before = model_bytes(mistaken / "model")
    done = invoke("learn", "model", *words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert named in done.err
    assert model_bytes(mistaken / "model") == before


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("m", "fruit.csv"), "--label"),
        (("m", "fruit.csv", "--label", "knid"), "'kind'"),
        (("m", "fruit.csv", "--label", "kind", "--hidden", "4x"), "--hidden is '4x'"),
        (("m", "fruit.csv", "--label", "kind", "--alpha", "big"), "--alpha is 'big'"),
        (("m", "fruit.csv", "--label", "kind", "--epochs", "0"), "epochs is 0"),
        (("m", "fruit.csv", "--label", "kind", "--recipe", "tables"), "'table'"),
        (("m", "fruit.csv", "--label", "kind", "--size", "8"), "--size is '8'"),
        (("m", "fruit.csv", "--label", "kind", "--size", "8x8"), "--size"),
        (("fruit.csv", "m"), "fruit.csv is a file"),
        (("others", "fruit.csv"), "mine.txt"),
    ],
)
def test_a_mistake_with_a_new_model_leaves_no_folder(
    words: tuple[str, ...], named: str, mistaken: Path, invoke: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(mistaken)
    (mistaken / "others").mkdir(exist_ok=True)
    (mistaken / "others" / "mine.txt").write_text("mine")
    done = invoke("learn", *words)
    assert (done.code, done.out) == (2, "")
    assert named in done.err
    assert done.err.count("\n") == 1
    assert not (mistaken / "m").exists()
    assert [path.name for path in (mistaken / "others").iterdir()] == ["mine.txt"]


def test_a_model_made_in_python_is_named_as_such(learnt_folder: Path, taught: Path, command: Command) -> None:
    done = command("predict", str(learnt_folder), str(taught / "new.csv"))
    assert done.code == 2
    assert "ContinualClassifier" in done.err


def test_classes_come_one_file_at_a_time(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number in (0, 5, 9):
        x, y = blobs((number,))
        table(tmp_path / f"only-{number}.csv", x, y)
        said = command("learn", "m", f"only-{number}.csv", "--label", "kind", *QUICK)
        assert said.code == 0
        assert ("only class" in said.out) == (number == 0)
    x, y = blobs((0, 5, 9))
    table(tmp_path / "all.csv", x, y)
    found = json.loads(command("evaluate", "m", "all.csv", "--json").out)
    assert found["accuracy"]["task_inferred"] > 90


def test_recipes_are_those_that_a_model_folder_can_hold() -> None:
    (option,) = (one for one in options_of(Learn) if one.name == "recipe")
    assert option.choices == ("auto", *get_args(ClassifierRecipe.model_fields["name"].annotation))
