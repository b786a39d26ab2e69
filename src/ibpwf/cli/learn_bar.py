"""The progress bar of `ibpwf learn`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ibpwf.cli.output import Screen, counted
from ibpwf.errors import printable
from ibpwf.training.callbacks import Callback

if TYPE_CHECKING:
    from ibpwf.training.callbacks import EpochEnd, StepEnd, TaskStart


class Bar(Callback):
    """One line while a task is learned: epochs, the loss, the factors in use."""

    def __init__(self, screen: Screen) -> None:
        self.shown = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[unit]}"),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=screen.console,
            transient=True,
            disable=not screen.is_terminal,
        )
        self.bar = self.shown.add_task("reading", total=None, detail="", unit="", visible=False)
        self.done = 0

    def reading(self, what: str, done: int, total: int | None) -> None:
        """How far a file is read, where that takes long: texts, and a backbone that is downloaded."""
        detail = "" if total else f"{done:,}"
        self.shown.update(
            self.bar, description=what, completed=done, total=total or 0, detail=detail, unit="", visible=True
        )

    def task_start(self, task: TaskStart) -> None:
        name = printable(task.task)
        name = name if len(name) <= 20 else name[:19] + "…"
        self.done = 0
        detail = counted(task.rows, "row")
        self.shown.reset(self.bar, description=name, total=task.epochs, detail=detail, unit="epochs", visible=True)

    def step_end(self, step: StepEnd) -> None:
        if step.steps:
            self.shown.update(self.bar, completed=self.done + step.step / step.steps)

    def epoch_end(self, epoch: EpochEnd) -> None:
        self.done += 1
        detail = f"loss {epoch.loss:.3f}, {epoch.active} factors ({epoch.new} new)"
        self.shown.update(self.bar, completed=self.done, detail=detail)
