"""`ibpwf reproduce`: a table or figure of the paper, from its runs to its page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ibpwf.cli.options import (
    ClusterChoices,
    at_least_one,
    command_typed,
    command_with,
    flush_denormals,
    interrupted,
    of_run,
)
from ibpwf.device import check_device
from ibpwf.errors import IBPWFError, InputError, printable, unknown
from ibpwf.lab import names

if TYPE_CHECKING:
    from ibpwf.cli.screen import Screen
    from ibpwf.lab.experiments.executors import Engine
    from ibpwf.lab.experiments.reproduction.experiment import Experiment, Request
    from ibpwf.lab.experiments.reproduction.reproduce import Job


@dataclass
class ReproduceOptions(ClusterChoices):
    """What is asked of `ibpwf reproduce`."""

    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help=f"One of {', '.join(names.EXPERIMENTS)}, or all.",
        ),
    ]
    seeds: Annotated[
        int | None,
        typer.Option(
            help="Run seeds 0 to N-1 of each run.",
            show_default="1 quick; full: figures 3, tables 5, of IBP-WF 10, on CIFAR-10 3 and 5",
        ),
    ] = None
    budget: Annotated[
        str, typer.Option(help="full: the paper's size, for a GPU; quick: a shrunken stand-in, for a first look.")
    ] = "full"
    device: Annotated[str, of_run("device")] = "auto"
    out: Annotated[Path | None, typer.Option(help="The folder.", show_default="runs/reproduce-BUDGET")] = None
    resume: Annotated[bool, typer.Option("--resume", help="Go on with runs that were interrupted.")] = False
    plan: Annotated[bool, typer.Option("--plan", help="List the runs with their state; run nothing.")] = False


@command_with(ReproduceOptions)
def reproduce_command(options: ReproduceOptions) -> None:
    """Reproduce a table or figure of the paper: run what has not been run, measure, check the paper's claims.

    Runs are shared between experiments and finished ones are not run again.
    """
    if options.name not in (*names.EXPERIMENTS, "all"):
        raise unknown("experiment", options.name, [*names.EXPERIMENTS, "all"])
    check_device(options.device)
    at_least_one(seeds=options.seeds)
    options.engine()
    flush_denormals()
    from ibpwf.cli.screen import Screen
    from ibpwf.device import choose_device
    from ibpwf.lab.experiments.reproduction.experiment import QUICK_NOTE, Request, checked_budget
    from ibpwf.lab.experiments.reproduction.registry import chosen_experiments
    from ibpwf.lab.experiments.reproduction.reproduce import plan
    from ibpwf.lab.report import need_jinja2, write_report

    chosen, budget = chosen_experiments(options.name), checked_budget(options.budget)
    choose_device(options.device)
    folder = options.out or Path("runs") / f"reproduce-{budget}"
    asked = Request(folder, budget, options.seeds, options.device, command_typed(), options.resume)
    screen = Screen()
    if budget == "quick":
        screen.say(f"{QUICK_NOTE}.", "yellow")
    if options.plan:
        show_plan(screen, plan(chosen, asked))
        return
    need_jinja2()  # the report comes last
    try:
        failed = _reproduce_all(chosen, asked, screen, options.engine(screen.say))
    except KeyboardInterrupt:
        raise interrupted(folder) from None
    if len(failed) < len(chosen):
        screen.say(printable(f"Report: {write_report([folder], folder / 'report.html')}"))
    if failed:
        raise InputError(
            f"{len(failed)} of {len(chosen)} experiments failed: {', '.join(failed)}; see the lines above."
        )


def _reproduce_all(chosen: Sequence[Experiment], asked: Request, screen: Screen, engine: Engine | None) -> list[str]:
    """All of them, each shown as it comes; the names of those that failed. An engine trains all their runs first."""
    from ibpwf.lab.experiments.reproduction.reproduce import reproduce

    failed = []
    failures: dict[str, IBPWFError] = {}
    if engine is not None:
        failures = _trained_in_advance(chosen, asked, screen, engine)
        asked = replace(asked, resume=True)
    for experiment in chosen:
        try:
            found = reproduce(experiment, asked, told=partial(screen.say, style="dim"), failures=failures)
            show(screen, found)
        except IBPWFError as error:
            if len(chosen) == 1:
                raise
            failed.append(experiment.name)
            screen.say(f"{experiment.name} failed: {error}", "red")
    return failed


def _trained_in_advance(
    chosen: Sequence[Experiment], asked: Request, screen: Screen, engine: Engine
) -> dict[str, IBPWFError]:
    """The runs that failed, with why; all others are finished."""
    from ibpwf.cli.run_table import RunTable
    from ibpwf.lab.experiments.reproduction.reproduce import check_runs, plan, train_in_advance

    jobs = [job for job, _ in plan(chosen, asked)]
    if not asked.resume:
        check_runs(jobs)
    table = RunTable(screen)

    def ended(name: str, error: IBPWFError | None) -> None:
        screen.say(f"{name}: finished" if error is None else f"{name}: failed", "dim")
        if error is not None:
            table.failed(name)

    with table:
        return train_in_advance(jobs, engine, table.watch, ended)


def show_plan(screen: Screen, runs: Sequence[tuple[Job, tuple[str, ...]]]) -> None:
    """One line per run: how long it is, and who wants it."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for head in ("run", "seeds", "trainings", "length", "state"):
        table.add_column(head, overflow="fold", justify="right" if head in ("seeds", "trainings") else "left")
    table.add_column("for", overflow="fold")
    for job, experiments in runs:
        numbers = str(len(job.config.seeds)), str(job.trainings)
        table.add_row(job.spec.name, *numbers, job.length, job.state, ", ".join(experiments))
    screen.print(table)
    left = [job for job, _ in runs if job.state != "finished"]
    screen.print(
        f"{len(runs)} runs, {len(left)} of them not finished ({sum(job.trainings for job in left)} trainings)."
    )


def show(screen: Screen, result: dict[str, Any]) -> None:
    """An experiment's numbers beside the paper's, and its claims."""
    from rich.table import Table

    from ibpwf.lab.experiments.compare import mark, number

    label = " (quick, not the paper's size)" if result["budget"] == "quick" else ""
    screen.print(f"\n{result['title']}{label}", style="bold", soft_wrap=True)
    if result["shows"] == "table":
        table = Table(box=None, pad_edge=False)
        for head in ("benchmark", "method", "setting"):
            table.add_column(head, no_wrap=True)
        for head in ("ours", "paper", ""):
            table.add_column(head, justify="right", no_wrap=True)
        for row in result["measured"]["rows"]:
            ours, paper = row["ours"] or {}, row["paper"]
            table.add_row(
                row["benchmark"],
                row["method"],
                row["setting"],
                number(ours.get("mean"), ours.get("std")),
                number(paper["mean"], paper["std"]),
                mark(row["reproduces"]),
            )
        screen.print(table)
    for claim in result["claims"]:
        sign = "–" if result["budget"] == "quick" and result["shows"] == "table" else mark(claim["held"])
        screen.print(f"{sign} {claim['statement']}", soft_wrap=True)
    for run in result["failed"]:
        screen.print(f"{run['name']} failed: {run['error']}", style="red")
