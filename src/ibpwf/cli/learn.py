"""`ibpwf learn`: a file as a new task of a model folder, or as an update of a task."""

from __future__ import annotations

import math
import shlex
import signal
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ibpwf.cli.interrupts import Interrupted, stopping
from ibpwf.cli.options import (
    DATA,
    AsJson,
    Categories,
    Columns,
    Images,
    Labeled,
    NewModel,
    OnDevice,
    Resume,
    TestFraction,
    Texts,
    flag,
    flush_denormals,
    task_name,
)
from ibpwf.cli.output import Screen, counted, percent, print_json, say
from ibpwf.cli.parsing import argument, option
from ibpwf.errors import InputError, printable

if TYPE_CHECKING:
    from ibpwf.estimator.files import LearnedTask
    from ibpwf.learner.update import Keep, Update
    from ibpwf.linear import HeldOut

REJECTED = 1
"""The exit code where an update made the task worse and was not kept."""


def check_new_model(model: Path) -> None:
    if model.is_file():
        raise InputError(f"{model} is a file; the model folder comes first and the data second.")


@dataclass(kw_only=True)
class Learn(NewModel, Labeled, Columns, Categories, Texts, Images, TestFraction, Resume, OnDevice, AsJson):
    """Learn a file as the next task of a model folder, which is created if needed. Earlier tasks do not change.

    Settings are chosen with the first task; later tasks share them. With --update, the rows update a task that the
    model has: the new version is kept if held-out rows (a fifth, or --test-fraction) are predicted no worse, and the
    old one stays as TASK@1. Exit code 1: an update was rejected.
    """

    model: Path = argument("MODEL", "The model folder.", check="ibpwf.cli.learn:check_new_model")
    data: Path = argument("DATA", DATA, check="ibpwf.data.naming:check_data")
    task: str | None = option(None, "The new task's name.", metavar="NAME", usual="the file's name")
    update: str | None = option(None, "Update an existing task with these rows.", metavar="TASK")
    dry_run: bool = option(False, "With --update: show what would change, and write nothing.")
    force: bool = option(False, "With --update: keep the new version even if predictions get worse.")
    restart: bool = option(False, "Discard an interrupted task and start again.")
    checkpoint_minutes: float = option(
        10.0,
        "Save the task in progress every N minutes, and more often where that takes less than 1 % of the time.",
        metavar="N",
        least=0,
    )
    on_disk: bool | None = option(
        None,
        "Keep the rows in a scratch file (in TMPDIR, else /var/tmp) or in memory; results are bit-identical.",
        "--on-disk",
        "!--in-memory",
        usual="on disk above 512 MB",
    )
    recipe: Literal["auto", "table", "images", "backbone", "plain"] | None = option(
        None,
        "New model: how to learn the data; backbone is images through a pretrained backbone, plain an MLP.",
        usual="auto: by the kind of data",
    )
    class_weight: Literal["balanced"] | None = option(
        None, "New model: sample rows of rare classes as often as those of others.", usual="all rows count the same"
    )

    def run(self) -> int:
        self._check_combinations()
        parameters = self.parameters()
        parameters |= {
            name: value for name in ("class_weight", "recipe") if (value := getattr(self, name)) is not None
        }
        read = self.read_options(with_labels=True)
        if read.size is not None and self.recipe == "plain":  # said now, and not after reading images of that size
            from ibpwf.limits import check_layer

            inputs = math.prod(read.size) * (read.channels or 1)
            check_layer(inputs, parameters.get("hidden", (400,))[0], flag("size", read.size))
        flush_denormals()
        from ibpwf.cli.learn_bar import Bar
        from ibpwf.estimator.files import LearnOptions, learn_file, update_file

        screen = Screen(stderr=self.json)
        bar = Bar(screen)
        caught: list[int] = []
        try:
            with bar.shown, stopping(caught) as stop:
                how = LearnOptions(
                    replace(read, progress=bar.reading),
                    self.test_fraction,
                    self.checkpoint_minutes,
                    self.resume,
                    self.restart,
                    self.device,
                    [bar],
                    stop,
                    say_recipe,
                    self.on_disk,
                )
                if self.update is None:
                    task = task_name(self.data) if self.task is None else self.task
                    learned = learn_file(self.model, self.data, task, parameters, how)
                else:
                    keep: Keep = "never" if self.dry_run else "always" if self.force else "better"
                    tried = update_file(self.model, self.data, self.update, parameters, how, keep)
        except KeyboardInterrupt:
            raise self._interrupted((caught or [signal.SIGINT])[0]) from None
        code = self._show_task(screen, learned) if self.update is None else self._show_update(screen, tried)
        return 128 + caught[0] if caught else code  # too late to stop the task, but not what the shell does next

    def _check_combinations(self) -> None:
        """Reject options that say nothing, or two things."""
        if self.update is None and (self.dry_run or self.force):
            raise InputError(f"{'--dry-run' if self.dry_run else '--force'} needs --update TASK.")
        if self.update is not None and self.task is not None:
            raise InputError("--update and --task were both given; --update names the task that the rows update.")
        if self.dry_run and (self.force or self.resume or self.restart):
            raise InputError("--dry-run writes nothing; give it without --force, --resume and --restart.")

    def _show_task(self, screen: Screen, learned: LearnedTask) -> int:
        if self.json:
            print_json({"model": self.model, "data": self.data, **asdict(learned)})
            return 0
        from ibpwf.data.opening import few

        classes, name = printable(few(learned.classes)), printable(learned.task)
        data, model = printable(str(self.data)), printable(str(self.model))
        if learned.already:
            screen.say(f"Task '{name}' was learned before: {learned.rows:,} rows, classes {classes}. Nothing to do.")
            return 0
        screen.say(f"Learned task '{name}' from {data}: {learned.rows:,} rows, classes {classes}.")
        where = f"{learned.held_out:,} held-out rows" if learned.held_out else "its training rows"
        screen.say(
            f"Accuracy on {where}: {learned.accuracy:.2f} % with the task known, {learned.accuracy_inferred:.2f} % "
            "with the task inferred."
        )
        if learned.beside is not None:
            screen.say(validation(learned.beside))
        if len(learned.tasks) == len(learned.classes) == 1:
            screen.say(f"{classes} is the only class so far, so it is always predicted; later tasks can add others.")
        screen.say(f"{model} has {counted(len(learned.tasks), 'task')}: {printable(', '.join(learned.tasks))}.")
        return 0

    def _show_update(self, screen: Screen, tried: Update | None) -> int:
        """What an update came to; None where the rows had been learned already."""
        code = REJECTED if tried is not None and not tried.kept and not self.dry_run else 0
        if self.json:
            given = {"model": self.model, "data": self.data, "task": self.update, "dry_run": self.dry_run}
            print_json({**given, "already": tried is None, **({} if tried is None else asdict(tried))})
            return code
        model, data = printable(str(self.model)), printable(str(self.data))
        if tried is None:
            screen.say(f"These rows of task '{printable(str(self.update))}' were learned before. Nothing to do.")
            return code
        name = printable(tried.task)
        screen.say(f"Version {tried.version} of task '{name}', updated with {tried.rows:,} rows from {data}.\n")
        rows = [("changed predictions", percent(tried.changed), percent(tried.changed_inferred))]
        if tried.validation_rows:
            known = f"{percent(tried.accuracy_before)} → {percent(tried.accuracy)}"
            inferred = f"{percent(tried.accuracy_inferred_before)} → {percent(tried.accuracy_inferred)}"
            rows.insert(0, (f"accuracy on {tried.validation_rows:,} held-out rows", known, inferred))
        screen.table(("", "task known", "task inferred"), rows, right=("task known", "task inferred"))
        if self.dry_run:
            screen.say(f"\nDry run: {model} is unchanged.")
        elif tried.kept:
            old = f"{name}@{tried.version - 1}"
            screen.say(f"\nKept: '{name}' is now version {tried.version}; the previous one stays as '{old}'.")
        else:
            screen.say(f"\nRejected, because accuracy got worse: {model} is unchanged. --force keeps it anyway.")
        return code

    def _interrupted(self, number: int) -> Interrupted:
        from ibpwf.storage.checkpoint_folder import task_in_progress

        code = 128 + number
        if not self.model.is_dir() or task_in_progress(self.model) is None:
            return Interrupted("Interrupted. Nothing of this task was kept; earlier tasks are unchanged.", code)
        words = [word for word in sys.argv[1:] if word not in ("--resume", "--restart")]
        command = shlex.join(["ibpwf", *words, "--resume"])
        return Interrupted(f"Interrupted. Progress is saved in {self.model}. To resume:\n  {command}", code)


def say_recipe(recipe: Any) -> None:
    """How a new model learns."""
    say(f"Recipe: {recipe.summary}; change it with --recipe.", err=True)


def validation(held_out: HeldOut) -> str:
    """Accuracy on the validation split, beside two simple baselines."""
    linear = "" if held_out.linear is None else f", logistic regression: {held_out.linear:.2f} %"
    return (
        f"Validation accuracy {held_out.accuracy:.2f} % on {held_out.rows:,} rows (majority class: "
        f"{held_out.majority:.2f} %{linear})."
    )
