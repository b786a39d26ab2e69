"""Run an experiment of the paper: what has not been run yet, then the measure, then its claims.

    DIR/runs/NAME/             the run folders, shared by all experiments
    DIR/EXPERIMENT/result.json what was measured, the claims, and every run's command

A finished run is not run again, and an interrupted one goes on after its last finished task where its models are
kept, so an interruption costs at most the run in progress. On a GPU the runs of a figure train together, as many
learners as `MOST_LEARNERS`; then an interruption costs at most the task in progress.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ibpwf.device import choose_device
from ibpwf.errors import IBPWFError, InputError
from ibpwf.lab.experiments.compare import command_of, finished
from ibpwf.lab.experiments.executors import Engine
from ibpwf.lab.experiments.reproduction.experiment import (
    QUICK_NOTE,
    Conditions,
    Experiment,
    FinishedRun,
    Request,
    RunSpec,
    shortened_note,
)
from ibpwf.lab.experiments.result import commit, environment
from ibpwf.lab.experiments.run import Run, run, run_all
from ibpwf.lab.experiments.run_config import RunConfig
from ibpwf.lab.experiments.seed_training import RunCallback
from ibpwf.storage.files import write_json
from ibpwf.storage.folder import MANIFEST

KIND = "reproduction"
SCHEMA = 1
MOST_LEARNERS = 24
"""Learners (seeds of all runs) that train together on a GPU."""

ASKED = ("tasks", "accuracy", "task_inference", "matrix", "factors", "seconds", "environment", "command", "commit")
"""What measures read in the result of a run."""

Told = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """A run of an experiment: what to run, with which seeds, and where."""

    spec: RunSpec
    config: RunConfig
    folder: Path

    @property
    def command(self) -> str:
        return command_of(self.config, self.folder)

    @property
    def length(self) -> str:
        """Epochs (or iterations) of a task, and the tasks where these are fewer than the scenario's."""
        settings = self.config.settings().to_json()
        epochs = " + ".join(str(settings[name]) for name in ("epochs", "finetune_epochs") if settings.get(name))
        count = f"{settings['iterations']} iterations" if settings.get("iterations") else f"{epochs} epochs"
        return count + (f", {self.config.tasks} tasks" if self.config.tasks is not None else "")

    @property
    def trainings(self) -> int:
        """How often a scenario is learned: once per seed, or once per seed and setting."""
        return len(self.config.seeds) * len(self.config.trainings())

    @property
    def state(self) -> str:
        if self.finished() is not None:
            return "finished"
        return "begun" if (self.folder / "config.json").exists() else "to do"

    def finished(self) -> dict[str, Any] | None:
        """The result in its folder, if that is of this run with at least these seeds, and has the models asked for.

        More seeds than asked for are as good: another experiment wanted them.
        """
        found = finished(self.folder, self.config, more_seeds=True)
        if found is None or (found.get("scenario"), found.get("method")) != (self.spec.scenario, self.spec.method):
            return None
        if not all(name in found for name in ASKED):
            return None
        kept = all((self.folder / f"seed-{seed}" / "model" / MANIFEST).exists() for seed in found["seeds"])
        return found if kept or not self.spec.models else None


def jobs_of(experiment: Experiment, asked: Request) -> list[Job]:
    """Every run of an experiment."""
    jobs = []
    for spec in experiment.runs[asked.budget]:
        config = spec.config(experiment.chosen_seeds(asked.budget, asked.seeds, spec), asked.device)
        jobs.append(Job(spec, config, asked.out / "runs" / spec.name))
    return jobs


def plan(experiments: Sequence[Experiment], asked: Request) -> list[tuple[Job, tuple[str, ...]]]:
    """Every run of the experiments once, in the order in which they come up and with the most seeds that one wants,
    and the experiments that share it."""
    jobs: dict[str, Job] = {}
    wanted: dict[str, dict[str, None]] = {}
    for experiment in experiments:
        for job in jobs_of(experiment, asked):
            name = job.spec.name
            wanted.setdefault(name, {})[experiment.name] = None
            if name not in jobs or len(job.config.seeds) > len(jobs[name].config.seeds):
                jobs[name] = job
    return [(job, tuple(wanted[name])) for name, job in jobs.items()]


def check_runs(jobs: Sequence[Job]) -> None:
    """Refuse, before anything runs, folders that hold an unfinished or different run."""
    for job in jobs:
        if (job.folder / "config.json").exists() and job.finished() is None:
            raise InputError(
                f"{job.folder} holds an unfinished or different run; add --resume, or choose another --out."
            )


def train_in_advance(
    jobs: Sequence[Job],
    engine: Engine | None = None,
    watch: Callable[[str], RunCallback] = lambda name: RunCallback(),
    ended: Callable[[str, IBPWFError | None], None] = lambda name, error: None,
) -> dict[str, IBPWFError]:
    """Train all jobs that have yet to run, at once in an engine's workers, or in `groups` on this device; those that
    failed in an engine, by name, with why."""
    failed: dict[str, IBPWFError] = {}

    def end(name: str, one: Run) -> None:
        ended(name, one.error)
        if one.error is not None:
            failed[name] = one.error

    for group in groups(jobs, MOST_LEARNERS if engine is None else None):
        names = [(job, job.spec.name) for job in group]
        runs = [Run(job.config, job.folder, job.command, watch(name), partial(end, name)) for job, name in names]
        run_all(runs, engine=engine, resume=True)
    return failed


def finished_run(job: Job) -> FinishedRun:
    """Run a job unless it has been run."""
    result = job.finished() or run(job.config, job.folder, command=job.command, resume=True)
    return FinishedRun(job.spec, result, job.folder)


def groups(jobs: Sequence[Job], most: int | None = MOST_LEARNERS) -> list[list[Job]]:
    """Jobs that have yet to run, in groups of at most so many learners that train together."""
    made: list[list[Job]] = []
    learners = 0
    for job in jobs:
        if job.finished() is not None:
            continue
        mine = len(job.config.seeds)
        if not made or (most is not None and learners + mine > most):
            made.append([])
            learners = 0
        made[-1].append(job)
        learners += mine
    return made


def reproduce(
    experiment: Experiment,
    asked: Request,
    *,
    told: Told = lambda text: None,
    together: bool | None = None,
    failures: Mapping[str, IBPWFError] | None = None,
) -> dict[str, Any]:
    """All runs of an experiment, its measure and its claims, written to `out/NAME/result.json`.

    In a table a run that fails is left out and named in the result; a figure needs all of them, so on a GPU they
    train together (`together` says otherwise). `failures` are runs that were tried in advance and not to be again.
    """
    if together is None:
        together = choose_device(asked.device).type == "cuda" and experiment.shows != "table"
    runs, failed = _all_runs(experiment, asked, told, together, failures or {})
    told(f"{experiment.name}: measuring")
    own, budget = asked.out / experiment.name, asked.budget
    own.mkdir(parents=True, exist_ok=True)
    seeds = experiment.chosen_seeds(budget, asked.seeds)
    started = time.perf_counter()
    measured = experiment.measure(runs, Conditions(budget, seeds, asked.device, asked.command, own))
    result = {
        "schema": SCHEMA,
        "kind": KIND,
        "name": experiment.name,
        "title": experiment.title,
        "paper": experiment.found,
        "shows": experiment.shows,
        "budget": budget,
        "note": QUICK_NOTE if budget == "quick" else shortened_note(experiment.runs[budget]),
        "seeds": sorted(set.intersection(*(set(one.result["seeds"]) for one in runs))),
        "measured": measured,
        "claims": [claim(measured).to_json() for claim in experiment.claims],
        "runs": [_described(one, asked.out) for one in runs],
        "failed": failed,
        "seconds": {
            "train": sum(one.result["seconds"]["train"] for one in runs),
            "measure": time.perf_counter() - started,
        },
        "environment": environment(asked.device),
        "command": asked.command,
        "commit": commit(),
    }
    write_json(own / "result.json", result)
    return result


def _all_runs(
    experiment: Experiment, asked: Request, told: Told, together: bool, failures: Mapping[str, IBPWFError]
) -> tuple[list[FinishedRun], list[dict[str, str]]]:
    """The runs of an experiment, run where they have not been, and those that failed."""
    jobs = jobs_of(experiment, asked)
    if not asked.resume:
        check_runs(jobs)
    runs, failed = [], []
    for group in groups(jobs) if together else []:
        told(f"{experiment.name}: {len(group)} runs at once: {', '.join(job.spec.name for job in group)}")
        train_in_advance(group)
    for number, job in enumerate(jobs, start=1):
        told(f"{experiment.name}: run {number} of {len(jobs)}: {job.spec.name}")
        try:
            if job.spec.name in failures:
                raise failures[job.spec.name]
            runs.append(finished_run(job))
        except IBPWFError as error:
            failed.append({"name": job.spec.name, "error": str(error)})
            told(f"{job.spec.name} failed: {error}")
    if not runs:
        raise InputError(f"{experiment.name}: every run failed. {failed[0]['error']}")
    if failed and experiment.shows != "table":
        raise InputError(
            f"{experiment.name} needs all its runs, and {failed[0]['name']} failed: {failed[0]['error']} "
            f"The finished runs are kept; remove {asked.out / 'runs' / failed[0]['name']} to run this one anew."
        )
    return runs, failed


def _described(one: FinishedRun, out: Path) -> dict[str, Any]:
    result = one.result
    return {
        "name": one.spec.name,
        "folder": one.folder.relative_to(out).as_posix(),
        "scenario": one.spec.scenario,
        "stands_for": one.spec.stands_for,
        "method": one.spec.method,
        "preset": one.spec.preset,
        "changes": dict(one.spec.changes),
        "seeds": result["seeds"],
        "accuracy": result["accuracy"],
        "task_inference": result["task_inference"],
        "command": result["command"],
        "commit": result["commit"],
        "device": result["environment"]["device"],
    }
