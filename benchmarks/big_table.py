"""A table that is larger than what one wants to hold in memory: learned, answered and measured on the command line.

    python benchmarks/big_table.py                              # 5,810,120 rows
    python benchmarks/big_table.py --rows 581012 --out DIR      # a tenth of them, to see that it runs
    python benchmarks/big_table.py --keep DIR --minutes 7       # in parts: again and again, until it is done

Covertype ten times, its measurements with a little noise, as Parquet; every hundredth row is kept out of it as a
test. `ibpwf learn`, `predict` and `evaluate` each run in a process of their own, whose largest resident memory is
recorded. Beside it stand a tenth of the rows, learned in memory and from a scratch file, on the same test rows; up to
100,000 rows both come to the same bits. The result goes to docs/results/scaling.

In parts, a command that learns is interrupted as Ctrl-C would and goes on with `--resume` in the next call; seconds
are added up, `parts` says how many there were.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from record import RESULTS, bytes_of, made_by, options, write

from ibpwf.lab.data.tables import load_table

Array = NDArray[Any]

ROWS, TIMES = 5_810_120, 10
NOISE = 0.01
"""Of a measurement's standard deviation."""
MEASUREMENTS = 10
"""Columns that hold many numbers; the others are yes or no."""
ROW_GROUP = 65_536
TEST_EVERY = 100
LEAST_SECONDS = 60
"""With less time left, a call in parts begins no further step."""


def parts(x: Array, y: Array, rows: int, seed: int) -> Iterator[tuple[Array, Array]]:
    """The table over and over in random orders, each time with other noise, some rows at a time."""
    rng, spread, left = np.random.default_rng(seed), x[:, :MEASUREMENTS].std(0), rows
    while left > 0:
        order = rng.permutation(len(y))[:left]
        left -= len(order)
        for start in range(0, len(order), ROW_GROUP):
            some = order[start : start + ROW_GROUP]
            numbers = x[some].astype(np.float32)
            numbers[:, :MEASUREMENTS] += NOISE * spread * rng.standard_normal((len(some), MEASUREMENTS))
            yield numbers, y[some]


def write_tables(folder: Path, rows: int, source: str | None) -> None:
    """big (a folder with one file), tenth.parquet and test.parquet."""
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    x, y = load_table("covertype", source=source)
    names = [f"f{number}" for number in range(x.shape[1])]
    columns = [pyarrow.field(name, pyarrow.float32()) for name in names]
    schema = pyarrow.schema([*columns, pyarrow.field("label", pyarrow.int32())])
    (folder / "big").mkdir()
    big, tenth, test = (
        ParquetWriter(folder / f"{name}.parquet", schema) for name in ("big/part-00", "tenth", "test")
    )
    done = 0
    for some, labels in parts(x, y, rows, seed=0):
        held = np.arange(done, done + len(labels)) % TEST_EVERY == 0
        first = ~held & (np.arange(done, done + len(labels)) < rows // TIMES)
        done += len(labels)
        for writer, chosen in ((big, ~held), (tenth, first), (test, held)):
            if chosen.any():
                values = [*some[chosen].T, labels[chosen].astype(np.int32)]
                writer.write_table(pyarrow.table([pyarrow.array(v) for v in values], schema=schema), ROW_GROUP)
    for writer in (big, tenth, test):
        writer.close()


class OutOfTime(Exception):
    """The minutes of this call are over."""


@dataclass
class Steps:
    """What was measured so far, in a file of the folder; a step that is done is not done again."""

    folder: Path
    until: float | None  # on the clock of time.monotonic

    def __post_init__(self) -> None:
        self.file = self.folder / "steps.json"
        self.done: dict[str, Any] = json.loads(self.file.read_text()) if self.file.exists() else {}

    def measure(self, name: str, command: Sequence[str]) -> None:
        """Run a command of `ibpwf` in a process that is the only child of another, so that its memory is its own."""
        before = self.done.get(name, {})
        if before.get("whole"):
            return
        left = None if self.until is None else self.until - time.monotonic()
        if left is not None and left < LEAST_SECONDS:
            raise OutOfTime
        words = [*command, "--resume"] if before else [*command]
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found = pool.apply(_run, (words, self.folder, left if command[0] == "learn" else None))
        found["seconds"] += before.get("seconds", 0.0)
        found["cpu_seconds"] += before.get("cpu_seconds", 0.0)
        found["peak_rss_gb"] = max(found["peak_rss_gb"], before.get("peak_rss_gb", 0.0))
        found["parts"] = before.get("parts", 0) + 1
        self.done[name] = {**found, "command": " ".join(["ibpwf", *command])}
        write(self.file, self.done)
        print(json.dumps({name: {key: value for key, value in self.done[name].items() if key != "out"}}), flush=True)
        if not found["whole"]:
            raise OutOfTime


def _run(command: list[str], folder: Path, limit: float | None) -> dict[str, Any]:
    started = time.perf_counter()
    words = [sys.executable, "-m", "ibpwf", *command]
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            out, said = child.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGINT)
            out, said = child.communicate()
    if child.returncode not in (0, 130):
        raise SystemExit(f"{' '.join(command)}: {said[-2000:]}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "whole": child.returncode == 0,
        "seconds": time.perf_counter() - started,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "peak_rss_gb": used.ru_maxrss * 1024 / 1e9,  # Linux counts in KiB
        "out": out,
    }


def model_digest(folder: Path) -> str:
    """Of all tensors of a model."""
    files = sorted(path for path in folder.iterdir() if path.suffix == ".safetensors")
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def all_steps(folder: Path, settings: list[str], steps: Steps) -> None:
    """Everything that is measured, as far as it is not yet."""
    common = ("--task", "cover", "--device", "cpu", *settings)
    steps.measure("learn", ("learn", "model", "big", *common, "--on-disk"))
    steps.measure("predict", ("predict", "model", "big", "-o", "answers.parquet", "--device", "cpu"))
    steps.measure("evaluate", ("evaluate", "model", "big", "--json", "--device", "cpu"))
    steps.measure("test", ("evaluate", "model", "test.parquet", "--json", "--device", "cpu"))
    for name, where in (("tenth in memory", "--in-memory"), ("tenth on disk", "--on-disk")):
        model = name.replace(" ", "-")
        steps.measure(f"learn {name}", ("learn", model, "tenth.parquet", *common, where))
        steps.measure(f"test of {name}", ("evaluate", model, "test.parquet", "--json", "--device", "cpu"))


def main() -> None:
    parser = options(__doc__, RESULTS / "scaling")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--source", help="the archive of the tables, or a folder with them; else they are fetched")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="as of ibpwf learn")
    parser.add_argument("--keep", type=Path, help="a folder for tables and models that is not removed")
    parser.add_argument("--minutes", type=float, help="with --keep: stop after so many, and go on in the next call")
    asked = parser.parse_args()
    if asked.minutes is not None and asked.keep is None:
        parser.error("--minutes needs --keep DIR, where the next call finds what was done.")
    until = None if asked.minutes is None else time.monotonic() + 60 * asked.minutes
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as place:
        folder = asked.keep or Path(place)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "written").exists():
            shutil.rmtree(folder / "big", ignore_errors=True)
            write_tables(folder, asked.rows, asked.source)
            (folder / "written").touch()
        steps = Steps(folder, until)
        try:
            all_steps(folder, [word for one in asked.set for word in ("--set", one)], steps)
        except OutOfTime:
            print("not done yet; go on with the same command", flush=True)
            return
        same = model_digest(folder / "tenth-in-memory") == model_digest(folder / "tenth-on-disk")
        found = summary(steps.done) | {"rows": asked.rows, "parquet_bytes": bytes_of(folder / "big")}
        found["tenth_on_disk_has_the_same_bits"] = same
    kept = {name: {key: value for key, value in step.items() if key != "out"} for name, step in steps.done.items()}
    write(asked.out / "big-table.json", {"name": "big-table", **made_by(), "summary": found, "steps": kept})
    print(json.dumps(found, indent=2), flush=True)


def summary(steps: dict[str, Any]) -> dict[str, Any]:
    tests = {"accuracy": "test"}
    tests |= {
        f"accuracy_of_a_tenth_{where}": f"test of tenth {where.replace('_', ' ')}"
        for where in ("in_memory", "on_disk")
    }
    return {key: json.loads(steps[name]["out"])["accuracy"]["task_given"] for key, name in tests.items()}


if __name__ == "__main__":
    main()
