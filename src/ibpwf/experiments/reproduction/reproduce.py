"""Run an experiment of the paper: what has not been run yet, then the measure, then its claims.

    DIR/runs/NAME/             the run folders, shared by all experiments
    DIR/EXPERIMENT/result.json what was measured, the claims, and every run's command

A finished run is not run again, and an interrupted one goes on after its last finished task where its models are
kept, so an interruption costs at most the run in progress. On a GPU the runs of a figure train together, as many
learners as `MOST_LEARNERS`; then an interruption costs at most the task in progress.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ibpwf import store
from ibpwf.errors import IBPWFError, InputError
from ibpwf.experiments.compare import finished, run_command_line
from ibpwf.experiments.reproduction.experiment import (
    QUICK_NOTE,
    Budget,
    Conditions,
    Experiment,
    FinishedRun,
    RunSpec,
    shortened_note,
)
from ibpwf.experiments.result import commit, environment
from ibpwf.experiments.run import Events, Planned, RunConfig, run, run_together
from ibpwf.learner import choose_device

KIND = "reproduction"
SCHEMA = 1
MOST_LEARNERS = 24
"""Learners (seeds of all runs) that train together on a GPU."""

Told = Callable[[str], None]


def run_folder(out: Path, spec: RunSpec) -> Path:
    return out / "runs" / spec.name


def already(folder: Path, spec: RunSpec, config: RunConfig) -> dict[str, Any] | None:
    """The finished result of a spec, if the folder holds it, with the models that were asked for."""
    found = finished(folder, config)
    if found is None or (found.get("scenario"), found.get("method")) != (spec.scenario, spec.method):
        return None
    kept = all((folder / f"seed-{seed}" / "model" / store.MANIFEST).exists() for seed in config.seeds)
    return found if kept or not spec.models else None


def check_runs(experiment: Experiment, out: Path, conditions: Conditions) -> None:
    """Refuse, before anything runs, folders that hold an unfinished or different run."""
    for spec in experiment.runs[conditions.budget]:
        folder = run_folder(out, spec)
        config = spec.config(conditions.seeds, conditions.device)
        if (folder / "config.json").exists() and already(folder, spec, config) is None:
            raise InputError(f"{folder} holds an unfinished or different run; add --resume, or choose another --out.")


def finished_run(spec: RunSpec, out: Path, conditions: Conditions, events: Events | None = None) -> FinishedRun:
    """Run a spec unless it has been run."""
    folder = run_folder(out, spec)
    config = spec.config(conditions.seeds, conditions.device)
    result = already(folder, spec, config)
    if result is None:
        command = "ibpwf " + " ".join(run_command_line(config, folder))
        result = run(config, folder, command=command, events=events, resume=True)
    return FinishedRun(spec, result, folder)


def groups(specs: Sequence[RunSpec], out: Path, conditions: Conditions) -> list[list[RunSpec]]:
    """Specs that have yet to run, in groups that train together."""
    made: list[list[RunSpec]] = []
    most = max(1, MOST_LEARNERS // len(conditions.seeds))
    for spec in specs:
        if already(run_folder(out, spec), spec, spec.config(conditions.seeds, conditions.device)) is not None:
            continue
        if not made or len(made[-1]) == most:
            made.append([])
        made[-1].append(spec)
    return made


def train_together(specs: Sequence[RunSpec], out: Path, conditions: Conditions, events: Events | None) -> None:
    """Train a group of specs, their learners taking turns."""
    planned = []
    for spec in specs:
        config, folder = spec.config(conditions.seeds, conditions.device), run_folder(out, spec)
        planned.append(Planned(config, folder, "ibpwf " + " ".join(run_command_line(config, folder))))
    run_together(planned, events=events, resume=True)


def reproduce(
    experiment: Experiment,
    out: Path,
    *,
    budget: Budget,
    seeds: int | None = None,
    device: str = "auto",
    command: str = "",
    resume: bool = False,
    told: Told = lambda text: None,
    events: Events | None = None,
    together: bool | None = None,
) -> dict[str, Any]:
    """All runs of an experiment, its measure and its claims, written to `out/NAME/result.json`.

    In a table a run that fails is left out and named in the result; a figure needs all of them, so on a GPU they
    train together (`together` says otherwise).
    """
    own = out / experiment.name
    conditions = Conditions(budget, experiment.chosen_seeds(budget, seeds), device, command, own)
    if not resume:
        check_runs(experiment, out, conditions)
    specs = experiment.runs[budget]
    runs, failed = [], []
    if together is None:
        together = choose_device(device).type == "cuda" and experiment.shows != "table"
    for group in groups(specs, out, conditions) if together else []:
        told(f"{experiment.name}: {len(group)} runs at once: {', '.join(spec.name for spec in group)}")
        train_together(group, out, conditions, events)
    for number, spec in enumerate(specs, start=1):
        told(f"{experiment.name}: run {number} of {len(specs)}: {spec.name}")
        try:
            runs.append(finished_run(spec, out, conditions, events))
        except IBPWFError as error:
            failed.append({"name": spec.name, "error": str(error)})
            told(f"{spec.name} failed: {error}")
    if not runs:
        raise InputError(f"{experiment.name}: every run failed. {failed[0]['error']}")
    if failed and experiment.shows != "table":
        raise InputError(
            f"{experiment.name} needs all its runs, and {failed[0]['name']} failed: {failed[0]['error']} "
            "The finished runs are kept."
        )
    told(f"{experiment.name}: measuring")
    own.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    measured = experiment.measure(runs, conditions)
    result = {
        "schema": SCHEMA,
        "kind": KIND,
        "name": experiment.name,
        "title": experiment.title,
        "paper": experiment.found,
        "shows": experiment.shows,
        "budget": budget,
        "note": QUICK_NOTE if budget == "quick" else shortened_note(specs),
        "seeds": list(conditions.seeds),
        "measured": measured,
        "claims": [claim(measured).to_json() for claim in experiment.claims],
        "runs": [_described(one, out) for one in runs],
        "failed": failed,
        "seconds": {
            "train": sum(one.result["seconds"]["train"] for one in runs),
            "measure": time.perf_counter() - started,
        },
        "environment": environment(device),
        "command": command,
        "commit": commit(),
    }
    store.write_json(own / "result.json", result)
    return result


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
