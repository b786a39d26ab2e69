"""Progressive networks and side-tuning: what they compute, what they add with a task, and that old tasks stay."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from digit_tasks import learn
from numpy.typing import NDArray
from torch import Tensor, nn

from ibpwf.errors import InputError
from ibpwf.lab.data.tasks import Scenario, Task
from ibpwf.lab.methods.dense import Problem
from ibpwf.lab.methods.expansion import PNN, Branch, Column, PNNSettings, Separate, SideTuning, SideTuningSettings

PROBLEM = Problem((64,), 10, "task")
PNN_SMALL = PNNSettings(hidden=(16, 12), adapter=6, epochs=3, batch_size=16, learning_rate=0.01)
SIDE_SMALL = SideTuningSettings(hidden=(20, 16), side_hidden=(4,), epochs=4, batch_size=16, learning_rate=0.01)
BOTH = pytest.mark.parametrize("kind", ["pnn", "side-tuning"])


def fresh(kind: str) -> Separate:
    if kind == "pnn":
        return PNN(PROBLEM, PNN_SMALL, seed=5)
    return SideTuning(PROBLEM, SIDE_SMALL, seed=5)


@pytest.fixture(scope="module", params=["pnn", "side-tuning"])
def taught(request: pytest.FixtureRequest, digits: Scenario) -> Separate:
    return learn(fresh(request.param), *digits[:3])


def answer(method: Separate, task: Task) -> Tensor:
    t = torch.full((len(task.test.y),), task.index)
    return method.predict(task.test.x, t, marginal=False, posterior_samples=0, seed=0).probabilities


def linear(layer: nn.Module, x: NDArray[np.float64]) -> NDArray[np.float64]:
    state = {name: value.double().numpy() for name, value in layer.state_dict().items()}
    return x @ state["weight"].T + state.get("bias", 0.0)


def relu(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.maximum(x, 0)


def test_every_task_is_learned(taught: Separate, digits: Scenario) -> None:
    for task in digits[:3]:
        first = 2 * task.index
        own = answer(taught, task)[:, first : first + 2].argmax(1)
        assert (torch.tensor(task.classes)[own] == task.test.y).double().mean() > 0.9


@BOTH
def test_new_tasks_leave_the_answers_for_old_ones_as_they_are_to_the_bit(kind: str, digits: Scenario) -> None:
    method = learn(fresh(kind), *digits[:2])
    before = [answer(method, task)[:, :4] for task in digits[:2]]
    learn(method, digits[2], digits[3])
    for task, old in zip(digits[:2], before, strict=True):
        assert torch.equal(answer(method, task)[:, :4], old)


def test_a_column_reads_the_layers_below_it_in_all_earlier_columns(digits: Scenario) -> None:
    method = learn(fresh("pnn"), *digits[:3])
    x = digits[2].test.x.double().numpy()
    given: list[list[NDArray[np.float64]]] = []
    for column in method.net:
        assert isinstance(column, Column)
        layers: list[NDArray[np.float64]] = []
        for i in range(3):
            z = linear(column.own[i], layers[-1] if layers else x)
            if given and i > 0:
                below = np.concatenate([earlier[i - 1] for earlier in given], 1) * column.scale[i - 1].item()
                z = z + linear(column.up[i - 1], relu(linear(column.down[i - 1], below)))
            layers.append(relu(z) if i < 2 else z)
        given.append(layers)
    np.testing.assert_allclose(method.logits(digits[2].test.x, 2).numpy(), given[2][2], atol=1e-4)


def test_the_lateral_connections_of_a_later_column_are_trained_and_matter(digits: Scenario) -> None:
    method = learn(fresh("pnn"), *digits[:2])
    before = answer(method, digits[1])
    column = method.net[1]
    assert isinstance(column, Column)
    assert (column.scale != 0.1).all()
    for up in column.up:
        assert isinstance(up, nn.Linear)
        up.weight.data.zero_()
    assert (answer(method, digits[1]) - before).abs().max() > 0.01


def test_a_columns_size_grows_with_the_columns_it_reads() -> None:
    hidden = (64 * 16 + 16) + (16 * 12 + 12) + (12 * 2 + 2)

    def lateral(earlier: int) -> int:
        return (earlier * 16 * 6 + 6 + 6 * 12) + (earlier * 12 * 6 + 6 + 6 * 2) + 2

    method = PNN(PROBLEM, PNN_SMALL)
    sizes = [sum(p.numel() for p in method.module(task, 2).parameters()) for task in range(3)]
    assert sizes == [hidden, hidden + lateral(1), hidden + lateral(2)]


def test_how_large_a_network_is_can_be_told_before_the_first_task(taught: Separate) -> None:
    before = torch.get_rng_state()
    template, first = fresh(taught.name).template, taught.net[0]
    assert torch.equal(torch.get_rng_state(), before), "without drawing random numbers"
    widths = [layer.out_features for layer in template.modules() if isinstance(layer, nn.Linear)]
    assert widths[:-1] == [layer.out_features for layer in first.modules() if isinstance(layer, nn.Linear)][:-1]


def test_side_tuning_blends_the_first_tasks_features_with_the_side_networks(digits: Scenario) -> None:
    method = learn(fresh("side-tuning"), *digits[:2])
    x = digits[1].test.x.double().numpy()
    base, side = method.net[0], method.net[1]
    assert isinstance(base, Branch)
    assert isinstance(side, Branch)

    def features(branch: Branch) -> NDArray[np.float64]:
        h = x
        for layer in branch.features:
            h = linear(layer, h) if isinstance(layer, nn.Linear) else relu(h)
        return h

    alpha = 1 / (1 + np.exp(-side.blend.item()))
    assert abs(alpha - 0.5) > 1e-3, "the blend is learned"
    expected = linear(side.head, alpha * features(base) + (1 - alpha) * features(side))
    np.testing.assert_allclose(method.logits(digits[1].test.x, 1).numpy(), expected, atol=1e-4)
    assert base.blend.item() == 0, "the base is alone in its own task"


def test_a_side_network_is_small_beside_the_base() -> None:
    method = SideTuning(Problem((784,), 10, "task"))
    base, side = (sum(p.numel() for p in method.module(task, 2).parameters()) for task in (0, 1))
    assert side < base / 5


@BOTH
def test_the_class_setting_is_refused_with_what_there_is(kind: str) -> None:
    method = {"pnn": PNN, "side-tuning": SideTuning}[kind]
    with pytest.raises(InputError, match="answers: task"):
        method(Problem((64,), 10, "class"))


def test_an_unknown_task_is_refused(taught: Separate, digits: Scenario) -> None:
    with pytest.raises(InputError, match="task="):
        taught.predict(digits[0].test.x, None, marginal=False, posterior_samples=0, seed=0)
