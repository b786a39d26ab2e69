"""`ibpwf inspect`: what a model folder holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ibpwf.cli.options import AsJson, OfModel
from ibpwf.cli.output import Screen, counted, percent, print_json, size
from ibpwf.errors import printable

if TYPE_CHECKING:
    from ibpwf.storage.inspection import ModelReport

BAR = 24
"""Columns for the bar of the layer with the most factors."""


@dataclass(kw_only=True)
class Inspect(OfModel, AsJson):
    """Show what a model folder holds: tasks, factors per layer, numbers stored, bytes and history."""

    def run(self) -> None:
        from ibpwf.storage.inspection import inspect_model

        report = inspect_model(self.model)
        if self.json:
            print_json(report.to_json())
            return
        screen = Screen()
        show_summary(screen, report)
        if report.tasks:
            show_tasks(screen, report)
            show_factors(screen, report)
            show_history(screen, report)


def show_summary(screen: Screen, report: ModelReport) -> None:
    say = screen.say
    shape = "none yet" if report.input_shape is None else " × ".join(map(str, report.input_shape))
    older = sum(task.version_of is not None for task in report.tasks)
    tasks = counted(len(report.tasks) - older, "task") + (f", {counted(older, 'older version')}" if older else "")
    say(f"{printable(str(report.path))}: {report.method}, {tasks}, {size(report.bytes)}", "bold")
    say(f"schema {report.schema}, seed {report.seed}, inputs of shape {shape}")
    if report.base is not None:
        say(f"needs its pretrained base to load: weights with digest {report.base[:12]}…")
    if report.in_progress is not None:
        say(f"in progress: task '{printable(report.in_progress)}', interrupted; learn it again with --resume")
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in report.numbers.items())
    say(f"{counted(sum(report.numbers.values()), 'number')} stored: {kinds}")


def show_tasks(screen: Screen, report: ModelReport) -> None:
    rows = []
    for task in report.tasks:
        newest = f" (version {task.version})" if task.version > 1 and task.version_of is None else ""
        numbers = f"{task.examples:,}", percent(task.accuracy), size(task.bytes)
        rows.append((task.name + newest, _classes(task.labels), *numbers))
    right = ("examples", "accuracy", "bytes")
    screen.say()
    screen.table(("task", "classes", *right), rows, right=right)


def show_factors(screen: Screen, report: ModelReport) -> None:
    """A bar per layer and task: reused factors, then new ones."""
    widest = max((use.active for task in report.tasks for use in task.factors.values()), default=0)
    names = max((len(printable(task.name)) for task in report.tasks), default=0)
    for layer, total in report.layers.items():
        screen.say(f"\n{layer}: {counted(total, 'factor')}", "bold")
        for task in report.tasks:
            use = task.factors[layer]
            reused, new = (round(BAR * count / max(widest, 1)) for count in (use.reused, use.new))
            bar = ("█" * reused + "░" * new).ljust(BAR)
            further = f", {task.further_factors[layer]} below kappa" if layer in task.further_factors else ""
            used = f"{use.active} used: {use.reused} reused, {use.new} new{further}"
            screen.say(f"  {printable(task.name):<{names}}  {bar} {used}")


def show_history(screen: Screen, report: ModelReport) -> None:
    events = {"learnt": "learned"}
    names_of = {task.serial: f" '{printable(task.name)}'" for task in report.tasks}
    screen.say("\nhistory", "bold")
    for line in report.history:
        version = f" (ibpwf {line['version']})" if line.get("version") else ""
        event = events.get(line["event"], line["event"])
        screen.say(f"  {event} task {line['serial'] + 1}{names_of.get(line['serial'], '')}{version}")


def _classes(labels: list[Any]) -> str:
    shown = ", ".join(map(str, labels[:8]))
    return shown if len(labels) <= 8 else f"{shown}, … ({len(labels)})"
