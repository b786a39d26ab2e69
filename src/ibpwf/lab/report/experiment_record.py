"""What the report knows of a reproduction and of a comparison: their files, read with care."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ibpwf.errors import StoreError
from ibpwf.lab.experiments.reproduction.reproduce import KIND, SCHEMA
from ibpwf.lab.report.fields import Fields
from ibpwf.lab.report.run_record import Spread
from ibpwf.storage.files import read_json


@dataclass(frozen=True)
class ClaimRecord:
    statement: str
    held: bool


@dataclass(frozen=True)
class ExperimentRecord:
    """One `result.json` of `ibpwf reproduce`."""

    folder: Path
    name: str
    title: str
    paper: str
    shows: str
    budget: str
    note: str
    seeds: list[int]
    measured: Fields
    claims: list[ClaimRecord]
    commands: list[tuple[str, str]]
    failed: list[tuple[str, str]]
    command: str
    commit: str | None
    environment: dict[str, Any]
    source: str

    @property
    def quick(self) -> bool:
        return self.budget != "full"


@dataclass(frozen=True)
class Compared:
    """One method in one setting: ours, the paper's."""

    ours: Spread | None
    paper: Spread | None
    note: str = ""
    reproduces: bool | None = None
    judged: Spread | None = None  # ours of as many tasks as the paper's, where those are fewer


@dataclass(frozen=True)
class ComparisonRow:
    method: str
    error: str | None
    settings: dict[str, Compared]
    kept: float | None
    seconds: float | None
    command: str


@dataclass(frozen=True)
class ComparisonRecord:
    """One `comparison.json` of `ibpwf compare`, or a folder of results that say the same."""

    folder: Path
    rows: list[ComparisonRow]
    title: str
    source: str
    guessing: dict[str, float] = field(default_factory=dict)  # by setting, in percent


def is_reproduction(folder: Path) -> bool:
    """Whether a folder's result.json is that of a reproduction; one that cannot be read is not."""
    with contextlib.suppress(StoreError, OSError):
        found = read_json(folder / "result.json")
        return isinstance(found, dict) and found.get("kind") == KIND
    return False


def read_experiment(folder: Path) -> ExperimentRecord:
    return experiment_of(read_json(folder / "result.json"), folder, f"{folder.name}/result.json")


def experiment_of(content: object, folder: Path, source: str) -> ExperimentRecord:
    """The content of a result file of `ibpwf reproduce`."""
    fields = Fields(content, "result.json")
    if fields.count("schema") > SCHEMA:
        raise StoreError(
            f"result.json has schema version {fields.count('schema')}, and this ibpwf reads up to {SCHEMA}: "
            "upgrade ibpwf to read it."
        )
    return ExperimentRecord(
        folder=folder,
        name=fields.text("name"),
        title=fields.text("title"),
        paper=fields.text("paper", ""),
        shows=fields.text("shows"),
        budget=fields.text("budget"),
        note=fields.text("note", ""),
        seeds=[int(seed) for seed in fields.numbers("seeds")],
        measured=fields.child("measured"),
        claims=[
            ClaimRecord(claim.text("statement"), claim.values.get("held") is True)
            for claim in fields.children("claims")
        ],
        commands=[(run.text("name"), run.text("command")) for run in fields.children("runs")],
        failed=[(run.text("name"), run.text("error")) for run in fields.children("failed")],
        command=fields.text("command", ""),
        commit=fields.text("commit") if "commit" in fields else None,
        environment=fields.plain("environment"),
        source=source,
    )


def read_comparison(folder: Path) -> ComparisonRecord:
    fields = Fields(read_json(folder / "comparison.json"), "comparison.json")
    rows = [comparison_row(row) for row in fields.children("rows")]
    guessing = fields.child("guessing") if "guessing" in fields else None
    chance = {key: guessing.number(key) for key in guessing.values} if guessing is not None else {}
    return ComparisonRecord(folder, rows, folder.name, f"{folder.name}/comparison.json", chance)


def comparison_row(fields: Fields) -> ComparisonRow:
    settings = {}
    for key in ("task", "class"):
        found = []
        for part in (f"{key}_mean", f"{key}_paper"):
            std = f"{key}_std" if part.endswith("_mean") else f"{key}_paper_std"
            found.append(Spread(fields.number(part), fields.maybe_number(std)) if part in fields else None)
        after = f"after {fields.count(f'{key}_after_tasks')} tasks" if f"{key}_after_tasks" in fields else ""
        judged = fields.maybe_number(f"{key}_after_tasks_mean")
        settings[key] = Compared(
            found[0],
            found[1],
            after,
            fields.values.get(f"{key}_reproduces"),
            None if judged is None else Spread(judged, None),
        )
    return ComparisonRow(
        fields.text("method"),
        fields.text("error") if "error" in fields else None,
        settings,
        fields.maybe_number("kept_bytes"),
        fields.maybe_number("seconds"),
        fields.text("command") if "command" in fields else "",
    )
