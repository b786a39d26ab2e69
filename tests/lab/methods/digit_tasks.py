"""Learning tasks of Split digits with a method, and what it then would write to disk."""

from __future__ import annotations

import json
from typing import TypeVar

import torch
from safetensors.torch import load, save
from torch import Tensor

from ibpwf.lab.data.tasks import Task
from ibpwf.training.loop import Training
from ibpwf.training.method import Method, TaskData

M = TypeVar("M", bound=Method)


def data_of(task: Task, seed: int = 5, rows: int | None = None) -> TaskData:
    classes, y = torch.unique(task.train.y, return_inverse=True)
    return TaskData(task.name, task.index, tuple(classes.tolist()), task.train.x[:rows], y[:rows], seed)


def train(method: M, *tasks: TaskData) -> M:
    for data in tasks:
        for _ in Training(method, data).run():
            pass
    return method


def learn(method: M, *tasks: Task, seed: int | None = None) -> M:
    """Learn tasks one after another, with the method's own seed where none is given."""
    return train(method, *(data_of(task, method.seed if seed is None else seed) for task in tasks))


def stored(method: Method) -> dict[str, Tensor]:
    """Every tensor that a method would write to disk, by file and name."""
    return {f"{file}/{name}": t.clone() for file, part in method.state()[1].items() for name, t in part.items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def same_state(one: Method, other: Method) -> bool:
    return one.state()[0] == other.state()[0] and same(stored(one), stored(other))


def reloaded(method: M) -> M:
    """Through JSON and safetensors into a method made from its configuration alone."""
    content, files = method.state()
    new = type(method).create(json.loads(json.dumps(method.configuration())))
    new.load_state(json.loads(json.dumps(content)), {name: load(save(tensors)) for name, tensors in files.items()})
    return new
