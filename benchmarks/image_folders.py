"""A folder of photographs as a new user would learn it: CIFAR-10 as PNG files, five tasks of two classes, defaults.

    python benchmarks/image_folders.py                                     # what the data decide
    python benchmarks/image_folders.py --recipe images --seeds 5 --out docs/results/own-data/cifar10-images.json
    python benchmarks/image_folders.py --validation --tests 200            # to choose settings by
    python benchmarks/image_folders.py --merge PART PART --out FILE        # one file of seeds measured apart

Some hundred images of each class are written as PNG files and learnt through the function behind `ibpwf learn`; the
test images of the data set are then answered with the task given and inferred. With --validation they are training
images that nothing was learnt from. Prints accuracies in per cent, seconds of learning and of answering; `--out` gets
all of it as JSON after each seed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from ibpwf.data import Examples, read_examples
from ibpwf.lab import scenario
from ibpwf.lab.experiments.result import commit, environment, shown_command
from ibpwf.own_data.answering import layout_of, load_classifier
from ibpwf.own_data.learning import LearnOptions, learn_file
from ibpwf.settings import parse_assignment
from ibpwf.storage.files import read_json, write_json

NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
Bytes = NDArray[np.uint8]


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recipe", default="auto")
    parser.add_argument("--each", type=int, default=300, help="images of a class to learn from")
    parser.add_argument("--tests", type=int, default=1000, help="images of a class to measure with, at most")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--merge", type=Path, nargs="+", help="files of seeds that were measured apart")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--validation", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    return parser.parse_args(given)


def pixels(x: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> Bytes:
    """Standardized images as the bytes they were, by the least and largest value of each channel: 0 and 255."""
    bytes_ = (x - low) / (high - low) * 255
    return bytes_.round().to(torch.uint8).permute(0, 2, 3, 1).numpy()


def write_folders(place: Path, seed: int, asked: argparse.Namespace) -> list[tuple[Path, Path]]:
    """For each task a folder to learn from and one to measure with, each with a folder for every class."""
    stream = scenario("split-cifar10", flatten=False)
    every = torch.cat([task.train.x for task in stream]).transpose(0, 1).flatten(1)
    low, high = every.amin(1).view(3, 1, 1), every.amax(1).view(3, 1, 1)
    folders = []
    for number, task in enumerate(stream):
        here = place / f"task {number + 1}", place / f"test {number + 1}"
        for label in task.classes:
            rows = np.flatnonzero(task.train.y.numpy() == label)
            rows = np.random.default_rng([seed, label]).permutation(rows)
            learned, rest = task.train.x[rows[: asked.each]], task.train.x[rows[asked.each :]]
            tested = rest if asked.validation else task.test.x[task.test.y == label]
            for folder, x in zip(here, (learned, tested[: asked.tests]), strict=True):
                (folder / NAMES[label]).mkdir(parents=True)
                for at, image in enumerate(pixels(x, low, high)):
                    Image.fromarray(image).save(folder / NAMES[label] / f"{at:04}.png")
        folders.append(here)
    return folders


def measure(seed: int, asked: argparse.Namespace) -> dict[str, Any]:
    """One sequence of tasks, from PNG files to answers."""
    parameters: dict[str, Any] = {"recipe": asked.recipe, "random_state": seed}
    if asked.set:
        parameters["settings"] = dict(parse_assignment(text) for text in asked.set)
    with tempfile.TemporaryDirectory() as there:
        folders, model = write_folders(Path(there), seed, asked), Path(there) / "model"
        seconds, processor, recipe = [], [], ""
        for number, (learned, _) in enumerate(folders):
            started, used = time.perf_counter(), time.process_time()
            task = learn_file(model, learned, f"task {number + 1}", parameters, LearnOptions(device=asked.device))
            seconds.append(time.perf_counter() - started)
            processor.append(time.process_time() - used)
            recipe = task.recipe
        classifier = load_classifier(model, asked.device)
        given, inferred = list[float](), list[float]()
        started = time.perf_counter()
        for number, (_, tested) in enumerate(folders):
            examples: Examples = read_examples(tested, like=layout_of(classifier))
            for task, right in ((f"task {number + 1}", given), (None, inferred)):
                answers = classifier.predict(examples.inputs, task=task)
                right.append(100 * float(np.mean(answers == np.array(examples.y))))
        answering = time.perf_counter() - started
        size = sum(file.stat().st_size for file in model.rglob("*") if file.is_file())
    return {
        "seed": seed,
        "recipe": recipe,
        "given": float(np.mean(given)),
        "inferred": float(np.mean(inferred)),
        "given_by_task": given,
        "inferred_by_task": inferred,
        "seconds": seconds,
        "processor_seconds": processor,
        "seconds_of_answering": answering,
        "model_bytes": size,
    }


def main(words: list[str]) -> None:
    asked = arguments(words)
    if asked.merge:
        if asked.out is None:
            raise SystemExit("--merge makes one file of several; say where it goes with --out FILE.")
        result = merged([read_json(path) for path in asked.merge])
        print({key: result[key] for key in ("seeds", "given", "inferred", "learning_seconds")}, flush=True)
        write_json(asked.out, result)
        return
    load, runs = os.getloadavg()[0], list[dict[str, Any]]()
    for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
        run = measure(seed, asked)
        runs.append(run)
        times = ", ".join(f"{one:.0f}" for one in run["seconds"])
        print(
            f"seed {seed}, recipe {run['recipe']}: {run['given']:.2f} given, {run['inferred']:.2f} inferred, "
            f"learnt in {sum(run['seconds']):.0f} s ({times}; {sum(run['processor_seconds']):.0f} s of processors), "
            f"answered in {run['seconds_of_answering']:.0f} s, "
            f"{run['model_bytes'] / 1e6:.1f} MB",
            flush=True,
        )
        result = {
            "command": shown_command("python benchmarks/image_folders.py " + " ".join(words)),
            "commit": commit(),
            "environment": environment(asked.device),
            "load": load,
            "data": f"cifar10 as PNG files, {asked.each} a class, 5 tasks of 2 classes",
            "measured_on": "held-out training images" if asked.validation else "test images",
            **of_runs(runs),
        }
        if asked.out is not None:
            asked.out.parent.mkdir(parents=True, exist_ok=True)
            write_json(asked.out, result)


def of_runs(runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "seeds": [one["seed"] for one in runs],
        **{name: summary([one[name] for one in runs]) for name in ("given", "inferred")},
        "learning_seconds": summary([sum(one["seconds"]) for one in runs]),
        "runs": runs,
    }


def merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """One result of seeds that were measured by several processes, in the same way."""
    for part in parts[1:]:
        for key in ("commit", "environment", "data", "measured_on"):
            if part[key] != parts[0][key]:
                raise SystemExit(
                    f"{key} is {part[key]!r} in one part and {parts[0][key]!r} in another; measure anew."
                )
    runs = sorted((run for part in parts for run in part["runs"]), key=lambda run: int(run["seed"]))
    if len({run["seed"] for run in runs}) < len(runs):
        raise SystemExit("a seed was measured twice; leave one of its files out.")
    return {**parts[0], "command": [shown_command(part["command"]) for part in parts], **of_runs(runs)}


def summary(values: list[float]) -> dict[str, float]:
    return {"mean": float(np.mean(values)), "std": float(np.std(values, ddof=1)) if len(values) > 1 else 0.0}


if __name__ == "__main__":
    main(sys.argv[1:])
