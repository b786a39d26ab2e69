"""The paper's tables: a row per benchmark, method and setting, ours beside the paper's."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from ibpwf.errors import StoreError
from ibpwf.lab.experiments.compare import accuracy_after, reproduces
from ibpwf.lab.experiments.paper import Target, target, targets
from ibpwf.lab.experiments.reproduction.experiment import Claim, Conditions, FinishedRun, Measure
from ibpwf.lab.experiments.vae_inference import VAESettings
from ibpwf.lab.experiments.vae_inference import run as run_vae
from ibpwf.storage.files import read_json, write_json

VAE_FILE = "vae-inference.json"


def ours_of(result: dict[str, Any], paper: Target) -> dict[str, Any] | None:
    """The spread that stands beside a figure of the paper: of as many tasks as the paper's is."""
    if paper.setting == "task-inference":
        found: dict[str, Any] | None = result["task_inference"]
        return found
    entry: dict[str, Any] | None = result["accuracy"][paper.setting]
    if entry is not None and paper.after_tasks and paper.after_tasks < len(result["tasks"]):
        return accuracy_after(result, paper.setting, paper.after_tasks)
    return entry


def table_row(paper: Target, ours: dict[str, Any] | None, made_by: dict[str, Any], *, judged: bool) -> dict[str, Any]:
    """One number of the paper with ours. A stand-in's number is shown and not judged."""
    compared = ours is not None and judged
    return {
        "benchmark": paper.benchmark,
        "setting": paper.setting,
        "method": paper.method,
        "ran": made_by.get("scenario"),
        "ours": ours,
        "paper": {"mean": paper.mean, "std": paper.std, "note": paper.note},
        "difference": ours["mean"] - paper.mean if ours is not None and compared else None,
        "reproduces": reproduces(ours["mean"], paper) if ours is not None and compared else None,
        "seeds": len(made_by.get("seeds", [])),
        "command": made_by.get("command"),
        "commit": made_by.get("commit"),
    }


def table_measure(table: str) -> Measure:
    """The measure of one table: every target of it that a run stands for."""

    def measure(runs: Sequence[FinishedRun], conditions: Conditions) -> dict[str, Any]:
        rows = []
        for paper in (t for t in targets() if t.table == table):
            for run in runs:
                if (run.spec.benchmark, run.spec.method) == (paper.benchmark, paper.method):
                    ours = ours_of(run.result, paper)
                    rows.append(table_row(paper, ours, run.result, judged=conditions.budget == "full"))
        return {"rows": rows}

    return measure


_table3 = table_measure("table3")


def task_inference_table(runs: Sequence[FinishedRun], conditions: Conditions) -> dict[str, Any]:
    """Table 3, and the figure in its text: one VAE per task."""
    measured = _table3(runs, conditions)
    quick = conditions.budget == "quick"
    scenario = "split-digits" if quick else "split-cifar10"
    settings = VAESettings(hidden=(64,), latent=8, epochs=2) if quick else VAESettings()
    paper = target("split-cifar10", "task-inference", "vae")
    assert paper is not None
    found = _vae_result(scenario, settings, conditions)
    measured["rows"].append(table_row(paper, found["task_inference"], found, judged=not quick))
    return measured


def _vae_result(scenario: str, settings: VAESettings, conditions: Conditions) -> dict[str, Any]:
    """The VAEs' result; it is kept beside the table's, so that it is not computed again."""
    kept = None if conditions.folder is None else conditions.folder / VAE_FILE
    wanted = {"scenario": scenario, "settings": settings.to_json(), "seeds": list(conditions.seeds)}
    if kept is not None and kept.exists():
        with contextlib.suppress(StoreError):
            old = read_json(kept)
            if isinstance(old, dict) and all(old.get(key) == value for key, value in wanted.items()):
                return old
    found = run_vae(scenario, len(conditions.seeds), settings, conditions.device, conditions.command)
    if kept is not None:
        write_json(kept, found)
    return found


def reproduced(measured: dict[str, Any]) -> Claim:
    """How many of the table's numbers are reached."""
    judged = [row for row in measured["rows"] if row["reproduces"] is not None]
    reached = sum(row["reproduces"] for row in judged)
    statement = (
        f"{reached} of {len(judged)} numbers are within max(1.0, 3 × the paper's standard deviation) of the paper's, "
        "or better."
    )
    if not judged:
        statement = "No number is judged: a quick run does not stand for the paper's."
    return Claim(statement, {"reached": reached, "judged": len(judged)}, bool(judged) and reached == len(judged))


def best_without_replay(measured: dict[str, Any]) -> Claim:
    """In the incremental-class setting IBP-WF is ahead of every method that stores no examples."""
    gaps: dict[str, float] = {}
    for benchmark in dict.fromkeys(row["benchmark"] for row in measured["rows"]):
        rows = [r for r in measured["rows"] if (r["benchmark"], r["setting"]) == (benchmark, "class") and r["ours"]]
        ours = [row["ours"]["mean"] for row in rows if row["method"] == "ibpwf"]
        free = {t.method for t in targets() if not t.uses_replay} - {"ibpwf"}
        others = [row["ours"]["mean"] for row in rows if row["method"] in free]
        if ours and others:
            gaps[rows[0]["ran"] or benchmark] = ours[0] - max(others)
    shown = ", ".join(f"{gap:+.2f} points on {name}" for name, gap in gaps.items())
    statement = f"With the task inferred, IBP-WF is ahead of every method that stores no examples ({shown})."
    return Claim(statement, {"ahead": gaps}, bool(gaps) and min(gaps.values()) > 0)
