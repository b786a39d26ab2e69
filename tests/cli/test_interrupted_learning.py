"""Learning that is interrupted keeps the task, says how to go on, and ends with the same bits; one writer only."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from own_files import blobs, model_bytes, table
from processes import Finished, Started

Command = Callable[..., Finished]
Start = Callable[..., Started]

LONG = ("--epochs", "60", "--hidden", "24", "--set", "inference.features.width=32", "--device", "cpu")


@pytest.fixture
def words(tmp_path: Path) -> tuple[str, ...]:
    """Learning that takes a second or more."""
    x, y = blobs((0, 1), each=150)
    table(tmp_path / "first file.csv", x, y)
    return ("learn", "m", "first file.csv", "--label", "kind", *LONG)


def training(process: Started, folder: Path) -> None:
    """Wait until the folder is held, which is when the file has been read."""
    assert process.wait_until((folder / ".lock").exists)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_task_is_kept_and_resumed_to_the_same_bits(
    number: signal.Signals, code: int, words: tuple[str, ...], tmp_path: Path, started: Start, command: Command
) -> None:
    process = started(*words)
    training(process, tmp_path / "m")
    process.send(number)
    ended = process.finish()
    assert (ended.code, ended.out) == (code, "")
    again = ended.err.splitlines()[-1].strip()
    assert again.startswith("ibpwf learn m 'first file.csv' --label kind --epochs 60")
    assert again.endswith(" --resume")

    inspected = command("inspect", "m")
    assert inspected.code == 2
    assert "'first file'" in inspected.err
    before = model_bytes(tmp_path / "m")
    for changed, named in (
        (words, "--restart"),
        ((*words, "--task", "other", "--resume"), "'other'"),
        ((*words[:-2], "--device", "cpu", "--set", "kappa=0.6", "--resume"), "setting"),
        ((*(word.replace("60", "61") for word in words), "--resume"), "setting"),
    ):
        done = command(*changed)
        assert done.code == 2
        assert named in done.err
    assert model_bytes(tmp_path / "m") == before

    done = command(*words, "--resume")
    assert done.code == 0, done.err
    undisturbed = command(words[0], "undisturbed", *words[2:])
    assert undisturbed.code == 0, undisturbed.err
    assert model_bytes(tmp_path / "m") == model_bytes(tmp_path / "undisturbed")
    once_more = command(*words, "--resume")
    assert once_more.code == 0
    assert "'first file'" in once_more.out
    assert model_bytes(tmp_path / "m") == model_bytes(tmp_path / "undisturbed")


def test_a_task_that_was_broken_off_can_be_dropped(
    words: tuple[str, ...], tmp_path: Path, started: Start, command: Command
) -> None:
    process = started(*words)
    training(process, tmp_path / "m")
    process.send(signal.SIGINT)
    assert process.finish().code == 130
    done = command(*(word.replace("60", "3") for word in words), "--restart")
    assert done.code == 0, done.err
    assert not (tmp_path / "m" / ".in-progress").exists()


def test_a_second_process_is_refused_and_nothing_is_lost(
    words: tuple[str, ...], tmp_path: Path, here: Path, started: Start, command: Command
) -> None:
    before = {name: data for name, data in model_bytes(here / "model").items() if name != "manifest.json"}
    x, y = blobs((8, 9), each=3000)
    table(here / "long.csv", x, y)
    lock = here / "model" / ".lock"
    lock.unlink()
    process = started("learn", "model", "long.csv", "--device", "cpu", "--checkpoint-minutes", "0.0001")
    assert process.wait_until((here / "model" / ".in-progress" / "manifest.json").exists)
    for line in (("learn", "model", "fruit.csv", "--task", "more"), ("forget", "model", "fruit")):
        refused = command(*line)
        assert refused.code == 2
        assert "another process" in refused.err
    assert command("predict", "model", "new.csv", "-o", "out.csv").code == 0  # reading is anyone's
    process.send(signal.SIGKILL)
    assert process.finish().code == -signal.SIGKILL
    # The lock of a process that is gone holds nobody up, and what it had finished is all there.
    assert json.loads(command("verify", "model", "--json").out)["whole"]
    now = model_bytes(here / "model")
    assert {name: now[name] for name in before} == before
    assert json.loads(command("inspect", "model", "--json").out)["in_progress"] == "long"
    done = command("learn", "model", "fruit.csv", "--task", "more", "--restart", "--device", "cpu")
    assert done.code == 0, done.err
    assert done.out.endswith("fruit, trees, more.\n")


def test_interrupted_before_anything_was_kept_nothing_is_left(
    words: tuple[str, ...], tmp_path: Path, started: Start
) -> None:
    process = started(*words)
    training(process, tmp_path / "m")
    process.send(signal.SIGINT)
    process.send(signal.SIGINT)  # at once, or in the step that the first lets finish
    ended = process.finish()
    assert ended.code == 130
    kept = (tmp_path / "m" / ".in-progress" / "manifest.json").exists()
    assert kept or not (tmp_path / "m").exists()
    assert ("--resume" in ended.err) == kept


def test_resuming_a_finished_task_with_other_rows_is_refused(here: Path, command: Callable[..., Finished]) -> None:
    rows = (here / "trees.csv").read_text().splitlines()
    assert command("learn", "model", "trees.csv", "--resume").code == 0
    first, rest = rows[1].split(",", 1)
    for changed in (
        rows[:-1],  # one fewer, of the same classes
        [rows[0], *reversed(rows[1:])],
        [rows[0], f"{first},{float(rest.split(',')[0]) + 1}," + rest.split(",", 1)[1], *rows[2:]],
    ):
        (here / "trees.csv").write_text("\n".join(changed) + "\n")
        other = command("learn", "model", "trees.csv", "--resume")
        assert other.code == 2
        assert "'trees'" in other.err
        assert "--task" in other.err


def test_forgetting_a_task_leaves_neither_its_labels_nor_a_digest_of_its_rows(
    here: Path, command: Callable[..., Finished]
) -> None:
    manifest = (here / "model" / "manifest.json").read_text()
    assert "oak" in manifest
    assert len(json.loads(manifest)["content"]["extra"]["rows"]) == 2
    assert command("forget", "model", "trees").code == 0
    everything = b"".join(path.read_bytes() for path in (here / "model").rglob("*") if path.is_file())
    for word in (b"trees", b"oak", b"elm"):
        assert word not in everything
    assert list(json.loads((here / "model" / "manifest.json").read_text())["content"]["extra"]["rows"]) == ["fruit"]
    assert "oak" not in command("inspect", "model", "--json").out
    assert "oak" not in command("predict", "model", "new.csv", "-o", "-").out
