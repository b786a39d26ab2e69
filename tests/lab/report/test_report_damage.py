"""Folders that are damaged, foreign or unfinished are reported and never break the page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from page_reader import Reader, drawings

from ibpwf.errors import InputError
from ibpwf.lab.report import make_page

Copied = Callable[..., Path]


def titles(html: str) -> list[str]:
    page = Reader(html)
    assert page.faults == []
    drawings(html)
    return [attributes["id"] or "" for attributes in page.all("section")]


def rewrite(path: Path, change: Callable[[Any], Any]) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def test_a_broken_folder_is_named_and_the_others_are_shown(finished: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "holiday.jpg").write_bytes(b"\xff\xd8")
    page = make_page([tmp_path / "absent", finished, foreign])
    assert len(page.runs) == 1
    assert len(page.problems) == 2
    assert "absent is left out" in page.problems[0]
    assert "neither result.json nor config.json" in page.problems[1]
    words = Reader(page.html).text
    assert all(problem in words for problem in page.problems)


def test_nothing_readable_is_an_error_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to report"):
        make_page([tmp_path])


def test_an_unfinished_run_shows_what_there_is(copied: Copied) -> None:
    folder = copied()
    (folder / "result.json").unlink()
    rewrite(folder / "seed-1" / "rows.json", lambda record: {**record, "rows": record["rows"][:1]})
    page = make_page([folder])
    assert page.problems == []
    reader = Reader(page.html)
    assert "Unfinished." in reader.text
    progress = reader.table("")
    rows = json.loads((folder / "seed-0" / "rows.json").read_text())["rows"]
    last = rows[-1]["task_accuracy"]
    assert progress[1][:3] == ["seed 0", "3", f"{sum(last) / len(last):.2f} %"]
    assert progress[2][:2] == ["seed 1", "1"]
    assert "--seeds 2 --tasks 3" in reader.text
    assert "--resume" in reader.text
    names = titles(page.html)
    assert {"run1-accuracy", "run1-learning", "run1-factors", "run1-scores"} <= set(names)
    assert "run1-results" not in names


def test_a_run_that_has_just_begun(copied: Copied) -> None:
    folder = copied()
    for name in ("result.json", "metrics.jsonl"):
        (folder / name).unlink()
    for seed in ("seed-0", "seed-1"):
        shutil.rmtree(folder / seed)
    page = make_page([folder])
    assert "Unfinished." in Reader(page.html).text
    assert titles(page.html)[1:] == ["run1-summary", "run1-settings"]


def test_a_broken_model_costs_only_the_score_map(copied: Copied) -> None:
    folder = copied()
    for seed in ("seed-0", "seed-1"):
        part = next((folder / seed / "model").glob("task-0001.*"))
        part.write_bytes(part.read_bytes()[:100])
    page = make_page([folder])
    assert len(page.problems) == 2
    assert "run1-scores" not in titles(page.html)
    assert "run1-results" in titles(page.html)


def test_the_score_map_takes_the_next_seed_if_the_first_is_broken(copied: Copied) -> None:
    folder = copied()
    shutil.rmtree(folder / "seed-0")
    page = make_page([folder])
    assert "run1-scores" in titles(page.html)
    assert "seed 1" in Reader(page.html).text


def test_cut_and_foreign_metric_lines_are_counted(copied: Copied) -> None:
    folder = copied()
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines()
    odd = ["[1]", '{"seed": "zero"}', "\x00\x01", lines[0].replace('"loss":', '"loss":NaN,"was":')]
    path.write_text("\n".join([*lines, *odd, lines[1][:20]]))
    page = make_page([folder])
    assert page.problems == [f"{folder}: metrics.jsonl: 5 damaged lines left out of the learning curves."]
    assert "run1-learning" in titles(page.html)


def test_a_resumed_tasks_later_lines_count(copied: Copied) -> None:
    folder = copied()
    path = folder / "metrics.jsonl"
    first = json.loads(path.read_text().splitlines()[0])
    with path.open("a") as file:
        file.write(json.dumps({**first, "loss": 0.123}) + "\n")
    run = make_page([folder]).runs[0]
    key = (first["seed"], first["task_number"], first["phase"], first["epoch"])
    assert [e.loss for e in run.epochs if (e.seed, e.task_number, e.phase, e.epoch) == key] == [0.123]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '"x"', "null", '{"schema": 1}', '{"schema": 999}', "\x00", "[" * 9999]
)
def test_a_damaged_result_falls_back_to_the_rows(copied: Copied, content: str) -> None:
    folder = copied()
    (folder / "result.json").write_text(content)
    page = make_page([folder])
    assert len(page.problems) == 1
    assert "result.json" in page.problems[0]
    assert "run1-accuracy" in titles(page.html)


@pytest.mark.parametrize(
    "name", ["result.json", "config.json", "metrics.jsonl", "seed-0/rows.json", "seed-0/model/manifest.json"]
)
def test_a_folder_in_the_place_of_a_file_is_no_crash(copied: Copied, name: str) -> None:
    folder = copied()
    (folder / name).unlink()
    (folder / name).mkdir()
    titles(make_page([folder]).html)


def test_any_field_of_the_result_may_be_missing_or_wrong(copied: Copied) -> None:
    """Every field in turn is dropped, or replaced by something of another kind; the page always comes."""
    folder = copied()
    path = folder / "result.json"
    whole = json.loads(path.read_text())
    (folder / "metrics.jsonl").unlink()
    for name in whole:
        for wrong in (None, [], {}, "text", 1e400, -1, [[1, "x"]], {"mean": "x"}, [{"seed": 0, "task": [[]]}]):
            path.write_text(json.dumps({**whole, name: wrong}))
            make_page([folder])
        path.write_text(json.dumps({key: value for key, value in whole.items() if key != name}))
        make_page([folder])


def test_both_records_damaged_leaves_the_folder_out(finished: Path, copied: Copied) -> None:
    folder = copied()
    (folder / "result.json").write_text("{")
    (folder / "config.json").write_text("[]")
    page = make_page([folder, finished])
    assert len(page.runs) == 1
    assert str(folder) in page.problems[0]


@pytest.mark.parametrize("number", [1e308, -1e308, 10**400])
@pytest.mark.parametrize("place", ["loss", "new", "mean", "alpha"])
def test_a_number_that_nothing_measured_has_is_left_out(copied: Copied, place: str, number: float) -> None:
    folder = copied()
    if place == "loss":
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        first = {**json.loads(lines[0]), "loss": number}
        (folder / "metrics.jsonl").write_text("\n".join([json.dumps(first), *lines[1:]]))
    else:
        result = json.loads((folder / "result.json").read_text())
        use = result["factors"][0]["per_task"][0]
        holder = {"new": next(iter(use.values())), "mean": result["accuracy"]["task"], "alpha": result["settings"]}
        holder[place][place] = number
        (folder / "result.json").write_text(json.dumps(result))
    page = make_page([folder])
    assert len(page.problems) == 1
    assert "run1-accuracy" in titles(page.html)
