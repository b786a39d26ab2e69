"""Several processes learn one task: real ones, started by torchrun, over gloo."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ibpwf import ContinualClassifier, Learner, Settings
from ibpwf.distributed import ALONE, Group, join
from ibpwf.errors import InputError
from tests.together import DATA, learn_all, table

HERE = Path(__file__).parent


def start(*words: str, processes: int = 2, **options: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--standalone", *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, **options
    )


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """What two processes know of the same tasks in the end, and what one knows that learned alone."""
    place = tmp_path_factory.mktemp("together")
    job = start(str(HERE / "together.py"), str(place / "two.safetensors"))
    said = job.communicate(timeout=240)[0]
    assert job.returncode == 0, said
    if sys.platform == "linux":  # a thread that outlives the interpreter may end the process with SIGABRT
        assert said.count("threads of the group that are left: 0") == 2, said
    return load_file(place / "two.safetensors"), learn_all("off")


@pytest.mark.parametrize("kind", ["gaussian", "class-gaussian", "shared-gaussian", "router"])
def test_sums_of_rows_are_those_of_one_process(both: tuple[dict[str, torch.Tensor], ...], kind: str) -> None:
    two, one = both
    names = [name for name in one if name.startswith(f"sums/{kind}/")]
    assert names
    for name in names:
        assert torch.allclose(two[name], one[name], rtol=1e-6, atol=1e-6 * float(one[name].abs().max())), name


def test_answers_are_those_of_one_process_within_noise(both: tuple[dict[str, torch.Tensor], ...]) -> None:
    two, one = both
    for kind in ("router", "batch-norm"):
        accuracies = [float((answers[f"labels/{kind}"] == DATA.y).double().mean()) for answers in both]
        assert min(accuracies) > 0.9, kind
        assert abs(accuracies[0] - accuracies[1]) < 0.05, kind
    assert torch.allclose(two["first step"], one["first step"], atol=1e-5)  # before rounding errors have grown


def test_batch_normalization_sees_the_rows_of_all(both: tuple[dict[str, torch.Tensor], ...]) -> None:
    two, one = both
    for name in ("parameters", "statistics", "logits 0", "logits 1"):
        torch.testing.assert_close(two[f"batch-norm/{name}"], one[f"batch-norm/{name}"], rtol=1e-4, atol=1e-4)


def test_alone_is_a_group_too() -> None:
    assert join("auto") is ALONE
    assert join("off") is ALONE
    x, y = torch.randn(5, 2), torch.arange(5)
    assert ALONE.part(x, y) == (x, y, 1.0)
    assert pickle.loads(pickle.dumps(ALONE)).alone
    with pytest.raises(InputError, match="give 'auto' or 'off'"):
        join("yes")  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [2, 3, 7, 64])
def test_parts_are_the_whole(rows: int) -> None:
    x, y = torch.randn(rows, 2), torch.arange(rows)
    parts = [Group(rank, 3).part(x, y) for rank in range(3)]
    assert sum(weight for *_, weight in parts) == pytest.approx(1.0)
    mean = sum(weight * part.mean(0) for part, _, weight in parts)
    assert torch.allclose(mean, x.mean(0), atol=1e-6)
    shares = [list(Group(rank, 3).shares(iter([(x, y)]))) for rank in range(3)]
    assert torch.equal(torch.cat([part for share in shares for part, _ in share]), x)


def test_a_file_is_learned_by_two_stopped_and_finished_by_one(tmp_path: Path) -> None:
    model = tmp_path / "model"
    first, second = (str(table(tmp_path / f"{name}.csv", seed)) for name, seed in (("a", 0), ("b", 1)))
    learn = ("-m", "ibpwf", "learn", str(model))
    options = ("--label", "kind", "--recipe", "plain", "--epochs", "8", "--checkpoint-minutes", "0")
    job = start(*learn, first, *options)
    assert job.wait(120) == 0, job.stdout and job.stdout.read()
    before = {file.name: file.read_bytes() for file in model.iterdir() if file.is_file()}
    job = start(*learn, second, "--label", "kind", "--checkpoint-minutes", "0")
    while not list(model.glob(".in-progress*")) and job.poll() is None:
        time.sleep(0.05)
    job.send_signal(signal.SIGINT)
    said = job.communicate(timeout=120)[0]
    assert job.returncode != 0
    assert "--resume" in said
    assert ContinualClassifier.load(model).tasks_ == ["a"]
    alone = [sys.executable, "-m", "ibpwf", "learn", str(model), second, "--label", "kind", "--resume", "--json"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(alone, capture_output=True, text=True, env=environment, check=True)
    assert json.loads(done.stdout)["tasks"] == ["a", "b"]
    assert before  # and the first task's files are as they were
    for name, content in before.items():
        if name.startswith("task"):
            assert (model / name).read_bytes() == content


def test_a_process_that_dies_ends_the_job_with_a_sentence(tmp_path: Path) -> None:
    # torchrun ends whoever is left when it next looks: it must not look before they have said why
    job = start("--monitor-interval=5", str(HERE / "together.py"), "die")
    said = job.communicate(timeout=120)[0]
    assert job.returncode != 0
    assert "another process that learns this task has ended" in said
    assert "--resume" in said


def test_processes_with_other_data_are_found_out(tmp_path: Path) -> None:
    job = start(str(HERE / "together.py"), "other data")
    said = job.communicate(timeout=120)[0]
    assert job.returncode != 0
    assert "is not the same in process 0 and process 1 of 2" in said


def test_a_baseline_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from ibpwf.lab.experiments import run as room
    from ibpwf.lab.experiments.run_config import RunConfig

    monkeypatch.setattr(room, "join", lambda *_: Group(0, 2))
    with pytest.raises(InputError, match="'ewc' is trained by one process"):
        room.run(RunConfig("split-digits", method="ewc"), tmp_path / "run")


def test_a_learner_is_alone_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    net = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    assert Learner(net, Settings()).method.group is ALONE
