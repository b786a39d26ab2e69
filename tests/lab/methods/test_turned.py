"""Any method with turns: against the method itself on tasks whose images were turned by NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ibpwf.errors import InputError
from ibpwf.lab.methods import method_named, methods
from ibpwf.learner import Learner
from ibpwf.method import IBPWF
from ibpwf.training.loop import Training
from ibpwf.training.method import Method, TaskData

SMALL: dict[str, Any] = {"hidden": [6], "epochs": 2, "batch_size": 16, "memory_size": 16, "fisher_samples": 16}
SIDE = 6
PLAIN = [
    name for name, kind in methods().items() if kind is not IBPWF and "turns" not in kind.settings_type.model_fields
]
QUICK = ["ewc", "rehearsal", "gem", "lwf", "slda"]


def images(index: int, rows: int = 32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(index)
    y = torch.arange(rows) % 2
    x = 0.3 * torch.randn(rows, SIDE, SIDE, generator=generator)
    for row, label in enumerate(y.tolist()):
        x[row, : 2 + index, : 2 + 2 * label] += 1.0
    return x.flatten(1), y


def by_hand(x: Tensor, turn: int) -> Tensor:
    return torch.from_numpy(np.rot90(x.view(-1, SIDE, SIDE).numpy(), turn, (1, 2)).reshape(len(x), -1).copy())


def made(name: str, outputs: int, setting: str, **changes: Any) -> Method:
    kind = method_named(name)
    known = kind.settings_type.model_fields
    settings = kind.settings_type(**{key: value for key, value in {**SMALL, **changes}.items() if key in known})
    shape = {"input_shape": [SIDE * SIDE], "outputs": outputs, "setting": setting}
    return kind.create({**shape, "settings": settings.to_json(), "seed": 1})


def learn(method: Method, *tasks: TaskData) -> None:
    for data in tasks:
        for _ in Training(method, data).run():
            pass


def taught(name: str, setting: str) -> tuple[Method, Method]:
    """The method with turns, and the same method given tasks of turned images."""
    with_turns, plain = made(f"{name}+turns", 4, setting), made(name, 16, setting)
    for index in range(2):
        x, y = images(index)
        learn(with_turns, TaskData(f"task {index}", index, (2 * index, 2 * index + 1), x, y, 5))
        turned = torch.cat([by_hand(x, turn) for turn in range(4)])
        labels = torch.cat([2 * turn + y for turn in range(4)])
        learn(plain, TaskData(f"task {index}", index, tuple(range(8 * index, 8 * index + 8)), turned, labels, 5))
    return with_turns, plain


def asked(method: Method, x: Tensor, task: Tensor | None) -> Tensor:
    return method.predict(x, task, marginal=False, posterior_samples=0, seed=0).probabilities


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("setting", ["task", "class"])
def test_answers_are_the_mean_over_turns_of_what_the_method_says_of_turned_classes(name: str, setting: str) -> None:
    with_turns, plain = taught(name, setting)
    x = torch.cat([images(0)[0][:5], images(1)[0][:5]])
    task = torch.arange(2).repeat_interleave(5) if setting == "task" else None
    logs = []
    for turn in range(4):
        said = asked(plain, by_hand(x, turn), task)
        logs.append(torch.cat([said[:, 8 * t + 2 * turn :][:, :2] for t in range(2)], 1).clamp(min=1e-300).log())
    wanted = torch.stack(logs).mean(0)
    if task is not None:
        wanted[:5, 2:] = wanted[5:, :2] = -torch.inf
    torch.testing.assert_close(asked(with_turns, x, task), wanted.softmax(1), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", QUICK)
def test_a_stored_method_answers_the_same(name: str, tmp_path: Path) -> None:
    learner = Learner(made(f"{name}+turns", 4, "task"), seed=0)
    for index in range(2):
        x, y = images(index)
        learner.learn(x, y + 2 * index, task=f"task {index}")
    learner.save(tmp_path / "model")
    other = Learner.load(tmp_path / "model")
    x = images(1)[0]
    assert torch.equal(other.predict(x, task=1).probabilities, learner.predict(x, task=1).probabilities)
    assert set(learner.predict(x, task=1).labels.tolist()) <= {2, 3}


@pytest.mark.parametrize("name", PLAIN)
def test_every_method_without_turns_of_its_own_can_have_them(name: str) -> None:
    kind = method_named(f"{name}+turns")
    assert kind.name == f"{name}+turns"
    assert kind.settings_type is method_named(name).settings_type


def test_a_single_class_is_a_task() -> None:
    method = made("adam+turns", 4, "task")
    x, y = images(0)
    learn(method, TaskData("one", 0, (7,), x[y == 0], y[y == 0], 5))
    assert method.least_classes == 1
    assert asked(method, x[:3], torch.zeros(3, dtype=torch.long)).tolist() == [[1.0]] * 3


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ibpwf+turns", "'ibpwf' learns turns by itself"),
        ("separate-turns+turns", "'separate-turns' learns turns by itself"),
        ("ewc+turns+turns", "has turns twice"),
        ("ewc+turn", "unknown method 'ewc\\+turn'"),
    ],
)
def test_names_that_make_no_sense_are_refused(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        method_named(name)


def test_images_that_are_not_square_or_mirrored_are_refused() -> None:
    kind = method_named("ewc+turns")
    shape = {"input_shape": [7], "outputs": 4, "setting": "task", "seed": 1}
    with pytest.raises(InputError, match="must be square, but examples have shape"):
        kind.create({**shape, "settings": kind.settings_type().to_json()})
    with pytest.raises(InputError, match="set augment=none"):
        made("ewc+turns", 4, "task", augment="crop-flip")
