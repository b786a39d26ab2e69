"""How cost grows with tasks, classes, rows and parameters: time, memory and bytes of the folder at growing sizes.

    python benchmarks/scaling.py                        # all four: 1,000 tasks, 10,000 classes, 10⁷ rows, 10⁸ weights
    python benchmarks/scaling.py tasks --sizes 10 100   # one of them, as far as that
    python benchmarks/scaling.py --small                # a tenth of everything
    python benchmarks/scaling.py tasks --sizes 1000 --add --keep DIR  # in parts: goes on from the tasks kept there

Every size is measured in a process of its own, whose peak memory is recorded; tasks are learned one after the other
in a single process and looked at on the way. Times are seconds of one core (CPU time with one thread, so that who
else uses the machine counts little); answers and reading are the least of several, learning is the median.
`docs/results/scaling/NAME.json` gets what was found after each size.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import RESULTS, bytes_of, made_by, options, write
from torch import Tensor, nn

from ibpwf import ContinualClassifier, Learner, Settings
from ibpwf.models import mlp
from ibpwf.storage.files import read_json

TIMES = 9
ROWS, ASKED = 500, 200
"""Rows that a task of digits is learned from, and that are asked about at once."""


def seconds(act: Callable[[], object], times: int = TIMES) -> float:
    """The least time of an act, after one that is not counted: what else the machine does only adds to it."""
    act()
    took = []
    for _ in range(times):
        started = time.process_time()
        act()
        took.append(time.process_time() - started)
    return min(took)


def stored(learner: Learner, x: Tensor) -> dict[str, float]:
    """The folder, and how long it takes until one that was just read has answered for its first task."""
    with tempfile.TemporaryDirectory() as there:
        folder = Path(there) / "model"
        learner.save(folder)

        def load() -> None:
            Learner.load(folder, device="cpu").predict(x[:1], task=0)

        gc.collect()
        gc.freeze()  # who reads a folder has no other learner for Python's collector to look through
        took = seconds(load, 3)
        gc.unfreeze()
        manifest = (folder / "manifest.json").stat().st_size
        return {"folder_bytes": bytes_of(folder), "manifest_bytes": manifest, "load_seconds": took}


def permuted_digits(task: int) -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = torch.randperm(64, generator=torch.Generator().manual_seed(task))
    pixels = torch.tensor(digits.data, dtype=torch.float32)[: ROWS + ASKED, order] / 16
    return pixels, torch.tensor(digits.target)[: ROWS + ASKED]


def tasks(sizes: list[int], keep: Path | None = None) -> Iterator[dict[str, Any]]:
    """Digits of scikit-learn, their pixels permuted otherwise for every task: 500 rows each to learn from, and 200
    others to answer."""
    learner = _kept(keep, max(sizes))
    tenth = _kept(keep, 11) if len(learner.tasks) > 10 else None
    recent: list[tuple[float, float]] = []
    for task in range(len(learner.tasks), max(sizes)):
        x, y = permuted_digits(task)
        started = time.process_time()
        learner.learn(x[:ROWS], y[:ROWS])
        took = time.process_time() - started
        own, truth = x[ROWS:], y[ROWS:]
        right = float((learner.predict(own, task=task).labels == truth).double().mean())
        recent = [*recent, (took, right)][-20:]
        tenth = learner.fork() if task == 9 else tenth
        if task + 1 in sizes:
            yield {
                "size": task + 1,
                "learn_seconds": statistics.median(took for took, _ in recent),
                "accuracy": 100 * statistics.mean(right for _, right in recent),
                "factors": sum(dictionary.locked for dictionary in learner.model.layers.values()),
                **_asked(learner),
                **_beside_the_tenth(learner, tenth),
            }
            if keep is not None:
                learner.save(keep / f"tasks-{task + 1}", overwrite=True)


def tasks_again(sizes: list[int], keep: Path) -> Iterator[dict[str, Any]]:
    """What can be measured of a learner that is kept, without learning anew."""
    for size in sizes:
        yield {"size": size, **_asked(Learner.load(keep / f"tasks-{size}", device="cpu"))}


def _asked(learner: Learner) -> dict[str, float]:
    """What answers cost: for rows of the last task, given it, and for rows of ten tasks from the first to the last
    whose task is to be inferred, since some tasks have many that are like them."""
    last = len(learner.tasks) - 1
    own = permuted_digits(last)[0][ROWS:]
    some = [round(place * last / 9) for place in range(10)]
    mixed = torch.cat([permuted_digits(task)[0][ROWS : ROWS + ASKED // 10] for task in some])
    truth = torch.tensor(some).repeat_interleave(ASKED // 10)
    return {
        "given_seconds": seconds(lambda: learner.predict(own, task=last)),
        "inferred_seconds": seconds(lambda: learner.predict(mixed)),
        "tasks_told": 100 * float((learner.predict(mixed).task == truth).double().mean()),
        **stored(learner, own),
    }


def _beside_the_tenth(learner: Learner, tenth: Learner | None) -> dict[str, float]:
    """How long a further task takes this learner, beside one that has ten tasks, in turns: what else the machine does
    slows both."""
    if tenth is None or len(tenth.tasks) != 10:
        return {}
    x, y = permuted_digits(100_000)
    took: dict[str, list[float]] = {"next": [], "eleventh": []}
    for _ in range(TIMES):
        for name, one in (("next", learner), ("eleventh", tenth)):
            other = one.fork()
            started = time.process_time()
            other.learn(x[:ROWS], y[:ROWS])
            took[name].append(time.process_time() - started)
    return {"next_to_eleventh": statistics.median(took["next"]) / statistics.median(took["eleventh"])}


def _kept(keep: Path | None, most: int) -> Learner:
    """The learner with most tasks below `most` that is kept there, or a new one."""
    there = [] if keep is None else sorted(int(path.name.rpartition("-")[2]) for path in keep.glob("tasks-*"))
    if keep is not None and (fewer := [size for size in there if size < most]):
        return Learner.load(keep / f"tasks-{fewer[-1]}", device="cpu")
    settings = Settings(
        alpha=32.0,
        heads="per-task",
        epochs=8,
        finetune_epochs=3,
        batch_size=32,
        learning_rate=0.02,
    )
    torch.manual_seed(0)
    return Learner(mlp(64, [100], 10), settings, seed=0, device="cpu")


def classes(sizes: list[int]) -> Iterator[dict[str, Any]]:
    """Classes that are points of 64 numbers with noise, 100 classes a task and 20 rows each, beside a router."""
    (most,) = sizes
    each = min(100, most)
    settings = Settings(
        epochs=3,
        finetune_epochs=1,
        batch_size=100,
        heads="per-task",
        inference="router",
        **{"inference.features": "random", "inference.features.width": 500, "inference.precision": "float32"},
    )
    torch.manual_seed(0)
    learner = Learner(mlp(64, [128], each), settings, seed=0, device="cpu")
    g = torch.Generator().manual_seed(1)
    recent: list[float] = []
    for task in range(most // each):
        y = torch.arange(each).repeat(20)
        centers = torch.randn(each, 64, generator=g)
        x = centers[y] + 0.5 * torch.randn(len(y), 64, generator=g)
        started = time.process_time()
        learner.learn(x, y + task * each)
        recent = [*recent, time.process_time() - started][-10:]
    found = learner.predict(x[:ASKED]).labels
    yield {
        "size": most,
        "learn_seconds": statistics.median(recent),
        "given_seconds": seconds(lambda: learner.predict(x[:ASKED], task=task)),
        "inferred_seconds": seconds(lambda: learner.predict(x[:ASKED])),
        "accuracy": 100 * float((found == y[:ASKED] + task * each).double().mean()),
        **stored(learner, x),
    }


def rows(sizes: list[int]) -> Iterator[dict[str, Any]]:
    """One task of 16 columns in a Parquet file, learned from disk in one pass and one more, and asked from disk."""
    import pyarrow
    import pyarrow.parquet

    (most,) = sizes
    rng = np.random.default_rng(0)
    weights = rng.normal(size=16).astype(np.float32)
    with tempfile.TemporaryDirectory() as there:
        path = Path(there) / "rows.parquet"
        names = [f"c{column}" for column in range(16)]
        writer = None
        for start in range(0, most, 100_000):
            x = rng.normal(size=(min(100_000, most - start), 16)).astype(np.float32)
            y = np.where(x @ weights > 0, "yes", "no")
            table = pyarrow.table({**dict(zip(names, x.T, strict=True)), "label": y})
            writer = writer or pyarrow.parquet.ParquetWriter(path, table.schema)
            writer.write_table(table)
        assert writer is not None
        writer.close()
        model = ContinualClassifier(epochs=1, batch_size=1_000, settings={"finetune_epochs": 1}, random_state=0)
        started = time.process_time()
        model.learn(path)
        learned = time.process_time() - started
        folder = Path(there) / "model"
        model.save(folder)
        yield {
            "size": most,
            "learn_seconds": learned,
            "given_seconds": seconds(lambda: model.predict(x[:ASKED], task=0)),
            "inferred_seconds": seconds(lambda: model.predict(x[:ASKED])),
            "accuracy": 100 * float((model.predict(x[:10_000]) == y[:10_000]).mean()),
            "file_bytes": path.stat().st_size,
            "folder_bytes": bytes_of(folder),
        }


def parameters(sizes: list[int]) -> Iterator[dict[str, Any]]:
    """A task beside a frozen perceptron of so many weights, four hidden layers of one width."""
    (most,) = sizes
    width = max(8, round((most / 3) ** 0.5))
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(64, width), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Linear(width, width), nn.ReLU()]
    network = nn.Sequential(*layers, nn.Linear(width, 10))
    settings = Settings(
        base="frozen",
        alpha=4.0,
        learning_rate=0.01,
        epochs=4,
        finetune_epochs=4,
        batch_size=32,
        **{"inference.features": "random", "inference.features.width": 128},
    )
    learner = Learner(network, settings, seed=0, device="cpu")
    x, y = permuted_digits(0)
    learner.learn(x, y)
    second, other = permuted_digits(1)
    started = time.process_time()
    learner.learn(second, other)
    learned = time.process_time() - started
    with tempfile.TemporaryDirectory() as there:
        learner.save(Path(there) / "model")
        yield {
            "size": sum(parameter.numel() for parameter in network.parameters()),
            "learn_seconds": learned,
            "given_seconds": seconds(lambda: learner.predict(x[:ASKED], task=0)),
            "inferred_seconds": seconds(lambda: learner.predict(x[:ASKED])),
            "accuracy": 100 * float((learner.predict(x, task=0).labels == y).double().mean()),
            "folder_bytes": bytes_of(Path(there) / "model"),
        }


AXES: dict[str, tuple[Callable[..., Iterator[dict[str, Any]]], tuple[int, ...]]] = {
    "tasks": (tasks, (1, 10, 30, 100, 300, 1_000)),
    "classes": (classes, (100, 300, 1_000, 3_000, 10_000)),
    "rows": (rows, (10_000, 100_000, 1_000_000, 10_000_000)),
    "parameters": (parameters, (100_000, 1_000_000, 10_000_000, 100_000_000)),
}


def measured_apart(name: str, sizes: list[int], keep: Path | None, again: bool) -> Iterator[dict[str, Any]]:
    """The lines that a process of its own prints."""
    command = [sys.executable, __file__, name, "--child", "--sizes", *map(str, sizes)]
    command += [] if keep is None else ["--keep", str(keep)]
    command += ["--again"] if again else []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        yield from (json.loads(line) for line in child.stdout if line.startswith("{"))
    if child.returncode:
        raise SystemExit(f"measuring {name} at {sizes} ended with {child.returncode}")


def arguments() -> argparse.Namespace:
    parser = options(__doc__, RESULTS / "scaling")
    parser.add_argument("axes", nargs="*", default=[], choices=[*AXES, []], metavar="{" + ",".join(AXES) + "}")
    parser.add_argument("--sizes", nargs="+", type=int)
    parser.add_argument("--small", action="store_true", help="sizes up to a tenth of the largest")
    parser.add_argument("--add", action="store_true", help="keep what the result file has of other sizes")
    parser.add_argument("--keep", type=Path, help="a folder that keeps the tasks learned, and is gone on from")
    parser.add_argument("--again", action="store_true", help="ask the tasks kept once more, without learning any")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def child(asked: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    more = {"keep": asked.keep} if asked.axes[0] == "tasks" else {}
    way = tasks_again if asked.again else AXES[asked.axes[0]][0]
    for row in way(asked.sizes, **more):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({**row, "peak_bytes": peak}), flush=True)


def main() -> None:
    asked = arguments()
    if asked.child:
        child(asked)
        return
    for name in asked.axes or AXES:
        sizes = asked.sizes or [size for size in AXES[name][1] if not asked.small or size <= AXES[name][1][-1] // 10]
        file, about = asked.out / f"{name}.json", made_by()
        before = read_json(file) if asked.add and file.is_file() else {"rows": [], "commands": []}
        calls = [*before["commands"], {key: about[key] for key in ("command", "commit")}]
        what = " ".join((AXES[name][0].__doc__ or "").split())
        made = {"schema": 1, "axis": name, "what": what, "commands": calls}
        made["environment"] = {**about["environment"], "threads": 1}
        old = {row["size"]: row for row in before["rows"]}
        found = {size: row for size, row in old.items() if size not in sizes}
        for together in [sizes] if name == "tasks" and not asked.again else [[size] for size in sizes]:
            for row in measured_apart(name, together, asked.keep, asked.again):
                if asked.again:
                    row = {**old[row["size"]], **{key: value for key, value in row.items() if key != "peak_bytes"}}
                found[row["size"]] = row
                write(file, {**made, "rows": [found[size] for size in sorted(found)]})
                print(f"{name}: { {key: round(value, 4) for key, value in row.items()} }", flush=True)


if __name__ == "__main__":
    main()
