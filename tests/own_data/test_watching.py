"""`ibpwf watch`: files that arrive are learned once and in order, whatever they hold and whenever the watch ends."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import processes
from ibpwf import ContinualClassifier
from ibpwf.data import ReadOptions, read_examples
from ibpwf.errors import InputError
from ibpwf.estimator.watch import Watched, WatchOptions, undo_last, watch_folder
from ibpwf.storage.checkpoint_folder import CheckpointContent, has_checkpoint, save_checkpoint
from ibpwf.storage.files import read_jsonl
from own_files import blobs, table
from tallies import Tally

PARAMETERS = {"epochs": 4, "hidden": (24,), "settings": {"inference.features.width": 64}}
SEED = 35
SMALL = {"buffer": 100, "least": 50, "window": 50}


def arrive(
    folder: Path, name: str, classes: tuple[int, ...], seed: int, *, labels: bool = True, age: float = 60
) -> Path:
    """A file of 60 rows that was written `age` seconds ago."""
    x, y = blobs(classes, each=60 // len(classes), seed=seed)
    order = np.random.default_rng(seed).permutation(len(y))
    path = table(folder / name, x[order], [f"c{n}" for n in y[order]] if labels else None)
    os.utime(path, (time.time() - age, time.time() - age))
    return path


def watched(place: Path, **changed: object) -> Watched:
    given = {
        "read": ReadOptions(label="kind"),
        "parameters": PARAMETERS,
        "stream": SMALL,
        "device": "cpu",
        "once": True,
    }
    return watch_folder(place / "model", place / "in", WatchOptions(**{**given, **changed}))  # type: ignore[arg-type]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("ibpwf.estimator.watch.SETTLED", 0.02)
    (tmp_path / "in").mkdir()
    return tmp_path


def log_of(place: Path, *events: str) -> list[dict[str, object]]:
    return [line for line in read_jsonl(place / "model.watch" / "log.jsonl") if line["event"] in events]


def test_files_are_learned_once_in_their_order_and_after_a_restart_only_new_ones(place: Path) -> None:
    for number, age in enumerate((300, 200, 100)):
        arrive(place / "in", f"{9 - number}.csv", (0, 1), number, age=age)
    assert watched(place) == Watched(learned=3, answered=0, skipped=0, waiting=0, saved=True)
    assert [line["file"] for line in log_of(place, "learned")] == ["9.csv", "8.csv", "7.csv"]
    assert watched(place).learned == 0
    arrive(place / "in", "new.csv", (2, 3), 5)
    assert watched(place).learned == 1
    classifier = ContinualClassifier.load(place / "model", device="cpu")
    assert classifier.stream_rows_ == 240
    x, y = blobs((0, 1), each=20, seed=8)
    assert classifier.score(x, [f"c{n}" for n in y]) > 0.9


def test_a_killed_watch_neither_loses_nor_repeats_a_file(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        arrive(place / "in", f"{number}.csv", (0, 1), number, age=100 - number)
    saves = []
    save = ContinualClassifier.save

    def dying(self: ContinualClassifier, path: Path) -> None:
        saves.append(path)
        if len(saves) == 2:
            raise KeyboardInterrupt
        save(self, path)

    with monkeypatch.context() as patched:
        patched.setattr(ContinualClassifier, "save", dying)
        with pytest.raises(KeyboardInterrupt):
            watched(place)
    watched(place)
    assert ContinualClassifier.load(place / "model", device="cpu").stream_rows_ == 240


def test_a_bad_file_is_named_with_its_reason_and_the_others_go_on(place: Path) -> None:
    arrive(place / "in", "1.csv", (0, 1), 0, age=100)
    (place / "in" / "2.csv").write_text("kind,f0\nc0,1\nc1,2\n")
    (place / "in" / "3.csv").write_bytes(b"")
    for name, age in (("2.csv", 90), ("3.csv", 80)):
        os.utime(place / "in" / name, (time.time() - age,) * 2)
    arrive(place / "in", "4.csv", (0, 1), 1, age=70)
    (place / "in" / ".hidden.csv").write_text("x")
    (place / "in" / "5.csv.part").write_text("x")
    assert watched(place) == Watched(learned=2, answered=0, skipped=2, waiting=0, saved=True)
    skipped = log_of(place, "skipped")
    assert [line["file"] for line in skipped] == ["2.csv", "3.csv"]
    assert "f1" in str(skipped[0]["reason"])
    assert sorted(path.name for path in (place / "in").iterdir()) == [
        ".hidden.csv", "1.csv", "2.csv", "3.csv", "4.csv", "5.csv.part",
    ]  # fmt: skip


def test_a_file_without_labels_is_answered_and_learned_when_they_come(place: Path) -> None:
    arrive(place / "in", "1.csv", (0, 1), 0, age=100)
    arrive(place / "in", "2.csv", (0, 1), 1, labels=False, age=90)
    assert watched(place).answered == 1
    lines = (place / "model.watch" / "predictions" / "2.csv.csv").read_text().splitlines()
    assert len(lines) == 61
    arrive(place / "in", "2.csv", (0, 1), 1, age=80)
    assert watched(place).learned == 1


def test_the_same_rows_again_and_a_learned_file_that_changed_are_not_learned(place: Path) -> None:
    first = arrive(place / "in", "1.csv", (0, 1), 0, age=100)
    shutil.copy2(first, place / "in" / "copy.csv")
    assert watched(place).skipped == 1
    arrive(place / "in", "1.csv", (0, 1), 7, age=50)
    assert watched(place).skipped == 1
    assert ContinualClassifier.load(place / "model", device="cpu").stream_rows_ == 60


def test_a_folder_that_fills_too_fast_is_said(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ibpwf.estimator.watch.BACKLOG", 2)
    for number in range(5):
        arrive(place / "in", f"{number}.csv", (0, 1), number, age=100 - number)
    said: list[str] = []
    watched(place, say=said.append)
    assert any("4 files are waiting: the folder fills faster than it is learned" in text for text in said)


def test_too_few_rows_for_a_task_leave_nothing_on_disk_unless_all_files_are_there(place: Path) -> None:
    arrive(place / "in", "1.csv", (0,), 0)
    assert watched(place) == Watched(learned=1, answered=0, skipped=0, waiting=0, saved=False)
    assert not (place / "model").exists()


def test_the_last_decision_is_taken_back_but_not_the_only_task(place: Path) -> None:
    for number in range(3):
        arrive(place / "in", f"{number}.csv", (0, 1), number, age=300 - number)
    for number in range(3, 6):
        arrive(place / "in", f"{number}.csv", (2, 3), number, age=200 - number)
    watched(place)
    tasks = ContinualClassifier.load(place / "model", device="cpu").tasks_
    assert len(tasks) == 2
    undone = undo_last(place / "model", "cpu")
    assert (undone["what"], undone["task"]) == ("new task", tasks[-1])
    after = ContinualClassifier.load(place / "model", device="cpu")
    assert after.tasks_ == tasks[:-1]
    assert log_of(place, "decision")[-1]["decision"] == "undo"
    with pytest.raises(InputError, match="the only task"):
        undo_last(place / "model", "cpu")
    assert watched(place).learned == 0, "what was taken back is not learned again by itself"


@pytest.mark.parametrize("topics", [2, 3])
def test_what_was_forgotten_before_is_not_said_to_be_forgotten_by_undo(place: Path, topics: int) -> None:
    for number in range(4 * topics):
        first = 2 * (number // 4)
        arrive(place / "in", f"{number}.csv", (first, first + 1), number, age=300 - 10 * number)
    watched(place)
    classifier = ContinualClassifier.load(place / "model", device="cpu")
    *others, last = classifier.tasks_
    assert len(others) == topics - 1
    assert classifier.last_decision()["task"] == last
    classifier.forget(last)
    classifier.save(place / "model")
    undone = undo_last(place / "model", "cpu")
    assert (undone["what"], undone["task"]) == ("new task", last)
    assert undone["effect"] == "It was forgotten before, so nothing else has changed."
    left = ContinualClassifier.load(place / "model", device="cpu")
    assert left.tasks_ == others
    assert left.last_decision()["task"] == others[-1], "the next one goes on before it"


def test_a_place_that_is_no_folder_is_refused(place: Path) -> None:
    (place / "file").write_text("x")
    with pytest.raises(InputError, match="is no folder"):
        watch_folder(place / "model", place / "file", WatchOptions())
    (place / "other").mkdir()
    (place / "other" / "letter.txt").write_text("x")
    with pytest.raises(InputError, match=r"letter\.txt"):
        watch_folder(place / "other", place / "in", WatchOptions())


def test_the_command_ends_cleanly_on_ctrl_c_and_goes_on_later(place: Path) -> None:
    arrive(place / "in", "1.csv", (0, 1), 0, age=100)
    arrive(place / "in", "2.csv", (0, 1), 1, age=90)
    quick = ("--set", "epochs=4", "--hidden", "24", "--set", "inference.features.width=64", "--device", "cpu")
    words = ("watch", "model", "in", "--label", "kind", "--buffer", "100", "--poll", "0.2", *quick)
    running = processes.start(words, place, {})
    log = place / "model.watch" / "log.jsonl"
    assert running.wait_until(lambda: log.exists() and "decision" in log.read_text())
    running.send(signal.SIGINT)
    done = running.finish()
    assert done.code == 0, done.err
    assert "2 files learned" in done.out
    done = processes.start(("watch", "model", "in", "--once", "--json", "--device", "cpu"), place, {}).finish()
    assert json.loads(done.out)["learned"] == 0


@pytest.mark.parametrize("ahead", [3600, 10 * 365 * 86_400])
def test_a_file_dated_in_the_future_is_learned_and_logged_as_such(place: Path, ahead: float) -> None:
    arrive(place / "in", "1.csv", (0, 1), 0, age=60)
    arrive(place / "in", "2.csv", (0, 1), 1, age=-ahead)
    looks: list[int] = []

    def in_vain() -> bool:
        looks.append(1)
        return len(looks) > 2000

    assert watched(place, stop=in_vain).learned == 2
    said = {line["file"]: line.get("seconds_ahead", 0) for line in log_of(place, "learned")}
    assert said["1.csv"] == 0
    assert said["2.csv"] == pytest.approx(ahead, abs=300)


@pytest.mark.parametrize("times", [2, pytest.param(100, marks=pytest.mark.faults)])
def test_files_dated_by_any_clock_are_each_learned_and_logged_once(place: Path, times: int, tally: Tally) -> None:
    chance, names = random.Random(SEED), [f"{number}.csv" for number in range(4)]
    waiting = lost = 0
    for number in range(times):
        shutil.rmtree(place / "in")
        (place / "in").mkdir()
        for seed, name in enumerate(names):
            ahead = chance.choice([1, -1]) * 10 ** chance.uniform(0, 9.3)  # seconds, up to 60 years
            arrive(place / "in", name, (0, 1), seed, age=max(-ahead, ahead - time.time()))
        log, looks = place / f"log-{number}", list[int]()

        def in_vain(looks: list[int] = looks) -> bool:
            looks.append(1)
            return len(looks) > 5000

        found = watch_folder(
            place / f"model-{number}",
            place / "in",
            WatchOptions(
                ReadOptions(label="kind"), PARAMETERS, SMALL, device="cpu", once=True, log=log, stop=in_vain
            ),
        )
        waiting += found.waiting + (len(looks) > 5000)
        said = [line["file"] for line in read_jsonl(log / "log.jsonl") if line["event"] == "learned"]
        lost += found.learned != len(names) or sorted(said) != names
    tally("files dated by clocks that are wrong", times * len(names), seed=SEED, lost=lost, waiting=waiting)


def test_without_once_a_file_dated_in_the_future_does_not_wait(place: Path) -> None:
    arrive(place / "in", "1.csv", (0, 1), 0, age=-3600)
    ends, log = time.monotonic() + 120, place / "model.watch" / "log.jsonl"

    def stop() -> bool:
        return time.monotonic() > ends or (log.exists() and len(log_of(place, "learned")) == 1)

    assert watched(place, once=False, poll=0.05, stop=stop).learned == 1


def test_a_file_that_still_grows_waits_however_old_its_time_is(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ibpwf.estimator.watch.SETTLED", 0.3)
    path = arrive(place / "in", "1.csv", (0, 1), 0)
    head, *rows = path.read_text().splitlines(keepends=True)
    path.write_text(head)
    dated = time.time() - 1000

    def grow() -> bool:
        if rows:
            with path.open("a") as file:
                file.write(rows.pop(0))
            os.utime(path, (dated, dated))
        return False

    assert watched(place, stop=grow).learned == 1
    assert [line["rows"] for line in log_of(place, "learned")] == [60]


def test_a_file_that_changes_while_it_is_read_is_read_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = arrive(place / "in", "1.csv", (0, 1), 0)
    whole = path.read_text()
    path.write_text("".join(whole.splitlines(keepends=True)[:31]))
    times: list[Path] = []

    def reading(data: Path, options: ReadOptions) -> object:
        times.append(data)
        found = read_examples(data, options)
        if len(times) == 1:
            path.write_text(whole)
        return found

    monkeypatch.setattr("ibpwf.estimator.watch.read_examples", reading)
    assert watched(place).learned == 1
    assert [line["rows"] for line in log_of(place, "learned")] == [60]


def test_a_learned_file_that_was_changed_and_is_put_back_is_not_learned_again(place: Path) -> None:
    first = arrive(place / "in", "1.csv", (0, 1), 0, age=100)
    arrive(place / "in", "2.csv", (0, 1), 1, age=90)
    was = first.read_bytes()
    watched(place)
    arrive(place / "in", "1.csv", (0, 1), 7, age=50)
    assert watched(place).skipped == 1
    first.write_bytes(was)
    assert watched(place).learned == 0
    assert ContinualClassifier.load(place / "model", device="cpu").stream_rows_ == 120


def test_the_log_of_a_model_that_was_removed_hides_no_line_of_the_next_one(place: Path) -> None:
    for number in range(3):
        arrive(place / "in", f"{number}.csv", (0, 1), number, age=100 - number)
    watched(place)
    shutil.rmtree(place / "model")
    watched(place)
    assert [line["event"] for line in log_of(place, "begun", "learned", "decision")] == [
        "learned", "learned", "decision", "learned", "begun", "learned", "learned", "decision", "learned",
    ]  # fmt: skip


def test_the_first_task_of_all_files_there_are_is_logged_by_the_same_command(place: Path) -> None:
    arrive(place / "in", "1.csv", (0, 1), 0)
    assert watched(place).saved
    assert [line["decision"] for line in log_of(place, "decision")] == ["new task"]


@pytest.mark.parametrize("left", ["template.safetensors.tmp-0123456789abcdef", "manifest.json.tmp-0123456789abcdef"])
def test_what_a_killed_first_save_has_left_is_removed_and_no_reason_to_refuse(place: Path, left: str) -> None:
    (place / "model").mkdir()
    (place / "model" / left).write_bytes(b"{")
    arrive(place / "in", "1.csv", (0, 1), 0)
    assert watched(place).saved
    assert not (place / "model" / left).exists()


def test_a_task_that_learn_has_begun_is_not_dropped(place: Path) -> None:
    arrive(place / "in", "1.csv", (0, 1), 0)
    content = CheckpointContent(task="begun", serial=0, data="", model="", method={}, phase=0, epoch=0, done=0)
    (place / "model").mkdir()
    save_checkpoint(place / "model", content, {})
    with pytest.raises(InputError, match="begun"):
        watched(place)
    assert has_checkpoint(place / "model")
