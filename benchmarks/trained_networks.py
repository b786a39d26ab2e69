"""What tasks beside a trained network reach: accuracy, numbers added, time and memory beside LoRA, forgetting.

    python benchmarks/trained_networks.py cifar10 --seeds 3 --out docs/results/trained-networks/cifar10.json
    python benchmarks/trained_networks.py cifar10 --validation --set alpha=4   # to choose settings by
    python benchmarks/trained_networks.py cifar10 --examples 60 --set epochs=1 # a small trial on any machine

| cifar10       | Split CIFAR-10 from EfficientNet-Lite0: the task inferred, given, router and experts alone |
| router        | the router alone, for several depths of the network and widths of a random projection |
| lora          | time and memory of training a task beside LoRA of the same mean rank, on the same batches |
| lora-accuracy | accuracy with the task given beside LoRA of fixed ranks, trained as long |
| reuters       | 20 topics of news in 10 tasks from MiniLM-L6, beside regression on its features |
| sequence      | MNIST, Fashion-MNIST, CIFAR-10 (or Reuters) in one learner beside each task alone |

--validation measures on training images that nothing was learnt from. The result file is rewritten after each seed,
and a run that is started again with the same words goes on after the last seed in it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from trained import cifar10, lora, lora_accuracy, reuters, router, sequence

from ibpwf.lab.experiments.result import commit, environment, shown_command
from ibpwf.settings import parse_assignment
from ibpwf.storage.files import read_json, write_json

PARTS: dict[str, Callable[[int, argparse.Namespace], dict[str, Any]]] = {
    "cifar10": cifar10.measure,
    "router": router.measure,
    "lora": lora.measure,
    "lora-accuracy": lora_accuracy.measure,
    "reuters": reuters.measure,
    "sequence": sequence.measure,
}
SIZES = {"cifar10": 224, "lora-accuracy": 128, "sequence": 128}


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parts = parser.add_subparsers(dest="part", required=True)
    for name in PARTS:
        part = parts.add_parser(name)
        part.add_argument("--seeds", type=int, default=1)
        part.add_argument("--examples", type=int, help="of each class, at most")
        part.add_argument("--validation", action="store_true", help="measure on held-out training examples")
        part.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
        part.add_argument("--device", default="auto")
        part.add_argument("--tuned", action="store_true", help="let cuDNN try which of its ways is the fastest")
        part.add_argument("--out", type=Path)
        if name == "lora-accuracy":
            part.add_argument("--ranks", type=int, nargs="+", default=[4, 8, 16])
            part.add_argument("--alphas", type=float, nargs="+", default=[3.6, 7.5, 15.0])
        if name == "sequence":
            part.add_argument("--of", choices=("images", "texts"), default="images")
        if name in SIZES:
            part.add_argument("--size", type=int, default=SIZES[name], help="pixels across that the experts see")
            part.add_argument("--layers", choices=cifar10.LAYERS, default="pointwise")
            part.add_argument("--norms", choices=cifar10.NORMS, default="statistics")
            part.add_argument("--tasks", type=int, help="the first few alone")
        if name == "router":
            part.add_argument("--size", type=int, help="pixels across that the router sees")
        if name == "lora":
            part.add_argument("--networks", nargs="+", choices=lora.NETWORKS, default=list(lora.NETWORKS))
        if name == "reuters":
            part.add_argument("--factors", action="store_true", help="factors in MiniLM itself; for a GPU")
    asked = parser.parse_args(given)
    asked.changes = dict(parse_assignment(text) for text in asked.set)
    return asked


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation over seeds of every number that each of them has."""
    found = {}
    for name, value in runs[0].items():
        values = [run[name] for run in runs]
        if isinstance(value, float) and all(isinstance(each, float) for each in values):
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            found[name] = {"mean": statistics.fmean(values), "std": spread}
    return found


def main(given: list[str]) -> None:
    asked = arguments(given)
    torch.backends.cudnn.benchmark = asked.tuned
    command = shown_command("python benchmarks/trained_networks.py " + " ".join(given))
    runs: list[dict[str, Any]] = []
    measured = {name: value for name, value in vars(asked).items() if name not in ("seeds", "out", "set")}
    if asked.out is not None and asked.out.exists():
        before = read_json(asked.out)
        runs = before["runs"] if before["asked"] == measured else []
    for seed in range(len(runs), asked.seeds):
        runs.append({"seed": seed, **PARTS[asked.part](seed, asked)})
        record = {
            "part": asked.part,
            "command": command,
            "asked": measured,
            "commit": commit(),
            "environment": environment(asked.device),
            "measured_on": "held-out training examples" if asked.validation else "test examples",
            "seeds": [run["seed"] for run in runs],
            "summary": summary(runs),
            "runs": runs,
        }
        if asked.out is not None:
            asked.out.parent.mkdir(parents=True, exist_ok=True)
            write_json(asked.out, record)
        print(json.dumps({"seed": seed, **{k: v for k, v in runs[-1].items() if isinstance(v, float)}}), flush=True)
    print(json.dumps({"part": asked.part, "seeds": len(runs), **summary(runs)}, indent=1), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
