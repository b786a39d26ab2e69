"""`ibpwf reproduce`: a table or figure of the paper, from its runs to its page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ibpwf.cli.interrupts import interrupted
from ibpwf.cli.options import AsJson, OnCluster, OnDevice, Resume, command_typed, flush_denormals
from ibpwf.cli.output import Screen, print_json
from ibpwf.cli.parsing import argument, option
from ibpwf.errors import IBPWFError, InputError, printable, unknown
from ibpwf.lab.names import EXPERIMENTS

if TYPE_CHECKING:
    from ibpwf.lab.experiments.executors import Engine
    from ibpwf.lab.experiments.reproduction.experiment import Experiment, Request
    from ibpwf.lab.experiments.reproduction.reproduce import Job


def check_experiment(name: str) -> None:
    if name not in (*EXPERIMENTS, "all"):
        raise unknown("experiment", name, [*EXPERIMENTS, "all"])


@dataclass(kw_only=True)
class Reproduce(OnDevice, Resume, AsJson, OnCluster):
    """Reproduce a table or figure of the paper: run what has not been run, measure, check the paper's claims.

    Runs are shared between experiments, and finished ones are not repeated.
    """

    name: str = argument(
        "NAME", f"One of {', '.join(EXPERIMENTS)}, or all.", check="ibpwf.cli.reproduce:check_experiment"
    )
    seeds: int | None = option(
        None,
        "Run seeds 0 to N-1 of each run.",
        usual="quick: 1; full: figures 3, tables 5, of IBP-WF 10, on CIFAR-10 3 and 5",
        least=1,
    )
    budget: Literal["full", "quick"] = option(
        "full", "full is the paper's size, for a GPU; quick is a scaled-down version, for a first look."
    )
    out: Path | None = option(None, "The folder.", "-o", "--out", metavar="DIR", usual="runs/reproduce-BUDGET")
    plan: bool = option(False, "List the runs and their state; run nothing.")

    def run(self) -> None:
        self.engine()  # rejected now or not at all
        flush_denormals()
        from ibpwf.device import choose_device
        from ibpwf.lab.experiments.reproduction.experiment import QUICK_NOTE, Request
        from ibpwf.lab.experiments.reproduction.registry import chosen_experiments
        from ibpwf.lab.experiments.reproduction.reproduce import plan
        from ibpwf.lab.report import need_jinja2, write_report

        chosen = chosen_experiments(self.name)
        choose_device(self.device)
        folder = self.out or Path("runs") / f"reproduce-{self.budget}"
        asked = Request(folder, self.budget, self.seeds, self.device, command_typed(), self.resume)
        screen = Screen(stderr=self.json)
        if self.budget == "quick":
            screen.say(f"{QUICK_NOTE}.", "yellow")
        if self.plan:
            self._show_plan(screen, plan(chosen, asked))
            return
        need_jinja2()  # the report comes last
        try:
            results, failed = reproduce_all(chosen, asked, screen, self.engine(screen.say))
        except KeyboardInterrupt:
            raise interrupted(folder) from None
        if results:
            screen.say(printable(f"Report: {write_report([folder], folder / 'report.html')}"))
        if self.json:
            print_json(results)
        if failed:
            raise InputError(
                f"{len(failed)} of {len(chosen)} experiments failed: {', '.join(failed)}; see the lines above."
            )

    def _show_plan(self, screen: Screen, runs: Sequence[tuple[Job, tuple[str, ...]]]) -> None:
        """One row per run: its length, and which experiments use it."""
        rows = [
            {"run": job.spec.name, "seeds": len(job.config.seeds), "trainings": job.trainings}
            | {"length": job.length, "state": job.state, "for": list(experiments)}
            for job, experiments in runs
        ]
        if self.json:
            print_json(rows)
            return
        cells = [[", ".join(cell) if isinstance(cell, list) else str(cell) for cell in row.values()] for row in rows]
        heads = ("run", "seeds", "trainings", "length", "state", "for")
        screen.table(heads, cells, right=("seeds", "trainings"))
        left = [job for job, _ in runs if job.state != "finished"]
        trainings = sum(job.trainings for job in left)
        screen.say(f"{len(runs)} runs, {len(left)} of them not finished ({trainings} trainings).")


def reproduce_all(
    chosen: Sequence[Experiment], asked: Request, screen: Screen, engine: Engine | None
) -> tuple[list[dict[str, Any]], list[str]]:
    """The results, each shown as it comes, and the names of those that failed. An engine trains all runs first."""
    from ibpwf.lab.experiments.reproduction.reproduce import reproduce

    results, failed = [], []
    failures: dict[str, IBPWFError] = {}
    if engine is not None:
        failures = _trained_in_advance(chosen, asked, screen, engine)
        asked = replace(asked, resume=True)
    for experiment in chosen:
        try:
            results.append(reproduce(experiment, asked, told=partial(screen.say, style="dim"), failures=failures))
            show(screen, results[-1])
        except IBPWFError as error:
            if len(chosen) == 1:
                raise
            failed.append(experiment.name)
            screen.say(f"{experiment.name} failed: {error}", "red")
    return results, failed


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
            table.ended(name, "failed")

    with table:
        return train_in_advance(jobs, engine, table.watch, ended)


def show(screen: Screen, result: dict[str, Any]) -> None:
    """An experiment's numbers next to the paper's, and its claims."""
    from ibpwf.lab.experiments.compare import mark, number

    is_quick = result["budget"] == "quick"
    screen.say(f"\n{result['title']}{' (quick: smaller than the paper)' if is_quick else ''}", "bold")
    if result["shows"] == "table":
        heads = ("benchmark", "method", "setting", "ours", "paper", "")
        rows = []
        for row in result["measured"]["rows"]:
            ours, paper = row["ours"] or {}, row["paper"]
            numbers = number(ours.get("mean"), ours.get("std")), number(paper["mean"], paper["std"])
            rows.append((row["benchmark"], row["method"], row["setting"], *numbers, mark(row["reproduces"])))
        screen.table(heads, rows, right=heads[3:], whole=heads)
    for claim in result["claims"]:
        sign = "–" if is_quick and result["shows"] == "table" else mark(claim["held"])
        screen.say(f"{sign} {claim['statement']}")
    for run in result["failed"]:
        screen.say(f"{run['name']} failed: {run['error']}", "red")
