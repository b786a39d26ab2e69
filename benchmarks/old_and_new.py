"""How long the same work takes in two checkouts, in turns, as ratios.

    python benchmarks/old_and_new.py OLD NEW [--rounds 15] [--only NAME ...] [--out FILE]

Each checkout runs in a separate process with one thread and the same Python. A round runs every piece of work once in
both, one after the other, and compares their processor time, so that other programs on the machine count for neither.
It prints the median ratio, new ÷ old, and the middle half.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from inspect import signature
from pathlib import Path
from typing import Any

ROWS, TASKS, BATCH = 2_048, 100, 256


def work() -> Iterator[tuple[str, Callable[[], None]]]:
    """What is timed, by public functions that both checkouts have."""
    import warnings

    import numpy as np
    import torch
    from sklearn.datasets import load_digits

    from ibpwf import ContinualClassifier, Learner, Settings
    from ibpwf.models import mlp

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    mixing = torch.randn(40, 784, generator=torch.Generator().manual_seed(1)) * 0.5

    def images(task: int, count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Made-up images of forty causes, their pixels in another order for each task."""
        order = torch.randperm(784, generator=torch.Generator().manual_seed(100 + task))
        causes = torch.randn(count, 40, generator=torch.Generator().manual_seed(1000 * seed + task))
        return torch.sigmoid(causes @ mixing - 1)[:, order], (causes[:, 0] > 0).long()

    def network(inputs: int, hidden: int) -> torch.nn.Module:
        """The same weights in both checkouts: what a task selects, and so its cost, depends on them."""
        torch.manual_seed(0)
        return mlp(inputs, [hidden], 10)

    def steps(task: int) -> Callable[[], None]:
        """Sixty-four steps of the ELBO phase."""
        settings = Settings(alpha=200.0, max_factors=400, epochs=3, finetune_epochs=1, batch_size=32, kl_terms=10)
        learner = Learner(network(784, 400), settings, device="cpu")
        for earlier in range(task):
            learner.learn(*images(earlier, ROWS // 8, 0))
        trained: list[Any] = []

        def run() -> None:
            for _ in range(64):
                if not trained or next(trained[0], trained) is trained:
                    trained[:] = [learner.fork().learn_steps(*images(task, ROWS, 0))]
                    for _ in range(4):
                        next(trained[0])

        return run

    yield "ELBO step, first task", steps(0)
    yield "ELBO step, third task", steps(2)
    quick = Settings(alpha=200.0, max_factors=400, epochs=1, finetune_epochs=0, batch_size=128, kl_terms=10)
    learner = Learner(network(784, 400), quick, device="cpu")
    for task in range(TASKS):
        learner.learn(*images(task, 256, 0))
        if task == 9:
            ten = learner.fork()
    x = images(9, BATCH, 1)[0]
    last = images(TASKS - 1, BATCH, 1)[0]
    owner = torch.arange(BATCH) % TASKS
    mixed = torch.cat([images(int(task), 1, 2 + place)[0] for place, task in enumerate(owner)])
    yield "predict, task given", lambda: [ten.predict(x, task=9) for _ in range(20)] and None
    yield "predict, one of 10 tasks inferred", lambda: [ten.predict(x) for _ in range(20)] and None
    yield "predict, one of 100 tasks inferred", lambda: [learner.predict(last) for _ in range(5)] and None
    yield "predict, rows of 100 tasks, given", lambda: [learner.predict(mixed, task=owner) for _ in range(3)] and None
    yield "predict, rows of 100 tasks, inferred", lambda: [learner.predict(mixed) for _ in range(3)] and None
    samples = "posterior_samples" if "posterior_samples" in signature(Learner.predict).parameters else "draws"
    yield "posterior samples, 20", lambda: ten.predict(x, **{samples: 20}) and None
    pixels, digits = load_digits(return_X_y=True)

    def small() -> None:
        part = digits < 4
        ContinualClassifier(random_state=0, epochs=5).fit(pixels[part], digits[part])

    yield "classifier, fit", small
    fitted = ContinualClassifier(random_state=0, epochs=5)
    for low in (0, 3, 6):
        part = (digits >= low) & (digits < low + 3)
        fitted.learn(pixels[part], digits[part])
    rows = np.ascontiguousarray(pixels[:500])
    yield "classifier, predict", lambda: [fitted.predict(rows) for _ in range(10)] and None
    yield "classifier, predict_proba", lambda: [fitted.predict_proba(rows) for _ in range(5)] and None
    apart = "validation_fraction" if "validation_fraction" in Settings.model_fields else "held_out"
    short = {apart: 0.1, "epochs": 2, "finetune_epochs": 1}
    if "features" in Settings.model_fields:
        routing = Settings(inference="router", features="random", **short)
    else:
        routing = Settings(inference={"kind": "router", "features": "random"}, **short)
    routed = Learner(network(64, 64), routing, device="cpu")
    for low in (0, 3, 6):
        part = (digits >= low) & (digits < low + 3)
        routed.learn(pixels[part].astype("float32"), digits[part])
    some = torch.from_numpy(rows).float()
    yield "predict, router and experts", lambda: [routed.predict(some) for _ in range(10)] and None


SAMPLES = ("posterior_samples",)
"""The argument of `predict` for posterior samples."""


def serve() -> None:
    """One checkout: prepares the work, then runs the piece that each line of the input names."""
    ready = dict(work())
    print(json.dumps(list(ready)), flush=True)
    for line in sys.stdin:
        started = time.process_time()
        ready[line.strip()]()
        print(time.process_time() - started, flush=True)


def side(checkout: Path) -> subprocess.Popen[str]:
    paths = os.pathsep.join(filter(None, (str(checkout / "src"), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-B", __file__, "--side"]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(process: subprocess.Popen[str], what: str | None = None) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    if what is not None:
        process.stdin.write(f"{what}\n")
        process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise SystemExit("one side has failed; see above")
    return json.loads(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, nargs="?")
    parser.add_argument("new", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", action="append", metavar="NAME", help="names that begin so")
    parser.add_argument("--out", type=Path, help="a JSON file of all times")
    parser.add_argument("--side", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.side:
        serve()
        return
    if asked.old is None or asked.new is None:
        parser.error("give two checkouts")
    sides = [side(checkout.resolve()) for checkout in (asked.old, asked.new)]
    names = [name for name in ask(sides[0]) if not asked.only or name.startswith(tuple(asked.only))]
    ask(sides[1])
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for turn in range(asked.rounds + 1):
        for name in names:
            order = sides if turn % 2 else sides[::-1]
            taken = [float(ask(process, name)) for process in order]
            if turn:  # the first round warms up
                times[name].append((taken[0], taken[1]) if turn % 2 else (taken[1], taken[0]))
    for process in sides:
        process.kill()
    width = max(map(len, names))
    print(f"{'':{width}}   new ÷ old   middle half     old ms")
    for name, pairs in times.items():
        ratios = sorted(new / old for old, new in pairs)
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        old = 1000 * statistics.median(old for old, _ in pairs)
        print(f"{name:{width}}   {statistics.median(ratios):9.3f}   {low:.3f}–{high:.3f}   {old:8.1f}")
    if asked.out is not None:
        asked.out.write_text(json.dumps({"rounds": asked.rounds, "seconds": times}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
