"""Ctrl-C at any line: whatever was being done is done or not done, and everything goes on as if nothing had been."""

from __future__ import annotations

import ast
import dis
import functools
import itertools
import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack, _pop_mode

import ibpwf
from ibpwf import ContinualClassifier, Learner, Settings, torch_state
from ibpwf.storage.checkpoint_folder import digest_of
from ibpwf.storage.model_folder import verify_model
from ibpwf.training.checkpoint import Checkpoint

Tally = Callable[..., None]
Place = tuple[str, int]

SOURCE = str(Path(ibpwf.__file__).parent)
SEED = 2021


class Lines:
    """Counts the lines of this library that run, and interrupts before the chosen one."""

    def __init__(self, stop: int | None = None) -> None:
        self.stop, self.places, self.raised = stop, list[Place](), False

    def __enter__(self) -> Lines:
        sys.settrace(self._call)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._line if frame.f_code.co_filename.startswith(SOURCE) else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line" and not ends_with_block(frame):
            self.places.append((frame.f_code.co_filename, frame.f_lineno))
            if len(self.places) - 1 == self.stop:
                sys.settrace(None)
                self.raised = True
                raise KeyboardInterrupt
        return self._line


def ends_with_block(frame: FrameType) -> bool:
    """Whether the body of a `with` is over and its end has not begun: Python handles no signal in between, which is
    why locks are released for certain. It shows as the line of the `with` again, now loading None for `__exit__`."""
    code = frame.f_code
    if (code.co_filename, frame.f_lineno) not in with_lines(code.co_filename):
        return False
    step = next(one for one in dis.get_instructions(code) if one.offset >= frame.f_lasti)
    return step.opname == "LOAD_CONST" and step.argval is None


@functools.cache
def with_lines(file: str) -> set[Place]:
    tree = ast.parse(Path(file).read_text("utf-8"))
    return {(file, one.lineno) for one in ast.walk(tree) if isinstance(one, (ast.With, ast.AsyncWith))}


@pytest.fixture(autouse=True)
def other_threads_go_on() -> Iterator[None]:
    """An interrupt must leave no lock behind that another thread would wait for."""
    yield
    another = threading.Thread(target=torch_state.pinned()(lambda: None), daemon=True)
    another.start()
    another.join(60)
    assert not another.is_alive()


@pytest.fixture(autouse=True)
def torch_as_before() -> Iterator[None]:
    """An interrupt while torch leaves a context of its own may leave that switched on, for this thread or for all;
    the tests that follow must not find it so."""
    threads = torch.get_num_threads()
    yield
    torch.set_grad_enabled(True)
    while _get_current_function_mode_stack():
        _pop_mode()
    torch.set_num_threads(threads)
    torch.set_flush_denormal(False)


def chosen(places: list[Place], points: int, seed: int) -> list[int]:
    """Where to interrupt: every line at its first and at its last run, as far as `points` reach, and others at
    random."""
    first = {place: number for number, place in reversed(list(enumerate(places)))}
    last = {place: number for number, place in enumerate(places)}
    telling = sorted({*first.values(), *last.values()})
    chance = random.Random(seed)
    if len(telling) > points:
        return sorted(chance.sample(telling, points))
    rest = sorted(set(range(len(places))) - set(telling))
    return sorted([*telling, *chance.sample(rest, min(len(rest), points - len(telling)))])


def examples(task: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(task)
    y = torch.arange(12) % 2
    return torch.randn(12, 3, generator=generator) + task + 2.0 * y.unsqueeze(1), 2 * task + y


def small_learner() -> Learner:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    learner = Learner(net, Settings(epochs=1, finetune_epochs=1, batch_size=6, alpha=3), device="cpu")
    learner.learn(*examples(0), task="first")
    return learner


def small_classifier() -> ContinualClassifier:
    classifier = ContinualClassifier(
        hidden=(4,),
        epochs=1,
        batch_size=6,
        settings={"inference.features.width": 5, "finetune_epochs": 1},
        device="cpu",
    )
    x, y = examples(0)
    return classifier.learn(x.numpy(), np.array(["a", "b"])[y.numpy()], task="first")


def known(one: Learner | ContinualClassifier) -> str:
    """A digest of all that there is to know of a learner."""
    learner = one if isinstance(one, Learner) else one.learner_
    content, parts = learner.method.state()
    around = None if isinstance(one, Learner) else [one._face(), one.tasks_, one.classes_.tolist()]
    tasks = [[task.name, task.number, list(task.classes), task.examples] for task in learner.tasks]
    shape = None if learner.input_shape is None else list(learner.input_shape)
    return digest_of([content, tasks, learner.history, shape, learner.extra, around], parts)


def teach(one: Learner | ContinualClassifier, *callbacks: Checkpoint) -> None:
    x, y = examples(1)
    if isinstance(one, Learner):
        one.learn(x, y, task="second", callbacks=callbacks)
    else:
        one.learn(x.numpy(), np.array(["c", "d"])[y.numpy() - 2], task="second", callbacks=callbacks)


def forget(one: Learner | ContinualClassifier) -> None:
    one.forget("first")


def begin() -> Learner:
    learner = small_learner()
    teach(learner)
    return learner


def begin_classifier() -> ContinualClassifier:
    classifier = small_classifier()
    teach(classifier)
    return classifier


CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], None], int]] = {
    "learn": (small_learner, teach, 1100),
    "learn of a classifier": (small_classifier, teach, 1100),
    "forget": (begin, forget, 200),
    "forget of a classifier": (begin_classifier, forget, 200),
}


@pytest.mark.parametrize("long", [False, pytest.param(True, marks=pytest.mark.faults)])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore:task .* was hardly learned")
def test_interrupted_at_any_line_it_is_done_or_not_done(case: str, long: bool, tally: Tally) -> None:
    make, do, points = CASES[case]
    before = known(make())
    undisturbed = make()
    with Lines() as lines:
        do(undisturbed)
    after = known(undisturbed)
    assert before != after
    tried = lost = wrong = quiet = left = 0
    for stop in chosen(lines.places, points if long else 25, SEED):
        one = make()
        try:
            with Lines(stop) as run:
                do(one)
            quiet += run.raised  # and swallowed
        except KeyboardInterrupt:
            tried += 1
        left += not torch.is_grad_enabled()
        now = known(one)
        lost += now not in (before, after)
        if now == before:
            do(one)  # nothing stands in the way of trying again
            wrong += known(one) != after
    found = {"lost": lost, "wrong": wrong, "swallowed": quiet, "without gradients": left}
    tally(f"interrupts of {case}", tried, seed=SEED, **found)


@pytest.mark.parametrize("long", [False, pytest.param(True, marks=pytest.mark.faults)])
@pytest.mark.parametrize("kind", ["save", "learn with checkpoints"])
@pytest.mark.filterwarnings("ignore:task .* was hardly learned")
def test_a_folder_survives_an_interrupt_at_any_line(kind: str, long: bool, tmp_path: Path, tally: Tally) -> None:
    folders = (tmp_path / f"model-{number}" for number in itertools.count())

    def made() -> tuple[Learner, Path]:
        learner, folder = small_learner(), next(folders)
        learner.save(folder)
        if kind == "save":
            teach(learner)
        return learner, folder

    def do(learner: Learner, folder: Path) -> None:
        if kind == "save":
            learner.save(folder)
        else:
            teach(learner, Checkpoint(folder, every=0))
            learner.save(folder)

    learner, folder = made()
    before = known(Learner.load(folder, device="cpu"))
    with Lines() as lines:
        do(learner, folder)
    after = known(Learner.load(folder, device="cpu"))
    tried = lost = wrong = quiet = 0
    for stop in chosen(lines.places, 300 if long else 15, SEED + 1):
        learner, folder = made()
        try:
            with Lines(stop) as run:
                do(learner, folder)
            quiet += run.raised
        except KeyboardInterrupt:
            tried += 1
        lost += bool(verify_model(folder).problems)
        lost += known(Learner.load(folder, device="cpu")) not in (before, after)
        if len(learner.tasks) == 1:
            teach(learner)
        learner.save(folder)
        wrong += known(Learner.load(folder, device="cpu")) != after
    tally(f"interrupts of {kind}", tried, seed=SEED + 1, lost=lost, wrong=wrong, swallowed=quiet)
