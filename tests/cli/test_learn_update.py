"""`ibpwf learn --update`: more rows of a task from a file, shown before they are kept, kept whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from own_files import MEANS, blobs, table
from processes import Finished

Command = Callable[..., Finished]

WORDS = {0: "apple", 1: "pear", 2: "oak", 3: "elm"}


@pytest.fixture
def there(here: Path) -> Path:
    """Where `model` knows fruit and trees; other.csv has more fruit, which look like trees."""
    x, y = blobs((0, 1), seed=5)
    table(here / "other.csv", x + 0.6 * (MEANS[2] - MEANS[0]), [WORDS[number] for number in y])
    return here


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def test_what_would_change_is_shown_and_nothing_is_written(there: Path, command: Command) -> None:
    before = content(there / "model")
    done = command("learn", "model", "other.csv", "--update", "fruit", "--dry-run", "--device", "cpu")
    assert done.code == 0, done.err
    for shown in ("ersion 2", "'fruit'", "64 rows", "16 held-out rows", "changed predictions", "Dry run"):
        assert shown in done.out
    assert content(there / "model") == before


def test_a_version_is_kept_asked_for_and_dropped(there: Path, command: Command) -> None:

    def answered(task: str) -> list[str]:
        """All but what is new, which is told by all that was learned until then."""
        lines = command("predict", "model", "test.csv", "--task", task, "-o", "-").out.splitlines()
        return [line.rsplit(",", 2)[0] for line in lines]

    old = answered("fruit")
    done = command("learn", "model", "other.csv", "--update", "fruit", "--device", "cpu", "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert (told["task"], told["version"], told["kept"], told["rows"], told["validation_rows"]) == (
        "fruit",
        2,
        True,
        64,
        16,
    )
    assert told["accuracy"] >= told["accuracy_before"]
    assert told["accuracy_inferred"] > told["accuracy_inferred_before"]
    assert answered("fruit@1") == old
    assert answered("fruit") != old
    assert command("verify", "model").code == 0
    shown = command("inspect", "model", COLUMNS="100").out
    assert "2 tasks, 1 older version" in shown
    assert "fruit (version 2)" in shown
    assert "fruit@1" in shown
    assert "updated task 3 'fruit'" in shown
    again = command("learn", "model", "other.csv", "--update", "fruit", "--resume", "--device", "cpu", "--json")
    assert json.loads(again.out)["already"]
    scored = json.loads(command("evaluate", "model", "other.csv", "--json").out)
    assert scored["accuracy"]["task_given"] > 90
    assert scored["rows_with_task"] == 80
    assert command("forget", "model", "fruit@1").code == 0
    assert [task["name"] for task in json.loads(command("inspect", "model", "--json").out)["tasks"]] == [
        "trees",
        "fruit",
    ]
    assert command("verify", "model").code == 0


def test_each_mistake_is_one_sentence_and_nothing_is_lost(there: Path, command: Command) -> None:
    x, y = blobs((0, 2), seed=5)
    table(there / "mixed.csv", x, [WORDS[number] for number in y])
    table(there / "narrow.csv", x, [WORDS[number] for number in y])
    lines = (there / "narrow.csv").read_text().splitlines()
    (there / "narrow.csv").write_text("\n".join(line.rpartition(",")[0] for line in lines))
    (there / "few.csv").write_text("\n".join((there / "other.csv").read_text().splitlines()[:4]))
    before = content(there / "model")
    for words, problem in (
        (("mixed.csv", "--update", "fruit"), "mixed.csv, line 42: task 'fruit' has no class 'oak'"),
        (("narrow.csv", "--update", "fruit"), "f15"),
        (("other.csv", "--update", "friut"), "'fruit'"),
        (("few.csv", "--update", "fruit"), "3 rows"),
        (("other.csv", "--force"), "--update"),
        (("other.csv", "--update", "fruit", "--dry-run", "--force"), "--dry-run"),
    ):
        done = command("learn", "model", *words, "--device", "cpu")
        assert done.code == 2, words
        assert problem in done.err
        assert done.err.count("\n") == 1
    assert "--force" in command("learn", "model", "few.csv", "--update", "fruit").err
    done = command("learn", "empty", "other.csv", "--update", "fruit")
    assert (done.code, (there / "empty").exists()) == (2, False)
    assert "'fruit'" in done.err
    assert content(there / "model") == before
