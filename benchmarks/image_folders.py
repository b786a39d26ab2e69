"""A folder of photographs as a new user would learn it: CIFAR-10 as PNG files, five tasks of two classes, defaults.

    python benchmarks/image_folders.py                                     # what the data decide
    python benchmarks/image_folders.py --recipe images --seeds 5 --out docs/results/own-data/cifar10-images.json
    python benchmarks/image_folders.py --validation --tests 200            # to choose settings by
    python benchmarks/image_folders.py --merge PART PART --out FILE        # one file of seeds measured apart

Some hundred images of each class are written as PNG files and learned through the function behind `ibpwf learn`; the
test images of the data set are then answered with the task given and inferred. With --validation they are training
images that nothing was learned from. Prints accuracies in per cent and seconds of learning; `--out` gets all of it as
JSON after each seed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from record import bytes_of, made_by, options, read_parts, spread, write

from ibpwf.data import read_examples
from ibpwf.estimator.files import LearnOptions, layout_of, learn_file, load_classifier
from ibpwf.lab import scenario
from ibpwf.parts import parse_assignment

NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def write_folders(place: Path, seed: int, asked: argparse.Namespace) -> list[tuple[Path, Path]]:
    """For each task a folder to learn from and one to measure with, each with a folder for every class."""
    stream = scenario("split-cifar10", flatten=False)
    every = torch.cat([task.train.x for task in stream]).transpose(0, 1).flatten(1)
    low, high = every.amin(1).view(3, 1, 1), every.amax(1).view(3, 1, 1)  # 0 and 255, as the bytes were
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
                pixels = ((x - low) / (high - low) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
                for at, image in enumerate(pixels):
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
        for number, (_, tested) in enumerate(folders):
            examples = read_examples(tested, like=layout_of(classifier))
            for name, right in ((f"task {number + 1}", given), (None, inferred)):
                right.append(
                    100 * float(np.mean(classifier.predict(examples.inputs, task=name) == np.array(examples.y)))
                )
        size = bytes_of(model)
    means = {"given": statistics.fmean(given), "inferred": statistics.fmean(inferred)}
    by_task = {"given_by_task": given, "inferred_by_task": inferred}
    cost = {"seconds": seconds, "processor_seconds": processor, "model_bytes": size}
    return {"seed": seed, "recipe": recipe, **means, **by_task, **cost}


def of_runs(runs: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {name: spread([run[name] for run in runs]) for name in ("given", "inferred")}
    found["learning_seconds"] = spread([sum(run["seconds"]) for run in runs])
    return {"seeds": [run["seed"] for run in runs], **found, "runs": runs}


def merged(paths: list[Path]) -> dict[str, Any]:
    """One result of seeds that were measured by several processes, in the same way."""
    parts, commands = read_parts(paths, "data", "measured_on")
    runs = sorted((run for part in parts for run in part["runs"]), key=lambda run: int(run["seed"]))
    if len({run["seed"] for run in runs}) < len(runs):
        raise SystemExit("a seed was measured twice; leave one of its files out.")
    return {**parts[0], "command": commands, **of_runs(runs)}


def main() -> None:
    parser = options(__doc__, seeds=1)
    parser.add_argument("--recipe", default="auto")
    parser.add_argument("--each", type=int, default=300, help="images of a class to learn from")
    parser.add_argument("--tests", type=int, default=1000, help="images of a class to measure with, at most")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--merge", type=Path, nargs="+", help="files of seeds that were measured apart")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--validation", action="store_true")
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    if asked.merge:
        if asked.out is None:
            raise SystemExit("--merge makes one file of several; say where it goes with --out FILE.")
        write(asked.out, merged(asked.merge))
        return
    about, runs = made_by(asked.device), list[dict[str, Any]]()
    about["data"] = f"cifar10 as PNG files, {asked.each} a class, 5 tasks of 2 classes"
    about["measured_on"] = "held-out training images" if asked.validation else "test images"
    for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
        runs.append(measure(seed, asked))
        write(asked.out, {**about, **of_runs(runs)})
        print({key: value for key, value in runs[-1].items() if not isinstance(value, list)}, flush=True)


if __name__ == "__main__":
    main()
