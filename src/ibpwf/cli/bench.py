"""`ibpwf bench`: how fast everything is, as ratios measured in one run."""

from __future__ import annotations

import os
import platform
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ibpwf.cli.options import command_typed, command_with, of_run
from ibpwf.device import check_device
from ibpwf.errors import printable, unknown
from ibpwf.lab.bench import NAMES
from ibpwf.lab.bench.page import joined, mark, markdown, number, spread, target

if TYPE_CHECKING:
    import torch

    from ibpwf.cli.screen import Screen
    from ibpwf.lab.bench.measure import Setup


@dataclass
class BenchOptions:
    """What is asked of `ibpwf bench`."""

    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="NAME", help=f"One of {', '.join(NAMES)}; may be given several times."),
    ] = None
    profile: Annotated[bool, typer.Option("--profile", help="Also say where a step's time goes.")] = False
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds and tasks: about a minute on a CPU.")] = False
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="Write bench.json and README.md there, beside what was measured before."
        ),
    ] = None
    runs: Annotated[
        Path | None, typer.Option("--runs", metavar="DIR", help="Keep the whole runs' folders there.")
    ] = None
    device: Annotated[str, of_run("device")] = "auto"


@command_with(BenchOptions)
def bench_command(asked: BenchOptions) -> None:
    """Measure speed and memory side by side, in turns, and show the ratios beside their targets."""
    for name in asked.only or []:
        if name not in NAMES:
            raise unknown("measurement in --only", name, NAMES)
    check_device(asked.device)
    from ibpwf.cli.screen import Screen
    from ibpwf.device import choose_device
    from ibpwf.lab.bench.measure import Setup
    from ibpwf.lab.bench.registry import chosen, measured, runs_on
    from ibpwf.storage.files import read_json, write_json, write_text

    # Measurements train for seconds, on purpose: that their tasks are hardly learned is no news.
    warnings.filterwarnings("ignore", message="task .* was hardly learned")
    screen, out = Screen(), asked.out
    setup, wanted = Setup(choose_device(asked.device), asked.quick, asked.runs), chosen(asked.only)
    for folder in (out, asked.runs):
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)  # a folder that cannot be had should not show after minutes
    content = conditions(setup)
    before = read_json(out / "bench.json") if out is not None and (out / "bench.json").exists() else None
    joined(before, content)  # a folder of another machine is refused before anything is measured
    screen.print(content["machine"]["words"], style="dim")
    for measurement in wanted:
        if runs_on(measurement, setup.device):
            screen.print(f"measuring {measurement.name}: {measurement.summary}", style="dim")
        stamp = {key: content[key] for key in ("command", "commit")}
        content["measurements"].append({**measured(measurement, setup), **stamp})
        if out is not None:  # each as it comes: whole runs take minutes
            write_json(out / "bench.json", joined(before, content))
    if asked.profile:
        from ibpwf.lab.bench.profile import step_profile

        content["profile"] = step_profile(setup)
    content = joined(before, content)
    show(screen, content)
    if out is not None:
        write_json(out / "bench.json", content)
        write_text(out / "README.md", markdown(content))
        screen.say(f"Written: {printable(str(out / 'README.md'))}")


def conditions(setup: Setup) -> dict[str, Any]:
    """What is measured with and on, and no measurements yet."""
    import torch

    from ibpwf import __version__
    from ibpwf.lab.experiments.result import commit, environment

    return {
        "command": command_typed(),
        "commit": commit(),
        "versions": {"ibpwf": __version__, "python": platform.python_version(), "torch": torch.__version__},
        "machine": {"words": machine_in_words(setup.device), **environment(setup.device.type)},
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "quick": setup.quick,
        "measurements": [],
    }


def machine_in_words(device: torch.device) -> str:
    """The processor (or GPU) by its name, its cores, and what else matters for a time."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        name = f"{models[0]}, {len(models)} cores" if models else name
    if device.type == "cuda":
        import torch

        return f"{torch.cuda.get_device_name(device)}; host {name}"
    return name


def show(screen: Screen, content: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for head in ("measurement", "what"):
        table.add_column(head, overflow="fold")
    for head in ("median", "middle half", "target", ""):
        table.add_column(head, justify="right", no_wrap=True)
    for entry in content["measurements"]:
        if "skipped" in entry:
            table.add_row(entry["name"], entry["summary"], "–", "", entry["skipped"], "")
        for row in entry["rows"]:
            table.add_row(
                row["name"], row["what"], number(row["value"], row["unit"]), spread(row), target(row), mark(row)
            )
    screen.print()
    screen.print(table)
    found = content.get("profile")
    if found:
        for title, numbers in (
            ("part of a step, timed alone", "parts"),
            ("operation, in the profiler", "operations"),
        ):
            parts = Table(box=None, pad_edge=False)
            parts.add_column(title)
            parts.add_column("ms", justify="right")
            for name, spent in found[numbers].items():
                parts.add_row(name, f"{spent:.3f}")
            screen.print()
            screen.print(parts)
