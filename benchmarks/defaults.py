"""Do the estimator's defaults need tuning? Each beside the best of ten hand-tuned settings.

    python benchmarks/defaults.py                      # all data sets
    python benchmarks/defaults.py --quick --out DIR    # iris alone, one seed, to see that it runs

For every data set and both settings (task given, task inferred) the best of ten settings is chosen on validation
rows; its accuracy on test rows is what the untouched defaults are compared with. `docs/results/defaults/result.json`
gets every cell (data set, setting, seed).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sklearn
from record import RESULTS, made_by, options, write
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.model_selection import train_test_split

from ibpwf import ContinualClassifier
from ibpwf.lab import scenario

Array = np.ndarray[Any, Any]
PAPER = {"init": "random", "features": "layer", "ridge": 1e-4, "inference": "class-gaussian"}
TUNED: dict[str, dict[str, Any]] = {
    "hidden=(100,)": {"hidden": (100,)},
    "hidden=(200, 200)": {"hidden": (200, 200)},
    "learning_rate=3e-3, batch_size=32": {"learning_rate": 3e-3, "batch_size": 32},
    "learning_rate=3e-4, epochs=60": {"learning_rate": 3e-4, "epochs": 60},
    "epochs=40, cosine schedule": {"epochs": 40, "settings": {"schedule": "cosine"}},
    "learning_rate=1e-3, batch_size=16": {"learning_rate": 1e-3, "batch_size": 16},
    "random_features=2000, ridge=0.5": {"settings": {"random_features": 2000, "ridge": 0.5}},
    "random_features=300, ridge=0.05": {"settings": {"random_features": 300, "ridge": 0.05}},
    "a Gaussian per class, first layer": {"settings": {**PAPER, "init": "pretrained"}},
    "the paper's: random init, a Gaussian per class": {"epochs": 40, "settings": PAPER},
}


@dataclass(frozen=True)
class Rows:
    """Examples, labels, and the number of the task each belongs to."""

    x: Array
    y: Array
    task: Array

    def of(self, chosen: Array) -> Rows:
        return Rows(self.x[chosen], self.y[chosen], self.task[chosen])


@dataclass(frozen=True)
class Problem:
    """A data set cut into tasks; `seeds` is how many random splits it is tried on."""

    words: str
    rows: Rows
    seeds: int
    test: Rows | None = None  # where the data set brings its own


def overlapping(y: Array) -> Array:
    """Three classes as tasks {0, 1} and {1, 2}: the middle class's rows go to them in turns, so it returns."""
    task = (y == 2).astype(int)
    task[np.flatnonzero(y == 1)[1::2]] = 1
    return task


def problems(quick: bool) -> dict[str, Problem]:
    iris, wine, cancer, digits = (f() for f in (load_iris, load_wine, load_breast_cancer, load_digits))
    words = "tasks {0, 1} and {1, 2}, class 1 in both (half of its rows each)"
    made = {"iris": Problem(words, Rows(iris.data, iris.target, overlapping(iris.target)), 1 if quick else 5)}
    if quick:
        return made
    made["wine"] = Problem(words, Rows(wine.data, wine.target, overlapping(wine.target)), 5)
    smooth = (cancer.data[:, 1] > np.median(cancer.data[:, 1])).astype(int)
    words = "both classes in two tasks, mean texture below and above its median"
    made["breast-cancer"] = Problem(words, Rows(cancer.data, cancer.target, smooth), 3)
    made["digits"] = Problem("five tasks of two digits", Rows(digits.data, digits.target, digits.target // 2), 2)
    stream = list(scenario("split-fashion-mnist", normalize=False))
    parts = []
    for each, chosen in (("train", slice(1500, 4500)), ("test", slice(1000, 2000))):
        splits = [getattr(task, each) for task in stream]
        x, y = (np.concatenate([np.asarray(getattr(s, name)[chosen]) for s in splits]) for name in ("x", "y"))
        parts.append(Rows(x, y, y // 2))
    words = "five tasks of two classes; 3,000 training images (1,500 to 4,499) and the last 1,000 test images of each"
    made["fashion-mnist"] = Problem(words, parts[0], 1, parts[1])
    return made


def split(problem: Problem, seed: int) -> tuple[Rows, Rows, Rows]:
    """Training, validation and test rows: 60, 20 and 20 %, or 80 and 20 % beside a given test set."""
    rest, test = np.arange(len(problem.rows.y)), problem.test
    strata = problem.rows.y * 10 + problem.rows.task
    if test is None:
        rest, chosen = train_test_split(rest, test_size=0.2, stratify=strata, random_state=seed)
        test = problem.rows.of(chosen)
    share = 0.25 if problem.test is None else 0.2
    train, validation = train_test_split(rest, test_size=share, stratify=strata[rest], random_state=seed)
    return problem.rows.of(train), problem.rows.of(validation), test


def accuracies(parameters: dict[str, Any], train: Rows, checks: Sequence[Rows], seed: int) -> list[dict[str, float]]:
    """Learn all tasks in turn, then answer with the task given and inferred."""
    classifier = ContinualClassifier(random_state=seed, device="cpu", **parameters)
    for task in np.unique(train.task):
        mine = train.of(train.task == task)
        classifier.learn(mine.x, mine.y)
    return [
        {
            "task given": classifier.score(rows.x, rows.y, task=rows.task),
            "task inferred": classifier.score(rows.x, rows.y),
        }
        for rows in checks
    ]


def main() -> None:
    parser = options(__doc__, RESULTS / "defaults")
    parser.add_argument("--quick", action="store_true", help="iris alone, one seed")
    asked = parser.parse_args()
    made, record = problems(asked.quick), made_by()
    record["environment"] |= {"scikit-learn": sklearn.__version__, "numpy": np.__version__}
    record["data"] = {name: {"tasks": p.words, "seeds": list(range(p.seeds))} for name, p in made.items()}
    record["tuned"] = {label: {k: repr(v) for k, v in parameters.items()} for label, parameters in TUNED.items()}
    record["cells"] = {}
    for name, problem in made.items():
        for label, parameters in {"default": {}, **TUNED}.items():
            for seed in range(problem.seeds):
                started = time.perf_counter()
                train, *checks = split(problem, seed)
                validation, test = accuracies(parameters, train, checks, seed)
                cell = {"validation": validation, "test": test, "seconds": round(time.perf_counter() - started, 2)}
                record["cells"][f"{name} | {label} | seed {seed}"] = cell
                write(asked.out / "result.json", record)
                print(f"{name} | {label} | seed {seed}: {cell}", flush=True)


if __name__ == "__main__":
    main()
