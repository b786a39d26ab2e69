"""The bounds: one network per task, and one network on all data."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from digit_tasks import data_of, learn, reloaded, same_state, train
from torch import Tensor
from torch.nn import functional as F

from ibpwf import models
from ibpwf.errors import InputError
from ibpwf.lab.data.tasks import Scenario
from ibpwf.lab.methods.dense import DenseMethod, DenseSettings, Problem
from ibpwf.lab.methods.expansion import Separate
from ibpwf.lab.methods.joint import Joint
from ibpwf.training.loop import Training
from ibpwf.training.method import TaskData

SMALL = DenseSettings(hidden=(24,), epochs=3, batch_size=16, learning_rate=0.01)
KINDS = [(Separate, "task"), (Joint, "task"), (Joint, "class")]


def fresh(kind: type[DenseMethod], setting: str) -> DenseMethod:
    return kind(Problem((64,), 10, setting), SMALL, seed=5)


@pytest.fixture(scope="module", params=KINDS, ids=lambda pair: f"{pair[0].name}-{pair[1]}")
def taught(request: pytest.FixtureRequest, digits: Scenario) -> DenseMethod:
    return learn(fresh(*request.param), *digits[:3])


def test_every_task_is_still_known_at_the_end(taught: DenseMethod, digits: Scenario) -> None:
    for task in digits[:3]:
        t = torch.full((len(task.test.y),), task.index) if taught.problem.setting == "task" else None
        labels = taught.predict(task.test.x, t, marginal=False, posterior_samples=0, seed=0).labels
        assert (labels == task.test.y).double().mean() > 0.9


def test_a_separate_network_owes_nothing_to_the_tasks_before_it(digits: Scenario) -> None:
    one, other = fresh(Separate, "task"), fresh(Separate, "task")
    train(one, data_of(digits[0]), data_of(digits[1]))
    train(other, TaskData("noise", 0, (0, 1), torch.randn(64, 64), torch.arange(64) % 2, seed=5), data_of(digits[1]))
    assert torch.equal(one.logits(digits[1].test.x, 1), other.logits(digits[1].test.x, 1))
    assert not torch.equal(one.logits(digits[0].test.x, 0), other.logits(digits[0].test.x, 0))


def test_a_separate_network_does_not_change_once_its_task_is_over(digits: Scenario) -> None:
    method = learn(fresh(Separate, "task"), *digits[:1])
    before = method.logits(digits[0].test.x, 0)
    learn(method, digits[1])
    assert torch.equal(method.logits(digits[0].test.x, 0), before)


def test_separate_networks_grow_by_a_network_a_task(digits: Scenario) -> None:
    method = fresh(Separate, "task")
    one = (64 * 24 + 24) + (24 * 2 + 2)
    for task in digits[:3]:
        learn(method, task)
        assert method.parameter_count() == (task.index + 1) * one
    assert method.memory() == {"network": 4 * 3 * one}


def plain_training(tasks: Sequence[TaskData], setting: str) -> dict[str, Tensor]:
    """An ordinary loop over the union of the tasks, written out."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        net = models.mlp(64, SMALL.hidden, 10)
    x = torch.cat([data.x for data in tasks])
    y = torch.cat([data.y + 2 * data.index for data in tasks])
    optimizer = torch.optim.Adam(net.parameters(), lr=SMALL.learning_rate, fused=True)
    shuffle = tasks[-1].generator("shuffle")
    for _ in range(SMALL.epochs):
        order = torch.randperm(len(y), generator=shuffle)
        for rows in torch.split(order, SMALL.batch_size):
            logits, labels = net(x[rows])[:, : 2 * len(tasks)], y[rows]
            if setting == "task":
                pair = 2 * torch.div(labels, 2, rounding_mode="floor")
                logits = torch.stack([logits.gather(1, (pair + k).unsqueeze(1)).squeeze(1) for k in (0, 1)], 1)
                labels = labels - pair
            optimizer.zero_grad()
            F.cross_entropy(logits, labels).backward()
            optimizer.step()
    return net.state_dict()


@pytest.mark.parametrize("setting", ["task", "class"])
def test_joint_is_a_plain_training_on_the_union_of_all_data(setting: str, digits: Scenario) -> None:
    tasks = [data_of(task, rows=160) for task in digits[:3]]  # ten batches each, so that all steps are whole
    method = train(fresh(Joint, setting), *tasks)
    expected = plain_training(tasks, setting)
    for name, tensor in method.net.state_dict().items():
        if setting == "class":
            assert torch.equal(tensor, expected[name])
        else:  # another order of additions in the softmax
            torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-5)


def test_joint_takes_its_passes_over_the_union_whatever_the_newest_task_is(digits: Scenario) -> None:
    method = train(fresh(Joint, "class"), data_of(digits[0], rows=200))
    steps = sum(1 for _ in Training(method, data_of(digits[1], rows=40)).run())
    assert steps == SMALL.epochs * (240 // 16)


def test_joint_keeps_every_example_and_says_so(digits: Scenario) -> None:
    method = learn(fresh(Joint, "class"), *digits[:2])
    assert isinstance(method, Joint)
    for (x, _), task in zip(method.examples, digits[:2], strict=True):
        assert torch.equal(x, task.train.x)
    rows = len(digits[0].train) + len(digits[1].train)
    assert method.memory()["examples"] == rows * (64 * 4 + 8)


def test_separate_networks_have_no_class_setting() -> None:
    with pytest.raises(InputError, match="answers: task"):
        Separate(Problem((64,), 10, "class"))


def test_more_classes_than_outputs_are_refused_and_nothing_is_kept(digits: Scenario) -> None:
    for kind in (Separate, Joint):
        method = learn(kind(Problem((64,), 3, "task"), SMALL), *digits[:1])
        untouched = reloaded(method)
        with pytest.raises(InputError, match="more classes than the 3"):
            learn(method, digits[1])
        assert same_state(method, untouched)
