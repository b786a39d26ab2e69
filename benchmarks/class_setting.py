"""What each part brings where the task is inferred, and what it costs: router, experts, both, how many are asked.

    python benchmarks/class_setting.py split-cifar10 --seeds 5 --out runs/best
    python benchmarks/class_setting.py split-mnist --examples 60 --set epochs=2 --validation 0.1    # a small trial

Runs the preset `best` (or another whose settings have a router) for all seeds and then looks at what it has learned:
every way of asking with its accuracy, calibration error and time, experts alone, other weights of the experts, and
how well novelty tells another data set. `--out` gets the run's result.json and parts.json after each seed. Test
images are looked at, so nothing may be chosen by this; with --validation they are held-out training images.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from record import made_by, options, percent, write
from torch import Tensor

from ibpwf.inference import fusion
from ibpwf.lab import scenario
from ibpwf.lab.data import Scenario
from ibpwf.lab.evaluation.metrics import calibration_error
from ibpwf.lab.evaluation.uncertainty import auroc
from ibpwf.lab.experiments.run import Run, run_all
from ibpwf.lab.experiments.run_config import RunConfig
from ibpwf.learner import Learner
from ibpwf.parts import parse_assignment
from ibpwf.storage.files import read_json

WAYS: dict[str, dict[str, Any]] = {
    "router alone": {"inference.experts": 0},
    "likeliest task's expert, plain": {"inference.experts": 1, "views": "plain"},
    "likely experts, plain (fast)": {"inference.experts": "likely", "views": "plain"},
    "likely experts, all views": {"inference.experts": "likely", "views": "all"},
    "all experts, plain": {"inference.experts": "all", "views": "plain"},
    "all experts, all views": {"inference.experts": "all", "views": "all"},
}
WEIGHTS = fusion.GRID
STRANGERS = {"split-mnist": "split-fashion-mnist", "split-fashion-mnist": "split-mnist"}


def arguments() -> argparse.Namespace:
    parser = options(__doc__, Path("runs/class-setting"), seeds=1)
    parser.add_argument("scenario")
    parser.add_argument("--preset", default="best")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--order")
    parser.add_argument("--examples", type=int)
    parser.add_argument("--validation", type=float)
    parser.add_argument("--resume", action="store_true", help="go on after the last seed in --out")
    parser.add_argument("--device", default="auto")
    return parser.parse_args()


def rows_of(stream: Scenario, learner: Learner) -> tuple[Tensor, Tensor]:
    """All test inputs, and the learner's columns of their classes, which are in order of their labels."""
    x, places, first = [], [], 0
    for task, classes in zip(stream, learner.method.classes, strict=True):
        x.append(task.test.x.to(learner.device))
        order = {label: place for place, label in enumerate(classes)}
        places.append(torch.tensor([first + order[int(label)] for label in task.test.y], device=learner.device))
        first += len(classes)
    return torch.cat(x), torch.cat(places)


def ways_of_asking(learner: Learner, x: Tensor, y: Tensor) -> list[dict[str, Any]]:
    """Accuracy, calibration error and time, the router alone as the unit."""
    found: list[dict[str, Any]] = []
    for name, changes in WAYS.items():
        other = learner.fork()
        other.settings = learner.settings.replace(**changes)
        other.method.class_log_scores(x[:64])
        _wait(x)
        started = time.perf_counter()
        joint = other.method.class_log_scores(x)
        _wait(x)
        seconds = time.perf_counter() - started
        assert joint is not None
        sure, best = joint.softmax(1).max(1)
        right = best == y
        cost = seconds / found[0]["seconds"] if found else 1.0
        accuracy = 100 * float(right.double().mean())
        error = calibration_error(sure, right)
        found.append({"way": name, "class": accuracy, "error": error, "seconds": seconds, "cost": cost})
    return found


def _wait(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


def parts_of(learner: Learner, stream: Scenario) -> dict[str, Any]:
    """All that is looked at of one learner."""
    x, y = rows_of(stream, learner)
    method = learner.method
    scores = method.class_scores(x, "all")
    assert scores.experts is not None
    router, experts = fusion.weights(method.calibrations)
    sweep = [{"weight": w, "class": percent(scores.joint(router, w).argmax(1) == y)} for w in WEIGHTS]
    tasks = torch.repeat_interleave(
        torch.arange(len(scores.widths), device=y.device), torch.tensor(scores.widths, device=y.device)
    )
    joint = scores.joint(router, experts).argmax(1)
    found = {
        "ways": ways_of_asking(learner, x, y),
        "experts alone, largest score": percent(scores.experts.argmax(1) == y),
        "task inferred": percent(tasks[joint] == tasks[y]),
        "weights": {"router": router, "experts": experts},
        "fits": [[one.router, one.experts, one.alone, one.losses] for one in method.calibrations if one is not None],
        "sweep": sweep,
    }
    if stream.name in STRANGERS and None not in method.calibrations:
        strangers = torch.cat([task.test.x for task in scenario(STRANGERS[stream.name])])
        known, new = (learner.novelty(rows, 0.05).double().cpu() for rows in (x, strangers))
        shares = {name: percent(values > 1) for name, values in (("known", known), ("new", new))}
        found["novelty"] = {"of": STRANGERS[stream.name], "auroc": auroc(known, new), **shares}
    return found


def main() -> None:
    asked = arguments()
    first = RunConfig(
        asked.scenario,
        preset=asked.preset,
        changes=dict(parse_assignment(text) for text in asked.set),
        order=asked.order,
        examples=asked.examples,
        validation=asked.validation,
        device=asked.device,
        models=False,
    )
    there, about = asked.out / "parts.json", made_by(asked.device)
    seeds: list[dict[str, Any]] = read_json(there)["seeds"] if asked.resume and there.exists() else []
    for seed in range(len(seeds), asked.seeds):  # a seed's network and router fill a GPU
        one = Run(first.replace(seeds=tuple(range(seed + 1))), asked.out, about["command"])
        (result,) = run_all([one], resume=bool(seed), overwrite=not seed)
        training = one.trainings[-1]
        assert isinstance(training.learner, Learner)
        seeds.append({"seed": seed, **parts_of(training.learner, training.stream)})
        del one, training
        write(there, {"scenario": asked.scenario, **about, "seeds": seeds})
        print(
            f"until seed {seed}:",
            {key: result["accuracy"][key]["mean"] for key in ("task", "class")},
            seeds[-1],
            flush=True,
        )


if __name__ == "__main__":
    main()
