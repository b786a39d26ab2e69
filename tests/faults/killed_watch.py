"""What the killed processes of the tests do: `ibpwf watch --once` of ten small files."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

MEANS = np.random.default_rng(7).normal(0, 4, (4, 6))
LABELLED = {
    **dict.fromkeys(("1.csv", "2.csv", "3.csv"), (0, 1)),
    **dict.fromkeys(("5.csv", "7.csv", "8.csv", "9.csv"), (2, 3)),
}
ROWS = 60
DONE = {**dict.fromkeys(LABELLED, "learned"), "0.csv": "skipped", "4.csv": "skipped", "6.csv": "answered"}
"""What is to be done with each file."""


def write_files(folder: Path) -> None:
    """Two topics; a file that is no table, before the first task and after it; one without labels; the last is dated
    in the future."""
    folder.mkdir()
    for number, name in enumerate(sorted(DONE)):
        lines = [",".join(["kind", *(f"f{place}" for place in range(6))])]
        if name in LABELLED or DONE[name] == "answered":
            chance = np.random.default_rng(number)
            y = chance.permutation(np.repeat(LABELLED.get(name, (0, 1)), ROWS // 2))
            x = MEANS[y] + chance.normal(size=(ROWS, 6))
            lines += [
                ",".join([f"c{kind}", *map(str, row)]) for kind, row in zip(y.tolist(), x.tolist(), strict=True)
            ]
        if DONE[name] == "answered":
            lines = [line.partition(",")[2] for line in lines]
        (folder / name).write_text("\n".join(lines) + "\n")
        dated = time.time() + (3600 if number == len(DONE) - 1 else 10 * number - 1000)
        os.utime(folder / name, (dated, dated))


def watch(model: Path, folder: Path) -> Any:
    from ibpwf.data import ReadOptions
    from ibpwf.estimator import watch as watching

    watching.SETTLED = 0.01
    settings = {"inference.features.width": 16}
    return watching.watch_folder(
        model,
        folder,
        watching.WatchOptions(
            ReadOptions(label="kind"),
            parameters={"epochs": 4, "hidden": (24,), "settings": settings},
            stream={"buffer": 100, "least": 50, "window": 50},
            device="cpu",
            once=True,
        ),
    )
