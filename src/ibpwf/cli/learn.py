"""`ibpwf learn`: a file of your own as the next task of a model folder."""

from __future__ import annotations

import contextlib
import math
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from ibpwf.cli import reading as own
from ibpwf.cli.output import print_json, say
from ibpwf.data.naming import check_data
from ibpwf.data.opening import few
from ibpwf.device import check_device
from ibpwf.errors import InputError, printable, unknown
from ibpwf.limits import check_layer, check_rate
from ibpwf.training.callbacks import Callback

if TYPE_CHECKING:
    from ibpwf.cli.screen import Screen
    from ibpwf.estimator.files import LearnedTask
    from ibpwf.estimator.recipes import Recipe
    from ibpwf.learner.update import Keep, Update
    from ibpwf.linear import HeldOut
    from ibpwf.training.callbacks import EpochEnd, StepEnd, TaskStart

NOT_KEPT = 1
"""The exit code where more rows of a task made it worse and nothing was kept."""


def learn_command(
    model: own.Model,
    data: own.Data,
    task: Annotated[
        str | None, typer.Option("--task", metavar="NAME", help="The task's name.", show_default="the file's name")
    ] = None,
    update: Annotated[
        str | None,
        typer.Option(
            "--update",
            metavar="TASK",
            help="The rows are more of a task that is there: a new version of it, kept if rows held out (a fifth, or "
            "--validate) are answered no worse. The old one stays as TASK@1.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --update: show what would change, and write nothing.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="With --update: keep it though answers get worse.")] = False,
    label: own.Label = None,
    ignore: own.Ignore = None,
    categories: Annotated[
        list[str] | None,
        typer.Option("--categories", metavar="COLUMN", help=f"{own.HELP['categories']} Repeatable."),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option("--text", metavar="COLUMN", help=f"{own.HELP['text']} Repeatable."),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option("--encoder", metavar="NAME", help=own.HELP["encoder"], show_default="minilm-l6"),
    ] = None,
    unknown: own.Unknown = False,
    missing: own.Missing = None,
    size: own.Size = None,
    channels: own.Channels = None,
    validate: Annotated[
        float | None,
        typer.Option(
            "--validate",
            metavar="SHARE",
            help="Hold out a share of the rows of every class, such as 0.1, and measure the accuracy on them.",
            show_default="nothing is held out",
        ),
    ] = None,
    checkpoint_minutes: Annotated[
        float,
        typer.Option(
            "--checkpoint-minutes",
            metavar="N",
            help="Keep the task in progress every N minutes, and sooner where that takes under 1 % of the time.",
        ),
    ] = 10.0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a task that was broken off, to the same bits.")
    ] = False,
    anew: Annotated[bool, typer.Option("--anew", help="Drop a task that was broken off and start again.")] = False,
    on_disk: Annotated[
        bool | None,
        typer.Option(
            "--on-disk/--in-memory",
            help="Keep the rows in a scratch file (in TMPDIR, else /var/tmp) and a few batches of them in memory, to "
            "the same bits; or hold them all in memory.",
            show_default="on disk where they take more than 512 MB",
        ),
    ] = None,
    device: own.Device = "auto",
    json_: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")] = False,
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe",
            metavar="NAME",
            help="New model: how such data are learnt: table, images, backbone (images through a trained network) or "
            "plain (a perceptron).",
            show_default="auto: by what the data are",
        ),
    ] = None,
    hidden: Annotated[
        str | None,
        typer.Option(
            "--hidden",
            metavar="N,N",
            help="New model: widths of a perceptron's hidden layers.",
            show_default="the recipe's",
        ),
    ] = None,
    alpha: Annotated[
        str | None,
        typer.Option(
            "--alpha",
            metavar="NUMBER",
            help="New model: factors a task is expected to use in a layer.",
            show_default="half of the layer's rank",
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            "--epochs",
            help="New model: passes over the data; half as many again fine-tune.",
            show_default="by the number of rows",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="New model: seed of all random numbers.", show_default="0")
    ] = None,
    false_alarm_rate: Annotated[
        float | None,
        typer.Option(
            "--false-alarm-rate",
            metavar="SHARE",
            help="New model: share of ordinary inputs that may be flagged as novel.",
            show_default="0.01",
        ),
    ] = None,
    class_weight: Annotated[
        str | None,
        typer.Option(
            "--class-weight",
            metavar="balanced",
            help="New model: rows of rare classes come as often as those of others.",
            show_default="all rows count the same",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="New model: any other setting, such as --set kappa=0.6. Repeatable.",
        ),
    ] = None,
) -> None:
    """Learn a file as the next task of a model folder, which is made if there is none. Earlier tasks do not change.

    Settings are chosen with the first task; later ones have the same.
    """
    _check_update(update, task, dry_run=dry_run, force=force, resume=resume or anew)
    if not model.is_file():  # else the two were swapped, which is said below
        check_data(data)
    read = own.read_options(
        unknown=unknown,
        missing=missing,
        size=size,
        channels=channels,
        label=label,
        with_labels=True,
        ignore=ignore,
        categories=categories,
        text=text,
        encoder=encoder,
    )
    parameters = _parameters(hidden, alpha, epochs, seed, false_alarm_rate, set_)
    if read.size is not None and recipe == "plain":  # said now, and not after reading images of that size
        inputs = math.prod(read.size) * (read.channels or 1)
        check_layer(inputs, parameters.get("hidden", (400,))[0], own.option("size", read.size))
    check_device(device)
    if class_weight is not None:
        if class_weight != "balanced":
            raise InputError(f"--class-weight is '{class_weight}'; give balanced, or leave it out.")
        parameters["class_weight"] = class_weight
    if recipe is not None:
        check_recipe(recipe)
        parameters["recipe"] = recipe
    import torch

    # Before any worker thread starts: denormal numbers in Adam's moments halve the speed of a long run.
    torch.set_flush_denormal(True)
    from ibpwf.cli.screen import Screen
    from ibpwf.estimator.files import LearnOptions, learn_file, update_file
    from ibpwf.storage.checkpoint_folder import task_in_progress

    screen = Screen(stderr=json_)
    bar = Bar(screen)
    caught: list[int] = []
    try:
        with bar.shown, stopping(caught) as stop:
            read = replace(read, progress=bar.reading)
            how = LearnOptions(read, validate, checkpoint_minutes, resume, anew, device, [bar], stop, bar.say_recipe)
            how = replace(how, on_disk=on_disk)
            if update is None:
                learned = learn_file(model, data, own.task_name(data) if task is None else task, parameters, how)
            else:
                keep: Keep = "never" if dry_run else "always" if force else "better"
                tried = update_file(model, data, update, parameters, how, keep)
    except KeyboardInterrupt:
        kept = task_in_progress(model) if model.is_dir() else None
        say(_interrupted(model, kept is not None), err=True)
        raise typer.Exit(128 + (caught or [signal.SIGINT])[0]) from None
    if update is not None:
        show_update(
            screen, tried, {"model": str(model), "data": str(data), "task": update, "dry_run": dry_run}, json_
        )
        if tried is not None and not tried.kept and not dry_run and not caught:
            raise typer.Exit(NOT_KEPT)
    elif json_:
        print_json({"model": str(model), "data": str(data), **asdict(learned)})
    else:
        show(screen, model, data, learned)
    if caught:  # too late to stop the task, but not what the shell would do next
        raise typer.Exit(128 + caught[0])


def _check_update(update: str | None, task: str | None, *, dry_run: bool, force: bool, resume: bool) -> None:
    """Refuse options that say nothing, or two things."""
    if update is None and (dry_run or force):
        raise InputError(
            f"{'--dry-run' if dry_run else '--force'} is for more rows of a task; give --update TASK too."
        )
    if update is not None and task is not None:
        raise InputError("--update and --task were both given; --update names the task that the rows are more of.")
    if dry_run and (force or resume):
        raise InputError("--dry-run keeps nothing and leaves nothing; give it without --force, --resume and --anew.")


def _parameters(
    hidden: str | None,
    alpha: str | None,
    epochs: int | None,
    seed: int | None,
    false_alarm_rate: float | None,
    settings: list[str] | None,
) -> dict[str, Any]:
    """What was asked of a new model, as `ContinualClassifier` takes it."""
    asked: dict[str, Any] = {"epochs": epochs, "random_state": seed, "false_alarm_rate": false_alarm_rate}
    if seed is not None and not 0 <= seed < 1 << 32:
        raise InputError(f"--seed is {seed}; give a whole number from 0 to 4294967295.")
    if false_alarm_rate is not None:
        check_rate(false_alarm_rate, "--false-alarm-rate")
    if hidden is not None:
        words = hidden.replace(" ", "").split(",")
        if not all(word.isascii() and word.isdigit() and 0 < int(word) <= 1 << 20 for word in words):
            raise InputError(f"--hidden is '{hidden}'; give the widths of the hidden layers, such as 400 or 400,200.")
        asked["hidden"] = tuple(map(int, words))
    if alpha is not None:
        try:
            asked["alpha"] = "auto" if alpha == "auto" else float(alpha)
        except ValueError:
            raise InputError(f"--alpha is '{alpha}'; give a number above 0, or auto.") from None
    from ibpwf.parts import parse_assignment
    from ibpwf.settings import Settings

    chosen = dict(parse_assignment(text) for text in settings or [])
    for name in chosen:
        if name in asked and asked[name] is not None:
            raise InputError(f"{own.option(name)} and --set {name} were both given; choose one.")
    fields = {name: value for name, value in asked.items() if name in Settings.model_fields and value is not None}
    Settings(**fields, **chosen)  # a wrong one is named before the data are read
    if chosen:
        asked["settings"] = chosen
    return {name: value for name, value in asked.items() if value is not None}


@contextlib.contextmanager
def stopping(caught: list[int]) -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM end the task after the step that is running, so that it can be kept; a second one ends it
    at once. `caught` is told which came."""

    def told(number: int, _: object) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)

    before = {number: signal.signal(number, told) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(caught)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupted(model: Path, kept: bool) -> str:
    if not kept:
        return "Interrupted. Nothing of this task was kept; earlier tasks are as they were."
    words = [word for word in sys.argv[1:] if word not in ("--resume", "--anew")]
    command = shlex.join(["ibpwf", *words, "--resume"])
    return f"Interrupted. The task is kept in {model} as far as it got. To go on:\n  {command}"


class Bar(Callback):
    """One line while a task is learnt: passes over the data, the loss, the factors in use."""

    def __init__(self, screen: Screen) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        self.shown = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[unit]}"),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=screen,
            transient=True,
            disable=not screen.is_terminal,
        )
        self.bar = self.shown.add_task("reading", total=None, detail="", unit="", visible=False)
        self.done = 0

    def reading(self, what: str, done: int, total: int | None) -> None:
        """How far a file is read, where that takes long: texts, and a trained network that is fetched."""
        detail = "" if total else f"{done:,}"
        self.shown.update(
            self.bar, description=what, completed=done, total=total or 0, detail=detail, unit="", visible=True
        )

    def say_recipe(self, recipe: Recipe) -> None:
        """By what a new model learns, beside its answer."""
        say(f"Recipe: {recipe.summary}; change it with --recipe.", err=True)

    def task_start(self, task: TaskStart) -> None:
        name = printable(task.task)
        name = name if len(name) <= 20 else name[:19] + "…"
        detail = f"{task.rows:,} rows"
        self.done = 0
        self.shown.reset(self.bar, description=name, total=task.epochs, detail=detail, unit="epochs", visible=True)

    def step_end(self, step: StepEnd) -> None:
        if step.steps:
            self.shown.update(self.bar, completed=self.done + step.step / step.steps)

    def epoch_end(self, epoch: EpochEnd) -> None:
        self.done += 1
        detail = f"loss {epoch.loss:.3f}, {epoch.active} factors ({epoch.new} new)"
        self.shown.update(self.bar, completed=self.done, detail=detail)


def check_recipe(name: str) -> None:
    """A wrong name is said before the data are read."""
    from ibpwf.estimator.records import ClassifierRecipe

    if name not in (names := ("auto", *get_args(ClassifierRecipe.model_fields["name"].annotation))):
        raise unknown("recipe", name, names)


def show(screen: Screen, model: Path, data: Path, learned: LearnedTask) -> None:
    shown, name = printable(few(learned.classes)), printable(learned.task)
    if learned.already:
        screen.say(f"Task '{name}' had been learnt already: {learned.rows:,} rows, classes {shown}. Nothing to do.")
        return
    screen.say(f"Learnt task '{name}' from {printable(str(data))}: {learned.rows:,} rows, classes {shown}.")
    where = f"{learned.held_out:,} rows held out" if learned.held_out else "its own rows"
    screen.say(
        f"Accuracy on {where}: {learned.accuracy:.2f} % with the task given, {learned.accuracy_inferred:.2f} % with "
        "the task inferred."
    )
    if learned.beside is not None:
        screen.say(beside(learned.beside))
    if len(learned.tasks) == len(learned.classes) == 1:
        screen.say(f"{shown} is the only class so far, and so every answer; others may come with later tasks.")
    tasks = printable(", ".join(learned.tasks))
    screen.say(f"{printable(str(model))} has {len(learned.tasks)} task{'s' * (len(learned.tasks) > 1)}: {tasks}.")


def beside(held_out: HeldOut) -> str:
    """How well rows that nothing was learnt from are answered, beside two simple ways."""
    linear = "" if held_out.linear is None else f", a logistic regression for {held_out.linear:.2f} %"
    return (
        f"Of {held_out.rows:,} rows that it kept apart: {held_out.accuracy:.2f} % right with the task given; always "
        f"the largest class would be right for {held_out.majority:.2f} %{linear}."
    )


def show_update(screen: Screen, tried: Update | None, given: dict[str, Any], json_: bool) -> None:
    """What more rows of a task came to; None where they had been learnt already."""
    if json_:
        print_json({**given, "already": tried is None, **({} if tried is None else asdict(tried))})
        return
    name, data, model = (printable(given[field]) for field in ("task", "data", "model"))
    if tried is None:
        screen.say(f"These rows of task '{name}' had been learnt already. Nothing to do.")
        return
    name = printable(tried.task)
    screen.say(f"Tried version {tried.version} of task '{name}' with {tried.rows:,} more rows from {data}.")
    if tried.validation_rows:
        pairs = (
            (tried.accuracy_before, tried.accuracy, "given"),
            (tried.accuracy_inferred_before, tried.accuracy_inferred, "inferred"),
        )
        parts = [f"{old:.2f} → {new:.2f} % with the task {how}" for old, new, how in pairs]
        screen.say(
            f"Accuracy on {tried.validation_rows:,} of these rows held out, before and after: {', '.join(parts)}."
        )
    screen.say(
        f"Answers that change on the file's rows: {tried.changed:.2f} % with the task given, "
        f"{tried.changed_inferred:.2f} % with the task inferred."
    )
    if given["dry_run"]:
        screen.say(f"Dry run: {model} is as it was.")
    elif tried.kept:
        old = f"{name}@{tried.version - 1}"
        screen.say(f"Kept: '{name}' is version {tried.version} now; the one before it stays as '{old}'.")
    else:
        screen.say(f"Not kept, because answers got worse: {model} is as it was. --force keeps it all the same.")
