"""Several processes learn one task beside one process: how many images a second, and whether they learn the same.

    python benchmarks/ranks.py                      # one and two processes on the CPU, a thread each
    python benchmarks/ranks.py --device cuda        # that many on one card: for correctness, not for speed
    python benchmarks/ranks.py --rows 256 --rounds 1 --out DIR   # to see that it runs

A residual network learns two tasks of made-up images, each time in processes of its own that `torch.distributed.run`
starts. `per_second` counts images of all epochs but the first, the best of some rounds that take turns. What one
process and several come to is compared: answers to rows that were not learned from, and the Gaussians that tell tasks
apart, sums of what each process saw. That all processes of a round hold the same dictionary is checked by ibpwf
itself after every task. The result goes to docs/results/scaling/ranks.json, on a GPU to ranks-gpu.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ibpwf import Learner, Settings
from ibpwf.distributed import join
from ibpwf.inference.gaussian import GaussianTaskInference
from ibpwf.lab.experiments.result import commit, environment
from ibpwf.models import resnet9
from ibpwf.storage.files import write_json
from ibpwf.training.callbacks import Callback, EpochEnd

OUT = Path(__file__).parents[1] / "docs" / "results" / "scaling"
CLASSES, SIDE, EPOCHS, BATCH, SEED = 4, 32, 5, 64, 0


def images(task: int, rows: int) -> tuple[Tensor, Tensor]:
    """Noise over a pattern of each class, other patterns for each task."""
    chance = torch.Generator().manual_seed(1_000 + task)
    patterns = torch.randn(CLASSES, 3, SIDE // 8, SIDE // 8, generator=chance)
    patterns = patterns.repeat_interleave(8, 2).repeat_interleave(8, 3)
    y = torch.arange(rows) % CLASSES
    return patterns[y] + torch.randn(rows, 3, SIDE, SIDE, generator=chance), y


class Clock(Callback):
    """When each epoch ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def epoch_end(self, epoch: EpochEnd) -> None:
        self.ends.append(time.perf_counter())


def child(rows: int, width: int, device: str, into: Path) -> None:
    """Learn both tasks, and write down how long it took and what is known then."""
    torch.manual_seed(SEED)
    settings = Settings(epochs=EPOCHS - 1, finetune_epochs=1, batch_size=BATCH, learning_rate=5e-3)
    learner = Learner(resnet9(width=width, classes=CLASSES), settings, seed=SEED, device=device, distributed="auto")
    took = 0.0
    for task in range(2):
        x, y = images(task, rows + rows // 4)
        clock = Clock()
        learner.learn(x[:rows], y[:rows], callbacks=[clock])
        took += clock.ends[-1] - clock.ends[0]
    if not join("auto", device).writes:
        return
    found: dict[str, Tensor] = {"per_second": torch.tensor(2 * rows * (EPOCHS - 1) / took)}
    inference = learner.method.inference
    assert isinstance(inference, GaussianTaskInference)
    for task in range(2):
        x, y = images(task, rows + rows // 4)
        told = learner.predict(x[rows:])
        found[f"right/{task}"] = ((told.labels.cpu() == y[rows:]) & (told.task.cpu() == task)).double().mean()
    found["mean"] = inference.groups[0].mean.cpu().contiguous()
    save_file(found, into)


def measured(processes: int, threads: int, asked: argparse.Namespace, place: Path) -> dict[str, Tensor]:
    into = place / "found.safetensors"
    words = [str(Path(__file__)), "--child", str(into), "--rows", str(asked.rows), "--width", str(asked.width)]
    words += ["--device", asked.device]
    start = ["-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--standalone"]
    has = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run([sys.executable, *start, *words], env=has, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{processes} processes: {done.stderr[-3000:]}")
    return load_file(into)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_024)
    parser.add_argument("--width", type=int, default=16, help="channels of the network's first layer")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child is not None:
        child(asked.rows, asked.width, asked.device, asked.child)
        return
    ways = {"1 process": (1, 1), f"{asked.processes} processes": (asked.processes, 1)}
    if asked.device == "cpu":
        ways[f"1 process, {asked.processes} threads"] = (1, asked.processes)
    found: dict[str, list[dict[str, Tensor]]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as place:
        for _ in range(asked.rounds):
            for name, (processes, threads) in ways.items():
                found[name].append(measured(processes, threads, asked, Path(place)))
                print(name, float(found[name][-1]["per_second"]), flush=True)
    one, several = (found[name][0] for name in list(ways)[:2])
    best = {name: max(float(each["per_second"]) for each in rounds) for name, rounds in found.items()}
    first, second = list(ways)[:2]
    summary: dict[str, Any] = {
        "per_second": best,
        "several_to_one": best[second] / best[first],
        "right_percent": {
            name: [100 * float(rounds[0][f"right/{task}"]) for task in range(2)] for name, rounds in found.items()
        },
        "same_bits_every_round": all(
            torch.equal(each["mean"], rounds[0]["mean"]) for rounds in found.values() for each in rounds
        ),
        "largest_difference_of_feature_means": float((one["mean"] - several["mean"]).abs().max()),
    }
    record = {
        "name": "ranks",
        "what": (__doc__ or "").splitlines()[0],
        "command": " ".join(["python", "benchmarks/ranks.py", *sys.argv[1:]]),
        "commit": commit(),
        "seed": SEED,
        "environment": {**environment(asked.device), "load": os.getloadavg()[0]},
        "network": f"resnet9 of width {asked.width}, {SIDE}×{SIDE} images, mini-batches of {BATCH}",
        "summary": summary,
        "rounds": {name: [float(each["per_second"]) for each in rounds] for name, rounds in found.items()},
    }
    asked.out.mkdir(parents=True, exist_ok=True)
    write_json(asked.out / ("ranks.json" if asked.device == "cpu" else "ranks-gpu.json"), record)
    print(json.dumps(summary, indent=2), flush=True)


if __name__ == "__main__":
    main()
