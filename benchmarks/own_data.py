"""Tables as a user has them, nothing tuned: `ContinualClassifier()` beside scikit-learn's models, one for each task.

    python benchmarks/own_data.py covertype-areas --seeds 5
    python benchmarks/own_data.py covertype-classes --seeds 5 --tuned
    python benchmarks/own_data.py electricity weather --seeds 5 --source scikit-multiflow-0.4.1.tar.gz
    python benchmarks/own_data.py weather --seeds 1 --rows 500 --out DIR    # to see that it runs
    python benchmarks/own_data.py weather --first-seed 3 --seeds 1 --tuned --part 1/4 --out DIR/3-1
    python benchmarks/own_data.py weather --merge DIR/*                     # one file of what was measured in parts

A file for each table goes to docs/results/own-data, with what every seed came to. A seed draws the rows and which
quarter of each task is the test. With `--tuned` ten other settings are tried too; the best is chosen on a fifth of
the training rows, and the defaults are compared with it on the test rows. `seconds` are those of learning;
`cpu_seconds` those that all cores worked for it. So that many processes can share the work, `--part 0/N` measures the
defaults and `--part 1/N` to `N-1/N` the other settings in turns; `--merge` makes one file of theirs.
"""

from __future__ import annotations

import argparse
import statistics
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
from record import RESULTS, bytes_of, made_by, options, read_parts, write
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ibpwf import ContinualClassifier
from ibpwf.lab.data.tables import load_table

Array = NDArray[Any]
Part = tuple[Array, Array]
Cut = Callable[[Array, Array, np.random.Generator], list[Part]]
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


def in_time(count: int) -> Cut:
    """Rows in their order, cut into so many tasks."""
    return lambda x, y, rng: [(x[rows], y[rows]) for rows in np.array_split(np.arange(len(y)), count)]


TABLES: dict[str, tuple[str, Cut]] = {
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
    "random_features=800": {"settings": {"inference.features.width": 800}},
    "shrinkage=0.5": {"settings": {"inference.shrinkage": 0.5}},
    "a shared covariance": {"settings": {"inference": "shared-gaussian", "inference.ridge": 0.2}},
    "recipe=plain": {"recipe": "plain"},
}


def split(name: str, asked: argparse.Namespace, seed: int) -> list[Task]:
    table, cut = TABLES[name]
    parts = cut(*load_table(table, source=asked.source), np.random.default_rng(100 + seed))
    rng, tasks = np.random.default_rng(seed), []
    for x, y in parts:
        order = rng.permutation(len(y))[: asked.rows]
        test, train = np.split(order, [int(len(order) * TEST)])
        tasks.append(Task(x[train], y[train], x[test], y[test]))
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
        size = bytes_of(Path(folder))
    return {
        "recipe": classifier.recipe_,
        "given": statistics.fmean(given),
        "inferred": statistics.fmean(inferred),
        "given_by_task": given,
        "inferred_by_task": inferred,
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
        scores = [100 * make().fit(task.x, task.y).score(task.test_x, task.test_y) for task in tasks]
        found[name] = {"given": statistics.fmean(scores)}
    if len(tasks) > 1:
        joint = made["boosted-trees"]()
        joint.fit(np.concatenate([task.x for task in tasks]), np.concatenate([task.y for task in tasks]))
        inferred = [100 * joint.score(task.test_x, task.test_y) for task in tasks]
        found["boosted-trees-jointly"] = {"inferred": statistics.fmean(inferred)}
    return found


def measured(name: str, asked: argparse.Namespace, seed: int) -> dict[str, Any]:
    tasks, (part, parts) = split(name, asked, seed), asked.part
    found: dict[str, Any] = {"seed": seed, "rows": [len(task.y) for task in tasks]}
    if part == 0:
        found["default"] = ours(tasks, seed, {})
        if asked.others:
            found["others"] = others(tasks, seed)
    if asked.tuned:
        shared = list(TUNED) if parts == 1 else list(TUNED)[part - 1 :: parts - 1] if part else []
        found["tuned"] = {}
        for label in shared:
            chosen = ours(inside(tasks, seed), seed, TUNED[label])
            result = {"validation": chosen["given"], "test": ours(tasks, seed, TUNED[label])["given"]}
            found["tuned"][label] = result
            print(f"{name} seed {seed} {label:<40} {result}", flush=True)
    return found


def summary(seeds: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds; the best tuned setting, chosen on validation rows, over those seeds that tried them all."""
    seeds = [one for one in seeds if "default" in one]
    if not seeds:
        return {}
    keys = ("given", "inferred", "seconds", "cpu_seconds", "folder_bytes", "rows_bytes")
    found: dict[str, Any] = {key: statistics.fmean(one["default"][key] for one in seeds) for key in keys}
    for key in ("given", "inferred"):
        found[f"{key}_std"] = statistics.pstdev([one["default"][key] for one in seeds])
    tried = [one for one in seeds if set(one.get("tuned", {})) == set(TUNED)]
    if tried:
        means = {
            part: {label: statistics.fmean(one["tuned"][label][part] for one in tried) for label in TUNED}
            for part in ("validation", "test")
        }
        best = max(TUNED, key=means["validation"].__getitem__)
        default = statistics.fmean(one["default"]["given"] for one in tried)
        found["best_of_ten"] = {"setting": best, "given": means["test"][best], "default": default}
        found["best_of_ten"]["seeds"] = [one["seed"] for one in tried]
    return found


def merged(name: str, folders: list[Path]) -> dict[str, Any]:
    """One record of several of the same table: what each seed came to, whichever process measured it."""
    files = [folder / f"{name}.json" for folder in folders if (folder / f"{name}.json").exists()]
    if not files:
        raise SystemExit(f"none of {', '.join(map(str, folders))} has a {name}.json; give folders that do.")
    parts, commands = read_parts(files, "name")
    seeds: dict[int, dict[str, Any]] = {}
    for one in sorted((seed for part in parts for seed in part["seeds"]), key=lambda seed: int(seed["seed"])):
        held = seeds.setdefault(one["seed"], {"seed": one["seed"], "rows": one["rows"]})
        if held["rows"] != one["rows"] or {"default", "others"} & set(held) & set(one):
            raise SystemExit(f"seed {one['seed']} was measured twice, or on other rows; leave one of them out.")
        tuned = {**held.get("tuned", {}), **one.get("tuned", {})}
        held |= {**one, **({"tuned": tuned} if tuned else {})}
    found = list(seeds.values())
    return {**parts[0], "command": commands, "summary": summary(found), "seeds": found}


def of_whole(text: str) -> tuple[int, int]:
    """`1/4`: the second of four parts."""
    part, _, parts = text.partition("/")
    if not (part.isdigit() and parts.isdigit() and int(part) < int(parts)):
        raise argparse.ArgumentTypeError(f"part is {text!r}; give one such as 1/4, from 0/4 to 3/4.")
    return int(part), int(parts)


def main() -> None:
    parser = options(__doc__, RESULTS / "own-data", seeds=5)
    parser.add_argument("tables", nargs="+", choices=TABLES)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rows", type=int, help="of each task, at most")
    parser.add_argument("--source", help="the archive of the tables, or a folder with them; else they are fetched")
    parser.add_argument("--tuned", action="store_true", help="try ten other settings too")
    parser.add_argument("--part", type=of_whole, default=(0, 1), help="0/N: defaults; 1/N and on: others")
    parser.add_argument("--no-others", dest="others", action="store_false", help="leave scikit-learn's models out")
    parser.add_argument("--merge", type=Path, nargs="+", help="folders with parts of the tables' results")
    asked = parser.parse_args()
    warnings.filterwarnings("ignore", category=UserWarning)
    for name in asked.tables:
        if asked.merge:
            write(asked.out / f"{name}.json", merged(name, asked.merge))
            continue
        what, about = (TABLES[name][1].__doc__ or "rows in their order, cut into tasks").strip(), made_by()
        about["environment"]["scikit-learn"] = sklearn.__version__
        seeds: list[dict[str, Any]] = []
        for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
            seeds.append(measured(name, asked, seed))
            found = {"summary": summary(seeds), "seeds": seeds}
            write(asked.out / f"{name}.json", {"name": name, "what": what, **about, **found})
            print(name, seed, found["summary"], flush=True)


if __name__ == "__main__":
    main()
