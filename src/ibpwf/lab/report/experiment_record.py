"""What the report knows of a reproduction and of a comparison: their files as pydantic models."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from ibpwf.errors import StoreError
from ibpwf.lab.experiments.reproduction.reproduce import KIND, SCHEMA
from ibpwf.lab.report.records import Count, Record, Spread, Use, check_schema, validated
from ibpwf.lab.report.run_record import Scores
from ibpwf.storage.files import read_json


class PaperNumber(Spread):
    note: str = ""


class TableRow(Record):
    """One number of the paper beside ours."""

    benchmark: str
    setting: str
    method: str
    ran: str | None = None
    ours: Spread | None = None
    paper: PaperNumber | None = None
    difference: float | None = None
    reproduces: bool | None = None
    seeds: Count | None = None


class TableMeasured(Record):
    rows: list[TableRow]

    def by_benchmark(self) -> dict[str, list[TableRow]]:
        names = dict.fromkeys(row.benchmark for row in self.rows)
        return {name: [row for row in self.rows if row.benchmark == name] for name in names}

    def task_inference(self, benchmark: str) -> dict[str, Spread]:
        """How often each method infers the task right."""
        rows = [row for row in self.rows if (row.benchmark, row.setting) == (benchmark, "task-inference")]
        return {row.method: row.ours for row in rows if row.ours}


class EntropySet(Record):
    """A set of inputs: mean, five quantiles (5, 25, 50, 75, 95 %) and a histogram of its entropies from 0 up."""

    name: str
    set_kind: Literal["seen", "unseen", "foreign"] = Field(alias="kind")
    mean: float
    quantiles: list[float] = Field(min_length=5, max_length=5)
    histogram: list[Count] = Field(min_length=1)


class EntropyPanel(Record):
    task: str
    sets: list[EntropySet]
    auroc: dict[str, float | None] | None = None


class UncertaintyMeasured(Record):
    highest: float
    per_task: bool = False
    draws: Count | None = None
    panels: list[EntropyPanel]

    def compared_with(self) -> list[str]:
        """What inputs that are not known are, in the order the panels have them."""
        return list(dict.fromkeys(name for panel in self.panels for name in panel.auroc or {}))


class LayerPanel(Record):
    alpha: float
    per_task: list[Use]


class FactorPanel(Record):
    ran: str
    tasks: list[str]
    seed: Count
    layer: str
    values: list[list[float]] = Field(alias="scores")
    selected: list[list[Count]]
    opened: list[list[Count]]
    layers: dict[str, LayerPanel]

    @model_validator(mode="after")
    def _one_row_per_task(self) -> Self:
        if not len(self.values) == len(self.selected) == len(self.opened) == len(self.tasks):
            raise ValueError("scores, selection and new factors are not one row per task")
        return self

    @property
    def scores(self) -> Scores:
        rows: list[list[float | None]] = []
        for row, chosen in zip(self.values, self.selected, strict=True):
            used = set(chosen)
            rows.append([value if k in used else None for k, value in enumerate(row)])
        return Scores(self.seed, self.layer, rows, [frozenset(row) for row in self.opened])


class FactorsMeasured(Record):
    panels: list[FactorPanel]


class GrowthLine(Record):
    label: str
    parameters: list[float] = Field(min_length=1)
    task: list[Spread] = Field(min_length=1)


class GrowthPanel(Record):
    ran: str
    lines: list[GrowthLine] = Field(min_length=1)

    @property
    def spread(self) -> bool:
        return any(spread.std is not None for line in self.lines for spread in line.task)


class GrowthMeasured(Record):
    panels: list[GrowthPanel]


class SweepPoint(Record):
    value: float
    task: Spread
    class_: Spread = Field(alias="class")


class SweepPanel(Record):
    ran: str
    points: list[SweepPoint] = Field(min_length=1)

    @property
    def spread(self) -> bool:
        return any(point.task.std is not None or point.class_.std is not None for point in self.points)


class SweepMeasured(Record):
    setting: str
    panels: list[SweepPanel]

    @property
    def sign(self) -> str:
        return {"alpha": "α", "kappa": "κ"}.get(self.setting, self.setting)

    @model_validator(mode="after")
    def _drawable(self) -> Self:
        if self.setting == "alpha" and any(p.value <= 0 for panel in self.panels for p in panel.points):
            raise ValueError("a value that is not above 0 has no place on a log scale")
        return self


class ScatterMeasured(Record):
    ran: str
    tasks: list[str]
    points: list[Annotated[list[float], Field(min_length=3, max_length=3)]] = Field(min_length=1)
    alike: float | None = None

    @model_validator(mode="after")
    def _points_of_tasks(self) -> Self:
        if any(task not in range(len(self.tasks)) for _, _, task in self.points):
            raise ValueError("the points do not fit the tasks")
        return self


class PictureRecord(Record):
    task: str
    label: str | None = None
    number: Count | None = Field(default=None, alias="class")
    active: Count
    png: str = Field(pattern=r"^[A-Za-z0-9+/=]+$")


class TaskSimilarity(Record):
    task: str
    similarity: float


class PicturesMeasured(Record):
    layer: str
    pictures: list[PictureRecord]
    tasks: list[TaskSimilarity]

    def by_task(self) -> dict[str, list[PictureRecord]]:
        names = dict.fromkeys(picture.task for picture in self.pictures)
        return {name: [picture for picture in self.pictures if picture.task == name] for name in names}


MEASURED: dict[str, type[Record]] = {
    "table": TableMeasured,
    "uncertainty": UncertaintyMeasured,
    "factors": FactorsMeasured,
    "growth": GrowthMeasured,
    "sweep": SweepMeasured,
    "scatter": ScatterMeasured,
    "pictures": PicturesMeasured,
}


class ClaimRecord(Record):
    statement: str
    held: bool = False


class RunCommand(Record):
    name: str
    command: str


class FailedRun(Record):
    name: str
    error: str


class Reproduction(Record):
    """One `result.json` of `ibpwf reproduce`; `measured` is checked by what it `shows`."""

    name: str
    title: str
    paper: str = ""
    shows: str
    budget: str
    note: str = ""
    seeds: list[Count]
    measured: dict[str, Any]
    claims: list[ClaimRecord]
    runs: list[RunCommand]
    failed: list[FailedRun]
    command: str = ""
    commit: str | None = None
    environment: dict[str, Any] | None = None

    @property
    def quick(self) -> bool:
        return self.budget != "full"


@dataclass(frozen=True)
class ExperimentRecord:
    """A reproduction, what it measured, and the file it is from."""

    folder: Path
    about: Reproduction
    measured: Record
    source: str

    @property
    def name(self) -> str:
        return self.about.name

    @property
    def table(self) -> TableMeasured | None:
        return self.measured if isinstance(self.measured, TableMeasured) else None

    def seeds(self) -> str:
        """How many; those of a table's rows where they come from different files."""
        if self.about.seeds or self.table is None:
            return str(len(self.about.seeds))
        counts = sorted({row.seeds for row in self.table.rows if row.ours and row.seeds is not None})
        return " to ".join(str(count) for count in dict.fromkeys((*counts[:1], *counts[-1:])))


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
    check_schema(content, SCHEMA, "result.json")
    about = validated(Reproduction, content, "result.json")
    if about.shows not in MEASURED:
        raise StoreError(f"result.json: field 'shows' is '{about.shows}'; this ibpwf draws {', '.join(MEASURED)}.")
    measured = validated(MEASURED[about.shows], about.measured, "result.json: measured")
    return ExperimentRecord(folder, about, measured, source)


class Compared(Record):
    """One method in one setting. `judged` is ours of as many tasks as the paper's, where those are fewer."""

    ours: Spread | None = None
    paper: Spread | None = None
    note: str = ""
    judged: Spread | None = None
    reproduces: bool | None = None


def _compared(row: dict[str, Any], setting: str) -> dict[str, Any]:
    """The flat fields of a comparison's row, `task_mean` and the like, by what they say."""

    def spread(mean: str, std: str) -> dict[str, Any] | None:
        found = row.get(f"{setting}_{mean}")
        return None if found is None else {"mean": found, "std": row.get(f"{setting}_{std}")}

    after = row.get(f"{setting}_after_tasks")
    return {
        "ours": spread("mean", "std"),
        "paper": spread("paper", "paper_std"),
        "note": "" if after is None else f"after {after} tasks",
        "judged": spread("after_tasks_mean", "after_tasks_std"),
        "reproduces": row.get(f"{setting}_reproduces"),
    }


class ComparisonRow(Record):
    """One method of a comparison with the task given and inferred, what it keeps, how long it took."""

    method: str
    error: str | None = None
    kept_bytes: float | None = None
    seconds: float | None = None
    command: str | None = None
    given: Compared
    inferred: Compared

    @model_validator(mode="before")
    @classmethod
    def _by_setting(cls, row: Any) -> Any:
        if not isinstance(row, dict):
            return row
        return {**row, "given": _compared(row, "task"), "inferred": _compared(row, "class")}


class ComparisonFile(Record):
    rows: list[ComparisonRow]
    guessing: dict[str, float] | None = None


@dataclass(frozen=True)
class ComparisonRecord:
    """One `comparison.json` of `ibpwf compare`, or a folder of results that say the same."""

    folder: Path
    rows: list[ComparisonRow]
    title: str
    source: str
    guessing: dict[str, float] = field(default_factory=dict)  # by setting, in percent

    def _found(self) -> list[Compared]:
        return [one for row in self.rows if row.error is None for one in (row.given, row.inferred)]

    @property
    def spread(self) -> bool:
        return any(one.ours is not None and one.ours.std is not None for one in self._found())

    def judged(self) -> list[bool]:
        """The verdicts on the numbers that the paper has too."""
        return [one.reproduces for one in self._found() if one.reproduces is not None]


def read_comparison(folder: Path) -> ComparisonRecord:
    found = validated(ComparisonFile, read_json(folder / "comparison.json"), "comparison.json")
    return ComparisonRecord(folder, found.rows, folder.name, f"{folder.name}/comparison.json", found.guessing or {})
