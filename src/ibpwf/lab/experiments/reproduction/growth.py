"""IBP-WF beside Const-WF(ν, ω): numbers stored and accuracy, task after task."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from ibpwf.errors import StoreError
from ibpwf.lab.evaluation.metrics import learned, spread
from ibpwf.lab.experiments.reproduction.experiment import Claim, Conditions, FinishedRun
from ibpwf.lab.experiments.reproduction.levels import TIE, level_within
from ibpwf.storage.files import read_json


def label(run: FinishedRun) -> str:
    settings = run.result["settings"]
    return f"Const-WF({settings['nu']}, {settings['omega']})" if run.spec.method == "const-wf" else "IBP-WF"


def _sizes(run: FinishedRun) -> list[list[float]]:
    """Numbers stored after each task, seed by seed."""
    found = []
    for seed in run.result["seeds"]:
        path = run.folder / f"seed-{seed}" / "rows.json"
        content = read_json(path)
        rows = content.get("rows") if isinstance(content, dict) else None
        known = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        sizes = [row["parameters"] for row in known if isinstance(row.get("parameters"), int)]
        if len(sizes) != len(run.result["tasks"]):
            raise StoreError(f"{path} does not hold the rows of this run; remove {run.folder} to run it anew.")
        found.append(sizes)
    return found


def growth(runs: Sequence[FinishedRun], conditions: Conditions) -> dict[str, Any]:
    """Per scenario and method: numbers stored after each task, and the mean accuracy of the tasks so far."""
    panels = []
    for benchmark in dict.fromkeys(run.spec.benchmark for run in runs):
        mine = [run for run in runs if run.spec.benchmark == benchmark]
        lines = []
        for run in mine:
            stored = _sizes(run)
            tasks = len(run.result["tasks"])
            lines.append(
                {
                    "label": label(run),
                    "method": run.spec.method,
                    "parameters": [statistics.fmean(sizes[t] for sizes in stored) for t in range(tasks)],
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
    return [spread([statistics.fmean(learned(matrix[t])) for matrix in matrices]) for t in range(tasks)]


def pairs(measured: dict[str, Any]) -> dict[str, dict[str, float]]:
    """IBP-WF against every Const-WF after the last task, the task given."""
    found = {}
    for panel in measured["panels"]:
        ours = next(line for line in panel["lines"] if line["method"] == "ibpwf")
        for rival in (line for line in panel["lines"] if line["method"] == "const-wf"):
            found[f"{panel['ran']}, {rival['label']}"] = {
                "accuracy ahead": ours["task"][-1]["mean"] - rival["task"][-1]["mean"],
                "level within": level_within(ours["task"][-1], rival["task"][-1]),
                "numbers fewer": rival["parameters"][-1] - ours["parameters"][-1],
            }
    return found


def _as_accurate(pair: dict[str, float]) -> bool:
    return pair["accuracy ahead"] >= -pair["level within"]


def better_with_less(measured: dict[str, Any]) -> Claim:
    """'Better accuracy, despite having fewer parameters than Const-WF', setting by setting."""
    found = pairs(measured)
    fine = [name for name, pair in found.items() if _as_accurate(pair) and pair["numbers fewer"] >= 0]
    least = min((pair["accuracy ahead"] for pair in found.values()), default=float("nan"))
    statement = (
        "IBP-WF is at least as accurate as Const-WF, task given, and stores no more numbers: so for "
        f"{len(fine)} of {len(found)} settings of Const-WF ({least:+.2f} points against the best of them; level is "
        f"a difference of two standard errors, or of {TIE:g} points)."
    )
    return Claim(statement, found, bool(found) and len(fine) == len(found))


def none_better_with_less(measured: dict[str, Any]) -> Claim:
    """No Const-WF that stores no more numbers than IBP-WF is more accurate."""
    small = {name: pair for name, pair in pairs(measured).items() if pair["numbers fewer"] <= 0}
    fine = sum(_as_accurate(pair) for pair in small.values())
    statement = f"No Const-WF of at most IBP-WF's size is more accurate: so for {fine} of {len(small)} that small."
    if not small:
        statement = "Every setting of Const-WF stores more numbers than IBP-WF, so none does better with less."
    return Claim(statement, small, fine == len(small))


def sublinear(measured: dict[str, Any]) -> Claim:
    """'Sublinear growth': after the last task IBP-WF is smaller than if it had gone on as from the first task to the
    second."""
    numbers = {}
    for panel in measured["panels"]:
        sizes = next(line for line in panel["lines"] if line["method"] == "ibpwf")["parameters"]
        straight = sizes[0] + (len(sizes) - 1) * (sizes[1] - sizes[0])
        numbers[panel["ran"]] = {"stored": sizes[-1], "straight on": straight}
    held = all(number["stored"] < number["straight on"] for number in numbers.values())
    shown = ", ".join(f"{n['stored']:,.0f} of {n['straight on']:,.0f} on {name}" for name, n in numbers.items())
    statement = (
        f"IBP-WF grows ever slower: numbers stored after the last task, and had it grown straight on: {shown}."
    )
    return Claim(statement, numbers, held)
