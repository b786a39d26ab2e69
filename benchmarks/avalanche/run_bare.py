"""The least that does the work of `adam`: tensors in memory, nn.Sequential, fused Adam; prints JSON."""

from __future__ import annotations

import torch
from measure import Answer, Clock, Job, Task, main
from settings import Training
from torch import nn
from torch.nn import functional as F


def learn(job: Job, tasks: list[Task], training: Training, clock: Clock) -> Answer:
    torch.manual_seed(job.seed)
    layers: list[nn.Module] = []
    before = tasks[0].x.shape[1]
    for width in training.hidden:
        layers += [nn.Linear(before, width), nn.ReLU()]
        before = width
    net = nn.Sequential(*layers, nn.Linear(before, 2 * len(tasks)))
    for number, task in enumerate(tasks):
        with clock.running():
            learn_one(net, task, slice(2 * number, 2 * number + 2), training)
    return lambda x, task: net(x)[:, 2 * task : 2 * task + 2].argmax(1)


def learn_one(net: nn.Module, task: Task, head: slice, training: Training) -> None:
    optimizer = torch.optim.Adam(net.parameters(), lr=training.learning_rate, fused=True)
    size = training.batch_size
    for _ in range(training.epochs):
        order = torch.randperm(len(task.y))
        for first in range(0, len(order) - size + 1, size):
            rows = order[first : first + size]
            x, y = task.x.index_select(0, rows), task.y.index_select(0, rows)
            optimizer.zero_grad()
            F.cross_entropy(net(x)[:, head], y).backward()
            optimizer.step()


if __name__ == "__main__":
    main(__doc__ or "", ["adam"], learn)
