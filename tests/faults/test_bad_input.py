"""Whatever a user hands in wrong is named, with its value and a remedy, and the learner stays as it was."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from ibpwf import Learner, Settings, factorize, method, models
from ibpwf.errors import IBPWFError, InputError, TrainingError
from ibpwf.inference.gaussian import Gaussian
from ibpwf.lab import scenario
from ibpwf.lab.data.tasks import Scenario
from ibpwf.training.callbacks import Callback, EpochEnd

X, Y = torch.randn(20, 64, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2


def with_value(value: float, row: int = 7) -> Tensor:
    x = X.clone()
    x[row, 3] = value
    return x


LEARNING: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "fractions": ((X, Y + 0.5), {}, r"y holds 0\.5, which is not a 64-bit integer; encode the labels"),
    "words": ((X, ["a", "b"] * 10), {}, "y holds text; encode the labels as whole numbers"),
    "one hot": ((X, torch.eye(2)[Y]), {}, r"y has shape \(20, 2\); give one integer label per example"),
    "fewer labels": ((X, Y[:-1]), {}, "x has 20 examples but y has 19 labels; they must be as many"),
    "NaN": ((with_value(math.nan), Y), {}, "x holds nan in row 7; remove or replace NaN and infinite values"),
    "infinite": ((with_value(-math.inf), Y), {}, "x holds -inf in row 7; remove or replace NaN"),
    "narrow": ((X[:, :63], Y), {}, r"x has examples of shape \(63,\).*; reshape x to fit|.*Reshape x or change"),
    "flat": ((X[:, 0], Y), {}, r"x has shape \(20,\); give one example per row, such as \(N, features\)"),
    "images": ((X.view(20, 1, 8, 8), Y), {}, r"x has examples of shape \(1, 8, 8\)"),
    "empty": ((X[:0], Y[:0]), {}, "x is empty; a task needs examples"),
    "no labels": ((X,), {}, "y is missing; give one integer label per example"),
    "labels twice": (
        (TensorDataset(X, Y), Y),
        {},
        "y was given beside a TensorDataset, which brings its own labels; leave y out",
    ),
    "no name": ((X, Y), {"task": " "}, "task is ' '; give it a name, such as 'left camera'"),
    "a number for a name": ((X, Y), {"task": 3}, "task is 3; give it a name"),
    "too many classes": ((X, torch.arange(20)), {}, r"20 outputs, .* the shared head 'head' has 10 outputs; give"),
}


def files_of(learner: Learner, folder: Path) -> dict[str, bytes]:
    learner.save(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def refused(call: Callable[[], object], kind: type[IBPWFError], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mistake", LEARNING)
def test_a_first_task_that_cannot_be_learnt_leaves_the_learner_empty(fresh: Learner, mistake: str) -> None:
    words, options, message = LEARNING[mistake]
    refused(lambda: fresh.learn(*words, **options), InputError, message)
    assert not fresh.tasks
    refused(lambda: fresh.predict(X), InputError, r"nothing has been learnt yet; call learn\(x, y\) first")


@pytest.mark.parametrize("mistake", LEARNING)
def test_a_later_task_that_cannot_be_learnt_changes_nothing(learned: Learner, mistake: str, tmp_path: Path) -> None:
    before = files_of(learned, tmp_path / "before")
    answer = learned.predict(X)
    words, options, message = LEARNING[mistake]
    refused(lambda: learned.learn(*words, **options), InputError, message)
    assert files_of(learned, tmp_path / "after") == before
    assert torch.equal(learned.predict(X).probabilities, answer.probabilities)


def test_a_name_that_is_taken_is_refused(learned: Learner) -> None:
    refused(
        lambda: learned.learn(X, Y, "2/3"), InputError, "a task named '2/3' has been learnt already; choose another"
    )


def test_after_every_mistake_the_next_task_is_learnt_as_if_none_had_happened(
    learned: Learner, learnt_folder: Path, digits: Scenario, tmp_path: Path
) -> None:
    for words, options, _ in LEARNING.values():
        with pytest.raises(InputError):
            learned.learn(*words, **options)
    spared = Learner.load(learnt_folder)
    for learner in (learned, spared):
        learner.learn(digits[2].train.x, digits[2].train.y, task="4/5")
    assert files_of(learned, tmp_path / "one") == files_of(spared, tmp_path / "other")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "2/4"}, r"unknown task '2/4'\. Did you mean '2/3'\? Known: 0/1, 2/3\."),
        ({"task": 2}, "task is 2, but 2 tasks have been learnt; give a number from 0 to 1, or a name"),
        ({"task": -3}, "task is -3, but 2 tasks"),
        ({"task": 1.0}, r"task is 1\.0; give a task's name or number"),
        ({"task": torch.zeros(20)}, r"task is 0\.0; give a task's name or number"),
        ({"task": [0, 1]}, "task has 2 entries for 20 inputs; give one, or one per input"),
        ({"task": [0] * 19 + ["3/2"]}, "unknown task '3/2'"),
        ({"posterior_samples": -1}, "posterior_samples is -1; give a whole number from 0"),
        ({"posterior_samples": 2.5}, r"posterior_samples is 2\.5; give a whole number"),
        ({"posterior_samples": 2, "seed": -4}, "seed is -4; give a whole number from 0"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(learned: Learner, options: dict[str, Any], message: str) -> None:
    refused(lambda: learned.predict(X, **options), InputError, message)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (X[:, :10], r"x has examples of shape \(10,\), earlier tasks had \(64,\); reshape x to fit"),
        (X[0], r"x has shape \(64,\); give one example per row"),
        (with_value(math.nan, 4), "x holds nan in row 4"),
        ([["a"] * 64], "x holds text; give numbers"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_when_predicting(learned: Learner, x: Any, message: str) -> None:
    refused(lambda: learned.predict(x), InputError, message)
    refused(lambda: learned.logits(x, 0), InputError, message)


def test_before_the_first_task_there_is_nothing_to_ask(fresh: Learner) -> None:
    asks: list[Callable[[], object]] = [lambda: fresh.predict(X), lambda: fresh.logits(X, 0), lambda: fresh.merge(0)]
    for ask in asks:
        refused(ask, InputError, r"nothing has been learnt yet; call learn\(x, y\) first")


def test_what_is_no_network_or_no_seed_is_refused(net: nn.Module, fresh: Learner, digits: Scenario) -> None:
    refused(lambda: Learner("resnet"), InputError, r"net is a str; give a torch\.nn\.Module")  # type: ignore[arg-type]
    for seed in (-1, 1.5, True, "0", 2**63):
        refused(lambda seed=seed: Learner(net, seed=seed), InputError, "seed is .*; give a whole number from 0")  # type: ignore[misc]
    refused(lambda: Learner(net, device="tpu-v9"), InputError, "device is 'tpu-v9'; give 'auto', 'cpu' or 'cuda'")
    taught = Learner(factorize(net), Settings(epochs=1, finetune_epochs=0))
    taught.learn(X, Y)
    refused(lambda: Learner(taught.model), InputError, "already belongs to a learner; factorize the network again")


def test_a_network_that_gives_no_row_of_scores_is_refused() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.layer(x), x

    refused(
        lambda: Learner(Pair()).learn(X, Y), InputError, "the network gives a tuple for one example; it must give"
    )
    grid = nn.Sequential(nn.Unflatten(1, (8, 8)), nn.Linear(8, 4))
    refused(lambda: Learner(grid).learn(X, Y), InputError, r"the network gives shape \(1, 8, 4\) for one example")


def test_unknown_names_in_settings_and_scenarios_come_with_a_suggestion(net: nn.Module) -> None:
    refused(
        lambda: scenario("split-mnits"), InputError, r"unknown scenario 'split-mnits'\. Did you mean 'split-mnist'"
    )
    layers = Settings(**{"inference.features.layers": ("hiden1",)})
    refused(
        lambda: Learner(net, layers), InputError, "unknown layer of the features 'hiden1'. Did you mean 'hidden1'"
    )


# Training that goes wrong or is broken off


def test_a_loss_that_is_no_longer_a_number_ends_the_task_and_names_the_step(
    learned: Learner, digits: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files_of(learned, tmp_path / "before")
    real, calls = method.negative_elbo, [0]

    def breaks(*words: Any) -> Tensor:
        calls[0] += 1
        return real(*words) * (math.nan if calls[0] == 23 else 1.0)

    monkeypatch.setattr(method, "negative_elbo", breaks)
    task = digits[2]
    batches = len(task.train) // 16
    step = f"at step {23 - batches} of epoch 2 \\(elbo\\) of task '4/5'"
    refused(
        lambda: learned.learn(task.train.x, task.train.y, task="4/5"), TrainingError, step + ".*Lower learning_rate"
    )
    assert files_of(learned, tmp_path / "after") == before
    monkeypatch.undo()
    learned.learn(task.train.x, task.train.y, task="4/5")
    assert float((learned.predict(task.test.x, task="4/5").labels == task.test.y).double().mean()) > 0.9


def test_a_learning_rate_far_too_high_is_reported_and_not_stored(net: nn.Module, small: Settings) -> None:
    learner = Learner(net, small.replace(learning_rate=1e25))
    refused(
        lambda: learner.learn(X, Y), TrainingError, "not a number .*earlier tasks are unchanged. Lower learning_rate"
    )
    assert not learner.tasks
    one_step = Learner(net, small.replace(learning_rate=1e38, epochs=1, finetune_epochs=0, batch_size=64))
    refused(lambda: one_step.learn(X, Y), TrainingError, "not a number after the last step of the elbo phase of task")


def test_inputs_too_large_to_compute_with_are_blamed(fresh: Learner) -> None:
    refused(lambda: fresh.learn(X * 1e38, Y), (TrainingError, InputError), "extreme values in x|infinite values")  # type: ignore[arg-type]
    assert not fresh.tasks


@pytest.mark.parametrize("moment", ["first step", "an epoch", "fine-tuning", "growing", "statistics"])
def test_ctrl_c_during_training_leaves_the_learner_as_it_was(
    learned: Learner, digits: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    before = files_of(learned, tmp_path / "before")

    def interrupt(*words: object) -> None:
        raise KeyboardInterrupt

    class Watching(Callback):
        def epoch_end(self, epoch: EpochEnd) -> None:
            if (moment, epoch.phase, epoch.epoch) in (("an epoch", "elbo", 2), ("fine-tuning", "finetune", 1)):
                raise KeyboardInterrupt

    if moment == "first step":
        monkeypatch.setattr(method, "negative_elbo", interrupt)
    elif moment == "growing":
        monkeypatch.setattr(method.IBPWF, "after_epoch", interrupt)
    elif moment == "statistics":
        monkeypatch.setattr(Gaussian, "moments_of", interrupt)
    task = digits[2]
    with pytest.raises(KeyboardInterrupt):
        learned.learn(task.train.x, task.train.y, task="4/5", callbacks=[Watching()])
    monkeypatch.undo()
    assert files_of(learned, tmp_path / "after") == before
    learned.learn(task.train.x, task.train.y, task="4/5")
    spared = Learner.load(tmp_path / "before")
    spared.learn(task.train.x, task.train.y, task="4/5")
    assert files_of(learned, tmp_path / "one") == files_of(spared, tmp_path / "other")


def test_a_head_too_narrow_can_be_replaced_by_heads_of_their_own(digits: Scenario) -> None:
    """The remedy that the error about too many classes names."""
    settings = Settings(epochs=1, finetune_epochs=1, alpha=8.0, heads="per-task")
    learner = Learner(models.mlp(64, [16], 2), settings)
    assert learner.learn(X, torch.arange(20), task="wide").classes == tuple(range(20))
    assert learner.predict(X, task="wide").probabilities.shape == (20, 20)
