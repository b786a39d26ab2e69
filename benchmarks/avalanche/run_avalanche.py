"""Strategies of Avalanche on Split MNIST with the task given; prints JSON. Runs in Avalanche's own environment."""

from __future__ import annotations

import importlib.metadata
import os
import random
import warnings
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from typing import Any
from unittest import mock

import torch
from measure import Answer, Clock, Job, Task, main
from settings import ENTRIES, Training, avalanche_arguments
from torch import Tensor, nn
from torch.utils.data import TensorDataset


def define_missing_operators() -> object:
    """A torchvision built for CUDA does not load its operators beside a torch without, and then cannot be imported.
    Avalanche uses none of them: their names are enough."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


OPERATORS = define_missing_operators()

from avalanche.benchmarks import (  # noqa: E402
    SplitMNIST,
    benchmark_from_datasets,
    with_classes_timeline,
    with_task_labels,
)
from avalanche.benchmarks.utils import _make_taskaware_classification_dataset as with_labels  # noqa: E402
from avalanche.models import MultiHeadClassifier, MultiTaskModule  # noqa: E402
from avalanche.training.plugins import (  # noqa: E402
    EWCPlugin,
    GEMPlugin,
    LwFPlugin,
    ReplayPlugin,
    SynapticIntelligencePlugin,
)
from avalanche.training.supervised import Naive  # noqa: E402

PLUGINS = {
    "ewc": EWCPlugin,
    "si": SynapticIntelligencePlugin,
    "lwf": LwFPlugin,
    "rehearsal": ReplayPlugin,
    "gem": GEMPlugin,
}


class Net(MultiTaskModule):
    """The same perceptron as ours, with a head of two outputs per task."""

    def __init__(self, inputs: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width in hidden:
            layers += [nn.Linear(inputs, width), nn.ReLU()]
            inputs = width
        self.features = nn.Sequential(*layers)
        self.classifier = MultiHeadClassifier(inputs, initial_out_features=2, masking=False)

    def forward(self, x: Tensor, task_labels: Tensor | None) -> Any:
        return self.classifier(self.features(x.flatten(1)), task_labels)


class Examples(TensorDataset):
    def __init__(self, x: Tensor, y: Tensor) -> None:
        super().__init__(x, y)
        self.targets = y.tolist()

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.tensors[0][index], self.targets[index]


class OneByOne(EWCPlugin):
    """EWC that squares the gradients of single examples, on as many of them as ours."""

    def compute_importances(self, model, criterion, optimizer, dataset, device, batch_size, num_workers=0):  # type: ignore[no-untyped-def]
        some = dataset.subset(torch.randperm(len(dataset))[:1024].tolist())
        return super().compute_importances(model, criterion, optimizer, some, device, 1, num_workers)


@torch.no_grad()
def copy_weights(model: nn.Module, target: dict[str, Any], excluded_parameters: set[str]) -> None:
    """`SynapticIntelligencePlugin.extract_weights` with the copies it means to keep: on a CPU its
    `.cpu().flatten()` is a view of the parameter itself."""
    for name, parameter in SynapticIntelligencePlugin.allowed_parameters(model, excluded_parameters):
        target[name].data = parameter.detach().flatten().clone()


def benchmark(tasks: list[Task], documented: bool) -> Any:
    """Avalanche's own Split MNIST; or tensors in memory, one experience and one task label per task: the fewest
    wrappers it can do with."""
    if documented:
        return SplitMNIST(
            len(tasks),
            return_task_id=True,
            fixed_class_order=list(range(2 * len(tasks))),
            shuffle=False,
            class_ids_from_zero_in_each_exp=True,
            dataset_root=os.environ["MNIST_ROOT"],
        )
    train = [with_labels(Examples(task.x, task.y), task_labels=number) for number, task in enumerate(tasks)]
    return with_classes_timeline(with_task_labels(benchmark_from_datasets(train=train)))


def learn(job: Job, tasks: list[Task], training: Training, clock: Clock) -> Answer:
    """What Avalanche prints of its progress goes nowhere: standard output is for JSON."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        return learn_quietly(job, tasks, training, clock)


def learn_quietly(job: Job, tasks: list[Task], training: Training, clock: Clock) -> Answer:
    random.seed(job.seed)
    torch.manual_seed(job.seed)
    net, documented = Net(tasks[0].x.shape[1], training.hidden), job.way == "documented"
    plugin = OneByOne if job.method == "ewc-one-by-one" else PLUGINS.get(ENTRIES[job.method].ours)
    strategy = Naive(
        model=net,
        optimizer=torch.optim.Adam(net.parameters(), lr=training.learning_rate, fused=None if documented else True),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=training.batch_size,
        train_epochs=training.epochs,
        plugins=[plugin(**avalanche_arguments(job.method, training))] if plugin else [],
        **({} if documented else {"evaluator": None}),
    )
    stream = benchmark(tasks, documented).train_stream
    repaired = job.method == "si"
    with (
        mock.patch.object(SynapticIntelligencePlugin, "extract_weights", copy_weights) if repaired else nullcontext()
    ):
        for experience in stream:
            with clock.running():
                # As in ours: Adam starts afresh with every task, and a rest smaller than a batch is left out.
                strategy.train(experience, eval_streams=[], reset_optimizer_state=True, drop_last=True)
    net.eval()
    return lambda x, task: net(x, torch.full((len(x),), task)).argmax(1)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(__doc__ or "", list(ENTRIES), learn, avalanche=importlib.metadata.version("avalanche-lib"))
