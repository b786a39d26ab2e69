"""Command lines at random: whatever is typed, the answer is a sentence, and nothing but the folder is touched."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fuzzed_commands import run_all

import processes
from ibpwf.estimator.files import learn_file

BATCH = 100


def scratch(folder: Path) -> Path:
    """A folder with two small files and a small model, beside something precious."""
    here = folder / "scratch"
    here.mkdir(parents=True)
    (folder / "precious").write_text("gold")
    chance = np.random.default_rng(0)
    for name, offset in (("a", 0), ("b", 6)):
        rows = [
            f"{x + 3 * (n % 2) + offset:.3f},{y:.3f},{name}{n % 2}"
            for n, (x, y) in enumerate(chance.normal(size=(24, 2)))
        ]
        (here / f"{name}.csv").write_text("\n".join(["x,z,label", *rows]) + "\n")
    settings = {"hidden": (4,), "epochs": 1, "settings": {"inference.features.width": 5}}
    learn_file(here / "model", here / "a.csv", "a", settings)
    return here


@pytest.mark.parametrize("lines", [60, pytest.param(1000, marks=pytest.mark.faults)])
def test_any_command_line_is_answered_in_a_sentence(lines: int, tmp_path: Path, tally: Callable[..., None]) -> None:
    seed = random.SystemRandom().randrange(1 << 32) if lines > BATCH else 0
    found, outside = [], 0
    for number, count in enumerate([min(BATCH, lines - done) for done in range(0, lines, BATCH)]):
        folder, report = tmp_path / str(number) / "in", tmp_path / f"report-{number}.json"
        process = processes.begin(run_all, str(scratch(folder)), count, seed + number, str(report))
        process.join()
        if report.exists():
            found += json.loads(report.read_text())
        else:
            last = json.loads(Path(f"{report}.last").read_text())
            found.append({"words": last, "wrong": f"the process died with {process.exitcode}"})
        beside = {path.name for path in [*folder.iterdir(), *folder.parent.iterdir()]}
        outside += beside != {"scratch", "precious", "in"} or (folder / "precious").read_text() != "gold"
        outside += (folder / "scratch" / "outside").exists()
    for one in found:
        print(one["words"], one["wrong"], sep="\n")
    broken = [one for one in found if "not whole" in one["wrong"]]
    counts = {"lost": len(broken), "tracebacks": len(found) - len(broken), "outside": outside}
    tally("fuzzed command lines", lines, seed=seed, **counts)
