"""Rows that keep coming, nobody telling where a task ends: answers before learning, borders found, beside river's.

    python benchmarks/streams.py table electricity --out docs/results/streams/electricity.json
    python benchmarks/streams.py table covertype --rows 50000 --models ibpwf,hoeffding-tree --batch 10
    python benchmarks/streams.py images split-mnist --out docs/results/streams/split-mnist.json
    python benchmarks/streams.py stationary --out docs/results/streams/stationary.json
    python benchmarks/streams.py merge --parts PART PART --out FILE    # one file of models measured apart

`table` takes the rows of a table in their order: every model answers each batch before it learns it. `images` gives a
scenario's tasks one after another, borders hidden, and beside it with borders given. `stationary` counts the alarms
of every detector on streams in which nothing changes. `--rows` takes the first so many (of each task), so that all
can be tried in a minute.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from record import made_by, options, read_parts, write

from ibpwf import ContinualClassifier
from ibpwf.lab import scenario
from ibpwf.lab.data.tables import load_table
from ibpwf.streaming import make_detector
from ibpwf.streaming.detectors import DETECTORS

Array = NDArray[Any]


class Model(Protocol):
    def predict(self, x: Array) -> Array: ...

    def learn(self, x: Array, y: Array) -> None: ...


class Ours:
    """`ContinualClassifier(stream=True)` with its defaults."""

    def __init__(self, seed: int) -> None:
        self.classifier = ContinualClassifier(stream=True, random_state=seed)

    def predict(self, x: Array) -> Array:
        return self.classifier.predict(x)

    def learn(self, x: Array, y: Array) -> None:
        self.classifier.partial_fit(x, y)


class River:
    """A model of river, row by row."""

    def __init__(self, name: str, seed: int) -> None:
        from river import forest, tree

        self.model: Any = (
            tree.HoeffdingTreeClassifier() if name == "hoeffding-tree" else forest.ARFClassifier(seed=seed)
        )

    def predict(self, x: Array) -> Array:
        found = [self.model.predict_one(dict(enumerate(row))) for row in x.tolist()]
        return np.array([-1 if one is None else one for one in found])

    def learn(self, x: Array, y: Array) -> None:
        for row, label in zip(x.tolist(), y.tolist(), strict=True):
            self.model.learn_one(dict(enumerate(row)), label)


class OnlineNetwork:
    """A perceptron of 400 units, inputs standardized by running means, one step of Adam a batch."""

    def __init__(self, inputs: int, classes: int, seed: int) -> None:
        torch.manual_seed(seed)
        self.net = torch.nn.Sequential(torch.nn.Linear(inputs, 400), torch.nn.ReLU(), torch.nn.Linear(400, classes))
        self.optimizer = torch.optim.Adam(self.net.parameters(), 1e-3)
        self.rows, self.mean, self.squares = 0, np.zeros(inputs), np.zeros(inputs)

    def _scaled(self, x: Array) -> torch.Tensor:
        spread = np.sqrt(self.squares / max(self.rows, 1))
        return torch.from_numpy(np.clip((x - self.mean) / np.where(spread > 0, spread, 1), -5, 5)).float()

    def predict(self, x: Array) -> Array:
        with torch.no_grad():
            return self.net(self._scaled(x)).argmax(1).numpy()

    def learn(self, x: Array, y: Array) -> None:
        for row in x:
            self.rows += 1
            apart = row - self.mean
            self.mean = self.mean + apart / self.rows
            self.squares = self.squares + apart * (row - self.mean)
        self.optimizer.zero_grad()
        torch.nn.functional.cross_entropy(self.net(self._scaled(x)), torch.from_numpy(y)).backward()
        self.optimizer.step()


class NoChange:
    """The last label again."""

    last = 0

    def predict(self, x: Array) -> Array:
        return np.full(len(x), self.last)

    def learn(self, x: Array, y: Array) -> None:
        self.last = y[-1]


MODELS = ("ibpwf", "hoeffding-tree", "adaptive-random-forest", "online-network", "no-change")


def make_model(name: str, inputs: int, classes: int, seed: int) -> Model:
    match name:
        case "ibpwf":
            return Ours(seed)
        case "online-network":
            return OnlineNetwork(inputs, classes, seed)
        case "no-change":
            return NoChange()
    return River(name, seed)


def batches(rows: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


def test_then_train(model: Model, x: Array, y: Array, size: int) -> dict[str, Any]:
    """Accuracy of answers given before the labels were learned, in all and along the stream; the first batch is only
    learned."""
    right = np.zeros(len(y), dtype=bool)
    started = time.perf_counter()
    for rows in batches(len(y), size):
        if rows.start:
            right[rows] = model.predict(x[rows]) == y[rows]
        model.learn(x[rows], y[rows])
    tested = right[size:]
    parts = [100 * float(part.mean()) for part in np.array_split(tested, 10)]
    return {"accuracy": 100 * float(tested.mean()), "tenths": parts, "seconds": time.perf_counter() - started}


def table(asked: argparse.Namespace) -> dict[str, Any]:
    x, labels = load_table(asked.what, source=asked.source)
    x, y = x[: asked.rows].astype(np.float64), np.unique(labels, return_inverse=True)[1][: asked.rows]
    found: dict[str, Any] = {}
    for name in asked.models.split(","):
        model = make_model(name, x.shape[1], int(y.max()) + 1, asked.seed)
        found[name] = test_then_train(model, x, y, asked.batch)
        if isinstance(model, Ours):
            found[name] |= decisions(model.classifier)
        print(f"{name:<24} {found[name]['accuracy']:6.2f}  {found[name]['seconds']:8.1f} s", flush=True)
    return {"rows": len(y), "classes": int(y.max()) + 1, "batch": asked.batch, "models": found}


def decisions(classifier: ContinualClassifier) -> dict[str, Any]:
    return {"tasks": len(getattr(classifier, "tasks_", [])), "log": classifier.stream_log_}


def images(asked: argparse.Namespace) -> dict[str, Any]:
    """Tasks one after another with borders hidden, and given."""
    tasks = scenario(asked.what)
    parts = [(t.train.x.flatten(1).numpy()[: asked.rows], t.train.y.numpy()[: asked.rows]) for t in tasks]
    parts = parts[: asked.tasks]
    test = [(t.test.x.flatten(1).numpy(), t.test.y.numpy()) for t in tasks][: asked.tasks]
    test_x, test_y = (np.concatenate(column) for column in zip(*test, strict=True))
    hidden = ContinualClassifier(stream=True, random_state=asked.seed)
    x, y = (np.concatenate(column) for column in zip(*parts, strict=True))
    borders = np.cumsum([len(labels) for _, labels in parts])[:-1].tolist()
    started = time.perf_counter()
    right = []
    for rows in batches(len(y), asked.batch):
        if rows.start:
            right.append(hidden.predict(x[rows]) == y[rows])
        hidden.partial_fit(x[rows], y[rows])
    hidden.finish()
    seconds = time.perf_counter() - started
    found = {
        "hidden": {
            "accuracy": 100 * hidden.score(test_x, test_y),
            "test_then_train": 100 * float(np.concatenate(right).mean()),
            "seconds": seconds,
            **borders_found(hidden.stream_log_, borders, len(y)),
            **decisions(hidden),
        }
    }
    print({name: value for name, value in found["hidden"].items() if name != "log"}, flush=True)
    given = ContinualClassifier(random_state=asked.seed)
    started = time.perf_counter()
    for rows_x, rows_y in parts:
        given.learn(rows_x, rows_y)
    accuracy = 100 * given.score(test_x, test_y)
    found["given"] = {"accuracy": accuracy, "seconds": time.perf_counter() - started}
    print(found["given"], flush=True)
    return {"rows": len(y), "borders": borders, "batch": asked.batch, **found}


def borders_found(log: list[dict[str, Any]], borders: list[int], rows: int) -> dict[str, Any]:
    """Of each true border the first alarm until the next one is its own; all others are false."""
    alarms = [line["row"] for line in log if line["decision"] == "border"]
    delays: list[int | None] = []
    for border, following in zip(borders, [*borders[1:], rows], strict=True):
        own = next((alarm for alarm in alarms if border < alarm <= following), None)
        delays.append(None if own is None else own - border)
    found = sum(delay is not None for delay in delays)
    return {"found": found, "delays": delays, "false_alarms": len(alarms) - found}


def stationary(asked: argparse.Namespace) -> dict[str, Any]:
    """Alarms a million rows of detectors on numbers that do not change: errors (0 or 1) at several rates, alone and
    in runs, and how soon a rise by 20 points is found."""
    rows, found = asked.rows or 100_000, []
    for name in asked.models.split(",") if asked.models != ",".join(MODELS) else DETECTORS:
        for rate in (0.02, 0.1, 0.25, 0.4):
            for run in (1, 5):
                chance = np.random.default_rng(asked.seed)
                values = np.repeat(chance.random(rows // run + 1) < rate, run)[:rows].astype(float)
                alarms, detector = 0, make_detector(name)
                for value in values.tolist():
                    if detector.update(value) is not None:
                        alarms, detector = alarms + 1, make_detector(name)
                delays = [delay_of(name, rate, run, seed) for seed in range(20)]
                seen = [delay for delay in delays if delay is not None]
                line = {"detector": name, "rate": rate, "run": run, "alarms_per_million": alarms * 1e6 / rows}
                line |= {"found_of_20": len(seen), "median_delay": float(np.median(seen)) if seen else None}
                found.append(line)
                print(line, flush=True)
    return {"rows": rows, "detectors": found}


def delay_of(name: str, rate: float, run: int, seed: int) -> int | None:
    """Rows until a rise by 20 points after 2,000 rows is found, of at most 3,000."""
    chance, detector = np.random.default_rng(1000 + seed), make_detector(name)
    for row in range(5000):
        if row % run == 0 or row == 2000:
            value = float(chance.random() < rate + 0.2 * (row >= 2000))
        alarm = detector.update(value)
        if alarm is not None and row >= 2000:
            return row - 2000
        if alarm is not None:
            detector = make_detector(name)
    return None


def arguments() -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument("kind", choices=["table", "images", "stationary", "merge"])
    parser.add_argument("what", nargs="?", help="the name of a table or a scenario")
    parser.add_argument("--source", help="the archive of the tables, or a folder with them; else they are fetched")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--tasks", type=int)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parts", type=Path, nargs="+", help="of merge: results on one stream, measured apart")
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    if asked.kind == "merge":
        parts, commands = read_parts(asked.parts, "name", "seed", "river", "rows", "batch")
        models = {name: model for part in parts for name, model in part.get("models", {}).items()}
        write(asked.out, {**parts[0], "command": commands, **({"models": models} if models else {})})
        return
    found = {"table": table, "images": images, "stationary": stationary}[asked.kind](asked)
    try:
        river = version("river")
    except ImportError:
        river = None
    about = {"name": asked.what or asked.kind, **made_by(), "seed": asked.seed, "river": river}
    write(asked.out, {**about, **found})


if __name__ == "__main__":
    main()
