"""Turned images against numpy, and the answers of turned experts against a plain loop over turns and mirrorings."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ibpwf import factorize
from ibpwf.errors import InputError
from ibpwf.factors.layers import channels_last
from ibpwf.factors.model import FactorModel
from ibpwf.views import Identity, Rotations, views_of

CLASSES = 3


def images(count: int, channels: int = 2, side: int = 5, seed: int = 0) -> Tensor:
    return torch.randn(count, channels, side, side, generator=torch.Generator().manual_seed(seed))


def network(outputs: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(27, outputs))


def by_a_plain_loop(net: nn.Module, x: Tensor, classes: int, turns: int, mirror: bool) -> np.ndarray:
    """Image by image, each view turned by numpy."""
    scores = np.zeros((len(x), classes))
    for row, image in enumerate(x.numpy()):
        seen = [image, image[:, :, ::-1]] if mirror else [image]
        for one in seen:
            for turn in range(turns):
                view = np.ascontiguousarray(np.rot90(one, turn, axes=(1, 2)))
                outputs = net(torch.from_numpy(view).unsqueeze(0)).detach().numpy()[0]
                for label in range(classes):
                    scores[row, label] += outputs[turn * classes + label] / (turns * len(seen))
    return scores


def test_a_quarter_turn_is_against_the_clock() -> None:
    rows = Rotations().train(torch.tensor([[[[1, 2], [3, 4]]]]))
    assert rows[:, 0].tolist() == [[[1, 2], [3, 4]], [[2, 4], [1, 3]], [[4, 3], [2, 1]], [[3, 1], [4, 2]]]


@given(st.integers(1, 6), st.integers(1, 3), st.integers(1, 7))
@settings(max_examples=30, deadline=None)
def test_turned_rows_are_those_of_numpy_one_turn_after_the_other(count: int, channels: int, side: int) -> None:
    x = images(count, channels, side)
    expected = np.concatenate([np.rot90(x.numpy(), turn, axes=(2, 3)) for turn in range(4)])
    np.testing.assert_array_equal(Rotations().train(x).numpy(), expected)


def test_the_label_of_a_turned_row_names_its_class_and_its_turn() -> None:
    labels = Rotations().labels(torch.tensor([2, 0, 1]), CLASSES)
    assert labels.tolist() == [2, 0, 1, 5, 3, 4, 8, 6, 7, 11, 9, 10]
    assert [divmod(label, CLASSES) for label in labels.tolist()] == [(k, c) for k in range(4) for c in (2, 0, 1)]


def test_one_turn_changes_nothing_and_copies_nothing() -> None:
    x, y = images(4), torch.tensor([0, 1, 2, 1])
    assert Identity().train(x) is x
    assert Identity().labels(y, CLASSES) is y
    ((turn, seen),) = Identity()(x)
    assert turn == 0
    assert seen is x


def test_with_mirrorings_an_image_is_looked_at_in_eight_ways_no_two_of_them_alike() -> None:
    x = images(1)
    seen = list(Rotations(mirror=True)(x))
    assert [turn for turn, _ in seen] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert len({tuple(view.flatten().tolist()) for _, view in seen}) == 8
    assert all(sorted(view.flatten().tolist()) == sorted(x.flatten().tolist()) for _, view in seen)


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("turns", [1, 4])
def test_class_scores_are_the_mean_of_a_plain_loop(turns: int, mirror: bool) -> None:
    net, x = network(turns * CLASSES), images(6)
    scores = views_of(turns, mirror=mirror).scores(net, x, CLASSES)
    assert scores.shape == (6, CLASSES)
    np.testing.assert_allclose(
        scores.detach().numpy(), by_a_plain_loop(net, x, CLASSES, turns, mirror), rtol=0, atol=1e-6
    )


def test_an_image_and_its_mirror_image_are_answered_alike_where_mirrorings_count_and_only_there() -> None:
    net, x = network(4 * CLASSES), images(6)
    both = [Rotations(mirror=True).scores(net, image, CLASSES) for image in (x, x.flip(-1))]
    torch.testing.assert_close(both[0], both[1], rtol=0, atol=1e-6)
    alone = [Rotations().scores(net, image, CLASSES) for image in (x, x.flip(-1))]
    assert not torch.allclose(alone[0], alone[1], atol=1e-2)


def test_one_turn_without_mirroring_gives_the_networks_very_own_outputs() -> None:
    given: list[Tensor] = []

    def outputs_of(x: Tensor) -> Tensor:
        given.append(network(CLASSES)(x))
        return given[-1]

    scores = Identity().scores(outputs_of, images(6), CLASSES)
    assert len(given) == 1
    assert torch.equal(scores, given[0])
    assert scores.data_ptr() == given[0].data_ptr()


@pytest.mark.parametrize("shape", [(25,), (5, 5), (2, 5, 4), (2, 3, 5, 5)])
def test_what_is_no_square_image_is_not_turned(shape: tuple[int, ...]) -> None:
    x = torch.zeros(25, *shape)  # as many rows as numbers: flat rows, turned, would still fit the network
    words = r"turns is 4, which needs square images .*, but examples have shape \(" + ", ".join(map(str, shape))
    with pytest.raises(InputError, match=words):
        Rotations().train(x)
    with pytest.raises(InputError, match=words):
        Rotations().scores(lambda x: x.flatten(1), x, 2)
    assert Identity().train(x) is x


def taught(heads: str, turns: tuple[int, ...]) -> FactorModel:
    """A model of tasks that differ in their turns, every number of them moved at random."""
    model = factorize(network(4 * CLASSES), alpha=4, heads=heads)
    for number, each in enumerate(turns):
        generator = torch.Generator().manual_seed(number)
        begun = model.start_task(each * CLASSES, generator)
        begun.turns = each
        with torch.no_grad():
            for parameter in begun.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
        model.finish_task(begun)
    return model


@pytest.mark.parametrize("heads", ["shared", "per-task"])
def test_every_task_of_a_model_answers_with_its_own_turns(heads: str) -> None:
    model, x = taught(heads, (4, 1, 4)), images(6)
    for task, turns in enumerate((4, 1, 4)):
        net = network(len(model.state(task)["3.bias"]))
        net.load_state_dict(model.state(task))
        assert (model.tasks[task].outputs, model.tasks[task].classes) == (turns * CLASSES, CLASSES)
        for mirror in (False, True):
            expected = by_a_plain_loop(net, x, CLASSES, turns, mirror)
            found = model.logits(x, task, views_of(turns, mirror=mirror))
            np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-6)
        assert torch.equal(model(x, task=task), model.logits(x, task))
    assert torch.equal(model.logits(x, 1), model.ready(1)(x)[:, :CLASSES])


def test_turns_survive_a_state_dict_and_another_device() -> None:
    model, x = taught("per-task", (4, 1)), images(6)
    other = factorize(network(4 * CLASSES), alpha=4, heads="per-task")
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    for each in (other, model.cpu()):
        assert [task.turns for task in each.tasks] == [4, 1]
        assert all(torch.equal(each.logits(x, task), model.logits(x, task)) for task in (0, 1))


def test_turned_images_lie_in_memory_as_they_came() -> None:
    x = images(4, channels=3)
    assert Rotations().train(x).is_contiguous()
    near = Rotations().train(x.contiguous(memory_format=torch.channels_last))
    assert near.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(near, Rotations().train(x))


@pytest.mark.parametrize("shape", [(6, 1, 3, 3), (6, 3, 3, 3), (6, 4, 1, 1)])
def test_a_weight_with_its_channels_side_by_side_is_the_same_weight(shape: tuple[int, ...]) -> None:
    weight = torch.randn(shape, requires_grad=True)
    near = channels_last(weight)
    assert torch.equal(near, weight)
    assert near.stride(1) == 1
    near.square().sum().backward()
    assert torch.equal(weight.grad, 2 * weight.detach())
