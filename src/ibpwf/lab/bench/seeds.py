"""Several seeds at once beside as many times one seed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from ibpwf.lab.bench.measure import Row, Setup, milliseconds, ratio, take_turns
from ibpwf.lab.data import fetching
from ibpwf.lab.experiments.run import run
from ibpwf.lab.experiments.run_config import RunConfig

SEEDS = 5


class _OnTheWall(Setup):
    """Programs side by side are what is measured here: time on the wall."""

    def seconds(self) -> float:
        return time.perf_counter()


def five_seeds(setup: Setup) -> list[Row]:
    """Split MNIST, preset paper but for fewer epochs; split digits where MNIST is not to be had, in turns then."""
    scenario = "split-mnist" if fetching.is_cached("mnist") and not setup.quick else "split-digits"

    def seeds(count: int) -> Callable[[], None]:
        changes = {"epochs": 1, "finetune_epochs": 1} if scenario == "split-mnist" else {"epochs": 3}
        config = RunConfig(scenario, "ibpwf", "paper", tuple(range(count)), changes, None, setup.device.type)

        def whole() -> None:
            with TemporaryDirectory() as folder:
                run(config, Path(folder) / "run", command="")

        return whole

    clock = _OnTheWall(setup.device, setup.quick)
    real = scenario == "split-mnist"
    times = take_turns({"together": seeds(SEEDS), "one": seeds(1)}, clock, 1 if real else 2, warm=real)
    what = f"{SEEDS} seeds of {scenario} together ÷ {SEEDS} × one seed"
    return [ratio("seeds", what, times["together"], times["one"], 0.65, per=SEEDS, detail=milliseconds(times))]
