"""A folder of result files such as docs/results, where nothing but JSON is kept: tables, figures, comparisons, runs.

    *.json                   results of single runs, and of one VAE per task
    compare-SCENARIO/*.json  a result per method
    reproduction/NAME.json   what `ibpwf reproduce NAME` measured at full size

The four tables are put together from whatever is there, so the page grows with the files. A file that cannot be read
is an error, or told to `unread` where the caller wants the rest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ibpwf.errors import StoreError
from ibpwf.lab.experiments.compare import Outcome, lengths
from ibpwf.lab.experiments.paper import Target, targets
from ibpwf.lab.experiments.reproduction.experiment import Experiment
from ibpwf.lab.experiments.reproduction.reproduce import KIND, SCHEMA
from ibpwf.lab.experiments.reproduction.tables import ours_of, table_row
from ibpwf.lab.methods import methods
from ibpwf.storage.files import read_json

PATTERNS = ("*.json", "compare-*/*.json", "reproduction/*.json")
# What IBP-WF may change in its preset and still be the run that a table asks for.
OWN_CHANGES: tuple[dict[str, Any], ...] = ({}, {"max_factors": None})

Unread = Callable[[Path, Exception], None]


@dataclass(frozen=True)
class Measured:
    """What the result files hold that can stand beside a number or a claim of the paper."""

    reproductions: dict[str, dict[str, Any]] = field(default_factory=dict)  # by experiment
    runs: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)  # by benchmark and method
    vae: dict[str, dict[str, Any]] = field(default_factory=dict)  # by benchmark
    files: dict[str, dict[str, Any]] = field(default_factory=dict)  # by path; not all of them are taken


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
    for pattern in PATTERNS:
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


def read_results(folder: Path, unread: Unread | None = None) -> list[tuple[str, dict[str, Any]]]:
    """All run results in a folder, by file name."""
    found = read_objects(folder.glob("*.json"), unread)
    return [(path.name, data) for path, data in found if "accuracy" in data and "command" in data]


def read_outcomes(part: Path, unread: Unread | None = None) -> list[tuple[Path, Outcome]]:
    """The results of one comparison in the order of the tables. A file `METHOD.json` is the method's row, any other a
    variant of it, named after the file."""
    order = {name: place for place, name in enumerate(methods())}
    found = []
    for file, result in read_results(part, unread):
        name, method = file.removesuffix(".json"), result.get("method")
        if method not in order:
            error = StoreError(f"{part / file}: its method {method!r} is none of this ibpwf's.")
            if unread is None:
                raise error
            unread(part / file, error)
            continue
        found.append((part / file, Outcome(method, result, variant=None if name == method else name)))
    return sorted(found, key=lambda one: (order[one[1].method], one[1].variant or ""))


def title(folder: str, scenario: str) -> str:
    """`compare-SCENARIO` is the main comparison; `compare-SCENARIO-paper-settings` says so in words."""
    special = folder.removeprefix(f"compare-{scenario}").strip("-").replace("-", " ")
    return f"{scenario}: methods side by side" + (f" ({special})" if special else "")


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


def assembled(experiment: Experiment, measured: Measured) -> dict[str, Any]:
    """A table with a row per number of the paper, from whichever file has ours, as `ibpwf reproduce` writes one."""
    lines = []
    for paper in (target for target in targets() if target.table == experiment.name):
        lines.append(row_for(paper, measured) or table_row(paper, None, {"scenario": paper.benchmark}, judged=True))
    claims = [claim({"rows": lines}) for claim in experiment.claims]
    behind = dict.fromkeys((row["benchmark"], row["method"]) for row in lines if row["ours"])
    runs = [Outcome(method, measured.runs.get((benchmark, method))) for benchmark, method in behind]
    commands = dict.fromkeys(
        (f"{row['method']}, {row['benchmark']}", row["command"]) for row in lines if row["ours"] and row["command"]
    )
    return {
        "schema": SCHEMA,
        "kind": KIND,
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
