"""Fixtures for all tests: small tasks and learners, and processes to run the command line in."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import ibpwf
import ibpwf.lab
import processes
import zoos
from ibpwf import Learner, Settings, models
from ibpwf.cli import program
from ibpwf.lab.data.tasks import Scenario
from own_files import QUICK, blobs, table
from tallies import tally

__all__ = ["tally"]

# One thread per process: tests run beside others, and threads that wait for each other cost most of the time.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # kernels run in Triton's interpreter; read when they are defined


LONGEST = (
    "faults/test_killed_runs.py",
    "lab/experiments/test_executors.py",
    "lab/experiments/test_cluster.py",
    "lab/experiments/test_run_together.py",
    "cli/test_program.py",
    "properties/test_forgetting_a_task.py",
    "cli/test_docs.py",
    "lab/experiments/test_run_folder.py",
    "properties/test_no_forgetting.py",
    "faults/test_killed_writes.py",
    "zoo/test_zoo.py",
    "lab/experiments/test_compare.py",
    "training/test_checkpoint.py",
    "faults/test_resealed_folders.py",
    "test_learner.py",
    "lab/evaluation/test_evaluate.py",
    "exporting/test_turned_and_routed.py",
    "cli/test_interrupted_learning.py",
    "faults/test_killed_learning.py",
    "hugging_face/test_networks.py",
    "estimator/test_scikit_learn.py",
    "lab/experiments/test_beside.py",
    "estimator/test_continual_classifier.py",
    "test_defaults.py",
    "exporting/test_prepared_inputs.py",
    "lab/methods/test_generative_replay.py",
    "cli/test_later_settings.py",
    "faults/test_threads.py",
    "cli/test_learn.py",
    "exporting/test_export.py",
)
"""By the sum of their tests, longest first: see `pytest --durations=0`."""


def pytest_configure(config: pytest.Config) -> None:
    """Tests train for so short a time that tasks are often hardly learned; those of the warnings record them."""
    for said in ("was hardly learned", "ends below a linear model"):
        config.addinivalue_line("filterwarnings", f"ignore:task .* {said}:UserWarning")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long go first: the last ones are short, so that no worker waits long for the others."""
    here = Path(__file__).parent
    place = {here / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


@pytest.fixture(autouse=True)
def _small_numbers() -> Iterator[None]:
    """A command that trains flushes denormal numbers in its process; other tests need them."""
    yield
    torch.set_flush_denormal(False)


SMALL = Settings(epochs=4, finetune_epochs=2, learning_rate=0.01, alpha=16.0, batch_size=16)


@pytest.fixture(scope="session")
def digits() -> Scenario:
    """Split digits: five tasks of two classes, 64 values an example."""
    return ibpwf.lab.scenario("split-digits")


@pytest.fixture(scope="session")
def transformers() -> ModuleType:
    """Hugging Face's package; tests that need it are skipped where it is not installed."""
    try:
        return zoos.transformers()
    except ImportError:
        pytest.skip("transformers is not installed")


@pytest.fixture
def net() -> nn.Module:
    """A small network for digits, with the same initial values every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return models.mlp(64, [32], 10)


@pytest.fixture
def small() -> Settings:
    """Settings that learn a task of digits in a fraction of a second, and learn it well."""
    return SMALL


@pytest.fixture
def fresh(net: nn.Module) -> Learner:
    """A learner that has learnt nothing."""
    return Learner(net, SMALL, seed=3)


@pytest.fixture(scope="session")
def learnt_folder(tmp_path_factory: pytest.TempPathFactory, digits: Scenario) -> Path:
    """The model folder of a learner that has learnt the first two tasks. Read it, do not write to it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        learner = Learner(models.mlp(64, [32], 10), SMALL, seed=3)
    for task in digits[:2]:
        learner.learn(task.train.x, task.train.y, task=task.name)
    folder = tmp_path_factory.mktemp("learnt") / "model"
    learner.save(folder)
    return folder


@pytest.fixture
def learned(learnt_folder: Path) -> Learner:
    """A learner that has learnt '0/1' and '2/3'."""
    return Learner.load(learnt_folder)


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., processes.Finished]:
    """Runs `ibpwf` with the given words in this process and folder."""

    def run(*words: object) -> processes.Finished:
        monkeypatch.setattr(sys, "argv", ["ibpwf", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            program.main()
        printed = capsys.readouterr()
        return processes.Finished(int(ended.value.code or 0), printed.out, printed.err)

    return run


WORDS = {0: "apple", 1: "pear", 2: "oak", 3: "elm"}


@pytest.fixture(scope="session")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """fruit.csv and trees.csv, learned into `model`; test.csv and new.csv, not learned. Read it only."""
    folder = tmp_path_factory.mktemp("taught") / "here"
    folder.mkdir()
    for name, classes in (("fruit", (0, 1)), ("trees", (2, 3))):
        x, y = blobs(classes)
        table(folder / f"{name}.csv", x, [WORDS[number] for number in y])
    x, y = blobs((0, 1, 2, 3), each=15, seed=1)
    table(folder / "test.csv", x, [WORDS[number] for number in y])
    table(folder / "new.csv", x, None)
    for words in (("fruit.csv", "--label", "kind", *QUICK), ("trees.csv", "--device", "cpu")):
        done = processes.start(("learn", "model", *words), folder, {}).finish()
        assert done.code == 0, done.err
    return folder


@pytest.fixture
def here(taught: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(taught, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., processes.Finished]:
    """Runs `ibpwf` with the given words, in a process of its own and an empty folder, to its end."""

    def run(*words: str, cwd: Path | None = None, **environment: str) -> processes.Finished:
        return processes.start(words, cwd or tmp_path, environment).finish()

    return run


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., processes.Started]]:
    """Starts `ibpwf` with the given words and hands the running process over."""
    running = []

    def run(*words: str, cwd: Path | None = None, **environment: str) -> processes.Started:
        running.append(processes.start(words, cwd or tmp_path, environment))
        return running[-1]

    yield run
    for process in running:
        process.end()


RUN = ("run", "split-digits", "--preset", "quick", "--tasks", "3", "--set", "alpha=16", "--set", "epochs=3")
RUN = (*RUN, "--set", "finetune_epochs=2", "--set", "batch_size=16")


@pytest.fixture(scope="session")
def run_words() -> tuple[str, ...]:
    """A run of three small tasks, as words of a command; it takes less than a second."""
    return RUN


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of that run for two seeds, never disturbed, with TensorBoard events. Read it only."""
    folder = tmp_path_factory.mktemp("finished")
    done = processes.start((*RUN, "--seeds", "2", "--tensorboard", "--out", "undisturbed"), folder, {}).finish()
    assert done.code == 0, done.err
    return folder / "undisturbed"
