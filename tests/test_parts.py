"""Parts of one's own (features, inference, loss, optimizer, callbacks) through a learner, to disk and back."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import PrivateAttr
from torch import Tensor, nn
from torch.nn import functional as F

import ibpwf
from ibpwf import Learner, Settings, parts
from ibpwf.errors import InputError, StoreError
from ibpwf.inference.base import Batch, Features, State, TaskInference
from ibpwf.likelihoods import Categorical, Likelihood
from ibpwf.training.callbacks import Callback, EpochEnd, StepEnd, TaskEnd, TaskStart

QUICK = Settings(alpha=4.0, epochs=3, finetune_epochs=2, batch_size=16, learning_rate=0.02)


def examples(task: int) -> tuple[Tensor, Tensor]:
    """48 rows of two classes, elsewhere for every task."""
    generator = torch.Generator().manual_seed(task)
    y = torch.arange(48) % 2
    place = 5 * torch.randn(6, generator=generator)
    return torch.randn(48, 6, generator=generator) + place + 2 * torch.randn(2, 6, generator=generator)[y], y


def new(settings: Settings = QUICK, likelihood: Likelihood | None = None, **own: Any) -> Learner:
    torch.manual_seed(0)
    inner = {name: own.pop(name) for name in ("inference", "inference.features") if name in own}
    settings = settings.replace(likelihood=likelihood or Categorical(), **inner)
    return Learner(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)), settings, device="cpu", **own)


def taught(learner: Learner, tasks: int = 3) -> Learner:
    for task in range(tasks):
        learner.learn(*examples(task))
    return learner


class Squares(Features):
    """φ(x): inputs in units of the first task's largest, and their squares."""

    _scale: Tensor = PrivateAttr(default_factory=lambda: torch.ones(()))
    _rows: int = PrivateAttr(0)

    def fit(self, batches: Iterable[Batch], rows: int, generator: torch.Generator) -> None:
        self._scale = torch.stack([x.abs().max() for x, _ in batches]).max()
        self._rows = rows

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([x / self._scale, (x / self._scale).square()], dim=1)

    def state(self) -> State:
        return {"rows": self._rows}, {"scale": self._scale}

    def load_state(self, content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        if tensors:
            self._rows, self._scale = content["rows"], tensors["scale"]


class Nearest(TaskInference):
    """The task whose mean φ is nearest."""

    _means: list[Tensor] = PrivateAttr(default_factory=list)

    def __len__(self) -> int:
        return len(self._means)

    def learn(self, task: int, batches: Iterable[Batch], classes: int) -> None:
        assert task == len(self._means)
        assert classes == 2
        self._means.append(torch.cat([phi for phi, _ in batches]).double().mean(0))

    def log_scores(self, phi: Tensor) -> Tensor:
        return -torch.cdist(phi.double(), torch.stack(self._means))

    def forget(self, task: int) -> None:
        del self._means[task]

    def task_state(self, task: int) -> State:
        return {}, {"mean": self._means[task]}

    def load_state(self, state: State, tasks: Iterable[State]) -> None:
        self._means = [tensors["mean"] for _, tensors in tasks]


class Smooth(Categorical):
    def loss(self, scores: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(scores, y, label_smoothing=0.1)


def momentum(parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


# Features and task inference


def test_features_and_inference_of_ones_own_tell_tasks_apart() -> None:
    learner = taught(new(inference=Nearest(features=Squares())))
    features, inference = learner.method.features, learner.method.inference
    assert isinstance(features, Squares)
    assert isinstance(inference, Nearest)
    assert features._rows == 48, "fitted on the first task, and never again"
    x = torch.cat([examples(task)[0] for task in range(3)])
    phi = torch.cat([x / features._scale, (x / features._scale) ** 2], 1).double()
    distance = torch.stack([(phi - mean).norm(dim=1) for mean in inference._means], 1)
    answer = learner.predict(x)
    assert torch.equal(answer.task, distance.argmin(1))
    torch.testing.assert_close(answer.task_probabilities, (-distance).softmax(1))
    assert float((answer.task == torch.arange(3).repeat_interleave(48)).double().mean()) > 0.95


def test_a_forgotten_task_leaves_an_inference_of_ones_own() -> None:
    learner = taught(new(inference=Nearest()))
    before = learner.logits(examples(2)[0], 2)
    learner.forget(0)
    assert len(learner.method.inference._means) == 2  # type: ignore[attr-defined]
    assert torch.equal(learner.logits(examples(2)[0], 1), before)
    assert float((learner.predict(examples(2)[0]).task == 1).double().mean()) > 0.9


@pytest.fixture
def _known() -> Iterator[None]:
    """Parts that are registered are known in this test alone."""
    before = {group: dict(kinds) for group, kinds in parts._KINDS.items()}
    yield
    parts._KINDS.clear()
    parts._KINDS.update(before)


@pytest.mark.usefixtures("_known")
def test_parts_of_ones_own_are_known_to_a_folder_once_they_are_registered(tmp_path: Path) -> None:
    inference = Nearest(features=Squares())
    learner = taught(new(inference=inference, likelihood=Smooth(), optimizer=momentum), 2)
    learner.save(tmp_path / "model")
    for part, missing in ((Nearest, "inference"), (Squares, r"inference\.features"), (Smooth, "likelihood")):
        with pytest.raises(StoreError, match=rf"unknown {missing} '.*:{part.__name__}'.*register"):
            Learner.load(tmp_path / "model")
        parts.register(part)
    parts._KINDS["inference"].pop(Nearest.kind_name())
    assert Learner.load(tmp_path / "model", inference=inference).tasks
    parts.register(Nearest)
    answering = Learner.load(tmp_path / "model")
    x = torch.cat([examples(task)[0] for task in range(2)])
    assert torch.equal(answering.predict(x).probabilities, learner.predict(x).probabilities)
    with pytest.raises(InputError, match=r"taught with your own optimizer, which.*optimizer="):
        answering.learn(*examples(2))
    answering.save(tmp_path / "again")  # what it needs is not forgotten on the way
    again = ibpwf.load(tmp_path / "again", optimizer=momentum)
    for one in (learner, again):
        one.learn(*examples(2))
    assert torch.equal(again.predict(x).probabilities, learner.predict(x).probabilities)


# Loss and optimizer


def test_a_loss_and_an_optimizer_of_ones_own_are_the_ones_that_train() -> None:
    seen: dict[str, list[Any]] = {"loss": [], "optimizer": []}

    class Watched(Smooth):
        def loss(self, scores: Tensor, y: Tensor) -> Tensor:
            seen["loss"].append((scores.shape, y.dtype))
            return super().loss(scores, y)

    def optimizer(parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        seen["optimizer"].append(momentum(parameters))
        return seen["optimizer"][-1]

    learner = taught(new(likelihood=Watched(), optimizer=optimizer), 1)
    assert len(seen["loss"]) == (3 + 2) * 3
    assert set(seen["loss"]) == {((16, 2), torch.int64)}
    assert len(seen["optimizer"]) >= 2, "one for each phase"
    x = examples(0)[0]
    assert torch.equal(learner.logits(x, 0), taught(new(likelihood=Smooth(), optimizer=momentum), 1).logits(x, 0))
    for other in (new(likelihood=Smooth()), new(optimizer=momentum), new()):
        assert not torch.equal(learner.logits(x, 0), taught(other, 1).logits(x, 0))


# By name


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, with a module of parts."""
    source = Path(__file__).read_text()
    (tmp_path / "own_parts.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("own_parts", None)


def test_settings_name_parts_as_module_and_name(here: Path) -> None:
    settings = QUICK.replace(inference="own_parts:Nearest", **{"inference.features": "own_parts:Squares"})
    learner = taught(new(settings))
    assert type(learner.method.inference).__name__ == "Nearest"
    x = torch.cat([examples(task)[0] for task in range(3)])
    by_hand = taught(new(inference=Nearest(features=Squares())))
    assert torch.equal(learner.predict(x).probabilities, by_hand.predict(x).probabilities)


def test_a_folder_that_names_a_module_does_not_import_it(here: Path) -> None:
    learner = taught(new(QUICK.replace(inference="own_parts:Nearest")), 1)
    learner.save(here / "model")
    sys.modules.pop("own_parts")
    (here / "own_parts.py").write_text("raise SystemExit('imported')")
    with pytest.raises(StoreError, match="unknown inference 'own_parts:Nearest'"):
        Learner.load(here / "model")
    assert "own_parts" not in sys.modules


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"inference": "gausian"}, r"unknown inference 'gausian'\. Did you mean 'gaussian'\?"),
        ({"inference.features": "radnom"}, r"unknown inference\.features 'radnom'\. Did you mean 'random'\?"),
        ({"inference": "own_parts:Squares"}, "inference is .*Squares; expected a TaskInference"),
        ({"inference.features": "own_parts:Smooth"}, r"inference\.features is .*Smooth; expected a Features"),
        ({"inference.features": "own_parts:Absent"}, r"inference\.features 'own_parts:Absent' cannot be imported"),
    ],
)
@pytest.mark.usefixtures("here")
def test_names_that_stand_for_nothing_fitting_are_refused(setting: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        QUICK.replace(**setting)


# Callbacks


class Diary(Callback):
    """All that can be seen."""

    def __init__(self) -> None:
        self.starts: list[TaskStart] = []
        self.steps: list[tuple[str, int, int, int | None, float, float, float]] = []
        self.epochs: list[EpochEnd] = []
        self.ends: list[TaskEnd] = []
        self.order: list[str] = []

    def task_start(self, task: TaskStart) -> None:
        self.order.append("start")
        self.starts.append(task)

    def step_end(self, step: StepEnd) -> None:
        self.order.append("step")
        self.steps.append((step.phase, step.epoch, step.step, step.steps, step.loss, step.penalty, step.accuracy))

    def epoch_end(self, epoch: EpochEnd) -> None:
        self.order.append("epoch")
        self.epochs.append(epoch)

    def task_end(self, task: TaskEnd) -> None:
        self.order.append("end")
        self.ends.append(task)


def test_callbacks_see_every_step_epoch_and_task_with_numbers_that_agree() -> None:
    learner, diary = new(), Diary()
    info = learner.learn(*examples(0), task="first", callbacks=[diary])
    (start,), (end,) = diary.starts, diary.ends
    assert (start.task, start.number, start.rows, start.classes, start.epochs) == ("first", 0, 48, (0, 1), 5)
    assert diary.order == ["start", *["step", "step", "step", "epoch"] * 5, "end"]
    assert [(e.phase, e.epoch, e.epochs) for e in diary.epochs] == [
        *(("elbo", e, 3) for e in (1, 2, 3)),
        *(("finetune", e, 2) for e in (1, 2)),
    ]
    for number, epoch in enumerate(diary.epochs):
        steps = diary.steps[3 * number : 3 * number + 3]
        assert [(s[0], s[1], s[2], s[3]) for s in steps] == [(epoch.phase, epoch.epoch, n, 3) for n in (1, 2, 3)]
        for place, mean in ((4, epoch.loss), (5, epoch.penalty), (6, epoch.accuracy)):
            assert sum(s[place] for s in steps) / 3 == pytest.approx(mean, rel=1e-5)
        assert epoch.active == epoch.new + epoch.reused
        assert epoch.samples == 48
        assert (epoch.penalty > 0) == (epoch.phase == "elbo"), "the KL, which fine-tuning has none of"
        assert epoch.loss > (epoch.penalty / 48 if epoch.phase == "elbo" else 0)
    last = diary.epochs[-1]
    assert end.accuracy == info.training_accuracy == last.accuracy
    assert (end.task, end.number, end.rows) == ("first", 0, 48)
    assert end.seconds > 0
    assert end.factors == learner.method.use(0)
    assert sum(use["active"] for use in end.factors.values()) == last.active
    assert sum(use["new"] for use in end.factors.values()) == last.new


def test_a_task_that_breaks_off_is_told_with_its_error() -> None:
    failed: list[BaseException] = []

    class Watching(Callback):
        def step_end(self, step: StepEnd) -> None:
            raise OSError("full")

        def task_failed(self, error: BaseException) -> None:
            failed.append(error)

    with pytest.raises(OSError, match="full") as caught:
        new().learn(*examples(0), callbacks=[Watching()])
    assert failed == [caught.value]


def test_watching_changes_no_bit() -> None:
    watched, alone = new(), new()
    watched.learn(*examples(0), callbacks=[Diary()])
    alone.learn(*examples(0))
    assert torch.equal(watched.logits(examples(0)[0], 0), alone.logits(examples(0)[0], 0))
