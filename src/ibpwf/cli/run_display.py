"""What `ibpwf run` shows: a progress bar for each training, a line per finished task, the final tables."""

from __future__ import annotations

import math
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from ibpwf.cli.output import Screen, counted
from ibpwf.errors import printable
from ibpwf.lab.experiments.seed_training import RunCallback

if TYPE_CHECKING:
    from ibpwf.lab.experiments.run_config import RunConfig
    from ibpwf.training.callbacks import EpochEnd

NAME = 13
"""Columns for a task's name; longer ones are cut."""


def _cut(name: str) -> str:
    name = printable(name)
    return name if len(name) <= NAME else name[: NAME - 1] + "…"


class Display(RunCallback):
    """A progress bar for each task that is being learned and a line per finished task. Fits 80 columns, and leaves
    the less important columns out where there are fewer than that."""

    def __init__(self, screen: Screen, trainings: int = 1) -> None:
        self.screen, self.several = screen, trainings > 1
        self.wide = screen.width >= 80
        columns: list[ProgressColumn] = [
            TextColumn("{task.description}", markup=False),
            TextColumn("{task.fields[unit]} {task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[detail]}"),
            TimeRemainingColumn(),
        ]
        if self.wide and not self.several:
            columns.insert(1, BarColumn(bar_width=6))
        self.bar = Progress(*columns, console=screen.console, transient=True, disable=not screen.is_terminal)
        self.bars: dict[str, TaskID] = {}  # one per training: on a GPU they take turns
        self.done: dict[str, int] = {}  # epochs of its task
        self.factors: dict[str, str] = {}  # what the last epoch's end said of them
        self.fetching: TaskID | None = None
        self.head_printed = False

    def say(self, text: str) -> None:
        self.screen.say(text, "dim")

    def say_preset(self, config: RunConfig) -> None:
        """A scenario without a preset runs all the same; that is said in one line."""
        if config.preset == "none":
            self.screen.say(f"Preset: {config.note()}.")

    def fetched(self, label: str, done: int, total: int | None) -> None:
        """Megabytes, or a handful of steps."""
        unit = 1e6 if total is None or total >= 1000 else 1
        if self.fetching is None:
            self.fetching = self.bar.add_task("", total=1, unit="", detail="")
        label = printable(label[:50])
        name, whole = "MB" if unit > 1 else "", max(total or done, 1) / unit
        self.bar.update(self.fetching, description=label, completed=done / unit, total=whole, unit=name)

    def task_start(self, training: str, task: str, epochs: int) -> None:
        if self.fetching is not None:
            self.bar.remove_task(self.fetching)
            self.fetching = None
        named = _cut(task) + (f" {training}" if self.several else "")
        self.bars[training] = self.bar.add_task(named, total=epochs, unit="epoch", detail="")
        self.done[training], self.factors[training] = 0, ""

    def step_end(self, training: str, epochs: float, loss: float) -> None:
        detail = ("" if math.isnan(loss) else f"loss {loss:.3g}") + self.factors[training]
        self.bar.update(self.bars[training], completed=epochs, detail=detail)

    def epoch_end(self, training: str, epoch: EpochEnd) -> None:
        if epoch.active and (self.wide or not self.several):
            phase = "fine-tune" if epoch.phase == "finetune" else f"KL {epoch.penalty:.0f}"
            wide = f" {phase} factors {epoch.active} (+{epoch.new})"
            self.factors[training] = wide if self.wide else f" factors {epoch.active}"
        self.done[training] += 1
        self.step_end(training, self.done[training], epoch.loss)

    def task_end(self, training: str, row: dict[str, Any]) -> None:
        """One line: accuracy of the newest task, means over all so far, factors in use and how many are new."""
        if training in self.bars:
            self.bar.remove_task(self.bars.pop(training))
        if not self.head_printed:
            self.head_printed = True
            newest = f"{'newest task':>16}" if self.wide else ""
            self._line("", "", f"{newest}  {'mean of all tasks so far':>26}", "", style="bold")
            newest = f"{'known':>7}{'inferred':>9}" if self.wide else ""
            means = f"  {'known':>7}{'inferred':>9}{'inference':>10}"
            self._line("training", "task", newest + means, "factors (new)" if self.wide else "factors", style="bold")
        keys = (("task_accuracy", 7), ("class_accuracy", 9), ("task_inference", 10))
        last = "".join(f"{row[key][-1]:{w}.2f}" if key in row else f"{'–':>{w}}" for key, w in keys[:2])
        means = "".join(f"{fmean(row[key]):{w}.2f}" if key in row else f"{'–':>{w}}" for key, w in keys)
        active, new = (sum(use[key] for use in row["factors"].values()) for key in ("active", "new"))
        factors = "" if not row["factors"] else f"{active} (+{new})" if self.wide else str(active)
        self._line(training, _cut(row["task"]), (last if self.wide else "") + "  " + means, factors)

    def _line(self, training: str, task: str, numbers: str, factors: str, style: str = "") -> None:
        first = f"{training.removeprefix('seed-'):<9}" if self.several else ""
        text = f"{first}{task:<{NAME}}{numbers}{factors:>{14 if self.wide else 8}}"
        self.screen.say(text, style)


def _with_spread(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return "–"
    std = entry.get("std")
    return f"{entry['mean']:.2f}" + (f" ± {std:.2f}" if std is not None else "")


def _mean_entry(result: dict[str, Any], setting: str, row: int, column: int) -> float | None:
    """A matrix entry as a mean over seeds; None where the method does not answer in that setting."""
    matrices = [matrix[setting] for matrix in result["matrix"]]
    return None if None in matrices else fmean(matrix[row][column] for matrix in matrices)


def per_task(screen: Screen, result: dict[str, Any]) -> None:
    """Every task's accuracy, right after it was learned and after the last task, as a mean over seeds."""
    tasks = len(result["tasks"])
    columns = [
        [_mean_entry(result, "task", number, number) for number in range(tasks)],
        [_mean_entry(result, "task", -1, number) for number in range(tasks)],
        [_mean_entry(result, "class", -1, number) for number in range(tasks)],
    ]
    names = [task["name"] for task in result["tasks"]]
    rows = [
        [name, *("–" if value is None else f"{value:.2f}" for value in values)]
        for name, *values in zip(names, *columns, strict=True)
    ]
    means = ("–" if None in column else f"{fmean(v for v in column if v is not None):.2f}" for column in columns)
    heads = ("accuracy, %", "when learned", "at the end", "task inferred")
    screen.say()
    screen.table(heads, [*rows, ["mean", *means]], right=heads[1:])


def summary(screen: Screen, result: dict[str, Any]) -> None:
    """The final tables: every task's accuracy, and the averages next to the paper's where it has any."""
    per_task(screen, result)
    seeds = counted(len(result["seeds"]), "seed")
    screen.say(f"\n{result['scenario']}, {result['method']}, preset {result['preset']}, {seeds}", "bold")
    compared = any(result["paper"].values())
    numbers = ("ours", "paper", "difference") if compared else ("ours",)
    measured = (
        ("task known (task-incremental)", result["accuracy"]["task"], "task"),
        ("task inferred (class-incremental)", result["accuracy"]["class"], "class"),
        ("task inference", result["task_inference"], "task-inference"),
        ("calibration error, task inferred", result.get("calibration_error", {}).get("class"), None),
        ("forgetting", result["forgetting"], None),
        ("backward transfer", result["backward_transfer"], None),
        ("forward transfer", result["forward_transfer"], None),
    )
    rows = []
    for label, ours, key in measured:
        paper = result["paper"].get(key) if key else None
        difference = f"{ours['mean'] - paper['mean']:+.2f}" if paper and ours else ""
        rows.append([label, _with_spread(ours), *([_with_spread(paper), difference] if compared else [])])
        if key == "class" and "beside" in result:
            other = result["beside"]
            rows.append([f"  … by the method {other['method']}", _with_spread(other["class"])])
    screen.table(("average over tasks, %", *numbers), rows, right=numbers)
    seconds, rate = result["seconds"], result["samples_per_second"]
    screen.say(
        f"\n{result['parameters']['mean']:,.0f} parameters stored; {seconds['train']:.1f} s training"
        + (f" ({rate:,.0f} samples/s)" if rate else "")
        + f", {seconds['eval']:.1f} s evaluation on {result['environment']['device']}.",
        wrap=True,
    )
    if result["note"]:
        screen.say(f"Preset: {result['note']}.", "dim")
