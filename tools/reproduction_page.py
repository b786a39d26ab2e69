"""`docs/results/REPRODUCTION.md`: every number of the paper and every claim of its figures, with ours.

Ours come from the files in `docs/results` and nothing else: results of `ibpwf reproduce` in `reproduction/` (full
size only), methods' runs in `compare-BENCHMARK/`, single runs and `vae-inference` results at the top.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ibpwf.lab.experiments.compare import Outcome, lengths, mark, number
from ibpwf.lab.experiments.paper import targets
from ibpwf.lab.experiments.reproduction.registry import EXPERIMENTS
from ibpwf.lab.report.result_files import Measured, read_measured, row_for

SETTINGS = {"task": "task given", "class": "task inferred", "task-inference": "task inference"}
WAITING = "not measured yet"


def numbers_table(measured: Measured) -> tuple[list[str], int, int]:
    """One line per number of the paper, and how many are measured and reproduced."""
    lines = [
        "| table | benchmark | method | setting | ours | paper | difference | | seeds | command |",
        "|---|---|---|---|---:|---:|---:|---|---:|---|",
    ]
    count = reached = 0
    for paper in targets():
        row = row_for(paper, measured)
        what = (
            f"| {paper.table.removeprefix('table')} | {paper.benchmark} | {paper.method} | {SETTINGS[paper.setting]} "
        )
        note = f" ({paper.note})" if paper.note else ""
        theirs = number(paper.mean, paper.std) + note
        if row is None:
            lines.append(f"{what}| {WAITING} | {theirs} | | | | `ibpwf reproduce {paper.table}` |")
            continue
        count, reached = count + 1, reached + bool(row["reproduces"])
        ours = number(row["ours"]["mean"], row["ours"].get("std"))
        lines.append(
            f"{what}| {ours} | {theirs} | {row['difference']:+.2f} | {mark(row['reproduces'])} | {row['seeds']} "
            f"| `{row['command']}` |"
        )
    return lines, count, reached


def claims_table(measured: Measured) -> list[str]:
    """One line per claim of a figure."""
    lines = ["| figure | the paper | ours | | seeds | command |", "|---|---|---|---|---:|---|"]
    for name, experiment in EXPERIMENTS.items():
        if not name.startswith("figure-"):
            continue
        found = measured.reproductions.get(name)
        if found is None:
            lines.append(f"| {name} | {experiment.found} | {WAITING} | | | `ibpwf reproduce {name}` |")
            continue
        for claim in found["claims"]:
            note = f" ({found['note']})" if found.get("note") else ""
            ours = f"{claim['statement']}{note}".replace("|", "\\|")  # a table's cell ends at a bare one
            lines.append(
                f"| {name} | {experiment.found} | {ours} | {mark(claim['held'])} "
                f"| {_seeds(found)} | `{found['command']}` |"
            )
    return lines


def _seeds(result: dict[str, Any]) -> str:
    """How many seeds; a range where runs of an experiment have different numbers of them."""
    counts = sorted({len(run["seeds"]) for run in result.get("runs", []) if "seeds" in run})
    if not counts:
        return str(len(result.get("seeds", [])))
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _taken(measured: Measured) -> dict[str, dict[str, Any]]:
    """The files whose numbers or claims stand on the page."""
    papers = {(paper.benchmark, paper.method) for paper in targets()}
    runs = [run for key, run in measured.runs.items() if key in papers]
    used = {id(one) for one in (*measured.reproductions.values(), *runs, *measured.vae.values())}
    return {path: data for path, data in measured.files.items() if id(data) in used}


def sources_table(measured: Measured) -> list[str]:
    """One line per result file that is used: seeds, commit, machine, versions."""
    lines = ["| file | seeds | commit | made on | with |", "|---|---:|---|---|---|"]
    for path, data in _taken(measured).items():
        env = data.get("environment") or {}
        machine = f"{env.get('device', '')}, {env['cores']} cores" if env.get("cores") else env.get("device", "")
        names = {"ibpwf": "ibpwf", "torch": "torch", "python": "Python"}
        versions = ", ".join(f"{name} {env[key]}" for key, name in names.items() if env.get(key))
        commit = str(data.get("commit") or "not known")
        short = commit[:10] + ("-dirty" if commit.endswith("-dirty") else "")
        lines.append(f"| `{path}` | {_seeds(data)} | {short} | {machine} | {versions} |")
    return lines


def reproduction_page(folder: Path) -> str:
    """The whole page."""
    measured = read_measured(folder)
    rows, count, reached = numbers_table(measured)
    told = lengths([Outcome(f"{method} ({benchmark})", run) for (benchmark, method), run in measured.runs.items()])
    return "\n".join(
        [
            "# The paper, reproduced",
            "",
            "Made by `make results` from the result files in this folder. One row per number of the paper (tables "
            "1 to 4) and one per claim of its figures. Accuracies are percentages, mean ± standard deviation over "
            "seeds. ✅: within max(1.0, 3 × the paper's standard deviation) of the paper's mean, or better.",
            "",
            f"{count} of {len(targets())} numbers are measured, {reached} of these ✅. `ibpwf reproduce all` runs "
            "everything; its `NAME/result.json` belongs into `reproduction/NAME.json` here.",
            "",
            *([told, ""] if told else []),
            "## Tables",
            "",
            *rows,
            "",
            "## Figures",
            "",
            *claims_table(measured),
            "",
            "## Files",
            "",
            "Each of these holds its command, settings, seeds, commit and machine.",
            "",
            *sources_table(measured),
            "",
        ]
    )
