"""IBP-WF beside Const-WF(ν, ω): numbers stored and accuracy, task after task."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from ibpwf import store
from ibpwf.evaluation.metrics import learnt, spread
from ibpwf.experiments.reproduction.experiment import Claim, Conditions, FinishedRun


def label(run: FinishedRun) -> str:
    settings = run.result["settings"]
    return f"Const-WF({settings['nu']}, {settings['omega']})" if run.spec.method == "const-wf" else "IBP-WF"


def _rows(run: FinishedRun) -> list[list[dict[str, Any]]]:
    return [store.read_json(run.folder / f"seed-{seed}" / "rows.json")["rows"] for seed in run.result["seeds"]]


def growth(runs: Sequence[FinishedRun], conditions: Conditions) -> dict[str, Any]:
    """Per scenario and method: numbers stored after each task, and the mean accuracy of the tasks so far."""
    panels = []
    for benchmark in dict.fromkeys(run.spec.benchmark for run in runs):
        mine = [run for run in runs if run.spec.benchmark == benchmark]
        lines = []
        for run in mine:
            stored = _rows(run)
            tasks = len(run.result["tasks"])
            lines.append(
                {
                    "label": label(run),
                    "method": run.spec.method,
                    "parameters": [statistics.fmean(rows[t]["parameters"] for rows in stored) for t in range(tasks)],
                    "task": _averages(run.result, "task", tasks),
                    "class": _averages(run.result, "class", tasks),
                    "command": run.result["command"],
                }
            )
        panels.append({"benchmark": benchmark, "ran": mine[0].spec.scenario, "lines": lines})
    return {"panels": panels}


def _averages(result: dict[str, Any], setting: str, tasks: int) -> list[dict[str, Any]]:
    """Spread over seeds of the mean accuracy of all tasks so far, after every task."""
    matrices = [matrix[setting] for matrix in result["matrix"]]
    return [spread([statistics.fmean(learnt(matrix[t])) for matrix in matrices]) for t in range(tasks)]


TIE = 0.1
"""Points of accuracy below which two methods are level: less than the spread over seeds."""


def better_with_less(measured: dict[str, Any]) -> Claim:
    """No Const-WF is more accurate than IBP-WF without storing more numbers."""
    beaten, numbers = [], {}
    for panel in measured["panels"]:
        ours = next(line for line in panel["lines"] if line["method"] == "ibpwf")
        rivals = [line for line in panel["lines"] if line["method"] == "const-wf"]
        for rival in rivals:
            gap = ours["task"][-1]["mean"] - rival["task"][-1]["mean"]
            less = rival["parameters"][-1] - ours["parameters"][-1]
            name = f"{panel['ran']}, {rival['label']}"
            numbers[name] = {"accuracy ahead": gap, "numbers fewer": less}
            if gap < -TIE or less < 0:
                beaten.append(name)
    fine = len(numbers) - len(beaten)
    statement = (
        f"IBP-WF is at least as accurate (within {TIE:g} points, task given) as Const-WF and stores no more numbers: "
        f"so for {fine} of {len(numbers)} settings of Const-WF."
    )
    return Claim(statement, numbers, bool(numbers) and not beaten)


def sublinear(measured: dict[str, Any]) -> Claim:
    """IBP-WF adds fewer numbers with its last task than with its second."""
    numbers = {}
    for panel in measured["panels"]:
        sizes = next(line for line in panel["lines"] if line["method"] == "ibpwf")["parameters"]
        numbers[panel["ran"]] = {"second task": sizes[1] - sizes[0], "last task": sizes[-1] - sizes[-2]}
    held = all(number["last task"] < number["second task"] for number in numbers.values())
    shown = ", ".join(f"{n['second task']:,.0f} then {n['last task']:,.0f} on {name}" for name, n in numbers.items())
    return Claim(f"IBP-WF grows ever slower: numbers added by the second and the last task: {shown}.", numbers, held)
