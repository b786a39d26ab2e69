"""Reproductions and comparisons as the report shows them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ibpwf.errors import StoreError
from ibpwf.lab.experiments.compare import floors, rows
from ibpwf.lab.experiments.reproduction.registry import EXPERIMENTS
from ibpwf.lab.experiments.reproduction.reproduce import KIND, SCHEMA
from ibpwf.lab.experiments.results_folder import assembled, read_measured, read_outcomes, title
from ibpwf.lab.report.records import MISFITS, Spread, Tree, read_record, record
from ibpwf.lab.report.runs import Scores
from ibpwf.storage.files import read_json

Unread = Callable[[Path, Exception], None]


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper: what `ibpwf reproduce` has written, and the file it is from."""

    about: Tree
    source: str

    @property
    def measured(self) -> Tree:
        found: Tree = self.about.measured
        return found

    @property
    def quick(self) -> bool:
        return bool(self.about.budget != "full")

    @property
    def is_table(self) -> bool:
        return bool(self.about.shows == "table")

    def seeds(self) -> str:
        """How many; those of a table's rows where they come from different files."""
        if self.about.seeds or not self.is_table:
            return str(len(self.about.seeds))
        counts = sorted({row.seeds for row in self.about.measured.rows if row.ours and row.seeds is not None})
        return " to ".join(str(count) for count in dict.fromkeys((*counts[:1], *counts[-1:])))


def experiment_of(content: object, source: str) -> Experiment:
    """The content of a result file of `ibpwf reproduce`."""
    fields = ("name", "title", "shows", "budget", "seeds", "measured", "claims", "runs")
    about = record(content, source, *fields, schema=SCHEMA)
    if about.name not in EXPERIMENTS:
        raise StoreError(f"{source}: field 'name' is {about.name!r}; this ibpwf knows {', '.join(EXPERIMENTS)}.")
    return Experiment(about, source)


def panel_scores(panel: Tree) -> Scores:
    """The factor scores of a panel of figure-factors: of the factors that each task selects."""
    chosen = [set(row) for row in panel.selected]
    values = [
        [value if k in used else None for k, value in enumerate(row)]
        for row, used in zip(panel.scores, chosen, strict=True)
    ]
    return Scores(panel.seed, panel.layer, values, [frozenset(row) for row in panel.opened])


def is_reproduction(folder: Path) -> bool:
    """Whether a folder's result.json is that of a reproduction; one that cannot be read is not."""
    with contextlib.suppress(StoreError, OSError):
        found = read_json(folder / "result.json")
        return isinstance(found, dict) and found.get("kind") == KIND
    return False


def read_experiments(folder: Path, unread: Unread) -> Iterator[Experiment]:
    """Of a folder of result files: the tables that have a number of ours, and the figures that have a file."""
    measured = read_measured(folder, unread)
    for name, experiment in EXPERIMENTS.items():
        source = f"reproduction/{name}.json"
        try:
            if experiment.shows == "table":
                about = assembled(experiment, measured)
                if about["runs"]:
                    yield experiment_of(about, "the result files of each run")
            elif name in measured.reproductions:
                yield experiment_of(measured.reproductions[name], source)
        except MISFITS as error:
            unread(folder / source, error)


@dataclass(frozen=True)
class Compared:
    """One method in one setting. `judged` is ours of as many tasks as the paper's, where those are fewer."""

    ours: Spread | None = None
    paper: Spread | None = None
    note: str = ""
    judged: Spread | None = None
    reproduces: bool | None = None

    @classmethod
    def of(cls, row: Tree, setting: str) -> Compared:
        """From the flat fields of a comparison's row, `task_mean` and the like."""

        def spread(mean: str, std: str) -> Spread | None:
            found, deviation = row.get(f"{setting}_{mean}"), row.get(f"{setting}_{std}")
            return None if found is None else Spread(float(found), None if deviation is None else float(deviation))

        after = row.get(f"{setting}_after_tasks")
        return cls(
            spread("mean", "std"),
            spread("paper", "paper_std"),
            "" if after is None else f"after {after} tasks",
            spread("after_tasks_mean", "after_tasks_std"),
            row.get(f"{setting}_reproduces"),
        )


@dataclass(frozen=True)
class Comparison:
    """One `comparison.json` of `ibpwf compare`, or a folder of results that say the same."""

    rows: list[Tree]  # each with what was `found` by setting
    title: str
    source: str
    guessing: dict[str, float] = field(default_factory=dict)  # by setting, in percent

    def found(self) -> list[Compared]:
        return [one for row in self.rows if row.error is None for one in row.found.values()]

    def judged(self) -> list[bool]:
        """The verdicts on the numbers that the paper has too."""
        return [one.reproduces for one in self.found() if one.reproduces is not None]


def _row(content: Any, where: str) -> Tree:
    row = record(content, where, "method")
    found = {setting: Compared.of(row, setting) for setting in ("task", "class")}
    return Tree({"error": None, "kept_bytes": None, "seconds": None, "command": None} | row, found=found)


def read_comparison(folder: Path) -> Comparison:
    """What `ibpwf compare` has written into a folder."""
    content, source = read_record(folder / "comparison.json", "rows"), f"{folder.name}/comparison.json"
    found = [_row(row, source) for row in content.rows]
    return Comparison(found, folder.name, source, content.get("guessing") or {})


def read_comparisons(folder: Path, unread: Unread) -> Iterator[Comparison]:
    """Every folder `compare-…` of a folder of result files as one comparison."""
    for part in sorted(path for path in folder.glob("compare-*") if path.is_dir()):
        lines, scenario = [], ""
        guessing: dict[str, float] = {}
        for path, outcome in read_outcomes(part, unread):
            try:
                lines.append(_row(rows([outcome])[0], path.name))
                result = outcome.result or {}
                guessing, scenario = guessing or floors(result)["guessing"], scenario or result["scenario"]
            except MISFITS as error:
                unread(path, error)
        if lines:
            yield Comparison(lines, title(part.name, scenario), f"{part.name}/*.json", guessing)
