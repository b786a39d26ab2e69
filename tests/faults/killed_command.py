"""What the killed processes of a test do: `ibpwf learn` for three files, one after another, with `--resume`."""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path

import numpy as np

TASKS = 3
FEATURES = 8
SETTINGS = ["--epochs", "3", "--hidden", "12", "--alpha", "3"]
SETTINGS += ["--set", "inference.features.width=16", "--set", "batch_size=16"]


def write_files(folder: Path) -> None:
    """0.csv, 1.csv and 2.csv: two classes of 48 rows in each."""
    for number in range(TASKS):
        chance = np.random.default_rng(number)
        y = np.arange(96) % 2
        x = chance.normal(size=(96, FEATURES)) + 3 * chance.normal(size=(2, FEATURES))[y]
        with (folder / f"{number}.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow([*(f"f{place}" for place in range(FEATURES)), "label"])
            table.writerows([*row, f"{number}-{kind}"] for row, kind in zip(x.tolist(), y.tolist(), strict=True))


def learn_all(model: str) -> None:
    """Learn all files beside a model folder from wherever the last process was killed; a checkpoint every 30 ms."""
    import torch

    torch.set_num_threads(1)
    from ibpwf.cli import program as cli

    os.chdir(Path(model).parent)
    handle = os.open(os.devnull, os.O_WRONLY)
    os.dup2(handle, 1)
    for number in range(TASKS):
        words = ["learn", model, f"{number}.csv", "--resume", "--checkpoint-minutes", "0.0005", "--device", "cpu"]
        sys.argv = ["ibpwf", *words, *SETTINGS]
        try:
            cli.main()
        except SystemExit as ended:
            if ended.code:
                raise
