"""The training loop does what it says: Adam's steps, each example once an epoch, and no silent nonsense."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from ibpwf import Learner, Settings
from ibpwf.data.rows import IndexedRows
from ibpwf.dispatch import accelerated
from ibpwf.errors import TrainingError
from ibpwf.lab.data.tasks import Scenario
from ibpwf.lab.experiments.replicas import take_turns
from ibpwf.training.callbacks import Callback, EpochEnd
from ibpwf.training.loop import Training, check_finite
from ibpwf.training.method import Method, TaskData
from ibpwf.training.objective import Fit, Loss, Objective
from ibpwf.training.phase import Phase, learning_rate_at
from ibpwf.training.step import Step


class Recorder(Method):
    """A method that moves one parameter and writes down what the loop does to it."""

    name: ClassVar[str] = "recorder"

    def __init__(self, *phases: Phase, loss: Callable[[int, Tensor], Tensor] | None = None) -> None:
        self.phases, self._loss = phases, loss
        self.weight = nn.Parameter(torch.zeros(3))
        self.seen: list[list[int]] = []
        self.moves: list[float] = []
        self.ended = False
        self.renew_after: set[int] = set()
        self.made: list[nn.Parameter] = []

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def template(self) -> nn.Module:
        return nn.Linear(1, 1)

    def begin_task(self, data: TaskData) -> Sequence[Phase]:
        return self.phases

    def parameters(self, phase: Phase) -> Sequence[nn.Parameter]:
        self.weight = nn.Parameter(self.weight.detach().clone())
        self.made.append(self.weight)
        return [self.weight]

    def loss(self, x: Tensor, y: Tensor) -> Loss:
        self.seen.append(x[:, 0].int().tolist())
        assert x[:, 0].int().tolist() == y.tolist()  # inputs and labels stay together
        value = self.weight.sum() if self._loss is None else self._loss(len(self.seen), self.weight)
        return Loss(value, torch.tensor(float(len(self.seen))))

    def after_step(self) -> None:
        self.moves.append(float(self.weight.detach()[0]))

    def after_epoch(self, phase: Phase, epoch: int) -> bool:
        return epoch in self.renew_after

    def end_task(self, data: TaskData) -> None:
        self.ended = True


Recorder.__abstractmethods__ = frozenset()  # what a method answers and stores is none of the loop's business


def numbered(count: int, seed: int = 0, index: int = 0) -> TaskData:
    """Examples that carry their own number."""
    numbers = torch.arange(count)
    return TaskData("t", index, (0, 1), numbers.float().unsqueeze(1), numbers, seed)


class Epochs(Callback):
    """Hands every epoch to a function."""

    def __init__(self, told: Callable[[EpochEnd], None]) -> None:
        self.told = told

    def epoch_end(self, epoch: EpochEnd) -> None:
        self.told(epoch)


def train(method: Method, data: TaskData, told: Callable[[EpochEnd], None] | None = None) -> None:
    for _ in Training(method, data, [] if told is None else [Epochs(told)]).run():
        pass


def one_epoch(objective: Objective, phase: Phase, count: int) -> int:
    """Train on so many rows, and say in how many steps."""
    step = Step(objective, phase, IndexedRows(torch.zeros(count, 1), torch.zeros(count)))
    step.start_epoch(torch.Generator())
    while step.gradients():
        step.move()
    return step.done


# Optimizer


def hand_written_adam(
    start: Tensor, gradient: Callable[[Tensor], Tensor], steps: int, rate: float, decay: float, clip: float | None
) -> Tensor:
    """Adam as Kingma and Ba (2015) write it, in float64; the decay is added to the gradient after clipping."""
    w, m, v = start.double(), torch.zeros_like(start).double(), torch.zeros_like(start).double()
    for t in range(1, steps + 1):
        g = gradient(w)
        if clip is not None:
            g = torch.minimum(torch.maximum(g, torch.tensor(-clip)), torch.tensor(clip))
        g = g + decay * w
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g * g
        w = w - rate * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
    return w


@pytest.mark.parametrize(("decay", "clip"), [(0.0, None), (0.05, None), (0.0, 0.5), (0.05, 0.5)])
@pytest.mark.parametrize("accelerate", [True, False])
def test_a_step_is_adams_step(decay: float, clip: float | None, accelerate: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(40, generator=generator)
    curvature = torch.rand(40, generator=generator) * 3 + 0.1
    weight = nn.Parameter(start.clone())

    def loss(x: Tensor, y: Tensor) -> Loss:
        return Loss(0.5 * (curvature * (weight - 1) ** 2).sum())

    phase = Phase("p", 1, 1, learning_rate=0.02, weight_decay=decay, clip=clip)
    with accelerated(accelerate):
        assert one_epoch(Fit([weight], loss), phase, 50) == 50

    def gradient(w: Tensor) -> Tensor:
        return curvature.double() * (w - 1)

    expected = hand_written_adam(start, gradient, 50, 0.02, decay, clip)
    torch.testing.assert_close(weight.detach().double(), expected, rtol=0, atol=2e-6)
    assert float((weight.detach() - start).abs().mean()) > 0.3  # it did move


def test_clipping_limits_every_value_of_the_gradient() -> None:
    weight = nn.Parameter(torch.zeros(3))
    gradient = torch.tensor([-7.0, 0.2, 3.0])
    objective = Fit([weight], lambda x, y: Loss((gradient * weight).sum()))
    one_epoch(objective, Phase("p", 1, 1, 1.0, "sgd", clip=0.5), 1)
    torch.testing.assert_close(weight.detach(), torch.tensor([0.5, -0.2, -0.5]))


def test_the_cosine_schedule_falls_from_the_full_rate_along_half_a_cosine() -> None:
    phase = Phase("p", 8, 4, 0.1, "sgd", schedule="cosine")
    rates = [learning_rate_at(phase, epoch) for epoch in range(8)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[4] == pytest.approx(0.05)
    assert rates == sorted(rates, reverse=True)
    assert 0 < rates[-1] < 0.005
    method = Recorder(phase)
    train(method, numbered(8))  # the gradient is 1 everywhere, so a step of plain descent is the rate itself
    moved = [a - b for a, b in zip([0.0, *method.moves], method.moves, strict=False)]
    expected = [0.1 * (1 + math.cos(math.pi * epoch / 8)) / 2 for epoch in range(8) for _ in range(2)]
    assert moved == pytest.approx(expected, abs=1e-6)


def test_the_constant_schedule_keeps_the_rate() -> None:
    method = Recorder(Phase("p", 3, 4, 0.25, "sgd"))
    train(method, numbered(4))
    assert method.moves == pytest.approx([-0.25, -0.5, -0.75])


# Epochs


@pytest.mark.parametrize(("count", "size"), [(12, 4), (14, 4), (3, 8), (1100, 2), (7, 1)])
def test_an_epoch_sees_every_example_once_but_a_rest_smaller_than_a_batch(count: int, size: int) -> None:
    method = Recorder(Phase("p", 3, size))
    train(method, numbered(count))
    batches = max(count // size, 1)
    assert len(method.seen) == 3 * batches
    for epoch in range(3):
        part = method.seen[epoch * batches : (epoch + 1) * batches]
        flat = [number for batch in part for number in batch]
        assert all(len(batch) == min(size, count) for batch in part)
        assert len(set(flat)) == len(flat) == batches * min(size, count)
        assert set(flat) <= set(range(count))


def test_another_epoch_brings_another_order_and_the_rest_gets_its_turn() -> None:
    method = Recorder(Phase("p", 30, 4))
    train(method, numbered(7))
    assert len({tuple(batch) for batch in method.seen}) > 20
    assert {number for batch in method.seen for number in batch} == set(range(7))


def test_the_order_depends_on_seed_and_task_and_on_nothing_else() -> None:
    def order(seed: int, index: int) -> list[list[int]]:
        method = Recorder(Phase("p", 2, 4))
        torch.manual_seed(torch.initial_seed() % 1000 + 1)
        train(method, numbered(20, seed, index))
        return method.seen

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(1, 0)
    assert order(0, 0) != order(0, 1)
    assert order(1, 11) != order(11, 1)


def test_an_epochs_loss_is_the_mean_over_its_steps() -> None:
    method = Recorder(Phase("p", 2, 2, 1.0, "sgd"), loss=lambda number, w: w.sum() * 0 + number)
    told: list[EpochEnd] = []
    train(method, numbered(8), told.append)
    assert [(p.epoch, p.loss, p.penalty) for p in told] == [(1, 2.5, 2.5), (2, 6.5, 6.5)]
    assert method.ended


def test_many_steps_are_measured_in_few_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ibpwf.training.step.TOGETHER", 3)
    method = Recorder(Phase("p", 2, 1, 1.0, "sgd"), loss=lambda number, w: w.sum() * 0 + number)
    told: list[EpochEnd] = []
    training = Training(method, numbered(8), [Epochs(told.append)])
    for _ in training.run():
        pass
    assert [(p.epoch, p.loss) for p in told] == [(1, 4.5), (2, 12.5)]
    step = training.step
    assert step is not None
    assert [len(step._earlier), len(step._log)] == [2, 2]
    assert step.measured()[:, 0].tolist() == list(range(9, 17))
    tensors = {"log": step.measured()}
    step.start_epoch(torch.Generator().manual_seed(0))
    step.restore(tensors, 0)
    assert step.measured()[:, 0].tolist() == list(range(9, 17))


def test_parameters_are_asked_for_again_when_a_method_has_new_ones() -> None:
    method = Recorder(Phase("p", 4, 4, 0.5, "sgd"))
    method.renew_after = {1}
    train(method, numbered(4))
    assert len(method.made) == 2
    assert method.moves == pytest.approx([-0.5, -1.0, -1.5, -2.0])


# A loss that is not a number


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("step", [1, 3, 515, 1024])
def test_a_loss_that_is_not_a_number_is_reported_with_its_step(step: int, bad: float) -> None:
    method = Recorder(Phase("p", 2, 1), loss=lambda number, w: w.sum() * 0 + (bad if number == step else 1.0))
    with pytest.raises(TrainingError) as caught:
        train(method, numbered(1024))
    message = str(caught.value)
    assert message.startswith(f"the loss is not a number at step {step} of epoch 1 (p) of task 't'; ")
    assert "earlier tasks are unchanged" in message
    assert "Lower learning_rate" in message
    assert not method.ended


def test_the_step_is_counted_within_its_epoch_and_the_first_of_several_is_named() -> None:
    method = Recorder(Phase("p", 3, 2), loss=lambda number, w: w.sum() * 0 + (math.nan if number >= 7 else 1.0))
    with pytest.raises(TrainingError, match=r"at step 2 of epoch 2 \(p\)"):
        train(method, numbered(10))
    check_finite(torch.tensor([[1.0, math.nan, math.nan]]), "an epoch whose penalty alone is not a number")


def test_a_last_step_that_ruins_the_parameters_is_noticed() -> None:
    """Its own loss is finite, and no later loss shows what it did."""

    # The gradient of √w at w = 0 is infinite, and w reaches 0 with the third of four steps.
    method = Recorder(Phase("p", 1, 2, 1.0, "sgd"), loss=lambda n, w: w.sqrt().sum() if n == 4 else w.sum())
    method.weight = nn.Parameter(torch.full((3,), 3.0))
    with pytest.raises(
        TrainingError, match=r"a parameter is not a number after the last step of the p phase of task"
    ):
        train(method, numbered(8))
    assert not method.ended


def test_an_error_in_a_callback_ends_the_task_without_keeping_it() -> None:
    method = Recorder(Phase("p", 2, 2))

    def fail(epoch: EpochEnd) -> None:
        raise KeyError("display")

    with pytest.raises(KeyError, match="display"):
        train(method, numbered(4), fail)
    assert not method.ended


def test_a_task_that_is_dropped_halfway_does_not_end() -> None:
    method = Recorder(Phase("p", 2, 2))
    steps = Training(method, numbered(8)).run()
    for _ in range(3):
        next(steps)
    steps.close()
    assert not method.ended
    whole = Recorder(Phase("p", 2, 2))
    train(whole, numbered(8))
    assert whole.ended


# Taking turns


def test_a_learner_that_takes_turns_with_another_learns_the_same(
    net: nn.Module, small: Settings, digits: Scenario
) -> None:
    alone = [Learner(net, small, seed=seed) for seed in (0, 1)]
    turns = [Learner(net, small, seed=seed) for seed in (0, 1)]
    x, y = digits[0].train.x, digits[0].train.y
    for learner in alone:
        learner.learn(x, y)
    waiting = [learner.learn_steps(x, y) for learner in turns]
    pauses = [0, 0]
    going = [0, 1]
    while going:
        for number in list(going):
            try:
                next(waiting[number])
                pauses[number] += 1
            except StopIteration:
                going.remove(number)
    assert pauses == [(len(y) // 16) * 6] * 2  # four epochs and two of fine-tuning, a pause a step
    for a, b in zip(alone, turns, strict=True):
        assert torch.equal(a.logits(x, 0), b.logits(x, 0))
    assert not torch.equal(alone[0].logits(x, 0), alone[1].logits(x, 0))


def test_on_a_cpu_taking_turns_runs_one_after_the_other_to_the_end() -> None:
    done: list[str] = []

    def steps(name: str, count: int) -> Any:
        for number in range(count):
            yield
            done.append(f"{name}{number}")

    take_turns([steps("a", 2), steps("b", 1), steps("c", 0)], torch.device("cpu"))
    assert done == ["a0", "a1", "b0"]
