"""`ibpwf bench`: speed and memory, as ratios measured in one run."""

from __future__ import annotations

import os
import platform
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ibpwf.cli.options import AsJson, OnDevice, command_typed
from ibpwf.cli.output import Screen, print_json
from ibpwf.cli.parsing import option
from ibpwf.errors import printable, unknown
from ibpwf.lab.bench import NAMES

if TYPE_CHECKING:
    import torch

    from ibpwf.lab.bench.measure import Setup


def check_measurement(name: str) -> None:
    if name not in NAMES:
        raise unknown("measurement", name, NAMES)


@dataclass(kw_only=True)
class Bench(OnDevice, AsJson):
    """Measure speed and memory side by side, in alternating rounds, and show the ratios next to their targets."""

    only: tuple[str, ...] = option(
        (), f"Only this measurement: {', '.join(NAMES)}.", metavar="NAME", check="ibpwf.cli.bench:check_measurement"
    )
    profile: bool = option(False, "Also show where a step's time goes.")
    quick: bool = option(False, "Fewer rounds and tasks: about a minute on a CPU.")
    out: Path | None = option(
        None, "Write bench.json and README.md there, with earlier measurements.", "-o", "--out", metavar="DIR"
    )
    runs: Path | None = option(None, "Keep the folders of whole runs there.", metavar="DIR")

    def run(self) -> None:
        from ibpwf.device import choose_device
        from ibpwf.lab.bench.measure import Setup
        from ibpwf.lab.bench.page import joined, markdown
        from ibpwf.lab.bench.registry import chosen, measured, runs_on
        from ibpwf.storage.files import read_json, write_json, write_text

        # Measurements train for seconds, on purpose: that their tasks are hardly learned is no news.
        warnings.filterwarnings("ignore", message="task .* was hardly learned")
        screen, out = Screen(stderr=self.json), self.out
        setup, wanted = Setup(choose_device(self.device), self.quick, self.runs), chosen(list(self.only) or None)
        for folder in (out, self.runs):
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)  # an impossible folder should not show after minutes
        content = conditions(setup)
        before = read_json(out / "bench.json") if out is not None and (out / "bench.json").exists() else None
        joined(before, content)  # a folder of another machine is rejected before anything is measured
        screen.say(content["machine"]["words"], "dim")
        for measurement in wanted:
            if runs_on(measurement, setup.device):
                screen.say(f"measuring {measurement.name}: {measurement.summary}", "dim")
            stamp = {key: content[key] for key in ("command", "commit")}
            content["measurements"].append({**measured(measurement, setup), **stamp})
            if out is not None:  # each as it comes: whole runs take minutes
                write_json(out / "bench.json", joined(before, content))
        if self.profile:
            from ibpwf.lab.bench.profile import step_profile

            content["profile"] = step_profile(setup)
        content = joined(before, content)
        if self.json:
            print_json(content)
        else:
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
    from ibpwf.lab.bench.page import mark, number, spread, target

    rows = []
    for entry in content["measurements"]:
        if "skipped" in entry:
            rows.append((entry["name"], entry["summary"], "–", "", entry["skipped"], ""))
        for row in entry["rows"]:
            median = number(row["value"], row["unit"])
            rows.append((row["name"], row["what"], median, spread(row), target(row), mark(row)))
    heads = ("measurement", "what", "median", "middle half", "target", "")
    screen.say()
    screen.table(heads, rows, right=heads[2:], whole=heads[2:])
    for title, numbers in (("part of a step, timed alone", "parts"), ("operation, in the profiler", "operations")):
        if content.get("profile"):
            times = [(name, f"{spent:.3f}") for name, spent in content["profile"][numbers].items()]
            screen.say()
            screen.table((title, "ms"), times, right=("ms",))
