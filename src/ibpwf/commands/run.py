"""`ibpwf run`: one method over one scenario, with progress, tables and a run folder."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ibpwf.errors import DataError, InputError
from ibpwf.settings import parse_assignment

if TYPE_CHECKING:
    from ibpwf.training.loop import Progress as EpochProgress


def run_command(
    scenario: Annotated[str, typer.Argument(help="What to learn, such as split-mnist or permuted-mnist.")],
    method: Annotated[str, typer.Option(help="How to learn it.")] = "ibpwf",
    preset: Annotated[str, typer.Option(help="Settings to start from: paper, default or quick.")] = "paper",
    seed: Annotated[int | None, typer.Option(help="Run this one seed.", show_default="0")] = None,
    seeds: Annotated[int | None, typer.Option(help="Run seeds 0 to N-1.", show_default=False)] = None,
    tasks: Annotated[int | None, typer.Option(help="Only the first N tasks.", show_default=False)] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
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
    json_: Annotated[bool, typer.Option("--json", help="Print result.json, and nothing else, on stdout.")] = False,
) -> None:
    """Learn a scenario task by task and print the accuracies beside the paper's."""
    import torch

    # Before any worker thread starts: denormal numbers in Adam's moments halve the speed of a long run.
    torch.set_flush_denormal(True)
    from ibpwf.experiments.run import Events, RunConfig, run

    if seed is not None and seeds is not None:
        raise InputError("--seed and --seeds were both given; choose one.")
    if seeds is not None and seeds < 1:
        raise InputError(f"--seeds is {seeds}; give at least 1.")
    chosen = tuple(range(seeds)) if seeds is not None else (seed or 0,)
    changes = dict(parse_assignment(text) for text in set_ or [])
    console = Console(stderr=json_)
    command = "ibpwf " + shlex.join(sys.argv[1:])

    def go(name: str) -> dict[str, Any]:
        config = RunConfig(name, method, preset, chosen, changes, tasks, device)
        folder = out or Path("runs") / f"{name}-{method}-{preset}"
        writer = _tensorboard(folder) if tensorboard else None
        display = Display(console, config.settings().epochs + config.settings().finetune_epochs)
        with display.bar:
            events = Events(display.epoch, display.task, display.say)
            result = run(
                config,
                folder,
                command=command,
                events=events,
                resume=resume,
                overwrite=overwrite,
                writer=writer,
            )
        if writer is not None:
            writer.close()
        summary(console, result)
        console.print(f"Run folder: {folder}")
        return result

    try:
        result = go(scenario)
    except DataError as error:
        if fallback is None:
            raise
        console.print(f"[yellow]{scenario} cannot be had here, running {fallback} instead.[/] {error}")
        result = go(fallback)
    except KeyboardInterrupt:
        console.print("Interrupted. Finished tasks are kept: add --resume to go on.")
        raise
    if json_:
        typer.echo(json.dumps(result, indent=2))


def _tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError("--tensorboard needs the tensorboard package: pip install 'ibpwf[tensorboard]'.") from None
    return SummaryWriter(log_dir=str(folder / "tensorboard"))


class Display:
    """A progress bar per task and a table row per finished task."""

    def __init__(self, console: Console, epochs: int) -> None:
        self.console, self.epochs = console, epochs
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:.0f}/{task.total:.0f} epochs"),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self.current: Any = None
        self.name = ""

    def say(self, text: str) -> None:
        self.console.print(f"[dim]{text}[/]")

    def epoch(self, seed: int, progress: EpochProgress) -> None:
        if self.current is None or self.name != progress.task:
            if self.current is not None:
                self.bar.remove_task(self.current)
            self.name = progress.task
            self.current = self.bar.add_task(f"task {progress.task}", total=self.epochs, detail="")
        detail = f"loss {progress.loss:.4f}  KL {progress.extra:.1f}  factors {progress.active}"
        detail += f" ({progress.new} new, {progress.reused} reused)  {progress.phase}"
        self.bar.update(self.current, advance=1, detail=detail)

    def task(self, seed: int, row: dict[str, Any]) -> None:
        if self.current is not None:
            self.bar.remove_task(self.current)
            self.current = None
        shown = Table(box=None, pad_edge=False, title=f"after task {row['task']} (seed {seed})", title_justify="left")
        shown.add_column("accuracy of task")
        for number in range(len(row["task_accuracy"])):
            shown.add_column(str(number + 1), justify="right")
        shown.add_column("mean", justify="right")
        names = (
            ("task given", "task_accuracy"),
            ("task inferred", "class_accuracy"),
            ("task inference", "task_inference"),
        )
        for label, key in names:
            values = row[key]
            mean = sum(values) / len(values)
            shown.add_row(label, *(f"{v:.2f}" for v in values), f"[bold]{mean:.2f}[/]")
        self.console.print(shown)
        use = ", ".join(
            f"{name}: {u['active']} active = {u['reused']} reused + {u['new']} new, {u['total']} in all"
            for name, u in row["factors"].items()
        )
        self.console.print(f"[dim]factors  {use}[/]\n")


def _with_spread(entry: dict[str, Any] | None, digits: int = 2) -> str:
    if entry is None:
        return "–"
    std = entry.get("std")
    return f"{entry['mean']:.{digits}f}" + (f" ± {std:.{digits}f}" if std is not None else "")


def summary(console: Console, result: dict[str, Any]) -> None:
    """The final table: ours beside the paper's."""
    seeds = len(result["seeds"])
    title = f"{result['scenario']}, {result['method']}, preset {result['preset']}, {seeds} seed{'s' * (seeds > 1)}"
    shown = Table(title=title, title_justify="left")
    shown.add_column("%")
    shown.add_column("ours", justify="right")
    shown.add_column("paper", justify="right")
    shown.add_column("difference", justify="right")
    rows = (
        ("average accuracy, task given (incremental task)", result["accuracy"]["task"], "task"),
        ("average accuracy, task inferred (incremental class)", result["accuracy"]["class"], "class"),
        ("task inference", result["task_inference"], "task-inference"),
        ("forgetting", result["forgetting"], None),
        ("backward transfer", result["backward_transfer"], None),
        ("forward transfer", result["forward_transfer"], None),
    )
    for label, ours, key in rows:
        paper = result["paper"].get(key) if key else None
        difference = f"{ours['mean'] - paper['mean']:+.2f}" if paper else ""
        shown.add_row(label, _with_spread(ours), _with_spread(paper) if paper else "–", difference)
    console.print(shown)
    seconds = result["seconds"]
    console.print(
        f"{result['parameters']['mean']:,.0f} parameters stored; {seconds['train']:.1f} s training, "
        f"{seconds['eval']:.1f} s evaluation, {result['samples_per_second']:,.0f} samples/s "
        f"on {result['environment']['device']}"
    )
    if result["note"]:
        console.print(f"[dim]Preset: {result['note']}.[/]")
