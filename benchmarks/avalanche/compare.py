"""Compare ibpwf with Avalanche and with a bare PyTorch loop on Split MNIST, taking turns in one run.

Writes comparison.json into the folder --out. Avalanche lives in an environment of its own: see README.md beside this
file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from settings import ENTRIES, WAYS, Training

from ibpwf.downloads.cache import cache_folder
from ibpwf.lab import scenario
from ibpwf.lab.experiments.result import commit
from ibpwf.storage.files import write_json

HERE = Path(__file__).parent
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Worker:
    """One of the three programs, started once, that does one job at a time."""

    def __init__(self, python: str, who: str, data: Path, threads: int, epochs: int) -> None:
        command = [
            python,
            str(HERE / "worker.py"),
            who,
            str(data),
            "--threads",
            str(threads),
            "--epochs",
            str(epochs),
        ]
        environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(threads)), "MNIST_ROOT": str(data.parent)}
        self.who = who
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def run(self, **job: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"error: {self.who} broke off at {job}; what it said is above.")
        result: dict[str, Any] = json.loads(line)
        return result

    def close(self) -> None:
        self.process.communicate()


def write_tasks(path: Path) -> None:
    """Split MNIST as arrays that any interpreter can read, labels counted from 0 within each task."""
    arrays: dict[str, Any] = {}
    for number, task in enumerate(scenario("split-mnist")):
        for prefix, split in (("", task.train), ("test_", task.test)):
            arrays[f"{prefix}x{number}"] = split.x.numpy()
            arrays[f"{prefix}y{number}"] = np.unique(split.y.numpy(), return_inverse=True)[1]
    np.savez(path, **arrays)
    raw = path.parent / "MNIST" / "raw"  # where Avalanche's own Split MNIST looks
    raw.mkdir(parents=True)
    for file in (cache_folder() / "mnist").glob("*-ubyte"):
        shutil.copy(file, raw)


def processor() -> str:
    """The processor's name where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def turns(methods: list[str]) -> list[tuple[str, str, str]]:
    """One round: whose turn it is, with what, and for Avalanche in which way."""
    order: list[tuple[str, str, str]] = []
    for method in methods:
        variant = ENTRIES[method].variant_of is not None
        order += [] if variant else [("ours", method, "")]
        order += [("bare", method, "")] if method == "adam" else []
        order += [("avalanche", method, way) for way in (WAYS[-1:] if variant else WAYS)]
    return order


def measure(workers: dict[str, Worker], methods: list[str], rounds: int) -> list[dict[str, Any]]:
    """All rounds, a seed each, every other one backwards so that nobody always comes first."""
    for worker in workers.values():
        worker.run(method="adam", seed=0)  # not counted: the first steps load what torch loads late
    runs = []
    for seed in range(rounds):
        for who, method, way in turns(methods)[:: 1 if seed % 2 == 0 else -1]:
            runs.append({"who": who, "method": method, "seed": seed, "way": way})
            runs[-1] |= workers[who].run(method=method, seed=seed, way=way)
            sys.stderr.write(f"{runs[-1]}\n")
    return runs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--avalanche-python", required=True, metavar="PATH", help="interpreter that has Avalanche")
    parser.add_argument("--out", type=Path, default=Path("docs/results/avalanche"), help="folder to write to")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, each with a seed of its own (5)")
    parser.add_argument("--threads", type=int, default=1, help="threads each program may use (1)")
    parser.add_argument("--epochs", type=int, default=Training.epochs, help=f"epochs a task ({Training.epochs})")
    parser.add_argument("--methods", nargs="+", choices=list(ENTRIES), default=list(ENTRIES), metavar="METHOD")
    given = parser.parse_args()
    if shutil.which(given.avalanche_python) is None:
        sys.stderr.write(
            f"error: --avalanche-python is '{given.avalanche_python}', which is no program; make the environment as "
            "benchmarks/avalanche/README.md says and give the path of its python.\n"
        )
        return 2
    known, training = commit(), Training(epochs=given.epochs)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "split-mnist.npz"
        write_tasks(data)
        pythons = {"ours": sys.executable, "bare": sys.executable, "avalanche": given.avalanche_python}
        workers = {who: Worker(path, who, data, given.threads, given.epochs) for who, path in pythons.items()}
        try:
            runs = measure(workers, given.methods, given.rounds)
        finally:
            for worker in workers.values():
                worker.close()
    words = ["--avalanche-python", "PATH", "--rounds", str(given.rounds), "--threads", str(given.threads)]
    words += ["--epochs", str(given.epochs)] if given.epochs != Training.epochs else []
    words += ["--methods", *given.methods] if given.methods != list(ENTRIES) else []
    versions = {run["who"]: run.pop("versions") for run in runs}
    content = {
        "kind": "avalanche-comparison",
        "command": shlex.join(["python", "benchmarks/avalanche/compare.py", *words]),
        "commit": known,
        "machine": {"processor": processor(), "cores": os.cpu_count(), "system": platform.system()},
        "threads": given.threads,
        "seeds": list(range(given.rounds)),
        "versions": versions,
        "training": training.to_json(),
        "entries": {name: asdict(ENTRIES[name]) for name in given.methods},
        "runs": runs,
    }
    given.out.mkdir(parents=True, exist_ok=True)
    write_json(given.out / "comparison.json", content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
