"""Tables as a user has them, nothing tuned: `ContinualClassifier()` beside scikit-learn's models, one for each task.

    python benchmarks/own_data.py covertype-areas --seeds 5
    python benchmarks/own_data.py covertype-classes --seeds 5 --tuned
    python benchmarks/own_data.py electricity weather --seeds 5 --source scikit-multiflow-0.4.1.tar.gz
    python benchmarks/own_data.py covertype-whole --seeds 1
    python benchmarks/own_data.py weather --seeds 1 --rows 500 --out DIR    # to see that it runs

A file for each table goes to docs/results/own-data, with what every seed came to. A seed draws the rows and which
quarter of each task is the test. With `--tuned` ten other settings are tried too; the best is chosen on a fifth of
the training rows, and the defaults are compared with it on the test rows. `seconds` are those of learning;
`cpu_seconds` those that all cores worked for it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ibpwf import ContinualClassifier
from ibpwf.lab.data.tables import load_table
from ibpwf.lab.experiments.result import commit, environment
from ibpwf.storage.files import write_json

Array = NDArray[Any]
Part = tuple[Array, Array]

OUT = Path(__file__).parents[1] / "docs" / "results" / "own-data"
TEST, VALIDATION = 0.25, 0.2


@dataclass(frozen=True)
class Task:
    """Rows to learn from, and others to be asked."""

    x: Array
    y: Array
    test_x: Array
    test_y: Array


def areas(x: Array, y: Array, rng: np.random.Generator) -> list[Part]:
    """5,000 places in each of three wilderness areas."""
    area = x[:, 10:14].argmax(1)
    chosen = [rng.permutation(np.flatnonzero(area == one))[:5_000] for one in (0, 2, 3)]
    return [(x[rows], y[rows]) for rows in chosen]


def classes(x: Array, y: Array, rng: np.random.Generator) -> list[Part]:
    """20,000 places as three tasks of kinds: two, two and three."""
    rows = rng.permutation(len(y))[:20_000]
    x, y = x[rows], y[rows]
    return [(x[np.isin(y, kinds)], y[np.isin(y, kinds)]) for kinds in ((1, 2), (3, 4), (5, 6, 7))]


def whole(x: Array, y: Array, rng: np.random.Generator) -> list[Part]:
    """600,000 rows or fewer, three quarters of which are learned: 450,000 at most."""
    rows = rng.permutation(len(y))[:600_000]
    return [(x[rows], y[rows])]


def in_time(count: int) -> Callable[[Array, Array, np.random.Generator], list[Part]]:
    """Rows in their order, cut into so many tasks."""

    def cut(x: Array, y: Array, rng: np.random.Generator) -> list[Part]:
        return [(x[rows], y[rows]) for rows in np.array_split(np.arange(len(y)), count)]

    return cut


TABLES: dict[str, tuple[str, Callable[[Array, Array, np.random.Generator], list[Part]]]] = {
    "covertype-areas": ("covertype", areas),
    "covertype-classes": ("covertype", classes),
    "covertype-whole": ("covertype", whole),
    "electricity": ("electricity", in_time(4)),
    "weather": ("weather", in_time(3)),
}

TUNED: dict[str, dict[str, Any]] = {
    "hidden=(512, 256)": {"hidden": (512, 256)},
    "hidden=(128,)": {"hidden": (128,)},
    "batch_size=64, learning_rate=1e-3": {"batch_size": 64, "learning_rate": 1e-3},
    "batch_size=128, learning_rate=3e-3": {"batch_size": 128, "learning_rate": 3e-3},
    "epochs=40": {"epochs": 40},
    "init=pretrained": {"settings": {"init": "pretrained"}},
    "random_features=800": {"settings": {"random_features": 800}},
    "shrinkage=0.5": {"settings": {"shrinkage": 0.5}},
    "a shared covariance": {"settings": {"inference": "shared-gaussian", "shrinkage": 0.0, "ridge": 0.2}},
    "recipe=plain": {"recipe": "plain"},
}


def split(name: str, asked: argparse.Namespace, seed: int) -> list[Task]:
    table, cut = TABLES[name]
    x, y = load_table(table, source=asked.source)
    parts = cut(x, y, np.random.default_rng(100 + seed))
    rng, tasks = np.random.default_rng(seed), []
    for task_x, task_y in parts:
        order = rng.permutation(len(task_y))[: asked.rows]
        test, train = np.split(order, [int(len(order) * TEST)])
        tasks.append(Task(task_x[train], task_y[train], task_x[test], task_y[test]))
    return tasks


def inside(tasks: list[Task], seed: int) -> list[Task]:
    """Of training rows alone: a fifth of them to be asked."""
    found, rng = [], np.random.default_rng(1_000 + seed)
    for task in tasks:
        test, train = np.split(rng.permutation(len(task.y)), [int(len(task.y) * VALIDATION)])
        found.append(Task(task.x[train], task.y[train], task.x[test], task.y[test]))
    return found


def ours(tasks: list[Task], seed: int, parameters: dict[str, Any]) -> dict[str, Any]:
    """Task after task; accuracies are means over tasks, in per cent."""
    classifier = ContinualClassifier(random_state=seed, device="cpu", **parameters)
    started, worked = time.perf_counter(), time.process_time()
    for number, task in enumerate(tasks):
        classifier.learn(task.x, task.y, task=str(number))
    seconds, cpu = time.perf_counter() - started, time.process_time() - worked
    given = [100 * classifier.score(task.test_x, task.test_y, task=str(number)) for number, task in enumerate(tasks)]
    inferred = [100 * classifier.score(task.test_x, task.test_y) for task in tasks]
    with tempfile.TemporaryDirectory() as folder:
        classifier.save(Path(folder) / "model")
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    held_out = [classifier.learner_.info(number).held_out for number in range(len(tasks))]
    return {
        "recipe": classifier.recipe_,
        "given": float(np.mean(given)),
        "inferred": float(np.mean(inferred)),
        "given_by_task": given,
        "inferred_by_task": inferred,
        "held_out": [None if one is None else one.accuracy for one in held_out],
        "linear": [None if one is None else one.linear for one in held_out],
        "seconds": seconds,
        "cpu_seconds": cpu,
        "folder_bytes": size,
        "rows_bytes": sum(task.x.nbytes for task in tasks),
    }


def others(tasks: list[Task], seed: int) -> dict[str, Any]:
    """A model of scikit-learn for each task, which is then given; boosted trees on all tasks, which is not."""
    made: dict[str, Callable[[], Any]] = {
        "boosted-trees": lambda: HistGradientBoostingClassifier(random_state=seed),
        "perceptron": lambda: make_pipeline(StandardScaler(), MLPClassifier(random_state=seed)),
    }
    found: dict[str, Any] = {}
    for name, make in made.items():
        started = time.perf_counter()
        scores = [100 * make().fit(task.x, task.y).score(task.test_x, task.test_y) for task in tasks]
        found[name] = {"given": float(np.mean(scores)), "seconds": time.perf_counter() - started}
    if len(tasks) > 1:
        joint = made["boosted-trees"]()
        joint.fit(np.concatenate([task.x for task in tasks]), np.concatenate([task.y for task in tasks]))
        inferred = [100 * joint.score(task.test_x, task.test_y) for task in tasks]
        found["boosted-trees-jointly"] = {"inferred": float(np.mean(inferred))}
    return found


def measured(name: str, asked: argparse.Namespace, seed: int) -> dict[str, Any]:
    tasks = split(name, asked, seed)
    found: dict[str, Any] = {"seed": seed, "rows": [len(task.y) for task in tasks], "default": ours(tasks, seed, {})}
    show(name, seed, "defaults", found["default"])
    if asked.others:
        found["others"] = others(tasks, seed)
        for other, result in found["others"].items():
            show(name, seed, other, result)
    if asked.tuned:
        found["tuned"] = {}
        for label, parameters in TUNED.items():
            chosen = ours(inside(tasks, seed), seed, parameters)
            result = {"validation": chosen["given"], "test": ours(tasks, seed, parameters)["given"]}
            found["tuned"][label] = result
            print(f"{name} seed {seed} {label:<40} {result}", flush=True)
    return found


def show(name: str, seed: int, what: str, result: dict[str, Any]) -> None:
    words = " ".join(f"{key} {result[key]:.2f}" for key in ("given", "inferred", "seconds") if key in result)
    print(f"{name} seed {seed} {what:<24} {words}", flush=True)


def summary(seeds: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds, and the best of the tuned settings, chosen on validation rows."""
    keys = ("given", "inferred", "seconds", "cpu_seconds", "folder_bytes", "rows_bytes")
    found: dict[str, Any] = {key: float(np.mean([one["default"][key] for one in seeds])) for key in keys}
    found["given_std"], found["inferred_std"] = (
        float(np.std([one["default"][key] for one in seeds])) for key in ("given", "inferred")
    )
    if all("tuned" in one for one in seeds):

        def mean(label: str, part: str) -> float:
            return float(np.mean([one["tuned"][label][part] for one in seeds]))

        best = max(TUNED, key=lambda label: mean(label, "validation"))
        found["best_of_ten"] = {"setting": best, "given": mean(best, "test")}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", choices=TABLES)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", type=int, help="of each task, at most")
    parser.add_argument("--source", help="the archive of the tables, or a folder with them; else they are fetched")
    parser.add_argument("--tuned", action="store_true", help="try ten other settings too")
    parser.add_argument("--no-others", dest="others", action="store_false", help="leave scikit-learn's models out")
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    warnings.filterwarnings("ignore", category=UserWarning)
    for name in asked.tables:
        seeds: list[dict[str, Any]] = []
        for seed in range(asked.seeds):
            seeds.append(measured(name, asked, seed))
            record = {
                "name": name,
                "what": (TABLES[name][1].__doc__ or "rows in their order, cut into tasks").strip(),
                "command": " ".join(["python", "benchmarks/own_data.py", *sys.argv[1:]]),
                "commit": commit(),
                "environment": {**environment(), "scikit-learn": sklearn.__version__, "cores": os.cpu_count()},
                "summary": summary(seeds),
                "seeds": seeds,
            }
            asked.out.mkdir(parents=True, exist_ok=True)
            write_json(asked.out / f"{name}.json", record)
        print(name, record["summary"], flush=True)


if __name__ == "__main__":
    main()
