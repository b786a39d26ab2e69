"""Likelihoods from outside the package: targets that are no class labels, with nothing of ours edited."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ibpwf import Learner, Settings, export
from ibpwf.errors import InputError, StoreError
from ibpwf.inference.prediction import Prediction
from ibpwf.likelihoods import Likelihood, RowScores
from ibpwf.training.callbacks import Callback, StepEnd
from ibpwf.training.checkpoint import Checkpoint


@dataclass(frozen=True)
class Means(Prediction):
    """Of a regression."""

    mean: Tensor | None = None


class Normal(Likelihood):
    """Numbers with Gaussian noise of a known spread."""

    noise: float = 0.1

    def checked(self, y: Any, examples: int) -> Tensor:
        found = torch.as_tensor(y).float().reshape(examples, -1)
        if not bool(torch.isfinite(found).all()):
            raise InputError("y holds numbers that are not finite; leave such rows out.")
        return found

    def log_prob(self, scores: Tensor, y: Tensor) -> Tensor:
        return torch.distributions.Normal(scores, self.noise).log_prob(y).sum(1)

    def predict(self, rows: RowScores) -> Means:
        task = rows.owners.tasks
        told = F.one_hot(task, len(rows.known)).double()
        likely = told if rows.task_probabilities is None else rows.task_probabilities
        none = rows.scores.new_zeros(len(rows.scores))
        return Means(task, rows.scores, (), task, likely, none, mean=rows.scores)


class Tags(Normal):
    """Several labels at once, each of which a row has or has not."""

    def log_prob(self, scores: Tensor, y: Tensor) -> Tensor:
        return -F.binary_cross_entropy_with_logits(scores, y, reduction="none").sum(1)

    def right(self, scores: Tensor, y: Tensor) -> Tensor:
        return ((scores.detach() > 0) == (y > 0.5)).all(1)


def rows(task: int, count: int = 160) -> tuple[Tensor, Tensor]:
    """Inputs of a task, and two numbers that follow from each."""
    generator = torch.Generator().manual_seed(task)
    weight = torch.randn(6, 2, generator=generator)
    x = torch.randn(count, 6, generator=generator) + 4 * task
    return x, torch.tanh((x - 4 * task) @ weight / 2)


def new(likelihood: Likelihood | None = None, **changes: Any) -> Learner:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 2))
    settings = Settings(epochs=30, finetune_epochs=20, batch_size=16, learning_rate=0.01, heads="per-task")
    return Learner(net, settings.replace(likelihood=likelihood or Normal(), **changes), seed=1, device="cpu")


@pytest.fixture(scope="module")
def taught() -> Learner:
    learner = new()
    for task in range(2):
        learner.learn(*rows(task), task=f"t{task}")
    return learner


def error(learner: Learner, number: int, **how: Any) -> float:
    """The mean squared error on new rows, as a share of their variance."""
    x, y = (part[100:] for part in rows(number))
    found = learner.predict(x, **how)
    assert isinstance(found, Means)
    assert found.mean is not None
    return float((found.mean - y).square().mean() / y.var())


@pytest.mark.parametrize("told", [True, False])
def test_a_regression_learns_and_predicts(taught: Learner, told: bool) -> None:
    for task in range(2):
        assert error(taught, task, **({"task": f"t{task}"} if told else {})) < 0.15


def test_an_earlier_task_predicts_the_same_bits_after_a_later_one(taught: Learner) -> None:
    first, x = new(), rows(0)[0]
    first.learn(*rows(0), task="t0")
    assert torch.equal(first.logits(x, "t0"), taught.logits(x, "t0"))


def test_a_regression_is_saved_and_loaded_to_the_bit(taught: Learner, tmp_path: Path) -> None:
    taught.save(tmp_path / "model")
    with pytest.raises(StoreError, match="likelihood"):
        Learner.load(tmp_path / "model", device="cpu")
    loaded = Learner.load(tmp_path / "model", likelihood=Normal(), device="cpu")
    x = torch.cat([rows(task)[0] for task in range(2)])
    assert torch.equal(loaded.predict(x).mean, taught.predict(x).mean)  # type: ignore[attr-defined]


class StopAt(Callback):
    def __init__(self, step: int) -> None:
        self.left = step

    def step_end(self, event: StepEnd) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def test_a_regression_is_resumed_within_a_task(taught: Learner, tmp_path: Path) -> None:
    learner = new()
    learner.learn(*rows(0), task="t0")
    learner.save(tmp_path / "model")
    with contextlib.suppress(KeyboardInterrupt):
        learner.learn(*rows(1), task="t1", callbacks=[Checkpoint(tmp_path / "model", every=0), StopAt(7)])
    again = Learner.load(tmp_path / "model", likelihood=Normal(), device="cpu")
    again.learn(*rows(1), task="t1", callbacks=[Checkpoint(tmp_path / "model", every=0, resume=True)])
    assert torch.equal(again.logits(rows(1)[0], "t1"), taught.logits(rows(1)[0], "t1"))


def test_batches_bring_their_own_targets() -> None:
    x, y = rows(0)
    batches = [(x[start : start + 16], y[start : start + 16]) for start in range(0, len(x), 16)]
    learner = new()
    learner.learn(batches, task="t0")
    assert error(learner, 0, task="t0") < 0.1


def test_a_validation_split_ends_the_training_of_a_regression() -> None:
    learner = new(validation_fraction=0.25, early_stopping=True)
    learner.learn(*rows(0, 400), task="t0")
    assert error(learner, 0, task="t0") < 0.1


def test_several_labels_at_once_are_a_likelihood_too() -> None:
    x, y = rows(0)
    learner = new(Tags())
    told = learner.learn(x, (y > 0).float(), task="t0")
    assert told.training_accuracy is not None
    assert told.training_accuracy > 90
    assert float(((learner.logits(x, "t0") > 0) == (y > 0)).double().mean()) > 0.95


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"inference": "gaussian", "inference.per": "class"}, "inference"),
        ({"inference": "router"}, "inference"),
        ({"turns": 4}, "turns"),
    ],
)
def test_what_needs_classes_is_rejected_beside_a_regression(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=field):
        new(**changes).learn(*rows(0))


@pytest.mark.parametrize("how", [{"posterior_samples": 5}, {"marginal": True}])
def test_predictions_that_need_classes_are_rejected_by_name(taught: Learner, how: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(how))):
        taught.predict(rows(0)[0], **how)


def test_an_update_and_a_graph_are_rejected_by_name(taught: Learner, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="update"):
        taught.fork().update(*rows(0), task="t0")
    with pytest.raises(InputError, match="graph"):
        export(taught, to="pt2", path=tmp_path / "all.pt2", task="t0")
    assert torch.isfinite(taught.merge("t0")(rows(0)[0])).all()


def test_targets_that_are_not_finite_are_rejected() -> None:
    x, y = rows(0)
    with pytest.raises(InputError, match="y holds"):
        new().learn(x, torch.where(y > 0.5, torch.nan, y))
