"""A task that was broken off and resumed ends with the same bits as one that was not."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ibpwf import Learner, Settings
from ibpwf.errors import InputError, StoreError
from ibpwf.factors.prior import IBP, LayerShape
from ibpwf.lab.methods import method_named
from ibpwf.lab.methods.dense import Problem
from ibpwf.method import IBPWF
from ibpwf.storage.checkpoint_folder import IN_PROGRESS, save_checkpoint, task_in_progress
from ibpwf.storage.folder import lock_folder
from ibpwf.training.callbacks import Callback, EpochEnd
from ibpwf.training.checkpoint import Checkpoint

SETTINGS = Settings(
    alpha=4.0,
    epochs=4,
    finetune_epochs=2,
    batch_size=16,
    learning_rate=0.02,
    schedule="cosine",
    weight_decay=0.01,
    temperature_start=2.0,
    temperature_decay=0.9,
)


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 10), nn.Dropout(0.2), nn.ReLU(), nn.Linear(10, 4))


def convolutions() -> nn.Module:
    torch.manual_seed(0)
    conv = nn.Conv2d(1, 4, 3, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.Flatten(), nn.Linear(24, 4))


class Attention(nn.Module):
    """A weight that is lent to the module which reads it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Linear(4, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer(self.stem(x.flatten(1, 2))).mean(1))
        return out


NETS: dict[str, Callable[[], nn.Module]] = {"mlp": mlp, "convolutions": convolutions, "attention": Attention}


def examples(number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    y = torch.arange(70) % 3
    return torch.randn(70, 1, 4, 4, generator=generator) + 2 * torch.randn(3, 1, 4, 4, generator=generator)[y], y


def begun(net: str, **changes: object) -> Learner:
    """A learner that has learnt one task."""
    learner = Learner(NETS[net](), SETTINGS.replace(**changes), seed=4, device="cpu")
    learner.learn(*examples(0), task="first")
    return learner


def parts(learner: Learner) -> dict[str, Tensor]:
    return {f"{part}/{name}": t for part, tensors in learner.method.state()[1].items() for name, t in tensors.items()}


def same(left: Learner, right: Learner) -> bool:
    one, other = parts(left), parts(right)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def break_off(learner: Learner, folder: Path, after: int, resume: bool, every: float = 0.0) -> bool:
    """Learn for so many steps and stop as a crash would; False if the task was finished before."""
    kept = Checkpoint(folder, every=every, resume=resume)
    steps = learner.learn_steps(*examples(1), task="second", callbacks=[kept])
    for _ in range(after):
        if next(steps, "end") == "end":
            return False
    steps.close()
    return True


class Losses(Callback):
    """Of every epoch."""

    def __init__(self) -> None:
        self.told: list[float] = []

    def epoch_end(self, epoch: EpochEnd) -> None:
        self.told.append(epoch.loss)


@pytest.fixture
def always_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every layer asks for three more sticks after every epoch but the last of the ELBO phase."""

    def three_more(self: IBP, layer: LayerShape, active: int, free: int, locked: int) -> int:
        return self.capped(layer, locked + free + 3, locked) - locked - free

    monkeypatch.setattr(IBP, "shortage", three_more)


STEPS = 4 * (4 + 2)  # an epoch is four steps


@pytest.mark.usefixtures("always_short")
@pytest.mark.parametrize("heads", ["shared", "per-task"])
@pytest.mark.parametrize("net", NETS)
def test_a_task_broken_off_anywhere_and_resumed_ends_with_the_same_bits(net: str, heads: str, tmp_path: Path) -> None:
    straight = begun(net, heads=heads)
    losses = Losses()
    straight.learn(*examples(1), task="second", callbacks=[losses])
    begun(net, heads=heads).save(tmp_path / "begun")
    chance = random.Random(net + heads)
    # The first step, the last of an epoch, the first after the dictionary grew, the fine-tune phase, the very last.
    for after in [1, 4, 5, 17, STEPS - 1, STEPS, *chance.sample(range(2, STEPS), 2)]:
        folder = tmp_path / str(after)
        assert break_off(Learner.load(tmp_path / "begun", net=NETS[net](), device="cpu"), folder, after, resume=False)
        torch.rand(3)
        resumed = Learner.load(tmp_path / "begun", net=NETS[net](), device="cpu")
        seen = Losses()
        resumed.learn(*examples(1), task="second", callbacks=[Checkpoint(folder, resume=True), seen])
        assert same(resumed, straight), after
        assert seen.told == losses.told[-len(seen.told) :]
        assert len(seen.told) == len(losses.told) - (after - 1) // 4


@pytest.mark.usefixtures("always_short")
@pytest.mark.parametrize("augment", ["none", "crop-flip"])
def test_a_task_broken_off_again_and_again_ends_with_the_same_bits_too(augment: str, tmp_path: Path) -> None:
    straight = begun("convolutions", augment=augment)
    straight.learn(*examples(1), task="second")
    begun("convolutions", augment=augment).save(tmp_path / "model")
    chance, times = random.Random(0), 0
    while True:
        learner = Learner.load(tmp_path / "model", device="cpu")
        if not break_off(learner, tmp_path / "model", chance.randrange(1, 8), resume=True):
            break
        times += 1
        assert task_in_progress(tmp_path / "model").task == "second"  # type: ignore[union-attr]
    assert times > 2
    assert same(learner, straight)
    learner.save(tmp_path / "model")
    assert not (tmp_path / "model" / IN_PROGRESS).exists()
    assert same(Learner.load(tmp_path / "model", device="cpu"), straight)


def test_a_model_folder_with_a_task_in_progress_loads_without_it(tmp_path: Path) -> None:
    learner = begun("mlp")
    learner.save(tmp_path / "model")
    break_off(learner, tmp_path / "model", 5, resume=False)
    loaded = Learner.load(tmp_path / "model")
    assert [task.name for task in loaded.tasks] == ["first"]
    loaded.save(tmp_path / "model")  # nor does saving the tasks that are finished throw it away
    assert task_in_progress(tmp_path / "model") is not None


def test_without_resume_the_task_begins_anew(tmp_path: Path) -> None:
    learner = begun("mlp")
    break_off(learner, tmp_path / "model", 5, resume=False)
    assert task_in_progress(tmp_path / "model") is not None
    break_off(learner, tmp_path / "model", 1, resume=False, every=60)
    assert task_in_progress(tmp_path / "model") is None


def test_with_resume_and_no_checkpoint_it_begins_at_the_beginning(tmp_path: Path) -> None:
    learner, straight = begun("mlp"), begun("mlp")
    straight.learn(*examples(1), task="second")
    learner.learn(*examples(1), task="second", callbacks=[Checkpoint(tmp_path / "model", resume=True)])
    assert same(learner, straight)


def test_a_checkpoint_of_a_task_finished_since_is_left_aside(tmp_path: Path) -> None:
    """As when the process was killed after the save and before the checkpoint was removed."""
    learner = begun("mlp")
    break_off(learner, tmp_path / "model", 5, resume=False)
    learner.learn(*examples(1), task="second")
    learner.learn(*examples(2), task="third", callbacks=[Checkpoint(tmp_path / "model", every=0, resume=True)])
    assert task_in_progress(tmp_path / "model").task == "third"  # type: ignore[union-attr]


def test_other_data_another_name_another_model_are_refused(tmp_path: Path) -> None:
    learner = begun("mlp")
    break_off(learner, tmp_path / "model", 5, resume=False)
    (x, y), at = examples(1), {"callbacks": [Checkpoint(tmp_path / "model", resume=True)]}
    changed = x.clone()
    changed[3] += 1e-3
    for rows, labels in ((changed, y), (x, y.roll(1)), (x[:-1], y[:-1])):
        with pytest.raises(InputError, match=r"begun with other data: x or y is not the same .*leave resume out"):
            learner.learn(rows, labels, task="second", **at)
    with pytest.raises(InputError, match="is of task 'second' and cannot be resumed as '2nd': its name"):
        learner.learn(x, y, task="2nd", **at)
    other = begun("mlp", kappa=0.4)
    with pytest.raises(InputError, match="the model or a setting is not the same"):
        other.learn(x, y, task="second", **at)
    assert [task.name for task in learner.tasks] == ["first"]
    learner.learn(x, y, task="second", **at)


def test_a_damaged_checkpoint_is_refused_and_can_be_thrown_away(tmp_path: Path) -> None:
    learner = begun("mlp")
    x, y = examples(1)
    for damage in ("manifest.json", "method", "step"):
        break_off(learner, tmp_path / "model", 5, resume=False)
        path = next((tmp_path / "model" / IN_PROGRESS).glob(f"{damage}*"))
        path.write_bytes(path.read_bytes()[:-9])
        with pytest.raises(StoreError, match=r"manifest|bytes instead of"):
            learner.learn(x, y, task="second", callbacks=[Checkpoint(tmp_path / "model", resume=True)])
    learner.learn(x, y, task="second", callbacks=[Checkpoint(tmp_path / "model")])


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    x, y = examples(1)
    with pytest.raises(InputError, match="every is -1; give the minutes"):
        Checkpoint(tmp_path / "model", every=-1)
    other = Learner(method_named("ewc")(Problem((16,), 4, "task")))  # type: ignore[call-arg]
    with pytest.raises(InputError, match="method 'ewc' cannot be resumed inside a task; leave checkpoint out"):
        other.learn(x.flatten(1), y, callbacks=[Checkpoint(tmp_path / "model")])


@pytest.mark.parametrize(
    ("cost", "every", "when"),
    [
        (0.0, 2.0, [1.5, 2.5, 3.5, 4.5]),  # a second apart, however fast the disk
        (0.018, 2.0, [1.5, 3.518, 5.536]),  # a hundredth of the time
        (10.0, 0.05, [1.5, 14.5]),  # at the latest after three seconds
        (10.0, 2.0, [1.5]),
        (0.0, 0.0, [0.5, 1.0, 1.5, 2.0]),  # after every step
    ],
)
def test_checkpoints_are_written_as_often_as_they_cost_little(
    cost: float, every: float, when: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is killed every few seconds gets on."""
    clock, written = [0.0], list[float]()

    def save(*given: Any, **named: Any) -> None:
        written.append(clock[0])
        save_checkpoint(*given, **named)
        clock[0] += cost

    monkeypatch.setattr("ibpwf.training.checkpoint.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("ibpwf.training.checkpoint.save_checkpoint", save)
    learner = begun("mlp")
    steps = learner.learn_steps(*examples(1), callbacks=[Checkpoint(tmp_path / "model", every=every)])
    for _ in range(STEPS):
        clock[0] += 0.5
        next(steps)
    assert written[: len(when)] == pytest.approx(when)
    assert len(written) > len(when) or cost > 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.usefixtures("always_short")
def test_on_a_gpu_a_recorded_step_is_resumed_to_the_same_bits(tmp_path: Path) -> None:
    def fresh() -> Learner:
        return Learner(convolutions(), SETTINGS, seed=4, device="cuda")

    straight = fresh()
    straight.learn(*examples(0), task="second")
    for after in (1, 5, 10, 17, STEPS):
        kept = Checkpoint(tmp_path / str(after), every=0)
        steps = fresh().learn_steps(*examples(0), task="second", callbacks=[kept])
        for _ in range(after):
            next(steps)
        steps.close()
        resumed = fresh()
        resumed.learn(*examples(0), task="second", callbacks=[Checkpoint(tmp_path / str(after), resume=True)])
        assert same(resumed, straight), after


@pytest.mark.parametrize("update", [False, True])
def test_an_interrupt_after_the_last_step_leaves_the_folder_unlocked(
    update: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = Learner(mlp(), SETTINGS, device="cpu")
    x, y = torch.randn(80, 1, 4, 4), torch.arange(80) % 2
    learner.learn(x, y, task="first")
    watching = Checkpoint(tmp_path / "model")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(IBPWF, "use", interrupted)  # asked before the task counts
    learn = partial(learner.update, task="first") if update else partial(learner.learn, task="second")
    with pytest.raises(KeyboardInterrupt):
        learn(x, y, callbacks=[watching])
    monkeypatch.undo()

    def lock() -> None:
        with lock_folder(tmp_path / "model"):
            pass

    with ThreadPoolExecutor() as another:  # the lock can be taken, though `watching` is still there
        another.submit(lock).result()
    assert [task.name for task in learner.tasks] == ["first"]
