"""Runs that train together: each as if alone, and none lost when all are killed."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import processes
from ibpwf.lab.experiments.reproduction import reproduce as engine
from ibpwf.lab.experiments.reproduction.experiment import Experiment, Request, RunSpec
from ibpwf.lab.experiments.reproduction.sweeps import sweep
from ibpwf.lab.experiments.run import Run, run, run_all
from ibpwf.lab.experiments.run_config import RunConfig
from ibpwf.lab.experiments.seed_training import SeedTraining
from ibpwf.storage.files import read_json
from ibpwf.storage.folder import MANIFEST

SHORT = {"epochs": 1, "finetune_epochs": 1}
TIMES = ("seconds", "samples_per_second", "command")


def config(alpha: float, tasks: int = 3, **more: Any) -> RunConfig:
    changes = {**SHORT, "alpha": alpha}
    return RunConfig("split-digits", preset="quick", seeds=(0, 1), changes=changes, tasks=tasks, device="cpu", **more)


def timeless(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key not in TIMES}


def test_each_gives_what_it_gives_alone_and_keeps_the_models_that_were_asked_for(tmp_path: Path) -> None:
    chosen = [config(16.0), config(8.0, tasks=2, models=False)]
    planned = [Run(one, tmp_path / str(i), f"command {i}") for i, one in enumerate(chosen)]
    results = run_all(planned)
    for one, plan, result in zip(chosen, planned, results, strict=True):
        assert read_json(plan.out / "result.json") == result
        assert result["command"] == plan.command
        assert timeless(run(one, tmp_path / f"alone-{plan.out.name}", command="c")) == timeless(result)
    assert (tmp_path / "0" / "seed-1" / "model" / MANIFEST).exists()
    assert not (tmp_path / "1" / "seed-1" / "model").exists()
    assert (tmp_path / "1" / "seed-1" / "rows.json").exists()


def test_a_run_whose_models_are_not_kept_goes_on_after_its_last_finished_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = config(8.0, tasks=2, models=False)
    run(one, tmp_path / "run")
    (tmp_path / "run" / "seed-1" / "rows.json").unlink()  # as if it had been killed there
    begun: list[int] = []
    begin = SeedTraining.begin

    def noted(training: SeedTraining, number: int) -> Any:
        begun.append(training.seed)
        return begin(training, number)

    monkeypatch.setattr(SeedTraining, "begin", noted)
    monkeypatch.setattr("ibpwf.lab.experiments.run.workers_for", lambda *_: 0)
    again = run(one.replace(seeds=(0, 1, 2)), tmp_path / "run", resume=True)
    assert begun == [1, 2, 1, 2]
    assert timeless(again) == timeless(run(one.replace(seeds=(0, 1, 2)), tmp_path / "whole"))


def test_networks_that_fill_a_gpu_learn_seed_after_seed_and_give_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = config(8.0, tasks=2, models=False)
    monkeypatch.setattr("ibpwf.lab.experiments.run.workers_for", lambda *_: 0)
    together = run(one, tmp_path / "together")
    order: list[tuple[int, int]] = []
    finish = SeedTraining.finish

    def noted(training: SeedTraining, number: int, seconds: float) -> None:
        order.append((training.seed, number))
        finish(training, number, seconds)

    monkeypatch.setattr(SeedTraining, "finish", noted)
    monkeypatch.setattr("ibpwf.lab.experiments.run.fills_a_gpu", lambda *_: True)
    assert timeless(run(one, tmp_path / "apart")) == timeless(together)
    assert order == [(0, 0), (0, 1), (1, 0), (1, 1)]


def specs(*alphas: float) -> tuple[RunSpec, ...]:
    return tuple(RunSpec("split-digits", preset="quick", changes={**SHORT, "alpha": a}, tasks=2) for a in alphas)


def sweep_of(runs: tuple[RunSpec, ...]) -> Experiment:
    return Experiment("figure-alpha", "α", "", "sweep", {"quick": runs, "full": runs}, sweep("alpha"))


def quick(out: Path, **more: Any) -> Request:
    return Request(out, "quick", device="cpu", **more)


def jobs_of(figure: Experiment, out: Path, seeds: int | None = None) -> list[engine.Job]:
    return engine.jobs_of(figure, Request(out, "quick", seeds, "cpu"))


def test_groups_hold_what_has_not_run_yet_and_no_more_learners_than_allowed(tmp_path: Path) -> None:
    jobs = jobs_of(sweep_of(specs(8.0, 10.0, 12.0, 14.0)), tmp_path, seeds=2)
    engine.train_in_advance(jobs[:1])
    assert engine.groups(jobs, 5) == [[jobs[1], jobs[2]], [jobs[3]]]


def test_a_figure_trained_together_measures_what_it_does_one_by_one(tmp_path: Path) -> None:
    figure = sweep_of(specs(8.0, 16.0))
    made = [engine.reproduce(figure, Request(tmp_path / str(t), "full", 1, "cpu"), together=t) for t in (True, False)]
    accuracies = [
        [(p["value"], p["task"], p["class"]) for p in one["measured"]["panels"][0]["points"]] for one in made
    ]
    assert accuracies[0] == accuracies[1]
    assert made[0]["note"].startswith("shortened: ibpwf on split-digits: the first 2 tasks, 1 + 1 epochs")


def figure_to_kill() -> Experiment:
    long = {"epochs": 12, "finetune_epochs": 3}
    runs = tuple(
        RunSpec("split-digits", preset="quick", changes={**changes, "alpha": a}, tasks=3)
        for a, changes in ((8.0, SHORT), (16.0, long))
    )
    return sweep_of(runs)


def reproduced(out: Path, together: bool) -> None:
    torch.set_num_threads(1)
    engine.reproduce(figure_to_kill(), quick(out), together=together)


def killed_once(out: Path, there: Path, together: bool) -> None:
    process = processes.begin(reproduced, out, together)
    until = time.monotonic() + 120
    while not there.exists() and process.is_alive() and time.monotonic() < until:
        time.sleep(0.01)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not (out / "figure-alpha").exists()


def test_killed_one_by_one_it_loses_the_run_in_progress_alone(tmp_path: Path) -> None:
    figure = figure_to_kill()
    first = jobs_of(figure, tmp_path)[0].folder / "result.json"
    killed_once(tmp_path, first, together=False)
    stamp = first.stat().st_mtime_ns
    result = engine.reproduce(figure, quick(tmp_path, resume=True))
    assert first.stat().st_mtime_ns == stamp
    whole = engine.reproduce(figure, quick(tmp_path / "whole"))
    assert [r["accuracy"] for r in result["runs"]] == [r["accuracy"] for r in whole["runs"]]


def test_killed_together_all_go_on_after_the_last_finished_task(tmp_path: Path) -> None:
    figure = figure_to_kill()
    folders = [job.folder for job in jobs_of(figure, tmp_path)]
    killed_once(tmp_path, folders[1] / "seed-0" / "model" / MANIFEST, together=True)
    kept = [read_json(folder / "seed-0" / "rows.json")["rows"] for folder in folders]
    assert [len(rows) for rows in kept] == [1, 1]
    result = engine.reproduce(figure, quick(tmp_path, resume=True), together=True)
    for folder, rows in zip(folders, kept, strict=True):
        assert read_json(folder / "seed-0" / "rows.json")["rows"][:1] == rows  # with its seconds: not run again
        assert not (folder / "seed-0" / "model").exists()
    whole = engine.reproduce(figure, quick(tmp_path / "whole"))
    assert [r["accuracy"] for r in result["runs"]] == [r["accuracy"] for r in whole["runs"]]
