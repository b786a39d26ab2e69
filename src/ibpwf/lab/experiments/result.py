"""`result.json`: the record of a run (fields documented in docs/results-format.md)."""

from __future__ import annotations

import os
import platform
import re
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ibpwf.lab.data.tasks import Scenario
from ibpwf.lab.evaluation.metrics import (
    Matrix,
    average_accuracy,
    backward_transfer,
    forgetting,
    forward_transfer,
    spread,
)
from ibpwf.lab.experiments.paper import target

if TYPE_CHECKING:
    from ibpwf.lab.experiments.run_config import RunConfig

SCHEMA = 1


def _matrix(rows: Sequence[dict[str, Any]], key: str) -> Matrix:
    """Rows of growing length, filled up with None to a square."""
    return [[*row[key], *([None] * (len(rows) - len(row[key])))] for row in rows]


def per_seed(records: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """What a result holds seed by seed: accuracy matrices, factor use, uncertainty and novelty, from its rows."""
    matrices: dict[int, dict[str, Any]] = {}
    for record in records:
        entry = matrices.setdefault(record["seed"], {"seed": record["seed"], "task": None, "class": None})
        entry |= {key: _matrix(record["rows"], f"{key}_accuracy") for key in record["answers"]}

    def rows(name: str, *answers: str) -> list[dict[str, Any]]:
        asked = [record for record in records if set(answers) <= set(record["answers"])]
        return [{"seed": one["seed"], "per_task": [row.get(name) for row in one["rows"]]} for one in asked]

    return {
        "matrix": list(matrices.values()),
        "factors": rows("factors"),
        "uncertainty": rows("uncertainty", "class"),
        "novelty": rows("novelty", "class"),
    }


def make_result(
    config: RunConfig, stream: Scenario, records: Sequence[dict[str, Any]], command: str
) -> dict[str, Any]:
    """All numbers of a run from its per-seed rows."""
    rows, seeds = [record["rows"] for record in records], per_seed(records)
    answered = {key: [r["rows"] for r in records if key in r["answers"]] for key in ("task", "class")}
    matrices = {key: [entry[key] for entry in seeds["matrix"] if entry[key]] for key in ("task", "class")}
    inference = [statistics.fmean(r[-1]["task_inference"]) for r in answered["class"]]
    chance = [100.0 / len(task.classes) for task in stream]
    train = sum(row["seconds"]["train"] for r in rows for row in r)
    evaluation = sum(row["seconds"]["eval"] for r in rows for row in r)
    samples = sum(row["samples"] for r in rows for row in r)
    transfers = [forward_transfer([row["before"] for row in r], chance) for r in answered["task"]]
    known = [transfer for transfer in transfers if transfer is not None]
    # What a method forgets is read with the task given, where it answers that at all.
    shown = matrices["task"] or matrices["class"]
    kinds = dict.fromkeys(kind for r in rows for kind in r[-1]["memory"])
    return {
        "schema": SCHEMA,
        "scenario": config.scenario,
        "method": config.method,
        "preset": config.preset,
        "changes": config.changes,
        "settings": config.settings().to_json(),
        "settings_for": config.settings_for(),
        "network": config.network_spec(),
        "note": config.note(),
        "tasks": [{"name": task.name, "classes": list(task.classes)} for task in stream],
        "examples": config.examples,
        "order": config.order,
        "validation": config.validation,
        "seeds": [entry["seed"] for entry in seeds["matrix"]],
        "accuracy": {
            key: spread([average_accuracy(m) for m in found]) if found else None for key, found in matrices.items()
        },
        "task_inference": spread(inference) if inference else None,
        "matrix": seeds["matrix"],
        "forgetting": spread([forgetting(m) for m in shown]),
        "backward_transfer": spread([backward_transfer(m) for m in shown]),
        "forward_transfer": spread(known) if known else None,
        "factors": seeds["factors"],
        "uncertainty": seeds["uncertainty"],
        "calibration_error": {key: _last_error(found, key) for key, found in answered.items()},
        "novelty": seeds["novelty"],
        "parameters": spread([float(r[-1]["parameters"]) for r in rows]),
        "memory": {kind: statistics.fmean(r[-1]["memory"].get(kind, 0) for r in rows) for kind in kinds},
        "paper": {key: _paper(config, key) for key in ("task", "class", "task-inference")},
        "seconds": {"train": train, "eval": evaluation},
        "samples_per_second": samples / train if train else None,
        "environment": environment(config.device),
        "command": command,
        "commit": commit(),
    }


def _last_error(found: Sequence[Sequence[dict[str, Any]]], key: str) -> dict[str, Any] | None:
    """The calibration error after the last task; rows of earlier versions have none."""
    values = [rows[-1].get("calibration_error", {}).get(key) for rows in found]
    return None if not values or None in values else spread(values)


def _paper(config: RunConfig, setting: str) -> dict[str, float | None] | None:
    parts = (config.tasks, config.examples, config.network, config.order, config.validation)
    whole = all(value is None for value in parts)
    found = target(config.scenario, setting, config.method) if whole else None
    return None if found is None else {"mean": found.mean, "std": found.std}


def environment(device: str = "auto") -> dict[str, Any]:
    """What the numbers were made with."""
    from ibpwf import __version__
    from ibpwf.device import choose_device

    chosen = choose_device(device)
    return {
        "ibpwf": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(chosen) if chosen.type == "cuda" else "cpu",
    }


def shown_command(command: str) -> str:
    """A command as it is recorded: without the folders that files were in on one machine, whether a path is a word of
    its own or stands behind an option's =."""
    return re.sub(r"(^|[ =])([/~][^ ]*)", lambda found: found[1] + (Path(found[2]).name or found[2]), command)


def commit() -> str | None:
    """The git commit of this source tree, marked if it has changes; None when it is not a checkout. Where the tree is
    a copy of a commit made elsewhere, `IBPWF_COMMIT` names it."""
    here = Path(__file__).resolve().parents[4]
    if os.environ.get("IBPWF_COMMIT") or not (here / ".git").exists():
        return os.environ.get("IBPWF_COMMIT")
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True)
        dirty = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("IBPWF_COMMIT")
    return head.stdout.strip() + ("-dirty" if dirty.stdout.strip() else "")
