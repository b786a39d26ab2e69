"""A folder of result files such as docs/results, where nothing but JSON is kept: tables, figures, comparisons, runs.

    *.json                 results of single runs, and of one VAE per task
    compare-SCENARIO/*.json  a result per method
    reproduction/NAME.json   what `ibpwf reproduce NAME` measured at full size

The four tables are put together from whatever is there, so the page grows with the files.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from ibpwf.errors import StoreError
from ibpwf.lab.experiments.compare import Outcome, floors, lengths, rows
from ibpwf.lab.experiments.paper import targets
from ibpwf.lab.experiments.reproduction.experiment import Experiment
from ibpwf.lab.experiments.reproduction.registry import EXPERIMENTS
from ibpwf.lab.experiments.reproduction.tables import table_row
from ibpwf.lab.report.experiment_record import (
    ComparisonRecord,
    ComparisonRow,
    ExperimentRecord,
    Reproduction,
    TableMeasured,
    experiment_of,
)
from ibpwf.lab.report.records import validated
from ibpwf.lab.report.result_files import Measured, Unread, read_measured, read_outcomes, row_for, title
from ibpwf.lab.report.run_record import Run, read_result_file
from ibpwf.storage import folder as store

PATTERNS = ("*.json", "compare-*/*.json", "reproduction/*.json")
# What a file of the right form but wrong content runs into.
MISFITS = (StoreError, OSError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError)


def is_results_folder(folder: Path) -> bool:
    """Whether a folder holds result files and is not itself a run, a comparison or a reproduction."""
    if any((folder / name).exists() for name in ("config.json", "comparison.json", "result.json")):
        return False
    return any(True for pattern in PATTERNS[1:] for path in folder.glob(pattern) if path.name != "result.json")


def digest(folder: Path) -> str:
    """Of every file that the page is made from: tells whether a page is up to date."""
    found = hashlib.sha256()
    for path in sorted(path for pattern in PATTERNS for path in folder.glob(pattern)):
        found.update(path.relative_to(folder).as_posix().encode() + b"\0")
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def read_experiments(folder: Path, unread: Unread) -> list[ExperimentRecord]:
    """The tables that have a number of ours, assembled, and the figures that have a file."""
    measured = read_measured(folder, unread)
    found = []
    for name, experiment in EXPERIMENTS.items():
        source = f"reproduction/{name}.json"
        try:
            if experiment.shows == "table":
                record = assembled(experiment, measured, folder)
                found += [record] if record.about.runs else []
            elif name in measured.reproductions:
                found.append(experiment_of(measured.reproductions[name], folder, source))
        except MISFITS as error:
            unread(folder / source, error)
    return found


def assembled(experiment: Experiment, measured: Measured, folder: Path) -> ExperimentRecord:
    """A table with a row per number of the paper, from whichever file has ours."""
    lines = []
    for paper in (target for target in targets() if target.table == experiment.name):
        lines.append(row_for(paper, measured) or table_row(paper, None, {"scenario": paper.benchmark}, judged=True))
    claims = [claim({"rows": lines}) for claim in experiment.claims]
    behind = dict.fromkeys((row["benchmark"], row["method"]) for row in lines if row["ours"])
    runs = [Outcome(method, measured.runs.get((benchmark, method))) for benchmark, method in behind]
    commands = dict.fromkeys(
        (f"{row['method']}, {row['benchmark']}", row["command"]) for row in lines if row["ours"] and row["command"]
    )
    about = {
        "name": experiment.name,
        "title": experiment.title,
        "paper": experiment.found,
        "shows": experiment.shows,
        "budget": "full",
        "note": lengths(runs).rstrip("."),
        "seeds": [],
        "measured": {"rows": lines},
        "claims": [{"statement": claim.statement, "held": claim.held} for claim in claims],
        "runs": [{"name": name, "command": command} for name, command in commands],
        "failed": [],
    }
    return ExperimentRecord(
        folder,
        validated(Reproduction, about, experiment.name),
        validated(TableMeasured, about["measured"], experiment.name),
        "the result files of each run",
    )


def read_comparisons(folder: Path, unread: Unread) -> list[ComparisonRecord]:
    """Every folder `compare-…` as one comparison."""
    found = []
    for part in sorted(path for path in folder.glob("compare-*") if path.is_dir()):
        lines, scenario = [], ""
        guessing: dict[str, float] = {}
        for path, outcome in read_outcomes(part, unread):
            try:
                lines.append(validated(ComparisonRow, rows([outcome])[0], path.name))
                result = outcome.result or {}
                guessing, scenario = guessing or floors(result)["guessing"], scenario or result["scenario"]
            except MISFITS as error:
                unread(path, error)
        if lines:
            found.append(ComparisonRecord(part, lines, title(part.name, scenario), f"{part.name}/*.json", guessing))
    return found


def read_runs(folder: Path, unread: Unread) -> list[Run]:
    """Single runs."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            data = store.read_json(path)
            if isinstance(data, dict) and "accuracy" in data:
                found.append(read_result_file(path))
        except MISFITS as error:
            unread(path, error)
    return found
