"""`ibpwf learn` from a scratch file: the same model as from memory, also when it is interrupted."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from ibpwf.data import ReadOptions
from ibpwf.estimator.files import LearnOptions, answer_rows, learn_file, load_classifier, read_like_before
from ibpwf.estimator.scoring import score_rows
from own_files import blobs, model_bytes, table
from processes import Finished, Started

Command = Callable[..., Finished]
Start = Callable[..., Started]
READ = ReadOptions(label="kind", with_labels=True)
PARAMETERS = {"epochs": 4, "hidden": (24,), "settings": {"inference.features.width": 64}}


def written(path: Path, classes: tuple[int, ...] = (0, 1, 2), seed: int = 0) -> Path:
    x, y = blobs(classes, each=60, seed=seed)
    return table(path, x, [f"kind {number}" for number in y])


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("validate", [None, 0.2])
def test_the_model_is_the_same_to_the_last_byte(validate: float | None, suffix: str, tmp_path: Path) -> None:
    first, later = written(tmp_path / f"a{suffix}"), written(tmp_path / f"b{suffix}", (3, 4), seed=1)
    found = []
    for on_disk in (False, True):
        options = LearnOptions(READ, validate=validate, device="cpu", on_disk=on_disk)
        model = tmp_path / str(on_disk)
        found.append([learn_file(model, path, path.stem, PARAMETERS, options) for path in (first, later)])
    assert found[0] == found[1]
    assert model_bytes(tmp_path / "False") == model_bytes(tmp_path / "True")


def test_a_large_file_is_not_held_in_memory_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr("ibpwf.estimator.files.read_examples", lambda *given: read.append("memory"))
    monkeypatch.setattr("ibpwf.estimator.files.read_stored", lambda *given: read.append("disk"))
    path = written(tmp_path / "a.csv")
    LearnOptions().rows_of(path, READ)
    monkeypatch.setattr("ibpwf.data.stored.LARGE", 1_000)
    LearnOptions().rows_of(path, READ)
    LearnOptions(on_disk=False).rows_of(path, READ)
    assert read == ["memory", "disk", "memory"]


def test_shards_are_learnt_answered_and_evaluated(tmp_path: Path) -> None:
    (tmp_path / "days").mkdir()
    for day in range(3):
        written(tmp_path / "days" / f"{day}.csv", seed=day)
    found = learn_file(tmp_path / "m", tmp_path / "days", "days", PARAMETERS, LearnOptions(READ, device="cpu"))
    assert (found.rows, found.classes) == (540, ["kind 0", "kind 1", "kind 2"])
    classifier = load_classifier(tmp_path / "m", "cpu")
    scores = score_rows(classifier, read_like_before(classifier, tmp_path / "days" / "*.csv", READ)).to_json()
    assert scores["rows"] == 540
    assert scores["accuracy"]["task_given"] > 90
    batches = read_like_before(classifier, tmp_path / "days", ReadOptions(with_labels=False))
    assert sum(len(rows) for rows in answer_rows(classifier, batches)) == 540


def test_a_pattern_that_no_file_has_is_refused_at_once(command: Command) -> None:
    done = command("learn", "m", "day?.csv")
    assert (done.code, done.err) == (2, "error: no file is called like 'day?.csv'; check the pattern.\n")


def test_an_interrupted_task_is_resumed_to_the_same_bits(tmp_path: Path, started: Start, command: Command) -> None:
    written(tmp_path / "a.csv")
    long = (
        "--label",
        "kind",
        "--epochs",
        "60",
        "--hidden",
        "24",
        "--set",
        "inference.features.width=32",
        "--device",
        "cpu",
    )
    words = ("learn", "m", "a.csv", *long, "--on-disk")
    process = started(*words)
    assert process.wait_until((tmp_path / "m" / ".lock").exists)
    process.send(signal.SIGINT)
    assert process.finish().code == 130
    assert command(*words, "--resume").code == 0
    assert command("learn", "whole", "a.csv", *long, "--in-memory").code == 0
    assert model_bytes(tmp_path / "m") == model_bytes(tmp_path / "whole")
