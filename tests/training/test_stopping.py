"""Held-out rows end the training: what they measure, when a phase is over, and what is left of it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from torch import Tensor, nn

from ibpwf import Learner, Settings
from ibpwf.data.rows import IndexedRows
from ibpwf.likelihoods import Categorical
from ibpwf.linear import HeldOut, compared_on_own_rows, linear_accuracy
from ibpwf.models import mlp
from ibpwf.training.callbacks import Callback, EpochEnd, StepEnd
from ibpwf.training.checkpoint import Checkpoint
from ibpwf.training.phase import Phase
from ibpwf.training.stopping import Stopping


def rows(count: int = 600, noise: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 8, generator=generator)
    score = x[:, 0] + 0.5 * x[:, 1] + noise * torch.randn(count, generator=generator)
    return x, (score > 0).long()


class Epochs(Callback):
    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def epoch_end(self, epoch: EpochEnd) -> None:
        self.seen.append((epoch.phase, epoch.epoch))

    def last(self, phase: str) -> int:
        return max(number for name, number in self.seen if name == phase)


def network(hidden: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return mlp(8, [hidden], 2)


STOPPED = Settings(heads="per-task", init="pretrained", validation_fraction=0.2, early_stopping=True)


def test_a_network_that_is_merely_too_sure_is_as_good_as_one_that_is_not() -> None:
    generator = torch.Generator().manual_seed(1)
    logits, y = torch.randn(200, 3, generator=generator), torch.randint(3, (200,), generator=generator)
    logits[torch.arange(200), y] += 1
    assert Categorical().validation_loss(4 * logits, y) == pytest.approx(
        Categorical().validation_loss(2 * logits, y), abs=2e-3
    )
    assert Categorical().validation_loss(logits, y) <= float(nn.functional.cross_entropy(logits, y)) + 1e-4


def test_noise_ends_the_training_long_before_the_most_epochs_it_may_take() -> None:
    learner, epochs = Learner(network(32), STOPPED, seed=1), Epochs()
    learner.learn(*rows(noise=2.0), callbacks=[epochs])
    assert epochs.last("finetune") < 0.7 * STOPPED.schedule_for(480, stopped=True).finetune_epochs


class Scripted:
    """Stands for a method: one number is trained, and held-out rows say what the script says."""

    def __init__(self, losses: list[float | None]) -> None:
        self.losses, self.weight = iter(losses), torch.zeros(1)

    def held_out_loss(self) -> float | None:
        return next(self.losses)

    def training_state(self) -> tuple[dict[str, int], dict[str, Tensor]]:
        return {"note": int(self.weight)}, {"weight": self.weight}

    def load_training_state(self, content: dict[str, int], tensors: dict[str, Tensor]) -> None:
        assert content["note"] == int(tensors["weight"])
        self.weight = tensors["weight"].clone()


@pytest.mark.parametrize(
    ("losses", "ended", "kept"),
    [
        ([3.0, 2.0, 1.0, 2.0, 1.0, 0.5], 4, 2),  # two epochs without gain end it; the best was the third
        ([3.0, 2.0, 2.5, 1.0, 1.5], 4, 3),  # one is borne, and it may end on its last
        ([float("nan")] * 5, 4, 4),  # nothing to compare: as it is at the end
        ([None] * 5, 4, 4),
    ],
)
def test_what_is_kept_is_the_best_epoch_and_not_the_last(losses: list[float | None], ended: int, kept: int) -> None:
    method = Scripted(losses)
    stopping, phase = Stopping(method), Phase("elbo", 5, 32, patience=2)  # type: ignore[arg-type]
    stopping.start_phase()
    for epoch in range(phase.epochs):
        method.weight += 1
        if stopping.is_over(phase, epoch):
            break
    assert epoch == ended
    stopping.end_phase(epoch)
    assert int(method.weight) == kept + 1


def test_few_held_out_rows_or_batch_normalization_leave_the_length_as_it_is() -> None:
    few, epochs = Learner(network(16), STOPPED.replace(epochs=3), seed=1), Epochs()
    few.learn(*rows(100), callbacks=[epochs])  # 20 held out
    assert [number for name, number in epochs.seen if name == "elbo"] == [1, 2, 3]
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    normalized, epochs = Learner(net, STOPPED.replace(epochs=3), seed=1), Epochs()
    normalized.learn(*rows(), callbacks=[epochs])
    assert [number for name, number in epochs.seen if name == "elbo"] == [1, 2, 3]


@pytest.mark.parametrize("at", [10, 100])
def test_a_task_that_was_broken_off_is_resumed_to_the_same_bits(at: int, tmp_path: Path) -> None:
    x, y = rows(noise=1.5)

    class Stop(Callback):
        steps = 0

        def step_end(self, step: StepEnd) -> None:
            Stop.steps += 1

    Stop.steps = 0
    whole = Learner(network(16), STOPPED, seed=1)
    whole.learn(x, y, callbacks=[Stop()])
    assert Stop.steps > at
    broken = Learner(network(16), STOPPED, seed=1)
    left = iter(range(at))
    with pytest.raises(KeyboardInterrupt):
        broken.learn(x, y, callbacks=[Checkpoint(tmp_path / "m", stop=lambda: next(left, None) is None)])
    broken.learn(x, y, callbacks=[Checkpoint(tmp_path / "m", resume=True)])
    assert torch.equal(broken.logits(x, 0), whole.logits(x, 0))


def test_earlier_tasks_answer_with_the_same_bits_after_one_that_was_stopped() -> None:
    learner = Learner(network(16), STOPPED, seed=1)
    x, y = rows()
    learner.learn(x, y, task="a")
    before = learner.logits(x, "a")
    learner.learn(*rows(seed=3), task="b")
    assert torch.equal(learner.logits(x, "a"), before)


def test_the_linear_model_beside_a_task_is_scikit_learns() -> None:
    x, y = rows(900)
    held, known = x[600:], y[600:]
    ours = linear_accuracy(IndexedRows(x[:600], y[:600]), held, known, 2)
    theirs = LogisticRegression().fit(x[:600].numpy(), y[:600].numpy()).score(held.numpy(), known.numpy())
    assert ours == pytest.approx(100 * theirs, abs=1.0)


@pytest.mark.parametrize("count", [29, 40, 140, 170])
def test_few_own_rows_are_compared_by_cross_validation_with_scikit_learns_regression(count: int) -> None:
    x, y = rows(count, noise=0.1)
    wrong = torch.nn.functional.one_hot(1 - y, 2).float()  # of a task that learned the opposite

    def logits(asked: torch.Tensor) -> torch.Tensor:
        return wrong[[int((x == row).all(1).nonzero()[0]) for row in asked]]

    found = compared_on_own_rows(IndexedRows(x, y), logits, torch.Generator().manual_seed(0))
    if count < 30:
        assert found is None
        return
    assert found is not None
    assert found.rows == count if count < 150 else found.rows in (33, 34)
    assert found.accuracy == 0
    assert found.is_poor
    assert found.linear is not None
    if count < 150:
        theirs = cross_val_score(LogisticRegression(), x.numpy(), y.numpy(), cv=5).mean()
        assert found.linear == pytest.approx(100 * theirs, abs=8)
        assert found.majority == pytest.approx(100 * max(float(y.float().mean()), 1 - float(y.float().mean())))


def test_a_task_says_how_good_it_is_beside_simple_ways_and_keeps_it(tmp_path: Path) -> None:
    learner = Learner(network(16), STOPPED, seed=1)
    learner.learn(*rows(noise=0.1))
    found = learner.tasks[0].held_out
    assert found is not None
    assert found.rows == 119  # a fifth of each class, rounded down
    assert found.accuracy > 90
    assert found.linear is not None
    assert found.linear > 90 > 65 > found.majority
    learner.save(tmp_path / "m")
    assert Learner.load(tmp_path / "m").tasks[0].held_out == found


@pytest.mark.parametrize(
    ("ours", "linear", "count", "poor"), [(80, 95, 500, True), (94, 95, 500, False), (80, 95, 30, False)]
)
def test_a_linear_model_must_be_better_by_more_than_chance(
    ours: float, linear: float, count: int, poor: bool
) -> None:
    assert HeldOut(count, ours, 50.0, linear).is_poor is poor
    assert not HeldOut(count, ours, 50.0, None).is_poor


def test_worse_than_a_linear_model_is_said() -> None:
    x, y = rows(3000, noise=0.05)
    settings = Settings(heads="per-task", validation_fraction=0.2, epochs=1, finetune_epochs=0, learning_rate=1e-4)
    with pytest.warns(UserWarning, match="hardly learned|below a linear model"):
        Learner(network(16), settings, seed=1).learn(x, y)


def test_numbers_of_a_table_are_on_the_scale_of_each_tasks_own_rows() -> None:
    from ibpwf.table_encoding import TableEncoding

    generator = np.random.default_rng(0)
    x = torch.from_numpy(generator.normal(5, 3, (1000, 3)).astype(np.float32))
    x[:, 2] = (x[:, 2] > 5).float()
    encoding = TableEncoding(3, [0, 1], bins=4)
    encoding.fit([x[:500], x[500:]])
    out = encoding(x)
    assert out.shape == (1000, encoding.outputs)
    torch.testing.assert_close(out[:, :3].mean(0), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(out[:, :3].std(0, correction=0), torch.ones(3), atol=1e-3, rtol=0)
    # A quarter of the rows is in each interval: past those before it, not yet in those after it.
    for column in range(2):
        through = out[:, 3 + 4 * column : 7 + 4 * column]
        assert ((through > 0) & (through < 1)).sum(0).tolist() == pytest.approx([250] * 4, abs=3)
        assert bool((through[:, :-1] >= through[:, 1:]).all())
    same = TableEncoding(1, [0], bins=4)
    same.fit([torch.full((50, 1), 2.0)])
    assert bool(torch.isfinite(same(torch.tensor([[1.0], [2.0], [3.0]]))).all())


def test_a_table_network_keeps_every_tasks_scale_and_comes_back_from_disk(tmp_path: Path) -> None:
    from ibpwf.models import table_network

    settings = STOPPED.replace(epochs=5, finetune_epochs=2)
    torch.manual_seed(0)
    learner = Learner(table_network(8, list(range(8)), [16], 2, bins=4), settings, seed=1)
    x, y = rows(noise=0.2)
    learner.learn(x, y, task="a")
    learner.learn(100 * x + 7, 1 - y, task="b")  # another scale, and nobody says so
    right = [
        float((learner.logits(some, task).argmax(1) == labels).float().mean())
        for some, task, labels in ((x, "a", y), (100 * x + 7, "b", 1 - y))
    ]
    assert min(right) > 0.75
    learner.save(tmp_path / "m")
    loaded = Learner.load(tmp_path / "m")
    for task in ("a", "b"):
        assert torch.equal(loaded.logits(x, task), learner.logits(x, task))
    assert math.isclose(
        float(learner.merge("b").get_buffer("encode.scale")[0]), 100 * float(x[:, 0].std()), rel_tol=0.1
    )
