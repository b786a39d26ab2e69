"""The tables of docs/trained-networks.md, from the result files in docs/results/trained-networks.

`python -m tools.trained_networks_page docs`. What was not measured is left out. Where there are ranks to draw, the
picture of them is drawn anew.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ibpwf.storage.files import read_json, write_text
from tools import ranks_figure

BEGIN, END = "<!-- trained networks: made by `make results` -->", "<!-- end of trained networks -->"
PICTURE = "images/ranks.png"
Result = Mapping[str, Any]


def found(results: Path) -> dict[str, Result]:
    return {path.stem: read_json(path) for path in sorted((results / "trained-networks").glob("*.json"))}


def spread(result: Result, name: str, digits: int = 2) -> str:
    """Mean and standard deviation over seeds; a dash for what was not measured."""
    one = result["summary"].get(name)
    if one is None:
        return "–"
    return f"{one['mean']:.{digits}f}" + (f" ± {one['std']:.{digits}f}" if len(result["seeds"]) > 1 else "")


def where(result: Result) -> str:
    """Device and seeds, in words."""
    device = result["environment"]["device"]
    count = len(result.get("seeds", ()))
    return f"{count} seed{'s' * (count != 1)}, {device}" if count else device


CIFAR10 = {
    "class": "class, task inferred",
    "given": "class, task given",
    "given_by_experts_alone": "… by the task's network alone",
    "task_inferred": "task inferred rightly",
    "router_alone": "router alone",
    "percent_added": "per cent of the base that a task adds",
    "percent_added_with_statistics": "… with the statistics of batch normalization",
    "mean_rank": "factors that a task reads in a layer",
    "seconds_of_learning": "seconds to learn five tasks",
}


def how(result: Result) -> str:
    """Which layers have factors, how large their images are, and where in an image the router looks."""
    grid = result["runs"][0]["settings"].get("backbone_grid", 1)
    across = grid if isinstance(grid, int) else max(grid)
    places = f", router's features of {across} × {across} places" if across > 1 else ""
    return f"{result['asked']['layers']} layers, {result['asked']['size']} pixels{places}"


def cifar10(files: Mapping[str, Result], picture: bool) -> list[str]:
    some = [result for name, result in files.items() if name.startswith("cifar10")]
    if not some:
        return []
    heads = [f"{how(one)} ({where(one)})" for one in some]
    what = "Split CIFAR-10 from EfficientNet-Lite0: factors in …"
    lines = [f"| {what} | {' | '.join(heads)} |", "|---|" + "---:|" * len(some)]
    lines += [f"| {words} | {' | '.join(spread(one, name) for one in some)} |" for name, words in CIFAR10.items()]
    shown = "The factors that each task reads in each layer of the first seed, and how many of them are new:"
    return ["", *lines, *(["", shown, "", f"![factors by task and layer]({PICTURE})"] if picture else [])]


def beside_lora(files: Mapping[str, Result]) -> list[str]:
    lines = []
    result = files.get("lora")
    if result is not None:
        lines += ["", f"| training beside LoRA of the same mean rank ({where(result)}) | time | peak memory |"]
        lines += ["|---|---:|---:|"]
        for name in result["asked"]["networks"]:
            ratios = (spread(result, f"{name} {kind}_ratio") for kind in ("time", "memory"))
            lines.append(f"| {name} | {' | '.join(ratios)} |")
        lines += ["", f"LoRA: {result['runs'][0]['lora_by']}."]
    for result in (one for name, one in files.items() if name.startswith("lora-accuracy")):
        names = [name for name in result["summary"] if "," not in name.removeprefix("factors, ")]
        lines += ["", f"| task given ({where(result)}) | per cent of the base | right |", "|---|---:|---:|"]
        sized = sorted(names, key=lambda name: result["summary"][f"{name}, per cent of the base"]["mean"])
        lines += [
            f"| {name} | {spread(result, f'{name}, per cent of the base', 1)} | {spread(result, name)} |"
            for name in sized
        ]
    return lines


def sequences(files: Mapping[str, Result]) -> list[str]:
    lines = [
        "",
        "| one learner for all tasks, or one each | tasks | together | alone | least gain of a task, mean of seeds | "
        "most forgotten | tasks with changed scores |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    some = {name: result for name, result in files.items() if name.startswith("sequence")}
    for result in some.values():
        runs = result["runs"]
        gains = zip(*([task["together"] - task["alone"] for task in run["tasks"]] for run in runs), strict=True)
        cells = [
            str(len(runs[0]["tasks"])),
            spread(result, "together"),
            spread(result, "alone"),
            f"{min(statistics.fmean(each) for each in gains):+.2f}",
            f"{max(run['most_forgotten'] for run in runs):g}",
            str(max(run["tasks_whose_logits_changed"] for run in runs)),
        ]
        lines.append(f"| {runs[0]['of']} ({where(result)}) | " + " | ".join(cells) + " |")
    return lines if some else []


def reuters(files: Mapping[str, Result]) -> list[str]:
    result = files.get("reuters")
    if result is None:
        return []
    lines = ["", f"| Reuters, 20 topics in 10 tasks ({where(result)}) | right |", "|---|---:|"]
    named = {
        "class": "class, task inferred",
        "given": "class, task given",
        "ridge": "regression on MiniLM's features",
        "above_ridge": "above it by",
    }
    return [*lines, *(f"| {words} | {spread(result, name)} |" for name, words in named.items())]


def mixed_batches(files: Mapping[str, Result]) -> list[str]:
    some = [result for name, result in files.items() if name.startswith("mixed-batch")]
    lines = [
        "",
        "| 256 rows of 32 tasks in one batch ÷ of one task | factors of all tasks in a layer | together | "
        "one task after another |",
        "|---|---:|---:|---:|",
    ]
    for result in some:
        for name, numbers in result["measured"].items():
            ratios = (f"{numbers[kind]:.2f}" for kind in ("mixed / one", "one after the other / one"))
            factors = max(numbers["factors"].values())
            lines.append(f"| {name} ({where(result)}) | {factors} | {' | '.join(ratios)} |")
    return lines if some else []


def commands(files: Mapping[str, Result]) -> list[str]:
    """As they were given, but for the place where the result went; of a run that was cut short, how far it came."""
    made = []
    for one in files.values():
        command, seeds = one["command"].partition(" --out ")[0], len(one.get("seeds", ()))
        wanted = re.search(r"--seeds (\d+)", command)
        short = f" ({seeds} of them done)" if wanted and seeds < int(wanted[1]) else ""
        made.append(f"- `{command}`{short}, commit {str(one['commit'])[:12]}")
    return ["", *made]


def with_tables(page: str, files: Mapping[str, Result], *, picture: bool) -> str:
    start, _, rest = page.partition(BEGIN)
    _, _, end = rest.partition(END)
    parts = (cifar10(files, picture), sequences(files), reuters(files), beside_lora(files), mixed_batches(files))
    lines = [line for part in (*parts, commands(files)) for line in part]
    return f"{start}{BEGIN}\n" + "\n".join(lines).strip("\n") + f"\n{END}{end}"


def main(arguments: Sequence[str]) -> None:
    docs = Path(arguments[0])
    page, files = docs / "trained-networks.md", found(docs / "results")
    picture = "cifar10" in files
    if picture:
        ranks_figure.draw(files["cifar10"]["runs"][0], docs / PICTURE)
    write_text(page, with_tables(page.read_text(encoding="utf-8"), files, picture=picture))


if __name__ == "__main__":
    main(sys.argv[1:])
