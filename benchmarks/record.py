"""What all benchmarks share: how they say what was measured, with which command, commit, versions and machine."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from ibpwf.lab.experiments.result import commit, environment, shown_command
from ibpwf.storage.files import read_json, write_json
from ibpwf.training.callbacks import Callback, EpochEnd

RESULTS = Path(__file__).parents[1] / "docs" / "results"
Record = dict[str, Any]


def options(description: str | None, out: Path | None = None, seeds: int | None = None) -> argparse.ArgumentParser:
    """A parser of a benchmark's command line, with where results go and, if asked for, how many seeds."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(
        "--out", type=Path, default=out, help=f"where results go{'' if out is None else f' ({out.name})'}"
    )
    if seeds is not None:
        made.add_argument("--seeds", type=int, default=seeds, help=f"how many ({seeds})")
    return made


def made_by(device: str = "cpu", command: str | None = None) -> Record:
    """The command line, the commit, versions and the machine."""
    words = command or " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    has = {**environment(device), "load": os.getloadavg()[0]}
    return {"command": shown_command(words), "commit": commit(), "environment": has}


def write(path: Path | None, record: Record) -> None:
    """A record as JSON; nothing without a path."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, record)


def read_parts(paths: Sequence[Path], *same: str) -> tuple[list[Record], list[str]]:
    """Records that several processes measured in the same way, and their commands."""
    parts: list[Record] = [read_json(path) for path in paths]
    for part in parts[1:]:
        for key in ("commit", *same):
            if part[key] != parts[0][key]:
                raise SystemExit(
                    f"{key} is {part[key]!r} in one part and {parts[0][key]!r} in another; measure anew."
                )
        for key, value in part["environment"].items():
            if key != "load" and value != parts[0]["environment"].get(key):
                raise SystemExit(f"environment.{key} differs between parts; measure anew.")
    return parts, [shown_command(part["command"]) for part in parts]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Mean and standard deviation over seeds."""
    return {"mean": statistics.fmean(values), "std": statistics.stdev(values) if len(values) > 1 else 0.0}


def summary(runs: Sequence[Record]) -> Record:
    """Of every number that all runs have."""
    names = [name for name in runs[0] if all(isinstance(run.get(name), float) for run in runs)]
    return {name: spread([run[name] for run in runs]) for name in names}


def percent(right: Tensor) -> float:
    return 100 * float(right.double().mean())


def bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


class Clock(Callback):
    """When each epoch ended, by phase, and of how many examples; with `shown`, a line for each."""

    def __init__(self, shown: bool = False) -> None:
        self.shown, self.started = shown, time.perf_counter()
        self.ends: list[float] = []
        self.phases: list[str] = []
        self.samples, self.accuracy = 0, None

    def epoch_end(self, epoch: EpochEnd) -> None:
        self.ends.append(time.perf_counter())
        self.phases.append(epoch.phase)
        self.samples, self.accuracy = epoch.samples, epoch.accuracy
        if self.shown:
            told = f"{epoch.task} {epoch.phase} {epoch.epoch}/{epoch.epochs}: loss {epoch.loss:.4f}, right"
            print(
                f"  {told} {epoch.accuracy or 0:.2f} %, factors {epoch.active}, {self.seconds()[-1]:.1f} s",
                flush=True,
            )

    def seconds(self, phase: str | None = None) -> list[float]:
        """Of every epoch, or of those of a phase."""
        starts = [self.started, *self.ends]
        each = zip(self.phases, starts, self.ends, strict=False)
        return [end - start for name, start, end in each if phase in (None, name)]
