"""The table of defaults says what its cells say, and its aim is met."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "results" / "defaults"
sys.path.insert(0, str(ROOT / "benchmarks"))

import defaults  # noqa: E402

from ibpwf.errors import InputError  # noqa: E402

RECORD = json.loads((FOLDER / "result.json").read_text())


def test_the_committed_page_is_made_of_the_committed_cells() -> None:
    assert defaults.page(RECORD) == (FOLDER / "README.md").read_text()
    assert re.fullmatch(r"[0-9a-f]{40}", RECORD["commit"])  # not -dirty
    assert len(RECORD["tuned"]) == 10


def test_every_data_set_is_whole_and_within_a_point_in_both_settings() -> None:
    rows = defaults.summary(RECORD)
    assert {row["data"] for row in rows} == {"iris", "wine", "breast-cancer", "digits", "fashion-mnist"}
    assert len(rows) == 10
    for row in rows:
        cells = [RECORD["cells"][f"{row['data']} | default | seed {s}"] for s in RECORD["data"][row["data"]]["seeds"]]
        mean = sum(cell["test"][row["setting"]] for cell in cells) / len(cells)
        assert row["default"] == pytest.approx(mean)
        assert row["default"] >= row["best_accuracy"] - 0.01


def test_the_best_is_chosen_on_validation_rows_alone() -> None:
    record = {
        "data": {"toy": {"tasks": "", "seeds": [0]}},
        "tuned": {"a": {}, "b": {}},
        "cells": {
            f"toy | {label} | seed 0": {
                "validation": dict.fromkeys((defaults.GIVEN, defaults.INFERRED), validation),
                "test": dict.fromkeys((defaults.GIVEN, defaults.INFERRED), test),
                "seconds": 1.0,
            }
            for label, validation, test in (("default", 0.5, 0.6), ("a", 0.9, 0.7), ("b", 0.8, 0.9))
        },
    }
    row, _ = defaults.summary(record)
    assert (row["best"], row["best_accuracy"], row["default"]) == ("a", 0.7, 0.6)
    del record["cells"]["toy | b | seed 0"]  # not finished: no row yet
    assert defaults.summary(record) == []


def test_a_run_goes_on_only_where_it_was_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["defaults.py"])
    file = tmp_path / "result.json"
    made = {"iris": defaults.problems(quick=True)["iris"]}
    record = defaults.started(file, made, overwrite=False)
    record["cells"]["iris | default | seed 0"] = {"seconds": 1.0}
    file.write_text(json.dumps(record))
    assert defaults.started(file, made, overwrite=False)["cells"]
    assert not defaults.started(file, made, overwrite=True)["cells"]
    file.write_text(json.dumps({**record, "commit": "another"}))
    with pytest.raises(InputError, match="begun with another commit"):
        defaults.started(file, made, overwrite=False)
