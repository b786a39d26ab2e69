"""Several processes learn one task beside one process: how many images a second, and whether they learn as well.

    python benchmarks/ranks.py                      # one and two processes on the CPU, a thread each
    python benchmarks/ranks.py --device cuda        # that many on one card: for correctness, not for speed
    python benchmarks/ranks.py --rows 256 --rounds 1 --seeds 1 --epochs 4 --out DIR   # to see that it runs

Speed: a residual network learns two tasks of made-up images, each time in processes of its own that
`torch.distributed.run` starts. `per_second` counts images of all epochs but the first, the best of some rounds that
take turns.

Accuracy: a perceptron and a residual network with batch normalization learn the digits of scikit-learn, 0 to 4 and 5
to 9, to the end, some seeds each, in one process and in several with the same mini-batches. Rows that were not
learned from are answered with the task given and with the task inferred; what several processes get right more or
less than one, seed by seed, comes with its standard error.

That all processes hold the same dictionary is checked by ibpwf itself after every task. The result goes to
docs/results/scaling/ranks.json, on a GPU to ranks-gpu.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from record import RESULTS, Clock, made_by, options, percent, write
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ibpwf import Learner, Settings
from ibpwf.distributed import join
from ibpwf.inference.gaussian import Gaussian
from ibpwf.models import mlp, resnet9

CLASSES, SIDE, EPOCHS, BATCH, SEED = 4, 32, 5, 64, 0
NETWORKS = {"perceptron": "perceptron, 64-100", "residual": "resnet9 of width 8, with batch normalization"}
LEARNED = 600
"""Rows of each half of the digits that are learned from; the others are asked about."""


def images(task: int, rows: int) -> tuple[Tensor, Tensor]:
    """Noise over a pattern of each class, other patterns for each task."""
    chance = torch.Generator().manual_seed(1_000 + task)
    patterns = torch.randn(CLASSES, 3, SIDE // 8, SIDE // 8, generator=chance)
    patterns = patterns.repeat_interleave(8, 2).repeat_interleave(8, 3)
    y = torch.arange(rows) % CLASSES
    return patterns[y] + torch.randn(rows, 3, SIDE, SIDE, generator=chance), y


def digits(half: int, images: bool) -> tuple[Tensor, Tensor]:
    """0 to 4 or 5 to 9 in one order for all; as images of 16×16, each pixel four times."""
    from sklearn.datasets import load_digits

    all_of_them = load_digits()
    x = torch.tensor(all_of_them.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(all_of_them.target)
    mine = (y // 5 == half).nonzero().flatten()
    mine = mine[torch.randperm(len(mine), generator=torch.Generator().manual_seed(SEED))]
    x = x.repeat_interleave(2, 2).repeat_interleave(2, 3) if images else x.flatten(1)
    return x[mine], y[mine]


def speed(rows: int, width: int, device: str) -> dict[str, Tensor]:
    """Learn two tasks of made-up images, and say how fast that was."""
    torch.manual_seed(SEED)
    settings = Settings(epochs=EPOCHS - 1, finetune_epochs=1, batch_size=BATCH, learning_rate=5e-3)
    learner = Learner(resnet9(width=width, classes=CLASSES), settings, seed=SEED, device=device, distributed="auto")
    took = 0.0
    for task in range(2):
        clock = Clock()
        learner.learn(*images(task, rows), callbacks=[clock])
        took += clock.ends[-1] - clock.ends[0]
    inference = learner.method.inference
    assert isinstance(inference, Gaussian)
    mean = inference.groups[0].mean.cpu().contiguous()
    return {"per_second": torch.tensor(2 * rows * (EPOCHS - 1) / took), "mean": mean}


def accuracy(seeds: int, epochs: int, device: str) -> dict[str, Tensor]:
    """Learn both halves of the digits by every network and seed; per cent of the other rows right, task given and
    task inferred."""
    found: dict[str, Tensor] = {}
    for name in NETWORKS:
        halves = [digits(half, name == "residual") for half in range(2)]
        for seed in range(seeds):
            torch.manual_seed(seed)
            network: nn.Module = (
                resnet9(width=8, classes=5, in_channels=1) if name == "residual" else mlp(64, [100], 5)
            )
            settings = Settings(epochs=epochs, finetune_epochs=epochs // 4, batch_size=BATCH, learning_rate=5e-3)
            learner = Learner(network, settings, seed=seed, device=device, distributed="auto")
            for x, y in halves:
                learner.learn(x[:LEARNED], y[:LEARNED])
            right = []
            for known in (True, False):
                told = [
                    learner.predict(x[LEARNED:], task=half if known else None).labels.cpu() == y[LEARNED:]
                    for half, (x, y) in enumerate(halves)
                ]
                right.append(torch.tensor(percent(torch.cat(told))))
            found[f"{name}/{seed}"] = torch.stack(right)
    return found


def child(asked: argparse.Namespace) -> None:
    if asked.part == "speed":
        found = speed(asked.rows, asked.width, asked.device)
    else:
        found = accuracy(asked.seeds, asked.epochs, asked.device)
    if join("auto", asked.device).writes:
        save_file(found, asked.child)


def measured(part: str, processes: int, threads: int, asked: argparse.Namespace, place: Path) -> dict[str, Tensor]:
    into = place / "found.safetensors"
    words = [str(Path(__file__)), "--child", str(into), "--part", part]
    for option in ("rows", "width", "seeds", "epochs", "device"):
        words += [f"--{option}", str(getattr(asked, option))]
    start = ["-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--standalone"]
    has = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run([sys.executable, *start, *words], env=has, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{processes} processes: {done.stderr[-3000:]}")
    return load_file(into)


def compared(one: dict[str, Tensor], several: dict[str, Tensor], seeds: int) -> dict[str, Any]:
    """By network and by whether the task was given: what each got right by seed, and how far several processes are
    from one, beside how far that would be by chance if they learned alike."""
    found: dict[str, Any] = {}
    for name in NETWORKS:
        for number, known in enumerate(("task given", "task inferred")):
            here = [[float(way[f"{name}/{seed}"][number]) for seed in range(seeds)] for way in (one, several)]
            apart = [second - first for first, second in zip(*here, strict=True)]
            found[f"{NETWORKS[name]}; {known}"] = {
                "one": here[0],
                "several": here[1],
                "difference": statistics.mean(apart),
                "standard_error": statistics.stdev(apart) / seeds**0.5 if seeds > 1 else None,
            }
    return found


def main() -> None:
    parser = options(__doc__, RESULTS / "scaling", seeds=5)
    parser.add_argument("--rows", type=int, default=1_024)
    parser.add_argument("--width", type=int, default=16, help="channels of the network's first layer")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=16, help="of these, and a quarter more for the fine-tuning")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--part", choices=["speed", "accuracy"], help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child is not None:
        child(asked)
        return
    ways = {"1 process": (1, 1), f"{asked.processes} processes": (asked.processes, 1)}
    if asked.device == "cpu":
        ways[f"1 process, {asked.processes} threads"] = (1, asked.processes)
    found: dict[str, list[dict[str, Tensor]]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as place:
        for _ in range(asked.rounds):
            for name, (processes, threads) in ways.items():
                found[name].append(measured("speed", processes, threads, asked, Path(place)))
                print(name, float(found[name][-1]["per_second"]), flush=True)
        learned = [measured("accuracy", processes, 1, asked, Path(place)) for processes in (1, asked.processes)]
    best = {name: max(float(each["per_second"]) for each in rounds) for name, rounds in found.items()}
    summary = {
        "per_second": best,
        "accuracy": compared(*learned, asked.seeds),
        "same_bits_every_round": all(
            torch.equal(each["mean"], rounds[0]["mean"]) for rounds in found.values() for each in rounds
        ),
    }
    network = f"resnet9 of width {asked.width}, {SIDE}×{SIDE} images, mini-batches of {BATCH}"
    about = {"name": "ranks", **made_by(asked.device), "seeds": asked.seeds, "processes": asked.processes}
    file = asked.out / ("ranks.json" if asked.device == "cpu" else "ranks-gpu.json")
    write(file, {**about, "network": network, "summary": summary})
    print(json.dumps(summary, indent=2), flush=True)


if __name__ == "__main__":
    main()
