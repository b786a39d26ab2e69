"""`ibpwf verify`, `ibpwf inspect` and `ibpwf forget`: a model folder checked, looked at, and with a task less."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ibpwf.cli.output import print_json, say
from ibpwf.data.opening import check_there
from ibpwf.errors import InputError, printable

if TYPE_CHECKING:
    from ibpwf.cli.screen import Screen
    from ibpwf.storage.folder import Problem
    from ibpwf.storage.inspection import ModelReport

DAMAGED = 1
"""The exit code of `verify` for a folder that is damaged or has leftovers; 2 is every command's for an error."""

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder, as Learner.save writes it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]


def verify_command(model: Model, json_: AsJson = False) -> None:
    """Check every file of a model folder against its digest, and that they fit together.

    Exit code 0: whole, 1: damaged, or a killed command left files in it, 2: cannot be checked."""
    check_there(model)
    from ibpwf.storage.folder import open_folder
    from ibpwf.storage.model_folder import verify_model

    if not model.is_dir():
        open_folder(model)  # says so
    checked = verify_model(model)
    if not checked.problems:
        checked = replace(checked, problems=content_problems(model))
    if json_:
        problems = [problem._asdict() for problem in checked.problems]
        found = {"model": str(model), "whole": not problems, "problems": problems, "foreign": checked.foreign}
        print_json({**found, "leftovers": checked.leftovers, "files": checked.files, "bytes": checked.bytes})
    else:
        for problem in checked.problems:
            say(printable(f"{problem.kind}: {problem.file}: {problem.message}"))
        for name in checked.foreign:
            say(f"foreign: {printable(name)}: not part of the model and never read.")
        for name in checked.leftovers:
            say(f"leftover: {printable(name)}: from a save that was killed, or is running; it may hold deleted data.")
        if checked.problems:
            say(f"{printable(str(model))} is damaged: {counted(len(checked.problems), 'problem')}.")
        else:
            say(f"{printable(str(model))} is whole: {counted(checked.files, 'file')}, {size(checked.bytes)}.")
        if checked.leftovers:
            left = counted(len(checked.leftovers), "leftover file")
            say(f"It has {left}. The next command that changes the model (learn, forget, watch) removes them.")
    if checked.problems or checked.leftovers:
        raise typer.Exit(DAMAGED)


def content_problems(model: Path) -> list[Problem]:
    """Whether what the files hold fits together, seen by loading it; not where that takes a network or parts of the
    user's own."""
    from ibpwf.errors import IBPWFError, StoreError
    from ibpwf.learner import load
    from ibpwf.storage.folder import MANIFEST, Problem
    from ibpwf.storage.network_json import NeedsParts
    from ibpwf.storage.tensor_file import everything_now

    try:
        with everything_now():
            load(model, device="cpu")
    except NeedsParts:
        pass
    except StoreError as error:
        return [Problem(MANIFEST, str(error))]
    except IBPWFError:  # of a part that this installation lacks
        pass
    return []


def inspect_command(model: Model, json_: AsJson = False) -> None:
    """Show what a model folder holds: tasks, factors per layer, numbers stored, bytes and history."""
    check_there(model)
    from ibpwf.storage.inspection import inspect_model

    report = inspect_model(model)
    if json_:
        print_json(report.to_json())
        return
    from ibpwf.cli.screen import Screen

    show(Screen(), report)


def forget_command(
    model: Model,
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task's name; see `ibpwf inspect MODEL`.")],
    json_: AsJson = False,
) -> None:
    """Remove a task and every factor that only it used. All other tasks answer with the same bits as before."""
    check_there(model)
    from ibpwf.learner import open_model

    with open_model(model, device="cpu") as found:
        before = sum(path.stat().st_size for path in model.iterdir() if path.is_file())
        if getattr(found, "tasks_", None) == [task]:
            raise InputError(f"task '{task}' is the only one of {model}; remove the folder to start anew.")
        forgotten = found.forget(task)
        found.save(model)
        freed = before - sum(path.stat().st_size for path in model.iterdir() if path.is_file())
    left = [known.name for known in getattr(found, "learner_", found).tasks]
    if json_:
        counts = {"removed": forgotten.removed, "kept": forgotten.kept}
        print_json({"model": str(model), "forgot": task, **counts, "bytes": freed, "tasks": left})
        return
    say(f"Forgot task '{printable(task)}' of {printable(str(model))}: {size(max(freed, 0))} freed.")
    for layer, count in forgotten.removed.items():
        kept = forgotten.kept[layer]
        say(f"  {layer}: {counted(count, 'factor')} removed, {kept} kept because other tasks use them")
    say(f"Tasks that remain: {printable(', '.join(left)) or 'none'}.")


def counted(count: int, what: str) -> str:
    """1 task, 2 tasks."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def size(count: int) -> str:
    """Bytes as people write them."""
    number, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if number < 1000:
            break
        number, unit = number / 1000, larger
    return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"


BAR = 24
"""Columns for the bar of the layer with the most factors."""


def show(screen: Screen, report: ModelReport) -> None:
    """Tables and bars for a terminal; one bar is one layer's factors of one task: reused, then new ones."""
    from rich.table import Table

    say = screen.say
    shape = "none yet" if report.input_shape is None else " × ".join(map(str, report.input_shape))
    older = sum(task.version_of is not None for task in report.tasks)
    tasks = counted(len(report.tasks) - older, "task") + (f", {counted(older, 'older version')}" if older else "")
    say(f"{printable(str(report.path))}: {report.method}, {tasks}, {size(report.bytes)}", "bold")
    say(f"schema {report.schema}, seed {report.seed}, inputs of shape {shape}")
    if report.base is not None:
        say(f"differences from a trained network, which is needed to load it: weights of digest {report.base[:12]}…")
    if report.in_progress is not None:
        say(f"in progress: task '{printable(report.in_progress)}', broken off; learn it again with resume to go on")
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in report.numbers.items())
    say(f"{counted(sum(report.numbers.values()), 'number')} stored: {kinds}")
    if not report.tasks:
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("task")
    table.add_column("classes")
    for head in ("examples", "accuracy", "bytes"):
        table.add_column(head, justify="right")
    for task in report.tasks:
        accuracy = "–" if task.accuracy is None else f"{task.accuracy:.2f} %"
        newest = f" (version {task.version})" if task.version > 1 and task.version_of is None else ""
        named = printable(task.name) + newest, printable(_classes(task.labels))
        table.add_row(*named, str(task.examples), accuracy, size(task.bytes))
    say()
    screen.print(table)
    widest = max((use.active for task in report.tasks for use in task.factors.values()), default=0)
    names = max((len(printable(task.name)) for task in report.tasks), default=0)
    for layer, total in report.layers.items():
        say(f"\n{layer}: {counted(total, 'factor')}", "bold")
        for task in report.tasks:
            use = task.factors[layer]
            reused, new = (round(BAR * count / max(widest, 1)) for count in (use.reused, use.new))
            bar = ("█" * reused + "░" * new).ljust(BAR)
            further = f", {task.further_factors[layer]} below kappa" if layer in task.further_factors else ""
            used = f"{use.active} used: {use.reused} reused, {use.new} new{further}"
            say(f"  {printable(task.name):<{names}}  {bar} {used}")
    names_of = {task.serial: f" '{printable(task.name)}'" for task in report.tasks}
    say("\nhistory", "bold")
    for line in report.history:
        version = f" (ibpwf {line['version']})" if line.get("version") else ""
        event = line["event"]
        say(f"  {event} task {line['serial'] + 1}{names_of.get(line['serial'], '')}{version}")


def _classes(labels: list[Any]) -> str:
    shown = ", ".join(map(str, labels[:8]))
    return shown if len(labels) <= 8 else f"{shown}, … ({len(labels)})"
