"""Hundreds of bad files, every one of them refused in one sentence, with exit code 2, little memory and no model."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tallies import Tally

WORKER = Path(__file__).with_name("bad_files_worker.py")


def wrong_with(told: dict[str, Any]) -> str:
    said = told["said"]
    if told["code"] != 2 or "Traceback" in said:
        return f"exit code {told['code']}"
    if said.count("\n") != 1 or not said.startswith("error: ") or not said.endswith((".\n", "?\n")):
        return "no single sentence"
    if len(said) > 420 or not said.strip().isprintable():
        return "a sentence too long, or with control characters"
    if told["model"]:
        return "a model folder was left"
    return "" if re.search(told["expected"], said) else "other words than expected"


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is limited as Linux does it")
@pytest.mark.parametrize("every", [20, pytest.param(1, marks=pytest.mark.faults)])
def test_every_bad_file_is_refused_in_one_sentence_by_the_command(every: int, tally: Tally) -> None:
    tests = WORKER.parent.parent
    found = os.pathsep.join([str(tests / "data"), str(tests), os.environ.get("PYTHONPATH", "")])
    words = [sys.executable, str(WORKER), str(every)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": found})
    assert done.returncode == 0, done.stderr[-3000:]
    told = [json.loads(line) for line in done.stdout.splitlines()]
    faults = {one["name"]: (wrong_with(one), one["said"][-600:]) for one in told if wrong_with(one)}
    assert not faults
    assert len({one["name"] for one in told}) == len(told) >= 300 / every
    tracebacks = sum("Traceback" in one["said"] for one in told)
    tally("bad files", len(told), seed=None, accepted=sum(one["code"] == 0 for one in told), tracebacks=tracebacks)
