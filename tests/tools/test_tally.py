"""The record of fault tests is the sum of what they wrote down."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tools.tally import gathered


def wrote(folder: Path, name: str, age: int, *lines: tuple[str, str, int, int | None, int]) -> None:
    path = folder / f"tally-{name}.jsonl"
    rows = [
        {"what": what, "test": test, "tried": tried, "seed": seed, "found": {"lost": lost}}
        for what, test, tried, seed, lost in lines
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(path, (1_000_000 - age, 1_000_000 - age))


def test_counts_are_added_up_and_a_test_that_was_run_again_counts_once(tmp_path: Path) -> None:
    wrote(tmp_path, "9", 50, ("kills", "one", 10, 1, 0), ("kills", "two", 5, 2, 3))
    wrote(tmp_path, "1", 20, ("kills", "two", 6, 3, 0), ("damages", "three", 7, None, 0))
    assert gathered(tmp_path) == [
        {"what": "damages", "tried": 7, "seeds": [], "found": {"lost": 0}},
        {"what": "kills", "tried": 16, "seeds": [1, 3], "found": {"lost": 0}},
    ]
