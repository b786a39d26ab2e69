"""One of the three programs measured (`ours`, `bare`, `avalanche`): takes jobs, one line of JSON each, from standard
input and answers with one line each, so that starting the interpreter is paid for once and no first step is cold.

    python benchmarks/avalanche/worker.py bare DATA.npz --threads 1 --epochs 1

`avalanche` runs in Avalanche's own environment, with torch and NumPy but without ibpwf.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
from settings import ENTRIES, Training, avalanche_arguments
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Job:
    """What to run: an entry of the comparison, a seed, and for Avalanche the way it is used."""

    method: str
    seed: int
    way: str = "documented"


@dataclass(frozen=True)
class Task:
    """Images as float rows and labels counted from 0 within the task."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


class Clock:
    """Seconds spent inside `with clock.running():`, in all."""

    seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - started


Answer = Callable[[Tensor, int], Tensor]


def ours(job: Job, tasks: list[Task], training: Training, clock: Clock) -> Answer:
    """Methods of ibpwf on Split MNIST with the task given."""
    from ibpwf.lab.methods import method_named
    from ibpwf.lab.methods.dense import DenseMethod, Problem
    from ibpwf.learner import TaskLearner

    entry = ENTRIES[job.method]
    kind = method_named(entry.ours)
    assert issubclass(kind, DenseMethod)
    common = {name: getattr(training, name) for name in ("hidden", "epochs", "batch_size", "learning_rate")}
    settings = kind.settings_type().replace(**common, **entry.settings)
    problem = Problem(tuple(tasks[0].x.shape[1:]), 2 * len(tasks), "task")
    learner = TaskLearner(kind(problem, settings, seed=job.seed), seed=job.seed)
    for task in tasks:
        with clock.running():
            learner.learn(task.x, task.y)
    return lambda x, task: learner.predict(x, task=task).labels


def perceptron(inputs: int, hidden: tuple[int, ...]) -> tuple[list[nn.Module], int]:
    """The hidden layers, and how wide the last one is."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return layers, inputs


def bare(job: Job, tasks: list[Task], training: Training, clock: Clock) -> Answer:
    """The least that does the work of `adam`: tensors in memory, nn.Sequential, fused Adam."""
    torch.manual_seed(job.seed)
    layers, width = perceptron(tasks[0].x.shape[1], training.hidden)
    net = nn.Sequential(*layers, nn.Linear(width, 2 * len(tasks)))
    size = training.batch_size
    for number, task in enumerate(tasks):
        head = slice(2 * number, 2 * number + 2)
        with clock.running():
            optimizer = torch.optim.Adam(net.parameters(), lr=training.learning_rate, fused=True)
            for _ in range(training.epochs):
                order = torch.randperm(len(task.y))
                for first in range(0, len(order) - size + 1, size):
                    rows = order[first : first + size]
                    x, y = task.x.index_select(0, rows), task.y.index_select(0, rows)
                    optimizer.zero_grad()
                    F.cross_entropy(net(x)[:, head], y).backward()
                    optimizer.step()
    return lambda x, task: net(x)[:, 2 * task : 2 * task + 2].argmax(1)


def declare_missing_operators() -> object:
    """A torchvision built for CUDA does not load its operators beside a torch without, and then cannot be imported.
    Avalanche uses none of them: their names are enough."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def avalanche(job: Job, tasks: list[Task], training: Training, clock: Clock) -> Answer:
    """Strategies of Avalanche. What it prints of its progress goes nowhere: standard output is for JSON."""
    from avalanche.training.plugins import SynapticIntelligencePlugin
    from avalanche.training.supervised import Naive

    random.seed(job.seed)
    torch.manual_seed(job.seed)
    documented = job.way == "documented"
    net, plugin = avalanche_network(tasks[0].x.shape[1], training.hidden), avalanche_plugin(job.method)
    strategy = Naive(
        model=net,
        optimizer=torch.optim.Adam(net.parameters(), lr=training.learning_rate, fused=None if documented else True),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=training.batch_size,
        train_epochs=training.epochs,
        plugins=[plugin(**avalanche_arguments(job.method, training))] if plugin else [],
        **({} if documented else {"evaluator": None}),
    )

    @torch.no_grad()
    def copy_weights(model: nn.Module, target: dict[str, Any], excluded_parameters: set[str]) -> None:
        """`extract_weights` with the copies it means to keep: on a CPU its `.cpu().flatten()` is a view."""
        for name, parameter in SynapticIntelligencePlugin.allowed_parameters(model, excluded_parameters):
            target[name].data = parameter.detach().flatten().clone()

    repaired = mock.patch.object(SynapticIntelligencePlugin, "extract_weights", copy_weights)
    way = repaired if job.method == "si" else nullcontext()
    with way, open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        for experience in avalanche_stream(tasks, documented):
            with clock.running():
                # As in ours: Adam starts afresh with every task, and a rest smaller than a batch is left out.
                strategy.train(experience, eval_streams=[], reset_optimizer_state=True, drop_last=True)
    net.eval()
    return lambda x, task: net(x, torch.full((len(x),), task)).argmax(1)


def avalanche_network(inputs: int, hidden: tuple[int, ...]) -> Any:
    """The same perceptron as ours, with a head of two outputs per task."""
    from avalanche.models import MultiHeadClassifier, MultiTaskModule

    class Net(MultiTaskModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            layers, width = perceptron(inputs, hidden)
            self.features = nn.Sequential(*layers)
            self.classifier = MultiHeadClassifier(width, initial_out_features=2, masking=False)

        def forward(self, x: Tensor, task_labels: Tensor | None) -> Any:
            return self.classifier(self.features(x.flatten(1)), task_labels)

    return Net()


def avalanche_plugin(method: str) -> Any:
    from avalanche.training import plugins

    class OneByOne(plugins.EWCPlugin):  # type: ignore[misc]
        """EWC that squares the gradients of single examples, on as many of them as ours."""

        def compute_importances(self, model, criterion, optimizer, dataset, device, batch_size, num_workers=0):  # type: ignore[no-untyped-def]
            some = dataset.subset(torch.randperm(len(dataset))[:1024].tolist())
            return super().compute_importances(model, criterion, optimizer, some, device, 1, num_workers)

    names = {"ewc": "EWC", "si": "SynapticIntelligence", "lwf": "LwF", "rehearsal": "Replay", "gem": "GEM"}
    name = names.get(ENTRIES[method].ours)
    return OneByOne if method == "ewc-one-by-one" else name and getattr(plugins, f"{name}Plugin")


def avalanche_stream(tasks: list[Task], documented: bool) -> Any:
    """Avalanche's own Split MNIST; or tensors in memory, one experience and one task label per task: the fewest
    wrappers it can do with."""
    from avalanche import benchmarks
    from avalanche.benchmarks.utils import _make_taskaware_classification_dataset as with_labels

    if documented:
        made = benchmarks.SplitMNIST(
            len(tasks),
            return_task_id=True,
            fixed_class_order=list(range(2 * len(tasks))),
            shuffle=False,
            class_ids_from_zero_in_each_exp=True,
            dataset_root=os.environ["MNIST_ROOT"],
        )
        return made.train_stream

    class Examples(torch.utils.data.TensorDataset):
        targets: list[int]

        def __getitem__(self, index: int) -> tuple[Tensor, int]:  # type: ignore[override]
            return self.tensors[0][index], self.targets[index]

    def dataset(task: Task) -> Examples:
        made = Examples(task.x, task.y)
        made.targets = task.y.tolist()
        return made

    train = [with_labels(dataset(task), task_labels=number) for number, task in enumerate(tasks)]
    made = benchmarks.with_task_labels(benchmarks.benchmark_from_datasets(train=train))
    return benchmarks.with_classes_timeline(made).train_stream


LEARN = {"ours": ours, "bare": bare, "avalanche": avalanche}
PACKAGES = {"ours": {"ibpwf": "ibpwf"}, "avalanche": {"avalanche": "avalanche-lib"}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("who", choices=LEARN)
    parser.add_argument("data", metavar="DATA.npz", help="the tasks, as compare.py writes them")
    parser.add_argument("--epochs", type=int, default=Training.epochs)
    parser.add_argument("--threads", type=int, default=1, help="threads torch may use (1)")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.who == "avalanche":
        warnings.simplefilter("ignore")
        kept = declare_missing_operators()  # noqa: F841 (they are there as long as this is)
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    versions |= {name: importlib.metadata.version(package) for name, package in PACKAGES.get(given.who, {}).items()}
    training = Training(epochs=given.epochs)
    with np.load(given.data, allow_pickle=False) as arrays:
        names = ("x", "y", "test_x", "test_y")
        count = len(arrays.files) // len(names)
        tasks = [Task(*(torch.from_numpy(arrays[f"{name}{task}"]) for name in names)) for task in range(count)]
    samples = training.epochs * sum(len(t.y) // training.batch_size * training.batch_size for t in tasks)
    for line in sys.stdin:
        clock = Clock()
        answer = LEARN[given.who](Job(**json.loads(line)), tasks, training, clock)
        with torch.no_grad():
            right = [
                (answer(task.test_x, number) == task.test_y).double().mean() for number, task in enumerate(tasks)
            ]
        found = {"accuracy": [round(100 * float(r), 4) for r in right], "seconds": round(clock.seconds, 4)}
        found |= {"samples": samples, "samples_per_second": round(samples / clock.seconds, 1), "versions": versions}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
