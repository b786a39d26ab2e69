"""What is seen of runs that workers train: one live table with a line for each training of all of them."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.live import Live

from ibpwf.cli.output import Screen, table
from ibpwf.errors import printable
from ibpwf.lab.experiments.seed_training import RunCallback

if TYPE_CHECKING:
    from rich.table import Table

    from ibpwf.training.callbacks import EpochEnd

STATES = ("training", "failed", "waiting", "done")
"""Of a training, in the order in which they are shown."""
BESIDES = 4
"""Lines of a screen that are not trainings."""


@dataclass
class Line:
    """A training as it is now."""

    state: str = "waiting"
    done: int = 0
    tasks: int = 0
    task: str = ""
    epochs: float = 0.0
    of_epochs: int = 0
    loss: float | None = None
    since: float = field(default_factory=time.monotonic)

    def cells(self) -> list[str]:
        at_work = self.state == "training"
        return [
            self.state,
            f"{self.done}/{self.tasks}" if self.tasks else f"{self.done}",
            self.task if at_work else "",
            f"{self.epochs:.0f}/{self.of_epochs}" if at_work else "",
            f"{self.loss:.3g}" if at_work and self.loss is not None else "",
            f"{time.monotonic() - self.since:.0f} s" if at_work else "",
        ]


class RunTable:
    """All runs in one table while the block lasts, on a terminal; elsewhere nothing is shown."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self.lines: dict[tuple[str, str], Line] = {}
        self.note = ""
        self.live = Live(
            console=screen.console,
            get_renderable=self.rendered,
            refresh_per_second=4,
            transient=True,
            auto_refresh=True,
        )

    def __enter__(self) -> RunTable:
        if self.screen.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.screen.is_terminal:
            self.live.stop()

    def watch(self, run: str, also: RunCallback | None = None) -> RunCallback:
        """What shows one run; `also` is told of its finished tasks."""
        return _Watch(self, run, also or RunCallback())

    def ended(self, run: str, state: str) -> None:
        """A run has failed, or is done with all trainings."""
        for (name, _), line in self.lines.items():
            if name == run and line.state != "done":
                line.state = state

    def rendered(self) -> Table:
        lines = sorted(self.lines.copy().items(), key=lambda item: STATES.index(item[1].state))
        heads = ("run", "training", "", "tasks", "now", "epoch", "loss", "for")
        rows = (
            (run, training.removeprefix("seed-"), *line.cells())
            for (run, training), line in lines[: max(self.screen.console.height - BESIDES, 1)]
        )
        shown = table(heads, rows, right=("tasks", "epoch", "loss", "for"), whole=heads)
        counts = Counter(line.state for line in self.lines.copy().values())
        words = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
        shown.caption = "  ".join(part for part in (words, printable(self.note)) if part)
        shown.caption_justify = "left"
        return shown


class _Watch(RunCallback):
    """One run's lines of the table."""

    def __init__(self, table: RunTable, run: str, also: RunCallback) -> None:
        self.table, self.run, self.also = table, run, also

    def _line(self, training: str) -> Line:
        return self.table.lines.setdefault((self.run, training), Line())

    def say(self, text: str) -> None:
        self.table.note = text

    def fetched(self, label: str, done: int, total: int | None) -> None:
        self.table.note = f"{label} {done / (total or done or 1):.0%}" if done else label

    def queued(self, training: str, done: int, tasks: int) -> None:
        self.table.note = ""
        line = self._line(training)
        line.state, line.done, line.tasks = "waiting", done, tasks

    def task_start(self, training: str, task: str, epochs: int) -> None:
        line = self._line(training)
        line.state, line.task, line.of_epochs, line.since = "training", task, epochs, time.monotonic()
        line.epochs, line.loss = 0.0, None

    def step_end(self, training: str, epochs: float, loss: float) -> None:
        line = self._line(training)
        line.epochs, line.loss = epochs, loss if loss == loss else None  # a GPU is not asked for every loss

    def epoch_end(self, training: str, epoch: EpochEnd) -> None:
        self._line(training).loss = epoch.loss

    def task_end(self, training: str, row: dict[str, Any]) -> None:
        line = self._line(training)
        line.done += 1
        line.state = "done" if 0 < line.tasks <= line.done else "waiting"
        self.also.task_end(training, row)
