"""`ibpwf compare`: several methods on one scenario."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ibpwf.cli.interrupts import interrupted
from ibpwf.cli.options import AsJson, OfScenario, OnCluster, flush_denormals
from ibpwf.cli.output import Screen, print_json
from ibpwf.cli.parsing import option
from ibpwf.errors import InputError, printable

if TYPE_CHECKING:
    from ibpwf.lab.experiments.compare import Outcome
    from ibpwf.lab.experiments.run_config import RunConfig


def read_methods(text: str, flag: str) -> str:
    from ibpwf.lab.names import check_method

    for name in text.split(",") if text != "all" else []:
        check_method(name.strip())
    return text


@dataclass(kw_only=True)
class Compare(OfScenario, AsJson, OnCluster):
    """Run several methods on one scenario and print one table, next to the paper's numbers.

    Finished runs are not repeated. A run that fails is reported and does not stop the others. --set changes a setting
    of every method that has it.
    """

    methods: str = option(
        "all", "Comma-separated methods (see `ibpwf methods`), module:Class among them, or all.", read=read_methods
    )
    seeds: int = option(5, "Run seeds 0 to N-1 of each.", least=1)
    jobs: int = option(1, "Methods to run at the same time, each in its own process.", least=1)
    out: Path | None = option(None, "The folder.", "-o", "--out", metavar="DIR", usual="runs/compare-SCENARIO")

    def configs(self) -> list[RunConfig]:
        """One for each method, with those changes that it has a setting for."""
        changes = self.changes()
        if self.engine() is not None and self.jobs > 1:
            raise InputError("--jobs is for this machine; with --cluster its workers decide how many run at once.")
        from ibpwf.lab.experiments.compare import chosen_methods
        from ibpwf.lab.experiments.presets import settings_type

        known = {name: settings_type(name).model_fields for name in chosen_methods(self.methods, self.scenario)}
        for change in changes:
            if not any(change in names for names in known.values()):
                raise InputError(f"no chosen method has a setting '{change}'; see docs/settings.md.")
        return [
            self.config(
                self.scenario,
                method=method,
                seeds=tuple(range(self.seeds)),
                changes={name: value for name, value in changes.items() if name in names},
            )
            for method, names in known.items()
        ]

    def run(self) -> None:
        configs = self.configs()
        flush_denormals()
        from ibpwf.lab.experiments.compare import write_tables

        folder = self.out or Path("runs") / f"compare-{self.scenario.replace(':', '.')}"
        screen = Screen(stderr=self.json)
        if configs[0].preset == "none":
            screen.say(f"Preset: {'; '.join(one.note() for one in configs)}.")
        try:
            outcomes = self._compare(configs, folder, screen)
        except KeyboardInterrupt:
            raise interrupted(folder) from None
        rows = write_tables(folder, outcomes)
        if self.json:
            print_json(rows)
        else:
            show(screen, rows, outcomes)
            screen.say(f"Tables: {printable(str(folder))}/comparison.md, .csv, .json")
        if all(outcome.result is None for outcome in outcomes):
            raise InputError("every run failed; see the lines above.")

    def _compare(self, configs: list[RunConfig], folder: Path, screen: Screen) -> list[Outcome]:
        from ibpwf.cli.run_table import RunTable
        from ibpwf.lab.experiments.compare import compare

        table = RunTable(screen)

        def report(outcome: Outcome, done: int, total: int) -> None:
            say_outcome(screen, outcome)
            table.ended(outcome.method, "failed" if outcome.result is None else "done")

        with table:
            engine = self.engine(screen.say)
            where: dict[str, Any] = {"jobs": self.jobs} if engine is None else {"engine": engine}
            return compare(configs, folder, resume=self.resume, told=report, watch=table.watch, **where)


def say_outcome(screen: Screen, outcome: Outcome) -> None:
    if outcome.result is None:
        screen.say(f"{outcome.method}: failed: {outcome.error}", "red")
        return
    from ibpwf.lab.experiments.compare import number

    parts = []
    for setting, words in (("task", "task known"), ("class", "task inferred")):
        entry = outcome.result["accuracy"][setting]
        if entry:
            parts.append(f"{words} {number(entry['mean'], entry['std'])}")
    screen.say(f"{outcome.method}: {', '.join(parts)}")


def show(screen: Screen, rows: list[dict[str, Any]], outcomes: list[Outcome]) -> None:
    """The final table."""
    from ibpwf.lab.experiments.compare import floor_lines, mark, number, size

    heads = ("method", "task known", "paper", "", "task inferred", "paper", "", "stored", "time")
    shown = []
    for row in rows:
        if row["error"]:
            shown.append([row["method"], "failed"])
            continue
        cells = [row["method"]]
        for setting in ("task", "class"):
            paper = row[f"{setting}_paper"]
            cells += [
                number(row[f"{setting}_mean"], row[f"{setting}_std"]),
                "–" if paper is None else f"{paper:.2f}",
                mark(row[f"{setting}_reproduces"]),
            ]
        shown.append([*cells, size(row["kept_bytes"]), f"{row['seconds']:.0f} s"])
    screen.say()
    screen.table(heads, shown, right=heads[1:], whole=heads)
    for line in floor_lines(outcomes):
        screen.say(line, "dim")
