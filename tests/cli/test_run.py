"""What `ibpwf run` shows: tables that fit the terminal, progress in one line, JSON alone where it is asked for."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ibpwf.cli.output import Screen
from ibpwf.cli.run_display import Display
from ibpwf.training.callbacks import EpochEnd
from processes import Finished

Command = Callable[..., Finished]


def test_json_is_all_there_is_on_standard_output(
    run_words: tuple[str, ...], command: Command, tmp_path: Path
) -> None:
    done = command(*run_words, "--out", "r", "--json")
    assert done.code == 0
    assert json.loads(done.out) == json.loads((tmp_path / "r" / "result.json").read_text())
    assert "task inferred" in done.err


@pytest.mark.parametrize("width", [60, 80])
def test_tables_of_ten_tasks_and_two_seeds_fit_the_terminal(command: Command, tmp_path: Path, width: int) -> None:
    words = ["run", "permuted-digits", "--preset", "quick", "--seeds", "2", "--out", "r", "--set", "alpha=8"]
    words += ["--set", "epochs=1", "--set", "finetune_epochs=1", "--set", "batch_size=200"]
    done = command(*words, COLUMNS=str(width))
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in done.out
    result = json.loads((tmp_path / "r" / "result.json").read_text())
    for number in range(10):
        streamed = [line.split() for line in lines if re.match(rf"[01] +permutation-{number} ", line)]
        assert [line[0] for line in streamed] == ["0", "1"]
        for seed, line in enumerate(streamed):
            row = result["matrix"][seed]["task"][number][: number + 1]
            assert f"{sum(row) / len(row):.2f}" in line
            assert len(line) == (9 if width == 80 else 6)
        (final,) = [line.split() for line in lines if line.startswith(f"permutation-{number} ")]
        end = [matrix["task"][-1][number] for matrix in result["matrix"]]
        assert final[2] == f"{sum(end) / 2:.2f}"
    assert any(line.startswith("task known") for line in lines)


def test_the_papers_numbers_stand_beside_ours(tmp_path: Path) -> None:
    from ibpwf.cli.run_display import summary

    spread = {"mean": 99.5, "std": 0.25, "per_seed": [99.25, 99.75]}
    matrix = {"task": [[99.0, None], [99.0, 98.0]], "class": [[99.0, None], [97.0, 96.0]]}
    result: dict[str, Any] = {
        "scenario": "split-mnist",
        "method": "ibpwf",
        "preset": "paper",
        "seeds": [0, 1],
        "tasks": [{"name": "[0/1]", "classes": [0, 1]}, {"name": "2/3", "classes": [2, 3]}],
        "matrix": [matrix, matrix],
        "accuracy": {"task": spread, "class": spread},
        "paper": {"task": {"mean": 99.56, "std": 0.02}, "class": None, "task-inference": None},
        "forward_transfer": None,
        "seconds": {"train": 0.0, "eval": 0.0},
        "samples_per_second": None,
        "environment": {"device": "cpu"},
        "note": "",
        **dict.fromkeys(("task_inference", "forgetting", "backward_transfer", "parameters"), spread),
    }
    printed = io.StringIO()
    summary(Screen(file=printed, width=80), result)
    lines = printed.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    row = next(line.split() for line in lines if line.startswith("task known"))
    assert row[-7:] == ["99.50", "±", "0.25", "99.56", "±", "0.02", "-0.06"]
    assert next(line.split() for line in lines if line.startswith("forward transfer"))[2] == "–"
    assert any(line.split() == ["[0/1]", "99.00", "99.00", "97.00"] for line in lines)


def drawn(display: Display) -> list[str]:
    """The bars as they stand on the terminal."""
    printed = io.StringIO()
    display.screen.console.file = printed
    display.screen.console.print(display.bar)
    return [line.rstrip() for line in printed.getvalue().splitlines() if line.strip()]


def terminal(width: int) -> Screen:
    return Screen(file=io.StringIO(), width=width, force_terminal=True, color_system=None)


@pytest.mark.parametrize(("width", "trainings"), [(80, 1), (80, 10), (60, 1), (60, 10)])
def test_the_progress_bar_is_one_line_even_with_large_numbers(width: int, trainings: int) -> None:
    display = Display(terminal(width), trainings)
    display.task_start("seed-9", "permutation-19", 160)
    display.epoch_end("seed-9", EpochEnd("a", "elbo", 1, 150, 12.3456, 12345.6, 50.0, 2100, 700, 1400, 60000))
    display.epoch_end("seed-9", EpochEnd("a", "finetune", 1, 10, 12.3456, 0.0, 50.0, 2100, 700, 1400, 60000))
    (line,) = drawn(display)
    assert len(line) <= width
    assert line.startswith("permutation-…" + (" seed-9" if trainings > 1 else ""))
    assert "epoch 2/160" in line
    assert "loss 12.3" in line
    if width == 80:
        assert "fine-tune factors 2100 (+700)" in line


def test_unit_loss_and_time_left_are_there_in_the_first_epoch() -> None:
    display = Display(terminal(80))
    display.task_start("seed-0", "a", 10)
    (line,) = drawn(display)
    assert "epoch 0/10" in line
    display.step_end("seed-0", 0.25, 0.693)
    display.step_end("seed-0", 0.5, 0.512)
    (line,) = drawn(display)
    assert "loss 0.512" in line
    assert re.search(r"\d:\d\d:\d\d$", line)


def test_seeds_that_take_turns_have_a_line_each() -> None:
    display = Display(terminal(80), trainings=2)
    for training in ("seed-0", "seed-1"):
        display.task_start(training, "a", 4)
    for epoch in (1, 2):
        for training in ("seed-0", "seed-1"):
            display.epoch_end(training, EpochEnd("a", "elbo", epoch, 4, 1.0, 2.0, 50.0, 3, 3, 0, 10))
    bars = [line.split() for line in drawn(display)]
    assert [bar[:4] for bar in bars] == [["a", "seed-0", "epoch", "2/4"], ["a", "seed-1", "epoch", "2/4"]]


# When the data cannot be had

NOTHING = {"PATH": "/none", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
NOTHING |= dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")


def test_the_fallback_runs_where_the_data_cannot_be_had(
    run_words: tuple[str, ...], command: Command, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    words = ["split-mnist" if word == "split-digits" else word for word in run_words]
    without = command(*words, "--out", "r", IBPWF_DATA=str(tmp_path / "data"), **NOTHING)
    assert without.code == 2
    assert without.err.startswith("error: ")
    assert "ibpwf data fetch mnist --from PATH" in without.err
    assert not (tmp_path / "r").exists()
    words += ["--out", "r", "--fallback", "split-digits"]
    done = command(*words, IBPWF_DATA=str(tmp_path / "data"), **NOTHING)
    assert done.code == 0, done.err
    assert "split-mnist is unavailable" in done.out
    assert json.loads((tmp_path / "r" / "result.json").read_text())["scenario"] == "split-digits"
