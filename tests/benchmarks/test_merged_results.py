"""Results measured in parts: what is missing to make one of them is said in a sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("own_data.py", "weather", "--merge", "a", "b", "--out", "all"), "none of a, b has a weather.json; give"),
        (("image_folders.py", "--merge", "a.json"), "say where it goes with --out FILE"),
    ],
)
def test_parts_that_cannot_be_merged_are_told_why(words: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    command = [sys.executable, str(BENCHMARKS / words[0]), *words[1:]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
