"""The loop sees to threads and denormal numbers itself, gives the same bits whatever the caller had, and puts both
back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import processes
from ibpwf import Learner, Settings, models
from ibpwf.training.callbacks import Callback, StepEnd
from ibpwf.training.environment import flushes_denormals, is_small, prepared_to_train, threads

CPU = torch.device("cpu")


def examples() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(160) % 2
    return torch.randn(160, 20, generator=generator) + y.unsqueeze(1), y


def answers() -> Tensor:
    """Of a learner of one task of a few hundred steps, in which Adam's moments have become tiny."""
    torch.manual_seed(0)
    settings = Settings(alpha=8.0, epochs=20, finetune_epochs=10, batch_size=16, learning_rate=0.02)
    learner = Learner(models.mlp(20, [30], 2), settings, device="cpu")
    x, y = examples()
    x[:, 7] = 0  # an input that never varies: gradients of 0, moments that only fall
    learner.learn(x, y)
    return learner.logits(x, 0)


def write_answers(file: str) -> None:
    """The same in a process that has set threads and denormal numbers itself."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.save(answers(), file)


@pytest.fixture
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)
    torch.set_flush_denormal(False)


class State(Callback):
    """What holds while a step is taken."""

    def __init__(self) -> None:
        self.seen: set[tuple[int, bool]] = set()

    def step_end(self, step: StepEnd) -> None:
        self.seen.add((torch.get_num_threads(), flushes_denormals()))


@pytest.mark.usefixtures("four_threads")
@pytest.mark.parametrize("flush", [False, True])
def test_training_uses_one_thread_and_no_denormals_and_puts_the_callers_back(flush: bool) -> None:
    torch.set_flush_denormal(flush)
    state = State()
    learner = Learner(models.mlp(20, [8], 2), Settings(epochs=1, finetune_epochs=1, alpha=4.0), device="cpu")
    learner.learn(*examples(), callbacks=[state])
    assert state.seen == {(1, True)}
    assert (torch.get_num_threads(), flushes_denormals()) == (4, flush)


@pytest.mark.usefixtures("four_threads")
def test_a_task_that_breaks_off_puts_them_back_too() -> None:
    class Breaking(Callback):
        def step_end(self, step: StepEnd) -> None:
            raise KeyboardInterrupt

    learner = Learner(models.mlp(20, [8], 2), Settings(epochs=1, alpha=4.0), device="cpu")
    with pytest.raises(KeyboardInterrupt):
        learner.learn(*examples(), callbacks=[Breaking()])
    assert (torch.get_num_threads(), flushes_denormals()) == (4, False)


@pytest.mark.usefixtures("four_threads")
def test_the_bits_are_those_of_a_process_that_set_both_itself(tmp_path: Path) -> None:
    processes.call(write_answers, str(tmp_path / "answers.pt"))
    torch.set_flush_denormal(False)
    assert torch.equal(answers(), torch.load(tmp_path / "answers.pt"))


def test_a_convolution_or_a_wide_layer_keeps_the_callers_threads() -> None:
    assert is_small(models.mlp(784, [400], 10))
    assert not is_small(models.mlp(784, [1000], 10))
    assert not is_small(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)))
    assert not is_small(nn.TransformerEncoderLayer(8, 2))
    before = torch.get_num_threads()
    with threads(3), prepared_to_train(nn.Conv2d(1, 2, 3), CPU):
        assert torch.get_num_threads() == 3
        assert flushes_denormals()
    assert (torch.get_num_threads(), flushes_denormals()) == (before, False)
