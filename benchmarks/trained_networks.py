"""What tasks beside a pretrained network reach: accuracy, numbers added, time and memory beside LoRA, forgetting.

    python benchmarks/trained_networks.py cifar10 --seeds 3 --out docs/results/trained-networks/cifar10.json
    python benchmarks/trained_networks.py cifar10 --validation --set alpha=4   # to choose settings by
    python benchmarks/trained_networks.py cifar10 --examples 60 --set epochs=1 # a small trial on any machine

| cifar10       | Split CIFAR-10 from EfficientNet-Lite0: the task inferred, given, router and experts alone |
| lora          | time and memory of training a task beside LoRA of the same mean rank, on the same batches |
| lora-accuracy | accuracy with the task given beside LoRA of fixed ranks, trained as long |
| reuters       | 20 topics of news in 10 tasks from MiniLM-L6, beside regression on its features |
| sequence      | MNIST, Fashion-MNIST, CIFAR-10 (or Reuters) in one learner beside each task alone |

--validation measures on training examples that nothing was learned from. The result file is rewritten after each
seed, and a run that is started again with the same words goes on after the last seed in it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from record import made_by, options, summary, write
from trained import images, lora, sequence, texts

from ibpwf.parts import parse_assignment
from ibpwf.storage.files import read_json

PARTS: dict[str, Callable[[int, argparse.Namespace], dict[str, Any]]] = {
    "cifar10": images.measure,
    "lora": lora.measure_cost,
    "lora-accuracy": lora.measure_accuracy,
    "reuters": texts.measure,
    "sequence": sequence.measure,
}
SIZES = {"cifar10": 224, "lora-accuracy": 128, "sequence": 128}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    for name in PARTS:
        part = parts.add_parser(name, parents=[options(None, seeds=1)], conflict_handler="resolve")
        part.add_argument("--examples", type=int, help="of each class, at most")
        part.add_argument("--validation", action="store_true", help="measure on held-out training examples")
        part.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
        part.add_argument("--device", default="auto")
        if name == "lora-accuracy":
            part.add_argument("--ranks", type=int, nargs="+", default=[4, 8, 16])
            part.add_argument("--alphas", type=float, nargs="+", default=[3.6, 7.5, 15.0])
        if name == "sequence":
            part.add_argument("--of", choices=("images", "texts"), default="images")
        if name in SIZES:
            part.add_argument("--size", type=int, default=SIZES[name], help="pixels across that the experts see")
            part.add_argument("--layers", choices=images.LAYERS, default="pointwise")
            part.add_argument("--tasks", type=int, help="the first few alone")
        if name == "lora":
            part.add_argument("--networks", nargs="+", choices=lora.NETWORKS, default=list(lora.NETWORKS))
    asked = parser.parse_args()
    asked.changes = dict(parse_assignment(text) for text in asked.set)
    return asked


def main() -> None:
    asked = arguments()
    runs: list[dict[str, Any]] = []
    measured = {name: value for name, value in vars(asked).items() if name not in ("seeds", "out", "set")}
    if asked.out is not None and asked.out.exists():
        before = read_json(asked.out)
        runs = before["runs"] if before["asked"] == measured else []
    for seed in range(len(runs), asked.seeds):
        runs.append({"seed": seed, **PARTS[asked.part](seed, asked)})
        about = {"part": asked.part, **made_by(asked.device), "asked": measured}
        about["measured_on"] = "held-out training examples" if asked.validation else "test examples"
        seeds = [run["seed"] for run in runs]
        write(asked.out, {**about, "seeds": seeds, "summary": summary(runs), "runs": runs})
        print(json.dumps({"seed": seed, **summary(runs[-1:])}), flush=True)
    print(json.dumps({"part": asked.part, "seeds": len(runs), **summary(runs)}, indent=1), flush=True)


if __name__ == "__main__":
    main()
