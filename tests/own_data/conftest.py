"""A folder with files of a user's, and a model that has learnt two tasks from them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from own_files import QUICK, blobs, table

import processes

WORDS = {0: "apple", 1: "pear", 2: "oak", 3: "elm"}


@pytest.fixture(scope="session")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """fruit.csv and trees.csv, learnt into `model`; test.csv and new.csv, not learnt. Read it only."""
    folder = tmp_path_factory.mktemp("taught") / "here"
    folder.mkdir()
    for name, classes in (("fruit", (0, 1)), ("trees", (2, 3))):
        x, y = blobs(classes)
        table(folder / f"{name}.csv", x, [WORDS[number] for number in y])
    x, y = blobs((0, 1, 2, 3), each=15, seed=1)
    table(folder / "test.csv", x, [WORDS[number] for number in y])
    table(folder / "new.csv", x, None)
    for words in (("fruit.csv", "--label", "kind", *QUICK), ("trees.csv", "--device", "cpu")):
        done = processes.start(("learn", "model", *words), folder, {}).finish()
        assert done.code == 0, done.err
    return folder


@pytest.fixture
def here(taught: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(taught, tmp_path, dirs_exist_ok=True)
    return tmp_path
