"""A real run to report on, made once, and copies of it to damage."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ibpwf.lab.experiments.run import run
from ibpwf.lab.experiments.run_config import RunConfig

COMMAND = "ibpwf run split-digits --preset quick --seeds 2 --set epochs=1"


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run: three tasks of the digits, two seeds, few epochs. Not to be changed."""
    out = tmp_path_factory.mktemp("runs") / "digits"
    changes = {"epochs": 2, "finetune_epochs": 1, "alpha": 20.0}
    config = RunConfig("split-digits", preset="quick", seeds=(0, 1), changes=changes, tasks=3, device="cpu")
    run(config, out, command=COMMAND)
    return out


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Makes a copy of the finished run under a name."""

    def copy(name: str = "copy") -> Path:
        return Path(shutil.copytree(finished, tmp_path / name))

    return copy
