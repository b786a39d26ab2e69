"""`ibpwf run`: one method over one scenario, with progress, tables and a run folder."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from ibpwf.errors import DataError, InputError
from ibpwf.settings import parse_assignment

if TYPE_CHECKING:
    from ibpwf.lab.experiments.run_config import RunConfig
    from ibpwf.training.callbacks import EpochEnd


def run_command(
    scenario: Annotated[
        str,
        typer.Argument(
            metavar="SCENARIO",
            help="What to learn, such as split-mnist, permuted-mnist or split-digits (which needs no download).",
        ),
    ],
    method: Annotated[str, typer.Option(help="How to learn it.")] = "ibpwf",
    preset: Annotated[str, typer.Option(help="Settings to start from: paper, default or quick.")] = "paper",
    seed: Annotated[int | None, typer.Option(help="Run this one seed.", show_default="0")] = None,
    seeds: Annotated[int | None, typer.Option(help="Run seeds 0 to N-1.", show_default=False)] = None,
    tasks: Annotated[int | None, typer.Option(help="Only the first N tasks.", show_default=False)] = None,
    examples: Annotated[
        int | None,
        typer.Option(help="Only the first N examples of each class, of training and test.", show_default=False),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    network: Annotated[
        str | None,
        typer.Option(
            help="Another network than the preset's: mlp, resnet20, resnet or vit_tiny, with arguments as in "
            "'resnet;depth=32;width=32'.",
            show_default=False,
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Change a setting, such as --set alpha=300. Repeatable."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The run folder.", show_default="runs/SCENARIO-METHOD-PRESET"),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on after the last finished task.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in the folder.")] = False,
    fallback: Annotated[
        str | None,
        typer.Option(help="Scenario to run if the data cannot be fetched.", show_default=False),
    ] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard events too.")] = False,
    no_models: Annotated[
        bool, typer.Option("--no-models", help="Store results only: saves disk, but an interrupted seed starts anew.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print result.json, and nothing else, on stdout.")] = False,
) -> None:
    """Learn a scenario task by task and print the accuracies beside the paper's."""
    import torch

    # Before any worker thread starts: denormal numbers in Adam's moments halve the speed of a long run.
    torch.set_flush_denormal(True)
    from ibpwf.lab.experiments.network import parse_network
    from ibpwf.lab.experiments.run import Events, run
    from ibpwf.lab.experiments.run_config import RunConfig
    from ibpwf.lab.report import write_report

    if seed is not None and seeds is not None:
        raise InputError("--seed and --seeds were both given; choose one.")
    if seeds is not None and seeds < 1:
        raise InputError(f"--seeds is {seeds}; give at least 1.")
    chosen = tuple(range(seeds)) if seeds is not None else (seed or 0,)
    changes = dict(parse_assignment(text) for text in set_ or [])
    spec = None if network is None else parse_network(network)
    console = Console(stderr=json_)
    command = "ibpwf " + shlex.join(sys.argv[1:])
    names = [scenario] if fallback is None else [scenario, fallback]
    # All of them now: a mistake in the fallback's name should not show only when it is needed.
    asked = (method, preset, chosen, changes, tasks, device, not no_models, examples, spec)
    configs = [RunConfig(name, *asked) for name in names]
    open_writer = _summary_writer() if tensorboard else None

    def go(config: RunConfig) -> dict[str, Any]:
        settings = config.settings().to_json()
        epochs = settings.get("epochs", 0) + settings.get("finetune_epochs", 0)
        display = Display(console, epochs, len(chosen) * len(config.trainings()))
        folder = _folder(out, config)
        with display.bar:
            result = run(
                config,
                folder,
                command=command,
                events=Events(display.epoch, display.task, display.say, display.fetched),
                resume=resume,
                overwrite=overwrite,
                open_writer=open_writer,
            )
        summary(console, result)
        page = write_report([folder], folder / "report.html")
        console.print(f"Run folder: {folder}", highlight=False, markup=False, soft_wrap=True)
        console.print(f"Report: {page}", highlight=False, markup=False, soft_wrap=True)
        return result

    config = configs[0]
    try:
        try:
            result = go(config)
        except DataError as error:
            if fallback is None:
                raise
            console.print(f"{error}\n", style="dim", highlight=False, markup=False, soft_wrap=True)
            console.print(f"{scenario} cannot be had here; running {fallback} instead.", style="yellow")
            config = configs[1]
            result = go(config)
    except KeyboardInterrupt:
        typer.echo(_interrupted(_folder(out, config), overwrite), err=True)
        raise typer.Exit(130) from None
    if json_:
        typer.echo(json.dumps(result, indent=2))


def _folder(out: Path | None, config: RunConfig) -> Path:
    return out or Path("runs") / f"{config.scenario}-{config.method}-{config.preset}"


def _interrupted(folder: Path, overwrite: bool) -> str:
    if not (folder / "config.json").exists():
        return "Interrupted. Nothing has been written yet."
    how = "--resume instead of --overwrite" if overwrite else "--resume"
    return f"Interrupted. Finished tasks are kept in {folder}; the same command with {how} goes on."


def _summary_writer() -> Callable[[Path], Any]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError("--tensorboard needs the tensorboard package: pip install 'ibpwf[tensorboard]'.") from None
    return lambda folder: SummaryWriter(log_dir=str(folder))


NAME = 13
"""Columns for a task's name; longer ones are cut."""


def _cut(name: str) -> str:
    return name if len(name) <= NAME else name[: NAME - 1] + "…"


class Display:
    """A progress bar for each task that is being learnt and a line per finished task. Fits 80 columns, and leaves
    the less important columns out where there are fewer than that."""

    def __init__(self, console: Console, epochs: int, trainings: int = 1) -> None:
        self.console, self.epochs, self.several = console, epochs, trainings > 1
        self.wide = console.width >= 80
        columns: list[ProgressColumn] = [
            TextColumn("{task.description}"),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[detail]}"),
        ]
        if self.wide:
            columns.insert(1, BarColumn(bar_width=10))
        if self.wide and not self.several:
            columns.append(TimeElapsedColumn())
        self.bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self.bars: dict[str, TaskID] = {}  # one per training: on a GPU they take turns
        self.fetching: TaskID | None = None
        self.head_printed = False

    def say(self, text: str) -> None:
        self.console.print(text, style="dim", highlight=False, markup=False)

    def fetched(self, label: str, done: int, total: int | None) -> None:
        """Data on its way: megabytes, or a handful of steps."""
        unit = 1e6 if total is None or total >= 1000 else 1
        if self.fetching is None:
            self.fetching = self.bar.add_task("", total=1, detail="")
        detail = "MB" if unit > 1 else ""
        whole = max(total or done, 1) / unit
        self.bar.update(
            self.fetching, description=escape(label[:50]), completed=done / unit, total=whole, detail=detail
        )

    def epoch(self, training: str, progress: EpochEnd) -> None:
        if self.fetching is not None:
            self.bar.remove_task(self.fetching)
            self.fetching = None
        if training not in self.bars:
            named = _cut(progress.task) + (f" {training}" if self.several else "")
            self.bars[training] = self.bar.add_task(escape(named), total=self.epochs, detail="")
        detail = f"loss {progress.loss:.3f}"
        if progress.active:
            phase = "fine-tune" if progress.phase == "finetune" else f"KL {progress.penalty:.0f}"
            new = f" (+{progress.new})" if self.wide else ""
            detail += f" {phase} factors {progress.active}{new}"
        self.bar.update(self.bars[training], advance=1, detail=detail)

    def task(self, training: str, row: dict[str, Any]) -> None:
        """One line: accuracy of the newest task, means over all so far, factors in use and how many are new."""
        if training in self.bars:
            self.bar.remove_task(self.bars.pop(training))
        if not self.head_printed:
            self.head_printed = True
            newest = f"{'newest task':>16}" if self.wide else ""
            self._line("", "", f"{newest}  {'mean of all tasks so far':>26}", "", style="bold")
            newest = f"{'given':>7}{'inferred':>9}" if self.wide else ""
            means = f"  {'given':>7}{'inferred':>9}{'inference':>10}"
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
        self.console.print(text, style=style, highlight=False, markup=False)


def _with_spread(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return "–"
    std = entry.get("std")
    return f"{entry['mean']:.2f}" + (f" ± {std:.2f}" if std is not None else "")


def _mean_entry(result: dict[str, Any], setting: str, row: int, column: int) -> float | None:
    """A matrix entry as a mean over seeds; None where the method does not answer in that setting."""
    matrices = [matrix[setting] for matrix in result["matrix"]]
    return None if None in matrices else fmean(matrix[row][column] for matrix in matrices)


def per_task(console: Console, result: dict[str, Any]) -> None:
    """Every task's accuracy, right after it was learnt and after the last task, as a mean over seeds."""
    shown = Table(box=None, pad_edge=False)
    shown.add_column("accuracy, %")
    for head in ("when learnt", "at the end", "task inferred"):
        shown.add_column(head, justify="right")
    tasks = len(result["tasks"])
    columns = [
        [_mean_entry(result, "task", number, number) for number in range(tasks)],
        [_mean_entry(result, "task", -1, number) for number in range(tasks)],
        [_mean_entry(result, "class", -1, number) for number in range(tasks)],
    ]
    for number, values in enumerate(zip(*columns, strict=True)):
        cells = ("–" if value is None else f"{value:.2f}" for value in values)
        shown.add_row(escape(result["tasks"][number]["name"]), *cells)
    means = ("–" if None in column else f"{fmean(v for v in column if v is not None):.2f}" for column in columns)
    shown.add_row("mean", *means, style="bold")
    console.print()
    console.print(shown)


def summary(console: Console, result: dict[str, Any]) -> None:
    """The final tables: every task's accuracy, and the averages beside the paper's where it has any."""
    per_task(console, result)
    seeds = len(result["seeds"])
    title = f"{result['scenario']}, {result['method']}, preset {result['preset']}, {seeds} seed{'s' * (seeds > 1)}"
    console.print(f"\n{title}", style="bold", highlight=False)
    compared = any(result["paper"].values())
    shown = Table(box=None, pad_edge=False)
    shown.add_column("average over tasks, %")
    for head in ("ours", "paper", "difference") if compared else ("ours",):
        shown.add_column(head, justify="right")
    rows = (
        ("task given (incremental task)", result["accuracy"]["task"], "task"),
        ("task inferred (incremental class)", result["accuracy"]["class"], "class"),
        ("task inference", result["task_inference"], "task-inference"),
        ("forgetting", result["forgetting"], None),
        ("backward transfer", result["backward_transfer"], None),
        ("forward transfer", result["forward_transfer"], None),
    )
    for label, ours, key in rows:
        paper = result["paper"].get(key) if key else None
        difference = f"{ours['mean'] - paper['mean']:+.2f}" if paper and ours else ""
        shown.add_row(label, _with_spread(ours), *([_with_spread(paper), difference] if compared else []))
    console.print(shown)
    seconds, rate = result["seconds"], result["samples_per_second"]
    console.print(
        f"\n{result['parameters']['mean']:,.0f} parameters stored; {seconds['train']:.1f} s training"
        + (f" ({rate:,.0f} samples/s)" if rate else "")
        + f", {seconds['eval']:.1f} s evaluation on {result['environment']['device']}.",
        highlight=False,
        markup=False,
    )
    if result["note"]:
        console.print(f"Preset: {result['note']}.", style="dim", highlight=False, markup=False)
