"""`ibpwf compare` and `ibpwf methods`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ibpwf.errors import InputError
from ibpwf.settings import parse_assignment

if TYPE_CHECKING:
    from ibpwf.lab.experiments.compare import Outcome
    from ibpwf.lab.experiments.run import Events


def methods_command() -> None:
    """List every method: what it does, what it keeps between tasks, which settings it answers."""
    from ibpwf.lab.methods import methods

    console = Console()
    table = Table(box=None, pad_edge=False)
    table.add_column("method", no_wrap=True, style="bold")
    table.add_column("what it does")
    table.add_column("keeps")
    table.add_column("answers", no_wrap=True)
    for name, method in methods().items():
        table.add_row(name, method.summary, method.stores, ", ".join(method.answers))
    console.print(table, highlight=False)


def compare_command(
    scenario: Annotated[str, typer.Argument(help="What to learn, such as split-mnist.")],
    methods: Annotated[str, typer.Option(help="Names separated by commas, or all (see `ibpwf methods`).")] = "all",
    seeds: Annotated[int, typer.Option(help="Run seeds 0 to N-1 of each.")] = 5,
    preset: Annotated[str, typer.Option(help="Settings to start from: paper, default or quick.")] = "paper",
    tasks: Annotated[int | None, typer.Option(help="Only the first N tasks.", show_default=False)] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Change a setting of every method that has it. Repeatable."),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Methods to run at the same time, each in its own process.")] = 1,
    out: Annotated[Path | None, typer.Option(help="The folder.", show_default="runs/compare-SCENARIO")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with runs that were interrupted.")] = False,
    no_models: Annotated[
        bool, typer.Option("--no-models", help="Store results only: saves disk, but an interrupted seed starts anew.")
    ] = False,
) -> None:
    """Run several methods on one scenario and print one table, ours beside the paper's.

    Runs that have finished are not run again. A run that fails is reported and does not stop the others.
    """
    import torch

    torch.set_flush_denormal(True)
    from ibpwf.lab.experiments.compare import chosen_methods, compare, write_tables
    from ibpwf.lab.experiments.presets import settings_type
    from ibpwf.lab.experiments.run import Events
    from ibpwf.lab.experiments.run_config import RunConfig

    if seeds < 1:
        raise InputError(f"--seeds is {seeds}; give at least 1.")
    if jobs < 1:
        raise InputError(f"--jobs is {jobs}; give at least 1.")
    changes = dict(parse_assignment(text) for text in set_ or [])
    names = chosen_methods(methods, scenario)
    known = {name: set(settings_type(name)().to_json()) for name in names}
    for change in changes:
        if not any(change in fields for fields in known.values()):
            raise InputError(f"no chosen method has a setting '{change}'; see docs or `ibpwf run --set`.")
    configs = [
        RunConfig(
            scenario,
            name,
            preset,
            tuple(range(seeds)),
            {key: value for key, value in changes.items() if key in known[name]},
            tasks,
            device,
            not no_models,
        )
        for name in names
    ]
    folder = out or Path("runs") / f"compare-{scenario}"
    console = Console()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[detail]}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    whole = bar.add_task("methods", total=len(configs), detail="")

    def told(outcome: Outcome, done: int, total: int) -> None:
        bar.update(whole, completed=done)
        _line(console, outcome)

    def events(method: str) -> Events:
        def finished(training: str, row: dict[str, Any]) -> None:
            bar.update(whole, detail=f"{method} {training}: {row['task']}")

        return Events(task=finished)

    try:
        with bar:
            outcomes = compare(configs, folder, jobs=jobs, resume=resume, told=told, events=events)
    except KeyboardInterrupt:
        typer.echo(
            f"Interrupted. Finished runs are kept in {folder}; the same command with --resume goes on.", err=True
        )
        raise typer.Exit(130) from None
    table = write_tables(folder, outcomes)
    show(console, table, outcomes)
    console.print(f"Tables: {folder}/comparison.md, .csv, .json", highlight=False, markup=False, soft_wrap=True)
    if all(outcome.result is None for outcome in outcomes):
        raise InputError("every run failed; see the lines above.")


def _line(console: Console, outcome: Outcome) -> None:
    if outcome.result is None:
        console.print(f"{outcome.method}: failed: {outcome.error}", style="red", highlight=False, markup=False)
        return
    from ibpwf.lab.experiments.compare import number

    parts = []
    for setting, words in (("task", "task given"), ("class", "task inferred")):
        entry = outcome.result["accuracy"][setting]
        if entry:
            parts.append(f"{words} {number(entry['mean'], entry['std'])}")
    console.print(f"{outcome.method}: {', '.join(parts)}", highlight=False, markup=False)


def show(console: Console, table: list[dict[str, Any]], outcomes: list[Outcome]) -> None:
    """The final table."""
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
    console.print()
    console.print(shown, highlight=False)
    for line in floor_lines(outcomes):
        console.print(line, style="dim", highlight=False, markup=False)
