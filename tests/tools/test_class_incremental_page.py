"""The tables of docs/class-incremental.md are made from the result files, and as these have it."""

from __future__ import annotations

import json
from pathlib import Path

from tools.class_incremental_page import BEGIN, END, with_tables

HERE = Path(__file__).parents[2]


def test_the_committed_page_has_the_committed_results() -> None:
    page = (HERE / "docs" / "class-incremental.md").read_text(encoding="utf-8")
    assert with_tables(page, HERE / "docs" / "results") == page, "run `make results`"


def test_a_cell_says_what_its_file_says_and_a_missing_one_stays_empty(tmp_path: Path) -> None:
    folder = tmp_path / "class-incremental"
    folder.mkdir()
    result = {
        "accuracy": {"class": {"mean": 98.456, "std": 0.051}, "task": {"mean": 99.9, "std": None}},
        "calibration_error": {"class": {"mean": 0.61}},
        "seeds": [0, 1],
        "environment": {"device": "cpu"},
        "command": "ibpwf run split-mnist --method router",
        "commit": "0123456789abcdef",
    }
    (folder / "split-mnist-router.json").write_text(json.dumps(result))
    told = {"new": 50.0, "known": 4.0}
    novelty = [{"seed": seed, "per_task": [{**told, "auroc": 90.0 + seed}, None]} for seed in (0, 1)]
    (folder / "split-mnist-best.json").write_text(json.dumps({**result, "novelty": novelty}))
    way = {"way": "router alone", "class": 97.0, "error": 1.0, "cost": 1.0}
    seeds = [{"ways": [way | {"class": value}], "experts alone, largest score": 90.0 + value} for value in (1.0, 2.0)]
    (folder / "split-fashion-mnist-parts.json").write_text(json.dumps({"seeds": seeds, "command": "python x"}))
    page = with_tables(f"before\n{BEGIN}\nstale\n{END}\nafter", tmp_path)
    assert page.startswith("before\n")
    assert page.endswith("\nafter")
    assert "| router alone, small | 98.46 ± 0.05 (99.90, ECE 0.6) |" in page
    assert (
        "- router alone, small, split-mnist: `ibpwf run split-mnist --method router`, "
        "2 seeds, cpu, commit 0123456789ab" in page
    )
    assert "stale" not in page
    assert "split-cifar10" not in page
    assert "| router alone | 1.50 | 1.00 | 1.0 |" in page
    assert "| split-mnist, 1 task learned, images of the others | 90.5 | 50.0 | 4.0 |" in page
    assert "| router alone, as in preset best | – | 1.50 ± 0.71 |" in page
    assert "| turned experts alone, largest score | – | 91.50 ± 0.71 |" in page
