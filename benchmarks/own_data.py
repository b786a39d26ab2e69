"""Tables as a user has them, nothing tuned: `ContinualClassifier()` beside scikit-learn's models, one for each task.

    python benchmarks/own_data.py covertype-areas --seeds 5
    python benchmarks/own_data.py covertype-classes --seeds 5 --tuned
    python benchmarks/own_data.py electricity weather --seeds 5 --source scikit-multiflow-0.4.1.tar.gz
    python benchmarks/own_data.py covertype-whole --seeds 1
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
from ibpwf.lab.experiments.result import commit, environment, shown_command
from ibpwf.storage.files import read_json, write_json

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
    tasks, (part, parts) = split(name, asked, seed), asked.part
    found: dict[str, Any] = {"seed": seed, "rows": [len(task.y) for task in tasks]}
    if part == 0:
        found["default"] = ours(tasks, seed, {})
        show(name, seed, "defaults", found["default"])
    if part == 0 and asked.others:
        found["others"] = others(tasks, seed)
        for other, result in found["others"].items():
            show(name, seed, other, result)
    if asked.tuned:
        found["tuned"] = {}
        for label, parameters in share_of(TUNED, part, parts).items():
            chosen = ours(inside(tasks, seed), seed, parameters)
            result = {"validation": chosen["given"], "test": ours(tasks, seed, parameters)["given"]}
            found["tuned"][label] = result
            print(f"{name} seed {seed} {label:<40} {result}", flush=True)
    return found


def share_of(settings: dict[str, dict[str, Any]], part: int, parts: int) -> dict[str, dict[str, Any]]:
    """All, or every so many-th from the part's own on: none in the first of several."""
    if parts == 1:
        return settings
    return {} if part == 0 else dict(list(settings.items())[part - 1 :: parts - 1])


def show(name: str, seed: int, what: str, result: dict[str, Any]) -> None:
    words = " ".join(f"{key} {result[key]:.2f}" for key in ("given", "inferred", "seconds") if key in result)
    print(f"{name} seed {seed} {what:<24} {words}", flush=True)


def summary(seeds: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds; the best tuned setting, chosen on validation rows, over those seeds that tried them all."""
    seeds = [one for one in seeds if "default" in one]
    if not seeds:
        return {}
    keys = ("given", "inferred", "seconds", "cpu_seconds", "folder_bytes", "rows_bytes")
    found: dict[str, Any] = {key: float(np.mean([one["default"][key] for one in seeds])) for key in keys}
    found["given_std"], found["inferred_std"] = (
        float(np.std([one["default"][key] for one in seeds])) for key in ("given", "inferred")
    )
    for other in seeds[0].get("others", {}):
        both = [one["others"][other] for one in seeds if "others" in one]
        found[other] = {key: float(np.mean([one[key] for one in both])) for key in both[0]}
    tried = [one for one in seeds if set(one.get("tuned", {})) == set(TUNED)]
    if tried:

        def mean(label: str, part: str) -> float:
            return float(np.mean([one["tuned"][label][part] for one in tried]))

        best = max(TUNED, key=lambda label: mean(label, "validation"))
        default = float(np.mean([one["default"]["given"] for one in tried]))
        found["best_of_ten"] = {"setting": best, "given": mean(best, "test"), "default": default}
        found["best_of_ten"]["seeds"] = [one["seed"] for one in tried]
    return found


def merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """One record of several of the same table: what each seed came to, whichever process measured it."""
    first = parts[0]
    for part in parts[1:]:
        for key in ("name", "commit", "environment"):
            if part[key] != first[key]:
                raise SystemExit(f"{key} is {part[key]!r} in one part and {first[key]!r} in another; measure anew.")
    seeds: dict[int, dict[str, Any]] = {}
    for one in sorted((seed for part in parts for seed in part["seeds"]), key=lambda seed: int(seed["seed"])):
        held = seeds.setdefault(one["seed"], {"seed": one["seed"], "rows": one["rows"]})
        if held["rows"] != one["rows"] or {"default", "others"} & set(held) & set(one):
            raise SystemExit(f"seed {one['seed']} was measured twice, or on other rows; leave one of them out.")
        tuned = {**held.get("tuned", {}), **one.get("tuned", {})}
        held |= {**one, **({"tuned": tuned} if tuned else {})}
    commands = [shown_command(part["command"]) for part in parts]
    return {**first, "command": commands, "summary": summary(list(seeds.values())), "seeds": list(seeds.values())}


def of_whole(text: str) -> tuple[int, int]:
    """`1/4`: the second of four parts."""
    part, _, parts = text.partition("/")
    if not (part.isdigit() and parts.isdigit() and int(part) < int(parts)):
        raise argparse.ArgumentTypeError(f"part is {text!r}; give one such as 1/4, from 0/4 to 3/4.")
    return int(part), int(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", choices=TABLES)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rows", type=int, help="of each task, at most")
    parser.add_argument("--source", help="the archive of the tables, or a folder with them; else they are fetched")
    parser.add_argument("--tuned", action="store_true", help="try ten other settings too")
    parser.add_argument("--part", type=of_whole, default=(0, 1), help="0/N: defaults; 1/N and on: others")
    parser.add_argument("--no-others", dest="others", action="store_false", help="leave scikit-learn's models out")
    parser.add_argument("--merge", type=Path, nargs="+", help="folders with parts of the tables' results")
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    warnings.filterwarnings("ignore", category=UserWarning)
    asked.out.mkdir(parents=True, exist_ok=True)
    for name in asked.tables:
        place = asked.out / f"{name}.json"
        if asked.merge:
            files = [folder / place.name for folder in asked.merge if (folder / place.name).exists()]
            if not files:
                raise SystemExit(
                    f"none of {', '.join(map(str, asked.merge))} has a {place.name}; give folders that do."
                )
            record = merged([read_json(file) for file in files])
            write_json(place, record)
        else:
            seeds: list[dict[str, Any]] = []
            for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
                seeds.append(measured(name, asked, seed))
                record = {
                    "name": name,
                    "what": (TABLES[name][1].__doc__ or "rows in their order, cut into tasks").strip(),
                    "command": shown_command(" ".join(["python", "benchmarks/own_data.py", *sys.argv[1:]])),
                    "commit": commit(),
                    "environment": {**environment("cpu"), "scikit-learn": sklearn.__version__},
                    "summary": summary(seeds),
                    "seeds": seeds,
                }
                write_json(place, record)
        print(name, record["summary"], flush=True)


if __name__ == "__main__":
    main()
