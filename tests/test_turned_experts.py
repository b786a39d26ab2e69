"""Tasks learned with turns: what they are trained on, what they answer, and that nothing of it ever changes again."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from ibpwf import ContinualClassifier, Learner, Settings
from ibpwf.errors import InputError
from ibpwf.method import FINETUNE
from ibpwf.training.callbacks import Callback, StepEnd
from ibpwf.training.checkpoint import Checkpoint
from ibpwf.training.method import TaskData
from statistics_seen import batches_of_statistics

CLASSES = ((0, 1), (2, 3), (4, 5, 6))
TURNS = (4, 1, 4)
"""Of the three tasks of `taught`."""

SETTINGS = Settings(alpha=6.0, epochs=3, finetune_epochs=2, batch_size=16, learning_rate=0.02, turns=4)


def network(outputs: int = 12) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        stem = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        body = [nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 16), nn.Tanh()]
        return nn.Sequential(stem, *body, nn.Linear(16, outputs))


def flat_network() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 8))


@functools.cache
def digits() -> tuple[Tensor, Tensor]:
    found = load_digits()
    return torch.from_numpy(found.images).float().unsqueeze(1) / 16, torch.from_numpy(found.target)


def examples(task: int, rows: int = 48) -> tuple[Tensor, Tensor]:
    """Images of 8×8 pixels of a task's digits."""
    x, y = digits()
    chosen = torch.isin(y, torch.tensor(CLASSES[task]))
    return x[chosen][:rows], y[chosen][:rows].long()


X = torch.cat([examples(task, rows=60)[0][48:] for task in range(3)])
"""Images that no task has learned."""


@functools.cache
def _taught(heads: str, mirror: bool, turns: tuple[int, ...]) -> Learner:
    learner = Learner(network(), SETTINGS.replace(heads=heads, mirror=mirror), seed=5, device="cpu")
    for task, each in enumerate(turns):
        learner.settings = learner.settings.replace(turns=each)
        learner.learn(*examples(task), task=f"t{task}")
    return learner


def taught(heads: str = "shared", mirror: bool = False, turns: tuple[int, ...] = TURNS) -> Learner:
    """A learner of three tasks, the second of them without turns."""
    return _taught(heads, mirror, turns).fork()


def plain(learner: Learner, task: int, state: dict[str, Tensor] | None = None) -> nn.Module:
    """A task's weights in a network that knows nothing of turns."""
    state = learner.model.state(task) if state is None else state
    net = network(len(state["7.bias"]))
    net.load_state_dict(state)
    return net.eval()


def by_a_plain_loop(net: nn.Module, classes: int, turns: int, mirror: bool, x: Tensor = X) -> np.ndarray:
    """The mean of the matching outputs over all views that numpy makes of the images."""
    images = [x.numpy(), x.numpy()[..., ::-1]] if mirror and turns > 1 else [x.numpy()]
    found = []
    for one in images:
        for turn in range(turns):
            view = np.ascontiguousarray(np.rot90(one, turn, axes=(2, 3)))
            outputs = net(torch.from_numpy(view)).detach().double().numpy()
            found.append(outputs[:, turn * classes : (turn + 1) * classes])
    return np.mean(found, axis=0)


def answers(learner: Learner, task: str) -> list[Tensor]:
    """All that a task says of the same images, by itself."""
    number = learner.task_number(task)
    told = [learner.predict(X, task=task, posterior_samples=posterior_samples) for posterior_samples in (0, 6)]
    mine = [column for column, (owner, _) in enumerate(told[0].classes) if owner == number]
    return [
        learner.logits(X, task),
        *(one.probabilities[:, mine] for one in told),
        *(one.labels for one in told),
        learner.merge(task)(X).detach(),
    ]


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(left, right, strict=True))


def same_models(left: Learner, right: Learner) -> bool:
    """Whether all that would be stored of two learners is the same to the bit."""
    (one, parts), (other, others) = left.method.state(), right.method.state()
    return (
        one == other
        and parts.keys() == others.keys()
        and all(parts[name].keys() == others[name].keys() for name in parts)
        and all(torch.equal(tensor, others[name][key]) for name in parts for key, tensor in parts[name].items())
    )


# Learning


@pytest.mark.parametrize("heads", ["shared", "per-task"])
def test_a_task_of_c_classes_has_4c_outputs_and_answers_with_c_columns(heads: str) -> None:
    learner = taught(heads)
    assert [task.outputs for task in learner.model.tasks] == [8, 2, 12]
    assert [task.turns for task in learner.model.tasks] == [4, 1, 4]
    assert [learner.logits(X, task).shape[1] for task in range(3)] == [2, 2, 3]
    columns = tuple((task, label) for task, labels in enumerate(CLASSES) for label in labels)
    for options in ({}, {"task": 0}, {"marginal": True}, {"posterior_samples": 3}):
        answer = learner.predict(X, **options)  # type: ignore[arg-type]
        assert answer.classes == columns
        assert answer.probabilities.shape == (len(X), 7)
        torch.testing.assert_close(answer.probabilities.sum(1), torch.ones(len(X), dtype=torch.float64))


def test_a_task_learned_with_turns_is_learned_well() -> None:
    learner = Learner(network(8), SETTINGS.replace(epochs=20, finetune_epochs=10), seed=0)
    x, y = examples(0, rows=300)
    learner.learn(x[:200], y[:200])
    told = learner.predict(x[200:], task=0).labels
    assert float((told == y[200:]).double().mean()) > 0.97


@pytest.mark.parametrize("phase", ["elbo", "finetune"])
@pytest.mark.parametrize("task", [0, 2])
def test_the_loss_of_a_mini_batch_is_cross_entropy_on_turned_rows_and_the_kl_shared_by_all_of_them(
    phase: str, task: int
) -> None:
    method = taught().method.fork() if task else Learner(network(), SETTINGS, device="cpu").method
    (x, y), classes = examples(task), CLASSES[task]
    local = torch.tensor([classes.index(int(label)) for label in y])
    phases = method.begin_task(TaskData("next", len(method.classes), classes, x, local))
    method.parameters(phases[0 if phase == "elbo" else 1])
    assert phases[1].name == FINETUNE
    training = method.network
    assert training is not None and training.noise is not None  # noqa: PT018
    random = training.noise.get_state()
    loss = method.loss(x[:16], local[:16])

    training.noise.set_state(random)
    kl = float(training.kl().detach()) if phase == "elbo" else None
    rows = np.concatenate([np.rot90(x[:16].numpy(), turn, axes=(2, 3)) for turn in range(4)])
    outputs = training(torch.from_numpy(rows.copy())).detach().double().numpy()
    assert outputs.shape == (64, 4 * len(classes))
    log_p = special.log_softmax(outputs, axis=1)
    wanted = [turn * len(classes) + int(label) for turn in range(4) for label in local[:16]]
    fit = -np.mean([log_p[row, output] for row, output in enumerate(wanted)])
    assert float(loss.total) == pytest.approx(fit + (kl / (4 * len(x)) if kl is not None else 0), rel=1e-5)
    assert loss.penalty is None if kl is None else float(loss.penalty) == pytest.approx(kl)
    assert loss.accuracy is not None
    right = outputs[:16, : len(classes)].argmax(1) == local[:16].numpy()
    assert float(loss.accuracy) == pytest.approx(right.mean())


def test_the_training_accuracy_that_is_told_is_that_of_images_as_they_came() -> None:
    hardly = SETTINGS.replace(epochs=2, finetune_epochs=1, learning_rate=1e-12, batch_size=48)
    learner = Learner(flat_network(), hardly, seed=1)
    x, y = examples(0)
    told = learner.learn(x, y).training_accuracy
    assert told is not None
    right = learner.merge(0)(x).argmax(1) == y
    assert told == pytest.approx(100 * float(right.double().mean()))
    outputs = learner.model.ready(0)(torch.cat([torch.rot90(x, turn, (2, 3)) for turn in range(4)]))
    turned_right = outputs.argmax(1) == torch.cat([y + 2 * turn for turn in range(4)])
    assert told != pytest.approx(100 * float(turned_right.double().mean()))  # by which the two are told apart


def test_without_fine_tuning_batch_normalization_takes_the_statistics_of_turned_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = batches_of_statistics(monkeypatch)
    learner, (x, y) = Learner(network(), SETTINGS.replace(finetune_epochs=0), seed=2, device="cpu"), examples(0)
    learner.learn(x, y)
    state = learner.model.state(0)
    turned = np.concatenate([np.rot90(x.numpy(), turn, axes=(2, 3)) for turn in range(4)]).reshape(-1, 64)
    assert np.array_equal(np.sort(turned, axis=0), np.sort(torch.cat(seen).flatten(1).numpy(), axis=0))
    means, variances = [], []
    for rows in seen:
        out = nn.functional.conv2d(rows, state["0.weight"], padding=1).numpy()
        means.append(out.mean((0, 2, 3)))
        variances.append(out.var((0, 2, 3), ddof=1))
    np.testing.assert_allclose(state["1.running_mean"].numpy(), np.mean(means, axis=0), atol=1e-5)
    np.testing.assert_allclose(state["1.running_var"].numpy(), np.mean(variances, axis=0), rtol=1e-4)


@pytest.mark.parametrize("heads", ["shared", "per-task"])
@pytest.mark.parametrize("turns", [(4, 4), (4, 1), (1, 4)])
def test_old_tasks_answer_with_the_same_bits_whatever_turns_new_ones_have(heads: str, turns: tuple[int, int]) -> None:
    learner = Learner(network(), SETTINGS.replace(heads=heads, turns=turns[0]), seed=5, device="cpu")
    learner.learn(*examples(0), task="t0")
    before = answers(learner, "t0")
    learner.settings = learner.settings.replace(turns=turns[1])
    assert same(answers(learner, "t0"), before)
    learner.learn(*examples(1), task="t1")
    second = answers(learner, "t1")
    learner.learn(*examples(2), task="t2")
    assert [task.turns for task in learner.model.tasks] == [turns[0], turns[1], turns[1]]
    assert same(answers(learner, "t0"), before)
    assert same(answers(learner, "t1"), second)


def test_the_same_seed_gives_the_same_bits_and_another_one_others() -> None:
    def learned(seed: int, *form: Any) -> Learner:
        learner = Learner(network(), SETTINGS.replace(augment="crop-flip"), seed=seed, device="cpu")
        learner.learn(*form)
        return learner

    first = learned(1, *examples(0))
    assert same_models(first, learned(1, *examples(0)))
    assert same_models(first, learned(1, TensorDataset(*examples(0))))
    assert not same_models(first, learned(2, *examples(0)))


def test_one_turn_gives_the_bits_of_a_learner_that_was_never_told_of_turns() -> None:
    told = Learner(network(), SETTINGS.replace(turns=1, mirror=True), seed=1, device="cpu")
    never = Learner(network(), Settings(alpha=6.0, epochs=3, finetune_epochs=2, batch_size=16, learning_rate=0.02))
    never.seed = 1
    for learner in (told, never):
        learner.learn(*examples(0))
    assert same(answers(told, "task-1"), answers(never, "task-1"))


# Answering


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("heads", ["shared", "per-task"])
def test_answers_are_the_mean_over_turns_and_mirrorings_of_a_plain_loop(heads: str, mirror: bool) -> None:
    learner = taught(heads, mirror)
    for task, classes in enumerate(CLASSES):
        scores = by_a_plain_loop(plain(learner, task), len(classes), TURNS[task], mirror)
        np.testing.assert_allclose(learner.logits(X, task).numpy(), scores, rtol=0, atol=1e-5)
        answer = learner.predict(X, task=task)
        assert answer.labels.tolist() == [classes[best] for best in scores.argmax(1)]
        mine = [column for column, (owner, _) in enumerate(answer.classes) if owner == task]
        expected = special.softmax(scores, axis=1)
        np.testing.assert_allclose(answer.probabilities[:, mine].numpy(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("heads", ["shared", "per-task"])
def test_posterior_draws_are_those_of_a_plain_loop_over_draws_turns_and_mirrorings(heads: str, mirror: bool) -> None:
    learner, posterior_samples, seed = taught(heads, mirror), 20, 3
    for task, classes in enumerate(CLASSES):
        answer = learner.predict(X, task=task, posterior_samples=posterior_samples, seed=seed)
        generator = torch.Generator().manual_seed(seed * 1_000_003 + task)  # as documented: of the seed and the task
        states = learner.model.sampled_states(task, posterior_samples, generator)
        each = []
        for draw in range(posterior_samples):
            net = plain(learner, task, {name: tensor[draw] for name, tensor in states.items()})
            each.append(special.softmax(by_a_plain_loop(net, len(classes), TURNS[task], mirror), axis=1))
        mean = np.mean(each, axis=0)
        mine = [column for column, (owner, _) in enumerate(answer.classes) if owner == task]
        np.testing.assert_allclose(answer.probabilities[:, mine].numpy(), mean, rtol=0, atol=1e-5)
        single = np.mean([special.entr(p).sum(1) for p in each], axis=0)
        assert answer.mutual_information is not None
        information = special.entr(mean).sum(1) - single
        np.testing.assert_allclose(answer.mutual_information.numpy(), information, rtol=0, atol=1e-5)


@pytest.mark.parametrize("heads", ["shared", "per-task"])
def test_a_merged_task_is_the_network_for_images_as_they_come(heads: str) -> None:
    learner = taught(heads, mirror=True)
    for task, classes in enumerate(CLASSES):
        merged, outputs = learner.merge(task), plain(learner, task)(X).detach()
        assert type(merged) is nn.Sequential
        torch.testing.assert_close(merged(X).detach(), outputs[:, : len(classes)], rtol=0, atol=1e-6)
        own = network(len(classes) if heads == "per-task" else 12)
        own.load_state_dict(merged.state_dict())
        assert own.eval()(X).argmax(1).tolist() == outputs[:, : len(classes)].argmax(1).tolist()


def test_inferring_the_task_asks_the_experts_with_their_turns() -> None:
    learner = taught(mirror=True)
    answer = learner.predict(X)
    for task in range(3):
        rows = answer.task == task
        scores = by_a_plain_loop(plain(learner, task), len(CLASSES[task]), TURNS[task], True)[rows.numpy()]
        assert answer.labels[rows].tolist() == [CLASSES[task][best] for best in scores.argmax(1)]


# To disk and back


@pytest.mark.parametrize("heads", ["shared", "per-task"])
def test_save_and_load_keep_every_bit_and_every_tasks_turns(heads: str, tmp_path: Path) -> None:
    learner = taught(heads, mirror=True)
    learner.save(tmp_path / "model")
    loaded = Learner.load(tmp_path / "model", device="cpu")
    assert same_models(loaded, learner)
    assert [task.turns for task in loaded.model.tasks] == list(TURNS)
    assert loaded.settings == learner.settings
    for options in ({}, {"marginal": True}, {"posterior_samples": 5, "seed": 2}):
        told, again = (one.predict(X, **options) for one in (learner, loaded))  # type: ignore[arg-type]
        assert torch.equal(told.probabilities, again.probabilities)
        assert torch.equal(told.task_probabilities, again.task_probabilities)
    for task in ("t0", "t1", "t2"):
        assert same(answers(loaded, task), answers(learner, task))
    for each in (learner, loaded):  # and both go on from there, alike
        each.learn(*examples(1), task="t3")
    assert same_models(loaded, learner)


@pytest.mark.parametrize("heads", ["shared", "per-task"])
@pytest.mark.parametrize("augment", ["none", "crop-flip"])
def test_a_task_broken_off_anywhere_and_resumed_ends_with_the_same_bits(
    heads: str, augment: str, tmp_path: Path
) -> None:
    def begun() -> Learner:
        learner = taught(heads, turns=(4,))
        learner.settings = learner.settings.replace(augment=augment)
        return learner

    straight = begun()
    straight.learn(*examples(1), task="second")
    steps_in_all = 3 * (3 + 2)
    for after in (1, 3, 5, 10, steps_in_all):
        folder = tmp_path / str(after)
        steps = begun().learn_steps(*examples(1), task="second", callbacks=[Checkpoint(folder, every=0)])
        for _ in range(after):
            next(steps)
        steps.close()
        resumed = begun()
        resumed.learn(*examples(1), task="second", callbacks=[Checkpoint(folder, resume=True)])
        assert same_models(resumed, straight), after


def test_a_task_begun_with_turns_is_not_resumed_without_them(tmp_path: Path) -> None:
    learner = taught(turns=(4,))
    steps = learner.learn_steps(*examples(1), task="second", callbacks=[Checkpoint(tmp_path, every=0)])
    for _ in range(4):
        next(steps)
    steps.close()
    learner.settings = learner.settings.replace(turns=1)
    with pytest.raises(InputError, match="the model or a setting is not the same"):
        learner.learn(*examples(1), task="second", callbacks=[Checkpoint(tmp_path, resume=True)])


@pytest.mark.parametrize("heads", ["shared", "per-task"])
@pytest.mark.parametrize("gone", [0, 1, 2])
def test_forgetting_a_task_leaves_the_others_their_bits_and_turns(heads: str, gone: int, tmp_path: Path) -> None:
    learner = taught(heads, mirror=True)
    others = [f"t{task}" for task in range(3) if task != gone]
    before = {task: answers(learner, task) for task in others}
    learner.forget(f"t{gone}")
    learner.save(tmp_path / "model")
    for each in (learner, Learner.load(tmp_path / "model", device="cpu")):
        assert [task.turns for task in each.model.tasks] == [TURNS[int(name[1])] for name in others]
        assert all(same(answers(each, task), before[task]) for task in others)
        each.learn(*examples(gone), task="again")
        assert all(same(answers(each, task), before[task]) for task in others)


# What cannot be


class Seen(Callback):
    """Whether a step was taken."""

    step_interval, told = 0.0, False

    def step_end(self, step: StepEnd) -> None:
        self.told = True


def refused(learner: Learner, x: Tensor, y: Tensor, words: str) -> None:
    """Before anything is learned, in one line, and the learner stays as it was."""
    seen, before = Seen(), learner.method
    with pytest.raises(InputError, match=words) as caught:
        learner.learn(x, y, task="wrong", callbacks=[seen])
    assert "\n" not in str(caught.value)
    assert not seen.told
    assert learner.method is before


NOT_SQUARE = {"flat rows": (64,), "images without channels": (8, 8), "oblong images": (1, 4, 16)}


@pytest.mark.parametrize("shape", NOT_SQUARE.values(), ids=NOT_SQUARE.keys())
def test_a_first_task_that_is_not_of_square_images_is_refused(shape: tuple[int, ...]) -> None:
    learner, (x, y) = Learner(flat_network(), SETTINGS, device="cpu"), examples(0)
    refused(learner, x.reshape(-1, *shape), y, r"turns is 4, which needs square images.*\(" + str(shape[0]))
    learner.learn(x, y)
    assert learner.model.tasks[0].turns == 4


@pytest.mark.parametrize("batch_size", [16, 64])
@pytest.mark.parametrize("shape", NOT_SQUARE.values(), ids=NOT_SQUARE.keys())
def test_turns_for_a_later_task_are_refused_where_tasks_are_not_of_square_images(
    shape: tuple[int, ...], batch_size: int
) -> None:
    """64 rows of 64 numbers, turned into one another, would fit the network without a word."""
    learner = Learner(flat_network(), SETTINGS.replace(turns=1, batch_size=batch_size), device="cpu")
    x, y = examples(0, rows=64)
    learner.learn(x.reshape(-1, *shape), y, task="first")
    learner.settings = learner.settings.replace(turns=4)
    refused(learner, x.reshape(-1, *shape), y, r"turns is 4, which needs square images.*\(" + str(shape[0]))
    learner.settings = learner.settings.replace(turns=1)
    learner.learn(x.reshape(-1, *shape), y, task="second")


def test_a_table_cannot_be_turned() -> None:
    classifier = ContinualClassifier(hidden=(6,), epochs=2, settings={"turns": 4}, device="cpu")
    x, y = examples(0)
    with pytest.raises(InputError, match="turns is 4, which needs square images"):
        classifier.learn(x.flatten(1).numpy(), y.numpy(), task="a")


def test_a_shared_head_needs_an_output_for_every_turn_of_every_class() -> None:
    x, y = examples(0)
    words = r"needs 8 outputs, one per class \(and per turn of it\), but the shared head '7' has 7 outputs; give"
    narrow = Learner(network(7), SETTINGS, device="cpu")
    refused(narrow, x, y, words)
    for net, heads in ((network(8), "shared"), (network(2), "per-task")):
        learner = Learner(net, SETTINGS.replace(heads=heads), device="cpu")
        learner.learn(x, y)
        assert learner.model.tasks[0].outputs == 8
    narrow.settings = narrow.settings.replace(turns=1)
    narrow.learn(x, y, task="first")
    narrow.settings = narrow.settings.replace(turns=4)
    refused(narrow, x, y, words)


@pytest.mark.parametrize("turns", [0, 2, 3, -4, "4", 4.5, None])
def test_turns_are_one_or_four(turns: object) -> None:
    with pytest.raises(InputError, match=f"turns is {turns!r}; expected 1 or 4"):
        Settings(turns=turns)  # type: ignore[arg-type]
