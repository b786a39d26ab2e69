"""More rows of a task that is known: a new version that starts from the old, which stays to the bit."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from ibpwf import ContinualClassifier, Learner, Settings, export, load, models
from ibpwf.concurrency import finish
from ibpwf.errors import InputError
from ibpwf.lab.methods import method_named
from ibpwf.lab.methods.dense import Problem
from ibpwf.learner.update import Trial
from ibpwf.linear import HeldOut
from ibpwf.method import IBPWF
from ibpwf.storage.inspection import inspect_model
from ibpwf.training.callbacks import Callback, StepEnd
from ibpwf.training.checkpoint import Checkpoint

PIXELS, DIGITS = (torch.tensor(part) for part in load_digits(return_X_y=True))
X, Y = PIXELS.float() / 16, DIGITS
QUICK = {
    "epochs": 3,
    "finetune_epochs": 2,
    "init": "pretrained",
    "inference.features": "random",
    "inference.features.width": 80,
}
GAUSSIAN = Settings(**QUICK, inference="shared-gaussian", **{"inference.ridge": 0.2})
ROUTER = Settings(**QUICK, inference="router", validation_fraction=0.1)
PER_TASK = Settings(**QUICK, inference="router", heads="per-task", **{"inference.keep_sums_per_task": True})
EACH = {"gaussians": GAUSSIAN, "router": ROUTER, "router and heads per task": PER_TASK}


def of(labels: tuple[int, ...], start: int, stop: int) -> tuple[Tensor, Tensor]:
    rows = torch.isin(Y, torch.tensor(labels)).nonzero().flatten()[start:stop]
    return X[rows], Y[rows]


def noisy(rows: tuple[Tensor, Tensor], seed: int = 0) -> tuple[Tensor, Tensor]:
    return rows[0] + 0.3 * torch.randn(rows[0].shape, generator=torch.Generator().manual_seed(seed)), rows[1]


def taught(settings: Settings = GAUSSIAN) -> Learner:
    torch.manual_seed(0)
    learner = Learner(models.mlp(64, [40], 3), settings, seed=1, device="cpu")
    learner.learn(*of((0, 1, 2), 0, 250), task="low")
    learner.learn(*of((3, 4), 0, 200), task="mid")
    return learner


NEW = noisy(of((0, 1, 2), 250, 450))
TESTS = torch.cat([of((0, 1, 2), 450, 530)[0], of((3, 4), 250, 330)[0]])


@pytest.mark.parametrize("settings", EACH.values(), ids=EACH)
def test_the_old_version_and_all_other_tasks_stay_to_the_bit(settings: Settings) -> None:
    learner = taught(settings)
    before = {task: learner.logits(TESTS, task) for task in ("low", "mid")}
    asked = learner.predict(TESTS, "low")
    result = learner.update(*NEW, task="low", keep="always")
    assert (result.task, result.version, result.kept) == ("low", 2, True)
    assert torch.equal(learner.logits(TESTS, "low@1"), before["low"])
    assert torch.equal(learner.logits(TESTS, "mid"), before["mid"])
    assert not torch.equal(learner.logits(TESTS, "low"), before["low"])
    assert torch.equal(learner.logits(TESTS, "low@2"), learner.logits(TESTS, "low"))
    old = learner.predict(TESTS, "low@1")
    assert old.classes == asked.classes == learner.predict(TESTS).classes
    assert torch.equal(old.probabilities, asked.probabilities)
    assert old.task.unique().tolist() == [0]
    assert [task.name for task in learner.tasks] == ["low", "mid"]
    assert [(task.name, task.version, task.version_of) for task in learner.older] == [("low@1", 1, "low")]
    assert [event["event"] for event in learner.history] == ["learnt", "learnt", "updated"]


@pytest.mark.parametrize(
    "settings", [GAUSSIAN, Settings(**QUICK, inference="router", **{"inference.ridge": 0.2})], ids=["lda", "ridge"]
)
@pytest.mark.parametrize("task", ["low", "mid"])
def test_tasks_are_inferred_as_if_all_rows_had_been_learned_at_once(settings: Settings, task: str) -> None:
    learner = taught(settings)
    new = NEW if task == "low" else noisy(of((3, 4), 200, 260))
    result = learner.update(*new, task=task, keep="always")
    assert result.rows + result.validation_rows == len(new[1])
    joint, phi = settings.inference.fork(), learner.method.features
    for number, old in enumerate((of((0, 1, 2), 0, 250), of((3, 4), 0, 200))):
        x, y = (torch.cat(pair) for pair in zip(old, new, strict=True)) if ("low", "mid")[number] == task else old
        joint.learn(number, [(phi(x), torch.unique(y, return_inverse=True)[1])], len(y.unique()))
    got, wanted = learner.method.inference.log_scores(phi(TESTS)), joint.log_scores(phi(TESTS))
    torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-6)


def test_a_version_begins_as_the_old_one_is() -> None:
    learner = taught()
    model = learner.method.fork().model
    for place, task in enumerate(("low", "mid")):
        begun = model.start_task(
            model.tasks[place].outputs, torch.Generator().manual_seed(3), version_of=model.tasks[place]
        )
        begun.eval()
        begun.fix_selection()
        torch.testing.assert_close(begun(TESTS).detach(), learner.logits(TESTS, task), rtol=1e-5, atol=1e-5)


def test_new_rows_are_answered_better_and_old_ones_hardly_worse() -> None:
    settings = GAUSSIAN.replace(epochs="auto", finetune_epochs="auto")
    learner = taught(settings)
    old, new = of((0, 1, 2), 450, 530), noisy(of((0, 1, 2), 450, 530), seed=5)

    def accuracy(rows: tuple[Tensor, Tensor], task: str | None) -> float:
        return float((learner.predict(rows[0], task).labels == rows[1]).double().mean())

    before = [accuracy(rows, task) for rows in (old, new) for task in ("low", None)]
    result = learner.update(*NEW, task="low")
    after = [accuracy(rows, task) for rows in (old, new) for task in ("low", None)]
    assert result.kept
    assert after[0] >= before[0] - 0.03
    assert after[1] >= before[1] - 0.03
    assert after[2] >= before[2]
    assert after[3] > before[3] + 0.05


def test_what_would_change_is_told_and_nothing_changes() -> None:
    learner = taught()
    before, state = learner.predict(TESTS), learner.state
    result = learner.update(*NEW, task="low", keep="never")
    assert not result.kept
    assert learner.state is state
    assert torch.equal(learner.predict(TESTS).probabilities, before.probabilities)
    old = [learner.predict(NEW[0], task).labels for task in ("low", None)]
    same = learner.update(*NEW, task="low", keep="always")
    assert same == replace(result, kept=True)
    new = learner.predict(NEW[0], "low").labels  # inferred answers have held-out rows by now
    assert result.changed == pytest.approx(100 * float((new != old[0]).double().mean()))
    assert result.validation_rows == 39  # a fifth of every class, rounded down
    assert None not in (result.accuracy_before, result.accuracy, result.accuracy_inferred)


def test_a_version_that_answers_worse_is_not_kept_unless_that_is_asked_for() -> None:
    learner = taught()
    learner.settings = learner.settings.replace(learning_rate=1.0)  # with which no expert gets better
    known, rows = learner.state, of((0, 1, 2), 250, 450)
    result = learner.update(*rows, task="low")
    assert not result.kept
    assert learner.state is known
    assert result.accuracy is not None
    assert result.accuracy_before is not None
    assert result.accuracy < result.accuracy_before
    assert result.changed > 0
    with pytest.warns(UserWarning, match="'low@1'"):
        forced = learner.update(*rows, task="low", keep="always")
    assert forced == replace(result, kept=True)
    assert [task.name for task in learner.older] == ["low@1"]


@pytest.mark.parametrize("settings", EACH.values(), ids=EACH)
def test_versions_go_to_disk_and_back_and_can_be_dropped(settings: Settings, tmp_path: Path) -> None:
    learner = taught(settings)
    first = {path.name for path in _saved(learner, tmp_path)}
    learner.update(*NEW, task="low", keep="always")
    learner.update(*noisy(of((3, 4), 200, 260)), task="mid", keep="always")
    learner.update(*of((0, 1, 2), 450, 520), task="low", keep="always")
    learner.learn(*of((5, 6), 0, 100), task="high")
    second = {path.name for path in _saved(learner, tmp_path)}
    assert {name for name in first if name.startswith("factors-0000")} <= second  # as it was
    names = [None, "low", "mid", "high", "low@1", "low@2", "mid@1", "low@3"]
    loaded = Learner.load(tmp_path / "m", device="cpu")
    for task in names:
        assert torch.equal(loaded.predict(TESTS, task).probabilities, learner.predict(TESTS, task).probabilities)
    assert (loaded.tasks, loaded.older, loaded.history) == (learner.tasks, learner.older, learner.history)
    report = inspect_model(tmp_path / "m")
    assert [(task.name, task.version) for task in report.tasks] == [
        ("low@1", 1),
        ("mid@1", 1),
        ("low@2", 2),
        ("mid", 2),
        ("low", 3),
        ("high", 1),
    ]
    loaded.forget("low@1")
    assert [task.name for task in loaded.older] == ["mid@1", "low@2"]
    for task in ("low", "mid", "high", "low@2", "mid@1"):
        assert torch.equal(loaded.logits(TESTS, task), learner.logits(TESTS, task))
    torch.testing.assert_close(loaded.predict(TESTS).probabilities, learner.predict(TESTS).probabilities)
    with pytest.raises(InputError, match=r"unknown task 'low@1'. Did you mean"):
        loaded.logits(TESTS, "low@1")
    loaded.save(tmp_path / "m")
    again = Learner.load(tmp_path / "m", device="cpu")
    assert again.older == loaded.older
    if settings is ROUTER:  # keeps one sum for all tasks
        return
    again.forget("low")
    assert [task.name for task in (*again.tasks, *again.older)] == ["mid", "high", "mid@1"]
    assert torch.equal(again.logits(TESTS, "mid@1"), learner.logits(TESTS, "mid@1"))
    assert [event["event"] for event in again.history[-2:]] == ["forgot", "forgot"]


def _saved(learner: Learner, folder: Path) -> list[Path]:
    learner.save(folder / "m")
    return [path for path in (folder / "m").iterdir() if path.name != ".lock"]


def test_folders_without_versions_say_nothing_of_them(tmp_path: Path) -> None:
    _saved(taught(), tmp_path)
    text = (tmp_path / "m" / "manifest.json").read_text()
    assert "version_of" not in text
    assert "origin" not in text


def test_forgetting_a_task_takes_its_versions_along_and_its_newest_cannot_go_alone() -> None:
    learner = taught()
    learner.update(*NEW, task="low", keep="always")
    with pytest.raises(InputError, match=r"'low@2', the newest version.*give 'low' to forget the whole task"):
        learner.forget("low@2")
    mid = learner.logits(TESTS, "mid")
    learner.forget("low")
    assert ([task.name for task in learner.tasks], learner.older) == (["mid"], ())
    assert torch.equal(learner.logits(TESTS, "mid"), mid)
    learner.forget("mid")
    assert learner.model.tasks == []


def test_a_version_is_merged_and_exported_like_a_task(tmp_path: Path) -> None:
    learner = taught()
    learner.update(*NEW, task="low", keep="always")
    for task in ("low", "low@1", "mid"):
        merged = learner.merge(task)(TESTS).detach()
        torch.testing.assert_close(merged[:, : len(learner.info(task).classes)], learner.logits(TESTS, task))
        exported = export(learner, task, to="safetensors", path=tmp_path / f"{task}.safetensors")
        assert exported.about["task"] == task
    assert export(learner, to="pt2", path=tmp_path / "all.pt2").difference < 1e-5
    assert export(learner, "low@1", to="pt2", path=tmp_path / "old.pt2").difference < 1e-5


class Broken(Callback):
    def __init__(self, steps: int) -> None:
        self.left = steps

    def step_end(self, step: StepEnd) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def test_a_version_that_is_broken_off_leaves_all_as_it_was_and_is_resumed_to_the_same_bits(tmp_path: Path) -> None:
    learner, other = taught(), taught()
    learner.save(tmp_path / "m")
    before = learner.state
    with pytest.raises(KeyboardInterrupt):
        learner.update(*NEW, task="low", keep="always", callbacks=[Checkpoint(tmp_path / "m", every=0), Broken(9)])
    assert learner.state is before
    assert inspect_model(tmp_path / "m").in_progress == "low@2"
    resumed = Learner.load(tmp_path / "m", device="cpu")
    resumed.update(*NEW, task="low", keep="always", callbacks=[Checkpoint(tmp_path / "m", resume=True)])
    other.update(*NEW, task="low", keep="always")
    for task in ("low", "low@1", None):
        assert torch.equal(resumed.predict(TESTS, task).probabilities, other.predict(TESTS, task).probabilities)
    resumed.save(tmp_path / "m")
    assert inspect_model(tmp_path / "m").in_progress is None


def test_mistakes_are_named_in_one_sentence() -> None:
    learner = taught()
    x, y = NEW
    for wrong, options in (
        ("unknown task 'lov'. Did you mean 'low'", {"task": "lov"}),
        ("keep is 'maybe'; give 'better', 'always' or 'never'", {"task": "low", "keep": "maybe"}),
        ("validation_fraction is 2", {"task": "low", "validation_fraction": 2}),
    ):
        with pytest.raises(InputError, match=wrong):
            learner.update(x, y, **options)
    with pytest.raises(InputError, match=r"y has the label 7, which task 'low' does not have \(it has 0, 1, 2\)"):
        learner.update(x, torch.where(y == 2, 7, y), task="low")
    with pytest.raises(InputError, match="of 4 rows none can be held out"):
        learner.update(x[:4], y[:4], task="low")
    with pytest.raises(InputError, match="63"):
        learner.update(x[:, :63], y, task="low")
    only = y == 1
    assert learner.update(x[only], y[only], task="low", keep="always").kept  # no rows of other classes is fine
    with pytest.raises(InputError, match="'low@1', an older version, which stays as it is; give 'low'"):
        learner.update(x, y, task="low@1")
    with pytest.raises(InputError, match="a task named 'low@2' has been learnt already"):
        learner.learn(*of((5, 6), 0, 100), task="low@2")


def test_other_methods_cannot() -> None:
    learner = Learner(method_named("sgd")(Problem((64,), 4, "task")))  # type: ignore[call-arg]
    with pytest.raises(InputError, match="method 'sgd' keeps no versions of a task"):
        learner.update(*NEW, task="low")


# The classifier


def classifier(**settings: Any) -> ContinualClassifier:
    found = ContinualClassifier(
        hidden=(40,), epochs=4, settings={"inference.features.width": 80, **settings}, device="cpu"
    )
    for task, labels in (("low", (0, 1, 2)), ("mid", (3, 4))):
        x, y = of(labels, 0, 220)
        found.learn(x.numpy(), np.array([f"d{label}" for label in y]), task=task)
    return found


@pytest.mark.parametrize("settings", [{}, {"inference": "router"}], ids=["gaussians", "router"])
def test_a_classifier_learns_more_rows_and_finds_them_no_longer_new(settings: dict[str, Any], tmp_path: Path) -> None:
    found = classifier(**settings)
    x, y = NEW[0].numpy() + 0.5, np.array([f"d{label}" for label in NEW[1]])
    old, probabilities = found.predict_proba(TESTS.numpy(), task="low"), found.predict_proba(TESTS.numpy())
    assert found.is_novel(x).mean() > 0.5
    found.update(x, y, "low", keep="never")
    assert np.array_equal(found.predict_proba(TESTS.numpy()), probabilities)
    result = found.update(x, y, "low")
    assert result.kept
    assert (result.accuracy_inferred or 0) > (result.accuracy_inferred_before or 0)
    assert found.is_novel(x).mean() < 0.05
    assert np.array_equal(found.predict_proba(TESTS.numpy(), task="low@1"), old)
    assert found.tasks_ == ["low", "mid"]
    found.save(tmp_path / "m")
    again = load(tmp_path / "m", device="cpu")
    assert isinstance(again, ContinualClassifier)
    for task in (None, "low", "low@1"):
        assert np.array_equal(again.predict_proba(x, task), found.predict_proba(x, task))
    assert np.array_equal(again.novelty(x), found.novelty(x))
    again.forget("low@1")
    assert again.classes_.tolist() == ["d0", "d1", "d2", "d3", "d4"]
    with pytest.raises(InputError, match="y has the label 'd3', which task 'low' does not have"):
        found.update(x[:50], ["d3"] * 50, "low")


# What is said of a version that is kept and should not be


def separable(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Rows of two classes with a gap between them."""
    x = torch.randn(count, 20, generator=torch.Generator().manual_seed(seed))
    margin = x @ torch.randn(20, generator=torch.Generator().manual_seed(7))
    apart = margin.abs() > 1
    return x[apart], (margin[apart] > 0).long()


ALWAYS_RIGHT = {"epochs": 6, "finetune_epochs": 2, "init": "pretrained"}


@pytest.fixture(scope="module")
def linear_learner() -> Learner:
    torch.manual_seed(0)
    settings = Settings(**ALWAYS_RIGHT, learning_rate=0.01)
    learner = Learner(models.mlp(20, [16], 2), settings, seed=0, device="cpu")
    learner.learn(*separable(800, 0), task="sides")
    return learner


@pytest.fixture(scope="module")
def linear_classifier() -> ContinualClassifier:
    settings = {"inference.features.width": 64, "init": "pretrained"}
    classifier = ContinualClassifier((16,), epochs=6, learning_rate=0.01, settings=settings, device="cpu")
    x, y = separable(800, 0)
    return classifier.learn(x.numpy(), y.numpy(), task="sides")


def told(changed: Callable[[], Any]) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = changed()
    return result, [str(one.message) for one in caught if issubclass(one.category, UserWarning)]


@contextlib.contextmanager
def wrong_labels() -> Iterator[None]:
    """What is trained meanwhile falls for certain: it is trained on the other class of every row."""
    loss = IBPWF.loss
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IBPWF, "loss", lambda method, x, y: loss(method, x, 1 - y))
        yield


def test_a_version_that_is_kept_and_falls_is_a_warning_and_one_that_does_not_is_none(linear_learner: Learner) -> None:
    for rate, falls in ((0.01, False), (0.1, True)):
        learner = linear_learner.fork()
        learner.settings = learner.settings.replace(learning_rate=rate)
        with wrong_labels() if falls else contextlib.nullcontext():
            result, warned = told(lambda one=learner: one.update(*separable(600, 1), task="sides", keep="always"))
        assert result.kept
        assert result.accuracy_before == 100
        assert (result.accuracy < 95) is falls
        assert len(warned) == falls
        assert all("'sides'" in one and "'sides@1'" in one for one in warned)
        assert told(lambda one=learner: one.update(*separable(600, 1), task="sides", keep="never"))[1] == []


def test_a_classifier_warns_of_a_version_that_falls_too(linear_classifier: ContinualClassifier) -> None:
    for rate, falls in ((0.01, False), (0.1, True)):
        classifier = copy.copy(linear_classifier).set_params(learning_rate=rate)
        x, y = (one.numpy() for one in separable(600, 1))
        with wrong_labels() if falls else contextlib.nullcontext():
            result, warned = told(lambda one=classifier, x=x, y=y: one.update(x, y, task="sides", keep="always"))
        assert result.kept
        assert (result.accuracy < 95) is falls
        assert len(warned) == falls
        assert all("'sides@1'" in one for one in warned)


def trial_of(learner: Learner) -> Trial:
    x, y = separable(1200, 1)
    return finish(learner.try_update(x, y, "sides", "always", 0.2))


def test_held_out_rows_decide_whether_a_version_is_below_a_linear_model(linear_learner: Learner) -> None:
    """Not those that the task was first learned with, whose record says that all of them are right."""
    trial = trial_of(linear_learner)
    info = trial.state.tasks[0]
    trial = replace(
        trial, state=replace(trial.state, tasks=(replace(info, held_out=HeldOut(100, 100.0, 50.0, 100.0)),))
    )
    truth, out = trial.labels, trial.validation.numpy()
    wrong = np.flatnonzero(out)[: int(0.12 * out.sum())]
    answers = truth.copy()
    answers[wrong] = 1 - answers[wrong]
    poor = trial.problem(truth, (answers, answers), (answers, answers))  # no worse than before
    assert poor is not None
    assert "linear model" in poor
    assert f"{out.sum():,} held-out rows" in poor
    assert trial.problem(truth, (truth, truth), (truth, truth)) is None
    assert trial.problem(truth, (answers, answers), (truth, truth)) is None
    fallen = truth.copy()
    fallen[: int(0.08 * len(truth))] = 1 - fallen[: int(0.08 * len(truth))]
    worse = trial.problem(truth, (truth, truth), (fallen, fallen))
    assert worse is not None
    assert "'sides@1'" in worse
    few = replace(trial, validation=torch.zeros_like(trial.validation))
    assert few.problem(truth, (answers, answers), (answers, answers)) is None


def test_rows_of_a_single_class_are_not_compared_with_a_linear_model(linear_learner: Learner) -> None:
    x, y = separable(1200, 1)
    trial = finish(linear_learner.try_update(x[y == 1], y[y == 1], "sides", "always", 0.2))
    truth = trial.labels
    answers = np.where(np.arange(len(truth)) % 8 == 0, 0, truth)
    assert trial.problem(truth, (answers, answers), (answers, answers)) is None


def test_a_stream_is_not_warned_of_what_it_has_judged_itself(
    linear_classifier: ContinualClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trial, "problem", lambda *_: "doubtful")
    x, y = (part.numpy() for part in separable(200, 3))
    for ask, wanted in (
        (lambda one: one.update(x, y, "sides", keep="always"), ["doubtful"]),
        (lambda one: one.update(x, y, "sides", keep="never"), []),
        (lambda one: one._update(x, y, "sides"), []),
    ):
        assert told(lambda ask=ask: ask(copy.copy(linear_classifier)))[1] == wanted
