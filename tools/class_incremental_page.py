"""The tables of docs/class-incremental.md, from the result files.

`python -m tools.class_incremental_page docs`: what each part brings where nobody tells the task, and what asking
fewer experts costs. A cell without a file stays empty.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ibpwf.storage.files import read_json, write_text
from tools.recorded_command import present_command

BEGIN, END = "<!-- class-incremental: made by `make results` -->", "<!-- end of class-incremental -->"
SCENARIOS = ("split-mnist", "split-fashion-mnist", "split-cifar10", "permuted-mnist")
ROUTER, EXPERTS = "router alone, as in preset best", "turned experts alone, largest score"
PARTS = "class-incremental/{}-parts.json"
ROWS = {
    "a Gaussian per task (the paper's)": "class-incremental/{}-gaussian.json",
    "a Gaussian per class": "class-incremental/{}-class-gaussian.json",
    "router alone, small": "class-incremental/{}-router.json",
    ROUTER: PARTS,
    EXPERTS: PARTS,
    "a network per task with turns, largest score": "class-incremental/{}-separate-turns.json",
    "router and turned experts (preset best)": "class-incremental/{}-best.json",
    "the same, patches of 6 pixels alone, the mean of the tasks' weights": "class-incremental/{}-one-size.json",
    "the same, another order of classes for each seed": "class-incremental/{}-orders.json",
}
ELSEWHERE = {  # measured for other pages
    "class-incremental/split-mnist-gaussian.json": "split-mnist-paper.json",
    "class-incremental/split-mnist-class-gaussian.json": "split-mnist-paper-class-gaussians.json",
    "class-incremental/split-cifar10-gaussian.json": "split-cifar10-default.json",
    "class-incremental/permuted-mnist-gaussian.json": "permuted-mnist-paper.json",
}


def found(results: Path, name: str) -> dict[str, Any] | None:
    for path in (results / name, results / ELSEWHERE.get(name, name)):
        if path.is_file():
            content: dict[str, Any] = read_json(path)
            return content
    return None


def of_parts(row: str, parts: dict[str, Any]) -> dict[str, Any]:
    """Accuracy over the seeds of a part of preset best, looked at alone."""
    each = [
        seed["ways"][0]["class"] if row == ROUTER else seed["experts alone, largest score"] for seed in parts["seeds"]
    ]
    return {"mean": statistics.fmean(each), "std": statistics.stdev(each) if len(each) > 1 else None}


def spread(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return "–"
    return f"{entry['mean']:.2f}" + (f" ± {entry['std']:.2f}" if entry.get("std") is not None else "")


def parts_table(results: Path) -> list[str]:
    """Class accuracy, and beside it that with the task given, for every part and data set; then where they come
    from."""
    known = {(row, s): found(results, place.format(s)) for row, place in ROWS.items() for s in SCENARIOS}
    shown = [s for s in SCENARIOS if any(known[row, s] for row in ROWS)]
    lines = ["| task inferred (task given) | " + " | ".join(shown) + " |", "|---|" + "---:|" * len(shown)]
    sources = []
    for row in ROWS:
        cells = []
        for name in shown:
            result = known[row, name]
            if result is None:
                cells.append("–")
                continue
            if ROWS[row] == PARTS:
                cells.append(spread(of_parts(row, result)))
                continue
            error = result.get("calibration_error", {}).get("class")
            told = f", ECE {error['mean']:.1f}" if error else ""
            cells.append(f"{spread(result['accuracy']['class'])} ({spread(result['accuracy']['task'])}{told})")
            seeds, device = len(result["seeds"]), result["environment"]["device"]
            commit = str(result["commit"])[:12]
            sources.append(
                f"- {row}, {name}: `{present_command(result['command'])}`, {seeds} seeds, {device}, commit {commit}"
            )
        if any(cell != "–" for cell in cells):
            lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return [*lines, "", *sources]


def ways_table(results: Path) -> list[str]:
    """What asking fewer experts costs, for every data set whose parts were looked at."""
    lines: list[str] = []
    for name in SCENARIOS:
        parts = found(results, f"class-incremental/{name}-parts.json")
        if parts is None:
            continue
        lines += ["", f"{name}, accuracy against cost (time in units of the router's):", ""]
        lines += ["| asked | class | calibration error | time |", "|---|---:|---:|---:|"]
        for place, way in enumerate(parts["seeds"][0]["ways"]):
            means = [statistics.fmean(seed["ways"][place][key] for seed in parts["seeds"]) for key in KEYS]
            lines.append(f"| {way['way']} | {means[0]:.2f} | {means[1]:.2f} | {means[2]:.1f} |")
        lines += ["", f"`{parts['command']}`"]
    return lines


KEYS = ("class", "error", "cost")


def novelty_table(results: Path) -> list[str]:
    """How well what is new is told from what is known, by the results that say so."""
    rows = []
    for name in SCENARIOS:
        best = found(results, f"class-incremental/{name}-best.json")
        each = [row for seed in (best or {}).get("novelty") or () for row in [seed["per_task"]]]
        for done in range(len(each[0]) if each else 0):
            if all(tasks[done] is not None for tasks in each):
                new = f"{name}, {done + 1} task{'s' * (done > 0)} learned, images of the others"
                rows.append(_novelty_row(new, [tasks[done] for tasks in each]))
        parts = found(results, f"class-incremental/{name}-parts.json")
        strangers = [seed["novelty"] for seed in (parts or {"seeds": ()})["seeds"] if "novelty" in seed]
        if strangers:
            rows.append(_novelty_row(f"{name}, all tasks learned, images of {strangers[0]['of']}", strangers))
    if not rows:
        return []
    head = ["| what is new | AUROC | called new, of the new | of the known, 5 % asked for |", "|---|---:|---:|---:|"]
    return ["", "What is new, told by router and experts together:", "", *head, *rows]


def _novelty_row(name: str, found: Sequence[dict[str, Any]]) -> str:
    means = [statistics.fmean(one[key] for one in found) for key in ("auroc", "new", "known")]
    return f"| {name} | " + " | ".join(f"{mean:.1f}" for mean in means) + " |"


def with_tables(page: str, results: Path) -> str:
    start, _, rest = page.partition(BEGIN)
    _, _, end = rest.partition(END)
    lines = [*parts_table(results), *ways_table(results), *novelty_table(results)]
    return f"{start}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{end}"


def main(arguments: Sequence[str]) -> None:
    docs = Path(arguments[0])
    page = docs / "class-incremental.md"
    write_text(page, with_tables(page.read_text(encoding="utf-8"), docs / "results"))


if __name__ == "__main__":
    main(sys.argv[1:])
