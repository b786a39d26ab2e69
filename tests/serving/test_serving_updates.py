"""Every version that was announced answers as it did then, whatever is learned, updated or forgotten since, by a job
or by the command line, with and without a restart, until a task is forgotten that was part of it."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import WORDS, blobs, table

from ibpwf import ContinualClassifier
from ibpwf.data import ReadOptions
from ibpwf.errors import InputError
from ibpwf.estimator.files import LearnOptions, learn_file, update_file
from ibpwf.inference.prediction import Prediction
from ibpwf.serving import worker
from ibpwf.serving.batching import Rows, predict
from ibpwf.serving.registry import NoSuchModel, ServedModel
from ibpwf.serving.versions import Kept

X = blobs(range(8), each=3, seed=3)[0].astype(np.float32)

KINDS: dict[str, dict[str, Any]] = {
    "gaussian": {"inference.features.width": 24},
    "router": {
        "inference": "router",
        "inference.features.width": 24,
        "validation_fraction": 0.2,
        "inference.experts": 0,
    },
    "router with sums": {
        "inference": "router",
        "inference.features.width": 24,
        "validation_fraction": 0.2,
        "inference.keep_sums_per_task": True,
    },
    "ensemble": {
        "inference": "router",
        "inference.features.width": 24,
        "validation_fraction": 0.2,
        "inference.experts": "all",
    },
}


def rows_of(folder: Path, task: int, each: int = 14, seed: int = 0) -> Path:
    x, y = blobs((2 * (task % 4), 2 * (task % 4) + 1), each, seed)
    return table(folder / f"rows-{task}-{seed}.csv", x, [WORDS[label] for label in y])


def mark_long(kind: str) -> Any:
    return pytest.param(kind, marks=[] if kind in ("gaussian", "router with sums") else pytest.mark.faults)


class World:
    """A model folder that is changed in random ways, and what every version said when it was announced."""

    def __init__(self, folder: Path, settings: dict[str, Any], chance: random.Random) -> None:
        self.folder, self.chance = folder, chance
        self.path = folder / "model"
        self.parameters: dict[str, Any] = {"epochs": 2, "hidden": (8,), "settings": settings}
        self.begun = self.changes = self.compared = 0
        self.said: dict[int, dict[Any, Any]] = {}
        for _ in range(2):
            self.learn(beside=True)
        self.served = ServedModel("model", self.path)
        self.announce()

    # Changing it: as a job of the server, or as a user of the command line would beside it

    def learn(self, *, beside: bool) -> str:
        self.begun += 1
        name, rows = f"task {self.begun}", rows_of(self.folder, self.begun)
        read = ReadOptions(label="kind" if self.begun == 1 else None)
        options = LearnOptions(read=read, device="cpu")
        if not beside:
            self._keep()
        learn_file(self.path, rows, name, self.parameters if self.begun == 1 else None, options)
        return name

    def update(self, *, beside: bool) -> None:
        name = self.chance.choice(self.served.newest.tasks)
        if not beside:
            self._keep()
        rows = rows_of(self.folder, int(name.split()[1]), each=20, seed=self.changes + 1)
        update_file(self.path, rows, name, None, LearnOptions(device="cpu"), "always")

    def forget(self, *, beside: bool) -> None:
        name = self.chance.choice(self.served.newest.classifier.learner_.names())
        (self.folder / "job").mkdir(exist_ok=True)
        (self.folder / "job" / "forgot").unlink(missing_ok=True)
        try:
            if beside:
                classifier = ContinualClassifier.load(self.path, device="cpu")
                classifier.forget(name)
                classifier.save(self.path)
            else:
                with contextlib.chdir(self.folder / "job"):
                    worker._forget(self.path, name, Kept(self.path))
        except InputError:  # the only task, the newest of several versions, one of a router that keeps one sum
            return
        self.after_forgetting({name})

    def _keep(self) -> None:
        """As a job does before it changes anything."""
        Kept(self.path).follow()
        Kept(self.path).keep()

    def restart(self) -> None:
        self.served = ServedModel("model", self.path, read_only=self.served.read_only)

    # What versions say

    def bits(self, number: int) -> dict[Any, Any]:
        version = self.served.version(number)
        names: list[str | None] = [None, *version.tasks]
        found: dict[Any, Any] = {"tasks": version.tasks}
        for name in names:
            found[name] = _bits(predict(version.classifier, [Rows(X, [name] * len(X))])[0])
            found[name, "classes"] = version.classifier.predict_proba(X, name).tobytes()
        return found

    def announce(self) -> None:
        for number in self.served.versions:
            if number not in self.said:
                self.said[number] = self.bits(number)

    def after_forgetting(self, gone: set[str]) -> None:
        """What was part of a version has gone: with a task given that is left, it answers as before; one that it was
        no part of has not changed at all."""
        assert self.served.look() or self.served.problem is None
        for number, before in list(self.said.items()):
            if number not in self.served.versions:
                assert number in withdrawn(self.served), number
                with pytest.raises(NoSuchModel, match=f"version {number} .*withdrawn"):
                    self.served.version(number)
                del self.said[number]
                continue
            now = self.bits(number)
            if now["tasks"] == before["tasks"] and not any("@" in name for name in gone):
                assert now == before, number
            for task in now["tasks"]:
                if task in before["tasks"]:  # an older version that is forgotten was the newest in versions of then
                    assert given(now[task]) == given(before[task]), (number, task)
            self.said[number] = now

    def check(self) -> None:
        """Every version that was announced and not withdrawn says what it said."""
        self.served.look()
        assert self.served.problem is None, self.served.problem
        for number, before in self.said.items():
            assert self.bits(number) == before, number
            self.compared += 1
        self.announce()

    def step(self) -> str:
        self.changes += 1
        kind = self.chance.choice(["learn", "update", "update", "forget", "restart"])
        if kind == "restart":
            self.restart()
        else:
            getattr(self, kind)(beside=self.chance.random() < 0.5)
        self.check()
        return kind


def _bits(found: Prediction[Any]) -> tuple[Any, ...]:
    assert found.novelty is not None
    numbers = (found.probability, found.task_probabilities, found.entropy, found.novelty)
    return (found.labels.tolist(), found.task.tolist(), *(one.tobytes() for one in numbers))


def given(said: tuple[Any, ...]) -> tuple[Any, ...]:
    """Of all outputs those that, with the task given, are not about the other tasks."""
    labels, tasks, probability, _, entropy, _ = said
    return labels, tasks, probability, entropy


def withdrawn(served: ServedModel) -> set[int]:
    """Those that are known by the history and are no more."""
    return {*range(1, max(served.versions) + 20)} - {*served.versions}


@pytest.mark.parametrize("kind", [mark_long(kind) for kind in KINDS])
def test_versions_from_before_two_updates_answer_as_when_they_were_announced(tmp_path, kind):
    """The server first sees a folder of several tasks, which are updated."""
    world = World(tmp_path, KINDS[kind], random.Random(1))
    world.learn(beside=True)
    world.served = ServedModel("model", world.path)
    world.announce()
    for beside in (False, True):
        world.changes += 1
        world.update(beside=beside)
        world.check()
    announced = [1, 2, 3, 4, 5] if kind in ("gaussian", "router with sums") else [2, 3, 4, 5]
    assert world.served.versions == announced
    world.restart()
    world.check()
    assert world.served.versions == announced
    if kind in ("gaussian", "router with sums"):
        world.chance = random.Random(0)
        for task in ("task 3", "task 1"):  # the first was the last one that was learned, the second was updated
            world.chance.choice = lambda names, task=task: task  # type: ignore[method-assign]
            world.forget(beside=task == "task 1")
            world.restart()
            world.check()


@pytest.mark.faults
@pytest.mark.parametrize("kind", KINDS)
def test_random_changes_and_restarts_lose_no_announced_version_and_no_bit(tmp_path, kind, tally):
    compared, worlds, seed = 0, 12, int.from_bytes(os.urandom(4))
    for number in range(worlds):
        chance = random.Random(seed + number)
        (tmp_path / str(number)).mkdir()
        world = World(tmp_path / str(number), KINDS[kind], chance)
        done = []
        for _ in range(10):
            try:
                done.append(world.step())
            except BaseException:
                print(f"seed {seed + number}, after {done}")
                raise
        compared += world.compared
        shutil.rmtree(tmp_path / str(number))
    tally(f"versions compared after changes and restarts, {kind}", compared, seed=seed, **{"other bits": 0})
