"""`docs/results/REPRODUCTION.md`: every number of the paper and every claim of its figures, with ours.

Ours come from the files in `docs/results` and nothing else: results of `ibpwf reproduce` in `reproduction/` (full
size only), methods' runs in `compare-BENCHMARK/`, single runs and `vae-inference` results at the top.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ibpwf.errors import StoreError
from ibpwf.lab.experiments.compare import Outcome, lengths, mark, number
from ibpwf.lab.experiments.paper import Target, targets
from ibpwf.lab.experiments.reproduction.registry import EXPERIMENTS
from ibpwf.lab.experiments.reproduction.reproduce import KIND
from ibpwf.lab.experiments.reproduction.tables import ours_of, table_row
from ibpwf.storage.files import read_json

SETTINGS = {"task": "task given", "class": "task inferred", "task-inference": "task inference"}
WAITING = "not measured yet"
# What IBP-WF may change in its preset and still be the run that a table asks for.
OWN_CHANGES: tuple[dict[str, Any], ...] = ({}, {"max_factors": None})


@dataclass(frozen=True)
class Measured:
    """What the result files hold that can stand beside a number or a claim of the paper."""

    reproductions: dict[str, dict[str, Any]] = field(default_factory=dict)  # by experiment
    runs: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)  # by benchmark and method
    vae: dict[str, dict[str, Any]] = field(default_factory=dict)  # by benchmark
    files: dict[str, dict[str, Any]] = field(default_factory=dict)  # by path; not all of them are taken

    def taken(self) -> dict[str, dict[str, Any]]:
        """The files whose numbers or claims stand on the page."""
        papers = {(paper.benchmark, paper.method) for paper in targets()}
        runs = [run for key, run in self.runs.items() if key in papers]
        used = {id(one) for one in (*self.reproductions.values(), *runs, *self.vae.values())}
        return {path: data for path, data in self.files.items() if id(data) in used}


Unread = Callable[[Path, Exception], None]


def read_objects(paths: Iterable[Path], unread: Unread | None) -> list[tuple[Path, dict[str, Any]]]:
    """The files that hold a JSON object. One that cannot be read is an error, or told to `unread`."""
    found = []
    for path in sorted(paths):
        try:
            found.append((path, read_json(path)))
        except StoreError as error:
            if unread is None:
                raise
            unread(path, error)
    return [(path, data) for path, data in found if isinstance(data, dict)]


def _papers_run(result: dict[str, Any]) -> bool:
    whole = result.get("examples") is None
    return whole and result.get("preset") == "paper" and result.get("changes") in OWN_CHANGES


def read_measured(folder: Path, unread: Unread | None = None) -> Measured:
    """All result files of a folder such as docs/results."""
    measured = Measured()
    for pattern in ("*.json", "compare-*/*.json", "reproduction/*.json"):
        for path, data in read_objects(folder.glob(pattern), unread):
            measured.files[path.relative_to(folder).as_posix()] = data
    for name, data in measured.files.items():
        place, _, file = name.rpartition("/")
        if place == "reproduction":
            if data.get("kind") == KIND and data.get("budget") == "full":
                measured.reproductions[data["name"]] = data
        elif place:
            main = place == f"compare-{data.get('scenario')}" and file == f"{data.get('method')}.json"
            if main and "accuracy" in data:
                measured.runs[data["scenario"], data["method"]] = data
        elif data.get("kind") == "vae-inference":
            measured.vae[data["scenario"]] = data
        elif "accuracy" in data and _papers_run(data):
            measured.runs.setdefault((data["scenario"], data["method"]), data)
    return measured


def row_for(paper: Target, measured: Measured) -> dict[str, Any] | None:
    """Our number for one of the paper's, as `tables.table_row` makes it; None where there is none."""
    reproduction = measured.reproductions.get(paper.table)
    for row in reproduction["measured"]["rows"] if reproduction else []:
        same = (row["benchmark"], row["setting"], row["method"]) == (paper.benchmark, paper.setting, paper.method)
        if same and row["ours"] is not None:
            found: dict[str, Any] = row
            return found
    if paper.method == "vae":
        vae = measured.vae.get(paper.benchmark)
        return None if vae is None else table_row(paper, vae["task_inference"], vae, judged=True)
    run = measured.runs.get((paper.benchmark, paper.method))
    ours = None if run is None else ours_of(run, paper)
    return None if run is None or ours is None else table_row(paper, ours, run, judged=True)


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


def sources_table(measured: Measured) -> list[str]:
    """One line per result file that is used: seeds, commit, machine, versions."""
    lines = ["| file | seeds | commit | made on | with |", "|---|---:|---|---|---|"]
    for path, data in measured.taken().items():
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
