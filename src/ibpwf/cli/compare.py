"""`ibpwf compare` and `ibpwf methods`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ibpwf.cli.options import (
    ClusterChoices,
    RunChoices,
    at_least_one,
    command_with,
    flush_denormals,
    interrupted,
)
from ibpwf.errors import InputError, printable
from ibpwf.lab.experiments.run_config import RunConfig

if TYPE_CHECKING:
    from ibpwf.cli.screen import Screen
    from ibpwf.lab.experiments.compare import Outcome


def methods_command() -> None:
    """List every method: what it does, what it keeps between tasks, which settings it answers."""
    from rich.table import Table

    from ibpwf.cli.screen import Screen
    from ibpwf.lab.methods import methods

    screen = Screen()
    table = Table(box=None, pad_edge=False)
    table.add_column("method", no_wrap=True, style="bold")
    table.add_column("what it does")
    table.add_column("keeps")
    table.add_column("answers", no_wrap=True)
    for name, method in methods().items():
        table.add_row(name, method.summary, method.stores, ", ".join(method.answers))
    screen.print(table)


@dataclass
class CompareOptions(RunChoices, ClusterChoices):
    """What is asked of `ibpwf compare`."""

    methods: Annotated[
        str, typer.Option(help="Names separated by commas (see `ibpwf methods`), module:Class among them, or all.")
    ] = "all"
    seeds: Annotated[int, typer.Option(help="Run seeds 0 to N-1 of each.")] = 5
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Change a setting of every method that has it. Repeatable."),
    ] = None
    jobs: Annotated[int, typer.Option(help="Methods to run at the same time, each in its own process.")] = 1
    out: Annotated[Path | None, typer.Option(help="The folder.", show_default="runs/compare-SCENARIO")] = None

    def configs(self) -> list[RunConfig]:
        """One for each method, with those changes that it has a setting for."""
        at_least_one(seeds=self.seeds, jobs=self.jobs)
        if self.engine() is not None and self.jobs > 1:
            raise InputError("--jobs is for this machine; with --cluster its workers decide how many run at once.")
        self.check(*(name.strip() for name in self.methods.split(",") if self.methods != "all"))
        from ibpwf.lab.experiments.compare import chosen_methods
        from ibpwf.lab.experiments.presets import settings_type

        known = {name: settings_type(name).model_fields for name in chosen_methods(self.methods, self.scenario)}
        changes = self.changes()
        for change in changes:
            if not any(change in names for names in known.values()):
                raise InputError(f"no chosen method has a setting '{change}'; see docs or `ibpwf run --set`.")
        return [
            self.config(
                self.scenario,
                method=method,
                seeds=tuple(range(self.seeds)),
                changes={name: value for name, value in changes.items() if name in names},
            )
            for method, names in known.items()
        ]


@command_with(CompareOptions)
def compare_command(asked: CompareOptions) -> None:
    """Run several methods on one scenario and print one table, ours beside the paper's.

    Runs that have finished are not run again. A run that fails is reported and does not stop the others.
    """
    configs = asked.configs()
    flush_denormals()
    from ibpwf.cli.screen import Screen
    from ibpwf.lab.experiments.compare import write_tables

    folder = asked.out or Path("runs") / f"compare-{asked.scenario.replace(':', '.')}"
    screen = Screen()
    if configs[0].preset == "none":
        screen.print(f"Preset: {'; '.join(one.note() for one in configs)}.", soft_wrap=True)
    try:
        outcomes = (_compare_here if asked.cluster is None else _compare_elsewhere)(configs, folder, asked, screen)
    except KeyboardInterrupt:
        raise interrupted(folder) from None
    show(screen, write_tables(folder, outcomes), outcomes)
    screen.say(f"Tables: {printable(str(folder))}/comparison.md, .csv, .json")
    if all(outcome.result is None for outcome in outcomes):
        raise InputError("every run failed; see the lines above.")


def _compare_here(configs: list[RunConfig], folder: Path, asked: CompareOptions, screen: Screen) -> list[Outcome]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from ibpwf.lab.experiments.compare import compare
    from ibpwf.lab.experiments.seed_training import RunCallback

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[detail]}"),
        TimeElapsedColumn(),
        console=screen,
        transient=True,
        disable=not screen.is_terminal,
    )
    whole = bar.add_task("methods", total=len(configs), detail="")

    class Newest(RunCallback):
        def __init__(self, method: str) -> None:
            self.method = method

        def task_start(self, training: str, task: str, epochs: int) -> None:
            bar.update(whole, detail=printable(f"{self.method} {training}: {task}"))

        def step_end(self, training: str, epochs: float, loss: float) -> None:
            bar.update(whole, detail=f"{self.method} {training}: epoch {epochs:.0f} loss {loss:.3g}")

    def told(outcome: Outcome, done: int, total: int) -> None:
        bar.update(whole, completed=done)
        _line(screen, outcome)

    with bar:
        return compare(configs, folder, jobs=asked.jobs, resume=asked.resume, told=told, watch=Newest)


def _compare_elsewhere(
    configs: list[RunConfig], folder: Path, asked: CompareOptions, screen: Screen
) -> list[Outcome]:
    """All methods at once, in the workers of a cluster."""
    from ibpwf.cli.run_table import RunTable
    from ibpwf.lab.experiments.compare import compare

    table = RunTable(screen)

    def told(outcome: Outcome, done: int, total: int) -> None:
        _line(screen, outcome)
        if outcome.result is None:
            table.failed(outcome.method)

    with table:
        engine = asked.engine(screen.say)
        return compare(configs, folder, resume=asked.resume, told=told, watch=table.watch, engine=engine)


def _line(screen: Screen, outcome: Outcome) -> None:
    if outcome.result is None:
        screen.print(f"{outcome.method}: failed: {outcome.error}", style="red")
        return
    from ibpwf.lab.experiments.compare import number

    parts = []
    for setting, words in (("task", "task given"), ("class", "task inferred")):
        entry = outcome.result["accuracy"][setting]
        if entry:
            parts.append(f"{words} {number(entry['mean'], entry['std'])}")
    screen.print(f"{outcome.method}: {', '.join(parts)}")


def show(screen: Screen, table: list[dict[str, Any]], outcomes: list[Outcome]) -> None:
    """The final table."""
    from rich.table import Table

    from ibpwf.lab.experiments.compare import floor_lines, mark, number, size

    shown = Table(box=None, pad_edge=False)
    shown.add_column("method", no_wrap=True)
    for head in ("task given", "paper", "", "task inferred", "paper", "", "kept", "time"):
        shown.add_column(head, justify="right", no_wrap=True)
    for row in table:
        if row["error"]:
            shown.add_row(row["method"], "failed")
            continue
        cells = []
        for setting in ("task", "class"):
            paper = row[f"{setting}_paper"]
            cells += [
                number(row[f"{setting}_mean"], row[f"{setting}_std"]),
                "–" if paper is None else f"{paper:.2f}",
                mark(row[f"{setting}_reproduces"]),
            ]
        shown.add_row(row["method"], *cells, size(row["kept_bytes"]), f"{row['seconds']:.0f} s")
    screen.print()
    screen.print(shown)
    for line in floor_lines(outcomes):
        screen.print(line, style="dim")
