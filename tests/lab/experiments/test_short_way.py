"""From the first line of a run to the training loop there are few functions."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import ibpwf
from ibpwf.lab.experiments.run import run
from ibpwf.lab.experiments.run_config import RunConfig
from ibpwf.training.loop import Training

SOURCE = str(Path(ibpwf.__file__).parent)


def test_a_run_reaches_the_training_loop_in_at_most_ten_functions_of_ours(tmp_path: Path) -> None:
    ways: list[list[str]] = []

    def seen(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code is Training.run.__code__ and not ways:
            way: list[str] = []
            caller: FrameType | None = frame
            while caller is not None:
                if caller.f_code.co_filename.startswith(SOURCE):
                    way.append(caller.f_code.co_name)
                caller = caller.f_back
            ways.append(way[::-1])

    changes = {"epochs": 1, "finetune_epochs": 0}
    config = RunConfig("split-digits", preset="quick", changes=changes, tasks=1, device="cpu")
    sys.setprofile(seen)
    try:
        run(config, tmp_path / "run")
    finally:
        sys.setprofile(None)
    assert ways[0][0] == "run"
    assert len(ways[0]) <= 10, ways[0]
