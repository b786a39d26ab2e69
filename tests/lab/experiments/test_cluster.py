"""Runs in the workers of a real Dask scheduler, over TLS: the same bits as here, whoever dies on the way."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ibpwf.cli import program
from ibpwf.cli.output import Screen
from ibpwf.cli.run_table import RunTable
from ibpwf.errors import InputError
from ibpwf.lab.experiments import executors
from ibpwf.lab.experiments.cluster import Certificates, Cluster, is_loopback
from ibpwf.lab.experiments.reproduction import registry
from ibpwf.lab.experiments.reproduction.experiment import RunSpec
from ibpwf.lab.experiments.run import Run, run, run_all
from ibpwf.lab.experiments.run_config import RunConfig
from ibpwf.lab.experiments.seed_training import RunCallback
from ibpwf.lab.experiments.task_job import TaskJob
from ibpwf.storage.files import read_json, read_jsonl
from ibpwf.training.callbacks import EpochEnd

distributed = pytest.importorskip("distributed")

TIMES = ("seconds", "samples_per_second", "command", "environment")
FLAGS = ("--tls-ca-file", "--tls-cert", "--tls-key")


def config(epochs: int = 1, **changes: object) -> RunConfig:
    lengths = {"epochs": epochs, "finetune_epochs": 1}
    return RunConfig(
        "split-digits", **{"preset": "quick", "changes": lengths, "tasks": 2, "device": "cpu", **changes}
    )


def without_times(value: Any) -> Any:
    """A result, a row or a line of metrics without what a clock has measured."""
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if key not in TIMES}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def outcome(folder: Path) -> dict[str, Any]:
    """All that a run leaves, but for times."""
    models = {str(p.relative_to(folder)): p.read_bytes() for p in folder.glob("seed-*/model/*") if p.name != ".lock"}
    return {
        "result": without_times(read_json(folder / "result.json")),
        "metrics": sorted(json.dumps(without_times(line)) for line in read_jsonl(folder / "metrics.jsonl")),
        "rows": [without_times(read_json(p)) for p in sorted(folder.glob("seed-*/rows.json"))],
        **models,
    }


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """An authority, a certificate and its key, which here is the authority's own."""
    made = distributed.Security.temporary()
    folder = tmp_path_factory.mktemp("certificates")
    parts = {"ca.pem": made.tls_ca_file, "cert.pem": made.tls_client_cert, "key.pem": made.tls_client_key}
    for name, text in parts.items():
        (folder / name).write_text(text)
    return [str(folder / name) for name in parts]


class Programs:
    """A scheduler and workers, each a process of its own."""

    def __init__(self, folder: Path, certificates: list[str]) -> None:
        self.file = folder / "scheduler.json"
        self.words = [word for pair in zip(FLAGS, certificates, strict=True) for word in pair]
        self.folder, self.workers = folder, dict[str, int]()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.start("scheduler", "--protocol", "tls", "--host", "127.0.0.1", "--port", "0")
        wait_for(self.file.exists)
        security = distributed.Security(
            tls_ca_file=certificates[0], tls_client_cert=certificates[1], tls_client_key=certificates[2]
        )
        self.client = distributed.Client(scheduler_file=str(self.file), security=security, set_as_default=False)
        self.engine = Cluster(str(self.file), Certificates(*map(Path, certificates)))

    def start(self, kind: str, *words: str) -> subprocess.Popen[bytes]:
        line = [sys.executable, "-m", "dask", kind, "--scheduler-file", str(self.file), "--no-dashboard", *self.words]
        with open(self.folder / "programs.log", "ab") as log:
            self.processes.append(subprocess.Popen([*line, *words], cwd=self.folder, stdout=log, stderr=log))
        return self.processes[-1]

    def busy(self) -> list[int]:
        """The processes of workers that are at work."""
        return [self.workers[address] for address, jobs in self.client.processing().items() if jobs]

    def end(self) -> None:
        self.client.close()
        for process in self.processes:
            process.kill()
            process.wait()


IMPORTS = "import torch._dynamo, sklearn.datasets, ibpwf.lab.experiments.task_job"
"""What takes a worker seconds with its first job; seeds are to go on side by side from the first."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory, certificates: list[str]) -> Iterator[Programs]:
    made = Programs(tmp_path_factory.mktemp("cluster"), certificates)
    try:
        for _ in range(2):
            made.start("worker", "--nthreads", "1", "--no-nanny")
        made.client.wait_for_workers(2, timeout=240)
        made.workers = made.client.run(os.getpid)
        made.client.run(exec, IMPORTS)
        yield made
    finally:
        made.end()


def wait_for(condition: Callable[[], bool], seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


class Killing(RunCallback):
    """Ends a worker without a word, in the middle of a later task of one of the seeds."""

    def __init__(self, programs: Programs) -> None:
        self.programs, self.killed = programs, False
        self.begun: list[tuple[str, str]] = []
        self.ended: list[tuple[str, str]] = []

    def task_start(self, training: str, task: str, epochs: int) -> None:
        self.begun.append((training, task))

    def epoch_end(self, training: str, epoch: EpochEnd) -> None:
        later = all((name, "0/1") in self.ended for name in ("seed-0", "seed-1"))
        if later and not self.killed and len(busy := self.programs.busy()) == 2:
            os.kill(busy[0], signal.SIGKILL)
            self.killed = True

    def task_end(self, training: str, row: dict[str, Any]) -> None:
        self.ended.append((training, row["task"]))


def test_a_worker_killed_in_mid_run_costs_nothing_but_time(tmp_path: Path, programs: Programs) -> None:
    asked = config(epochs=5, seeds=(0, 1), tasks=3)
    watch = Killing(programs)
    run(asked, tmp_path / "there", engine=programs.engine, watch=watch)
    assert watch.killed
    assert sorted(watch.ended) == [(seed, task) for seed in ("seed-0", "seed-1") for task in ("0/1", "2/3", "4/5")]
    lost = [one for one in set(watch.begun) if watch.begun.count(one) == 2]
    assert len(lost) == 1, "one task was begun again"
    assert lost[0][1] != "0/1", "and not those before it"
    run(asked, tmp_path / "here")
    assert outcome(tmp_path / "there") == outcome(tmp_path / "here")
    assert read_json(tmp_path / "there" / "result.json")["environment"]["device"] == "cpu"


class KillingOnce(RunCallback):
    """Ends one of the workers that this process has started, at the first epoch of anybody's second task."""

    def __init__(self) -> None:
        self.ended, self.killed = 0, 0

    def epoch_end(self, training: str, epoch: EpochEnd) -> None:
        if self.ended and not self.killed:
            self.killed = multiprocessing.active_children()[0].pid or 0
            os.kill(self.killed, signal.SIGKILL)

    def task_end(self, training: str, row: dict[str, Any]) -> None:
        self.ended += 1


@pytest.mark.slow
def test_workers_of_this_machine_are_replaced_when_they_die(tmp_path: Path) -> None:
    asked, watch = config(epochs=8, seeds=(0, 1)), KillingOnce()
    run(asked, tmp_path / "there", engine=Cluster("local:2"), watch=watch)
    assert watch.killed
    assert multiprocessing.active_children() == []
    run(asked, tmp_path / "here")
    assert outcome(tmp_path / "there") == outcome(tmp_path / "here")


class InTheMiddle(RunCallback):
    """As Ctrl-C after so many tasks, while the next is trained."""

    def __init__(self, tasks: int) -> None:
        self.left = tasks

    def step_end(self, training: str, epochs: float, loss: float) -> None:
        if not self.left:
            raise KeyboardInterrupt

    def task_end(self, training: str, row: dict[str, Any]) -> None:
        self.left -= 1


def test_ctrl_c_frees_the_workers_and_keeps_what_is_done(tmp_path: Path, programs: Programs) -> None:
    asked = config()
    with pytest.raises(KeyboardInterrupt):
        run(config(epochs=2000), tmp_path / "long", engine=programs.engine, watch=InTheMiddle(0))
    wait_for(lambda: not programs.busy(), 20)  # though 2000 epochs had been begun
    with pytest.raises(KeyboardInterrupt):
        run(asked, tmp_path / "run", engine=programs.engine, watch=InTheMiddle(1))
    assert len(read_json(tmp_path / "run" / "seed-0" / "rows.json")["rows"]) == 1
    run(asked, tmp_path / "run", engine=programs.engine, resume=True)
    run(asked, tmp_path / "here")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "here")


def ibpwf(programs: Programs, *words: str) -> None:
    assert program.call([*words, "--cluster", str(programs.file), *programs.words]) == 0


SHORT = ("--preset", "quick", "--tasks", "2", "--set", "epochs=1", "--set", "hidden=[16]")


def test_methods_are_compared_at_once_and_one_that_fails_stops_nobody(
    tmp_path: Path, programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("compare", "split-digits", "--methods", "sgd,rehearsal", "--seeds", "1", *SHORT)
    words = (*words, "--set", "memory_size=100000", "--no-models", "--out", str(tmp_path / "c"))
    ibpwf(programs, *words)
    assert "rehearsal: failed: " in capsys.readouterr().out
    table = {row["method"]: row for row in read_json(tmp_path / "c" / "comparison.json")["rows"]}
    assert table["sgd"]["error"] is None
    assert table["rehearsal"]["error"] is not None
    assert not list((tmp_path / "c" / "sgd").glob("seed-*/model"))
    changes = {"epochs": 1, "hidden": [16]}
    run(RunConfig("split-digits", method="sgd", preset="quick", tasks=2, changes=changes), tmp_path / "here")
    there, here = (read_json(folder / "result.json") for folder in (tmp_path / "c" / "sgd", tmp_path / "here"))
    assert there["matrix"] == here["matrix"]


def test_the_same_command_again_finds_its_folder_and_trains_nothing(
    tmp_path: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("run", "split-digits", "--method", "sgd", *SHORT)
    ibpwf(programs, *words)
    (folder,) = Path("runs").iterdir()
    rows = (folder / "seed-0-task" / "rows.json").read_bytes()
    ibpwf(programs, *words)
    assert (folder / "seed-0-task" / "rows.json").read_bytes() == rows
    ibpwf(programs, *words[:-1], "hidden=[8]")
    assert len(list(Path("runs").iterdir())) == 2, "another content is another folder"


def test_a_table_of_the_paper_is_trained_in_workers(
    tmp_path: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = RunSpec("split-digits", "sgd", "quick", {"epochs": 1, "hidden": [16]}, 2, stands_for="split-mnist")
    bad = dataclasses.replace(spec, method="rehearsal", changes={**spec.changes, "memory_size": 100_000})
    table = dataclasses.replace(registry.EXPERIMENTS["table4"], runs={"quick": (spec, bad), "full": ()})
    monkeypatch.setattr(registry, "EXPERIMENTS", {"table4": table})
    words = ("reproduce", "table4", "--budget", "quick", "--device", "cpu", "--out", str(tmp_path / "r"))
    ibpwf(programs, *words)
    assert "sgd_quick_2-tasks_epochs=1_hidden=16: finished" in capsys.readouterr().out
    result = read_json(tmp_path / "r" / "table4" / "result.json")
    assert [one["name"] for one in result["runs"]] == [spec.name]
    assert [one["name"] for one in result["failed"]] == [bad.name]


def test_an_address_that_others_could_listen_to_is_refused_before_anything_is_done() -> None:
    for address in ("tcp://10.0.0.1:8786", "10.0.0.1:8786", "tcp://no-such-host.invalid:8786"):
        with pytest.raises(InputError, match=r"another machine without encryption.*--cluster-insecure"):
            Cluster(address)
        Cluster(address, insecure=True)
    for address in ("tls://10.0.0.1:8786", "tcp://127.0.0.1:8786", "localhost:8786", "tcp://[::1]:8786", "local:2"):
        Cluster(address)
    assert not is_loopback("0.0.0.0")


def test_what_is_no_address_is_refused_with_what_would_be_one(tmp_path: Path, certificates: list[str]) -> None:
    for address in (
        "nonsense",
        "http://localhost:80",
        "tls://host",
        "local:0",
        "local:two",
        "tcp://a:b",
        "tcp://[::1:8786",
    ):
        with pytest.raises(InputError, match=r"--cluster is .*such as"):
            Cluster(address)
    (tmp_path / "s.json").write_text("[]")
    for name in ("s.json", "none.json"):
        with pytest.raises(InputError, match="no scheduler file"):
            Cluster(str(tmp_path / name))
    with pytest.raises(InputError, match="--tls-cert is 'nowhere', where there is no file"):
        Cluster("tls://host:1", Certificates(cert=Path("nowhere")))
    with pytest.raises(InputError, match="not encrypted"):
        Cluster("tcp://127.0.0.1:1", Certificates(ca_file=Path(certificates[0])))


def test_without_certificates_or_scheduler_or_dask_one_sentence_says_so(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        pytest.raises(InputError, match=r"no certificates to show; add --tls-ca-file"),
        Cluster(str(programs.file)).open(print),
    ):
        pass
    monkeypatch.setattr("ibpwf.lab.experiments.cluster.SECONDS_TO_CONNECT", 1)
    with (
        pytest.raises(InputError, match=r"no Dask scheduler answers at tcp://127.0.0.1:1 "),
        Cluster("127.0.0.1:1").open(print),
    ):
        pass
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"--cluster needs Dask; run pip install 'ibpwf\[cluster\]'"):
        Cluster("local:2")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("run", "split-digits", "--tls-cert", "c.pem"), "--cluster"),
        (("run", "split-digits", "--cluster", "local:2", "--tensorboard"), "--tensorboard"),
        (("compare", "split-digits", "--cluster", "local:2", "--jobs", "2"), "--jobs"),
        (("reproduce", "table4", "--cluster", "tcp://10.0.0.1:1"), "without encryption"),
    ],
)
def test_options_that_do_not_go_together_are_rejected(words: tuple[str, ...], named: str) -> None:
    with pytest.raises(InputError, match=named):
        program.call(words)


def test_a_job_gives_the_same_bytes_whenever_it_is_done() -> None:
    job = TaskJob(0, "seed-0", config(), 0, ("task", "class"), [], {}, steps=False)
    told: list[Any] = []
    with executors.telling(told.append):
        first, second = job(), job()
    assert first.model == second.model
    assert [message[2] for message in told[: len(told) // 2]] == ["task_start", "epoch_end", "epoch_end"]
    other = TaskJob(0, "seed-0", config(), 0, ("task", "class"), [], {}, steps=False, version="0.0")
    with pytest.raises(InputError, match="install the same version on both"):
        other()


class Threads:
    """An engine of one thread, here."""

    def check(self) -> None:
        """It is always here."""

    def explained(self, error: Exception) -> Exception:
        return error

    @contextlib.contextmanager
    def open(self, told: executors.Tell) -> Iterator[Executor]:
        with executors.telling(told), ThreadPoolExecutor(1) as pool:
            yield pool


def test_any_executor_will_do(tmp_path: Path) -> None:
    runs = [Run(config(seeds=(0,)), tmp_path / "a"), Run(config(method="sgd", changes={"epochs": 1}), tmp_path / "b")]
    done = run_all(runs, engine=Threads())
    assert [result["method"] for result in done] == ["ibpwf", "sgd"]
    assert done[0] == read_json(tmp_path / "a" / "result.json")


def test_an_address_where_nobody_answers_leaves_no_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ibpwf.lab.experiments.cluster.SECONDS_TO_CONNECT", 1)
    with pytest.raises(InputError, match="no Dask scheduler answers"):
        run_all([Run(config(seeds=(0,)), tmp_path / "run")], engine=Cluster("127.0.0.1:1"))
    assert not (tmp_path / "run").exists()


def test_all_runs_are_lines_of_one_table() -> None:
    text = io.StringIO()
    screen = Screen(file=text, width=100, force_terminal=True)
    table = RunTable(screen)
    for run_ in ("ewc", "si"):
        for seed in ("seed-0", "seed-1"):
            table.watch(run_).queued(seed, 0, 2)
    watch = table.watch("si")
    watch.task_start("seed-1", "2/3", 7)
    watch.step_end("seed-1", 3.0, 0.25)
    table.ended("ewc", "failed")
    screen.console.print(table.rendered())
    shown = text.getvalue()
    assert "2/3" in shown
    assert "3/7" in shown
    assert "1 training, 2 failed, 1 waiting" in shown
    watch.task_end("seed-1", {})
    watch.queued("seed-1", 1, 2)
    watch.task_end("seed-1", {})
    assert table.lines["si", "seed-1"].state == "done"
