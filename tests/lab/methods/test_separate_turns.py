"""A network per task with turns: against plain loops over turns and mirrorings."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from digit_tasks import data_of, reloaded, train
from torch import Tensor
from torch.nn import functional as F

from ibpwf import models
from ibpwf.errors import InputError
from ibpwf.lab.data.tasks import Scenario
from ibpwf.lab.experiments.compare import chosen_methods
from ibpwf.lab.experiments.presets import preset
from ibpwf.lab.methods.dense import Problem
from ibpwf.lab.methods.finetune import Adam
from ibpwf.lab.methods.separate_turns import SeparateTurns, SeparateTurnsSettings
from ibpwf.training.method import TaskData

SMALL = SeparateTurnsSettings(network="resnet9", width=4, epochs=2, batch_size=32, learning_rate=0.01)
COLOR = Problem((3, 8, 8), 6, "task")


def task(index: int, rows: int = 48, classes: int = 2) -> TaskData:
    """Images with a bright corner or edge of their class's, in a color of the task's own."""
    generator = torch.Generator().manual_seed(index)
    y = torch.arange(rows) % classes
    x = 0.2 * torch.randn(rows, 3, 8, 8, generator=generator)
    for row, label in enumerate(y.tolist()):
        x[row, index % 3, :3, : 3 + 4 * label] += 1.0
    return TaskData(f"task-{index}", index, tuple(range(2 * index, 2 * index + classes)), x, y, seed=3)


def fresh(**changes: object) -> SeparateTurns:
    return SeparateTurns(COLOR, SMALL.replace(**changes), seed=3)


@pytest.fixture(scope="module", params=[(4, True), (4, False), (1, True), (1, False)], ids=str)
def taught(request: pytest.FixtureRequest) -> SeparateTurns:
    turns, mirror = request.param
    return train(fresh(turns=turns, mirror=mirror), task(0), task(1))


def by_loop(method: SeparateTurns, x: Tensor, number: int, turns: int, mirror: bool) -> Tensor:
    """One image at a time, turned and mirrored by NumPy."""
    net, found = method.net[number].eval(), []
    with torch.no_grad():
        for image in x.numpy():
            looks = []
            for flipped in (image, image[:, :, ::-1])[: 1 + mirror]:
                for turn in range(turns):
                    way = np.rot90(flipped, turn, (1, 2)).copy()
                    looks.append(net(torch.from_numpy(way).unsqueeze(0))[0, 2 * turn : 2 * turn + 2])
            found.append(sum(looks) / len(looks))
    return torch.stack(found)


def test_a_logit_is_the_mean_of_the_matching_ones_over_turns_and_mirrorings(taught: SeparateTurns) -> None:
    s, x = taught.settings, task(0).x[:6]
    for number in (0, 1):
        expected = by_loop(taught, x, number, s.turns, s.mirror)
        torch.testing.assert_close(taught.logits(x, number), expected, rtol=1e-4, atol=1e-5)


def test_where_nobody_tells_the_task_the_largest_raw_logit_of_all_networks_answers(taught: SeparateTurns) -> None:
    s, x = taught.settings, torch.cat([task(0).x[:8], task(1).x[:8]])
    logits = torch.cat([by_loop(taught, x, number, s.turns, s.mirror) for number in (0, 1)], 1)
    found = taught.predict(x, None, marginal=False, posterior_samples=0, seed=0)
    assert torch.equal(found.labels, logits.argmax(1))
    assert torch.equal(found.task, logits.argmax(1) // 2)
    torch.testing.assert_close(found.probabilities, logits.double().softmax(1), rtol=1e-3, atol=1e-5)
    given = taught.predict(x, torch.ones(16, dtype=torch.long), marginal=False, posterior_samples=0, seed=0)
    assert torch.equal(given.labels, 2 + logits[:, 2:].argmax(1))


@pytest.mark.parametrize("mirror", [False, True])
def test_the_loss_is_that_of_every_image_in_every_turn(mirror: bool) -> None:
    method, data = fresh(mirror=mirror), task(0, rows=6)
    method.begin_task(data)
    twin = reloaded_network(method)
    images, labels = [], []
    for turn in range(4):
        for row, (image, label) in enumerate(zip(data.x.numpy(), data.y.tolist(), strict=True)):
            seen = image[:, :, ::-1] if mirror and row % 2 == 0 else image
            images.append(torch.from_numpy(np.rot90(seen, turn, (1, 2)).copy()))
            labels.append(2 * turn + label)
    out = twin(torch.stack(images))
    loss = method.loss(data.x, data.y)
    torch.testing.assert_close(loss.total, F.cross_entropy(out, torch.tensor(labels)))
    assert loss.accuracy == (out[:6, :2].argmax(1) == data.y).float().mean()


def reloaded_network(method: SeparateTurns) -> torch.nn.Module:
    """The first task's network as `ibpwf.models` makes it."""
    twin = models.resnet9(width=4, classes=8, in_channels=3)
    twin.load_state_dict({name: value.clone() for name, value in method.net[0].state_dict().items()})
    return twin.train()


def test_it_learns_classes_and_with_turns_what_is_not_its_own() -> None:
    method = train(fresh(epochs=12), task(0), task(1))
    for number in (0, 1):
        data = task(number)
        truth = torch.tensor(data.classes)[data.y]
        known = method.predict(data.x, torch.full_like(data.y, number), marginal=False, posterior_samples=0, seed=0)
        assert (known.labels == truth).double().mean() > 0.95
        inferred = method.predict(data.x, None, marginal=False, posterior_samples=0, seed=0)
        assert (inferred.labels == truth).double().mean() > 0.9


@pytest.mark.parametrize("width", [None, 6])
@pytest.mark.parametrize("network", ["resnet9", "resnet20"])
def test_its_networks_are_those_of_ibpwf_models(network: str, width: int | None) -> None:
    method = fresh(network=network, width=width)
    method.append(0, 2, seed=11)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        given = {} if width is None else {"width": width}
        expected = getattr(models, network)(**given, classes=8, in_channels=3).state_dict()
    found = method.net[0].state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)


def test_flat_rows_of_a_square_number_of_pixels_are_images(digits: Scenario) -> None:
    settings = SMALL.replace(epochs=1)
    data = data_of(digits[0], rows=64)
    images = TaskData(data.name, 0, data.classes, data.x.view(-1, 1, 8, 8), data.y, data.seed)
    flat = train(SeparateTurns(Problem((64,), 10, "task"), settings, seed=5), data)
    square = train(SeparateTurns(Problem((1, 8, 8), 10, "task"), settings, seed=5), images)
    assert torch.equal(flat.logits(data.x, 0), square.logits(images.x, 0))


@pytest.mark.parametrize(
    ("shape", "changes", "message"),
    [
        ((3, 8, 8), {"network": "mlp"}, "mlp, which method 'separate-turns' does not train; it trains: resnet20, r"),
        ((30,), {}, r"needs images .* examples have shape \(30,\); .* 'separate' learns any rows"),
        ((3, 8, 10), {}, r"turns is 4, which needs square images, .* \(3, 8, 10\); set turns=1"),
        ((3, 6, 6), {}, r"resnet9, which needs images from 8×8, .* \(3, 6, 6\); set network=resnet20"),
    ],
)
def test_what_cannot_be_turned_is_refused(shape: tuple[int, ...], changes: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SeparateTurns(Problem(shape, 6, "task"), SMALL.replace(**changes))


def test_images_that_are_not_square_are_learned_without_turns() -> None:
    method = SeparateTurns(Problem((3, 8, 10), 6, "task"), SMALL.replace(turns=1, mirror=True))
    data = TaskData("wide", 0, (0, 1), torch.rand(32, 3, 8, 10), torch.arange(32) % 2)
    assert train(method, data).logits(data.x, 0).shape == (32, 2)


def test_other_baselines_do_not_train_a_resnet9() -> None:
    with pytest.raises(InputError, match="resnet9, which method 'adam' does not train; it trains: mlp, resnet20"):
        Adam(COLOR, Adam.settings_type(network="resnet9"))


def test_earlier_networks_do_not_change_and_owe_nothing_to_each_other() -> None:
    method = train(fresh(), task(0))
    before = method.logits(task(0).x, 0)
    train(method, task(1))
    assert torch.equal(method.logits(task(0).x, 0), before)
    noise = TaskData("noise", 0, (0, 1), torch.randn(48, 3, 8, 8), torch.arange(48) % 2, seed=3)
    other = train(fresh(), noise, task(1))
    assert torch.equal(method.logits(task(1).x, 1), other.logits(task(1).x, 1))


def test_tasks_of_different_numbers_of_classes_are_stored_and_loaded() -> None:
    method = train(fresh(), task(0, classes=3), task(1))
    copy = reloaded(method)
    assert [method.logits(task(0).x, number).shape[1] for number in (0, 1)] == [3, 2]
    assert torch.equal(copy.logits(task(0).x, 1), method.logits(task(0).x, 1))


def test_memory_is_a_network_a_task_with_an_output_for_each_class_and_turn() -> None:
    method = train(fresh(), task(0), task(1))
    one = models.resnet9(width=4, classes=8, in_channels=3)
    assert method.parameter_count() == 2 * sum(p.numel() for p in one.parameters())
    assert method.memory() == {"network": 2 * sum(t.nbytes for t in one.state_dict().values())}


def test_it_is_compared_where_turning_makes_sense() -> None:
    for scenario in ("split-mnist", "split-fashion-mnist", "split-digits", "split-cifar10"):
        assert "separate-turns" in chosen_methods("all", scenario)
        made = preset(scenario, "default", "separate-turns").make_settings("separate-turns")
        assert (made.network, made.turns) == ("resnet9", 4)
        assert made.mirror == (scenario in ("split-fashion-mnist", "split-cifar10"))
    assert "separate-turns" not in chosen_methods("all", "permuted-mnist")
    with pytest.raises(InputError, match="method 'separate-turns' has no network for the images of permuted-mnist"):
        preset("permuted-mnist", "paper", "separate-turns")
