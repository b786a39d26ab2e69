"""What the templates of `tools.pages` say of result files that is more than one of their fields."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jinja2 import Undefined

from ibpwf.lab.experiments.compare import Outcome, lengths, mark, markdown, number, rows, size
from ibpwf.lab.experiments.paper import targets, tolerance
from ibpwf.lab.experiments.presets import supports
from ibpwf.lab.experiments.reproduction.registry import EXPERIMENTS
from ibpwf.lab.experiments.results_folder import read_measured, read_outcomes, read_results, row_for, title
from ibpwf.lab.methods import methods
from ibpwf.lab.report.rendering import plural, short_commit
from ibpwf.storage.files import read_json
from ibpwf.storage.folder import LARGEST_MANIFEST, MOST_ENTRIES
from tools.recorded_command import present_changes, present_command

Result = Mapping[str, Any]
DASH = "–"


def form(value: Any, shape: str, absent: str = DASH) -> str:
    return absent if value is None or isinstance(value, Undefined) else format(value, shape)


def spread(entry: Any, digits: int = 2) -> str:
    """Mean ± standard deviation; of numbers over seeds, or of a figure of the paper."""
    if entry is None or isinstance(entry, Undefined):
        return DASH
    mean, std = (entry[key] if isinstance(entry, Mapping) else getattr(entry, key) for key in ("mean", "std"))
    return DASH if mean is None else f"{mean:.{digits}f}" + (f" ± {std:.{digits}f}" if std is not None else "")


def over(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and standard deviation of a sample."""
    return {"mean": statistics.fmean(values), "std": statistics.stdev(values) if len(values) > 1 else None}


def mean(values: Iterable[Any], key: str | None = None) -> float | None:
    found = [value if key is None else value[key] for value in values]
    return statistics.fmean(found) if found else None


def of(rows: Iterable[Result], *path: str) -> list[Any]:
    """The values at the end of a path, of those rows that have it."""
    found: list[Any] = list(rows)
    for key in path:
        found = [row[key] for row in found if key in row]
    return found


# Runs and comparisons


def otherwise(result: Result) -> str:
    """What tells a run from the one with the paper's settings; a table may have both."""
    other = [f"preset {result['preset']}"] if result["preset"] != "paper" else []
    other += present_changes(result)
    return f" ({', '.join(other)})" if other else ""


def by_task(result: Result) -> list[float]:
    last = [matrix["task"][-1] for matrix in result["matrix"] if matrix["task"]]
    return [statistics.fmean(column) for column in zip(*last, strict=True)]


def comparisons(results: Path) -> dict[str, list[Outcome]]:
    """Every folder `compare-…` as one comparison of methods."""
    parts = sorted(path for path in results.glob("compare-*") if path.is_dir())
    found = {part.name: [outcome for _, outcome in read_outcomes(part)] for part in parts}
    return {name: outcomes for name, outcomes in found.items() if outcomes}


def named(outcome: Outcome) -> Outcome:
    """A variant under its own name: what is said of it is not true of the method's main row."""
    return replace(outcome, method=outcome.variant or outcome.method)


def comparison(name: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The table of one comparison, its conditions, and which methods have not been run."""
    found = [outcome.result for outcome in outcomes if outcome.result is not None]
    table, scenario = rows(outcomes), found[0]["scenario"]
    marks = [row[f"{setting}_reproduces"] for row in table for setting in ("task", "class")]
    there = {outcome.method for outcome in outcomes}
    whole = name == f"compare-{scenario}"
    length = lengths([named(outcome) for outcome in outcomes])
    return {
        "title": title(name, scenario),
        "table": markdown(table, outcomes),
        "judged": [one for one in marks if one is not None],
        "seeds": len(found[0]["seeds"]),
        "where": sorted({f"{r['environment']['device']} with torch {r['environment']['torch']}" for r in found}),
        "commits": sorted({str(result["commit"]) for result in found}),
        "length": f" {length}" if length else "",
        "missing": [one for one in methods() if whole and supports(one, scenario) and one not in there],
    }


KINDS: dict[str, tuple[str, ...]] = {
    "IBP-WF": ("ibpwf",),
    "IBP-WF, a Gaussian per class": ("ibpwf-class-gaussians",),
    "all data kept, trained again": ("joint",),
    "replay of kept or generated data": ("rehearsal", "gem", "vcl-coreset", "dgr", "rtf"),
    "closed form, or a model per class": ("router", "ridge", "slda", "gen-classifier"),
    "a network (or a column of one) per task": ("separate", "separate-turns", "pnn", "side-tuning"),
    "one network, held back": ("l2", "ewc", "online-ewc", "si", "mas", "lwf", "vcl"),
    "one network, nothing done": ("sgd", "adam", "adagrad"),
}


def choices(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The best method of each kind, with the task inferred or else given, and what is better than ours by more than a
    point."""
    table, best, better = rows(outcomes), {}, []
    for kind, those in KINDS.items():
        found = [row for row in table if row["method"] in those and not row["error"]]
        if found:
            best[kind] = max(found, key=lambda row: (row["class_mean"] or -1.0, row["task_mean"] or -1.0))
    ours = next((row for row in table if row["method"] == "ibpwf"), {})
    for key, words in (("task_mean", "Task given"), ("class_mean", "Task inferred")):
        if ours.get(key) is not None:
            others = [(row["method"], row[key]) for row in table if row[key] is not None]
            ahead = [one for one in others if one[1] > ours[key] + 1.0 and not one[0].startswith("ibpwf")]
            better.append((words, ours[key], sorted(ahead, key=lambda one: -one[1])))
    by_name = {named(outcome).method: outcome for outcome in outcomes}
    shown = [named(by_name[row["method"]]) for row in best.values()]
    presets: dict[str, list[str]] = {}
    for one in shown:
        presets.setdefault((one.result or {})["preset"], []).append(one.method)
    changed = {one.method: present_changes(one.result or {}) for one in shown if present_changes(one.result or {})}
    return {"best": best, "better": better, "presets": presets, "changed": changed, "lengths": lengths(shown)}


def reproduction(results: Path) -> dict[str, Any]:
    """Every number of the paper with ours, the claims of its figures, and the files whose numbers are shown."""
    found = read_measured(results)
    papers = {(paper.benchmark, paper.method) for paper in targets()}
    runs = [run for key, run in found.runs.items() if key in papers]
    used = {id(one) for one in (*found.reproductions.values(), *runs, *found.vae.values())}
    figures = [name for name in EXPERIMENTS if name.startswith("figure-")]
    return {
        "rows": [(paper, row_for(paper, found)) for paper in targets()],
        "figures": [(name, EXPERIMENTS[name].found, found.reproductions.get(name)) for name in figures],
        "files": {path: data for path, data in found.files.items() if id(data) in used},
        "lengths": lengths([Outcome(f"{m} ({benchmark})", run) for (benchmark, m), run in found.runs.items()]),
    }


def seed_count(result: Result) -> str:
    """How many seeds; a range where the runs of an experiment have different numbers of them."""
    counts = sorted({len(run["seeds"]) for run in result.get("runs", []) if "seeds" in run})
    if not counts:
        return str(len(result.get("seeds", [])))
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


# Class-incremental learning

SCENARIOS = ("split-mnist", "split-fashion-mnist", "split-cifar10", "permuted-mnist")
ROUTER, EXPERTS = "router alone, as in preset best", "turned experts alone, largest score"
ROWS = {
    "a Gaussian per task (the paper's)": "gaussian",
    "a Gaussian per class": "class-gaussian",
    "router alone, small": "router",
    ROUTER: "parts",
    EXPERTS: "parts",
    "a network per task with turns, largest score": "separate-turns",
    "router and turned experts (preset best)": "best",
    "the same, patches of 6 pixels alone, the mean of the tasks' weights": "one-size",
    "the same, another order of classes for each seed": "orders",
}
ELSEWHERE = {  # measured for other pages
    "split-mnist-gaussian": "split-mnist-paper.json",
    "split-mnist-class-gaussian": "split-mnist-paper-class-gaussians.json",
    "split-cifar10-gaussian": "split-cifar10-default.json",
    "permuted-mnist-gaussian": "permuted-mnist-paper.json",
}


def class_incremental(results: Path) -> dict[str, Any]:
    """What each part of task inference brings, by data set; a cell without a file has a dash."""
    known: dict[tuple[str, str], dict[str, Any]] = {}
    for kind in ROWS.values():
        for scenario in SCENARIOS:
            name = f"{scenario}-{kind}"
            for path in (results / "class-incremental" / f"{name}.json", results / ELSEWHERE.get(name, name)):
                if path.is_file():
                    known.setdefault((scenario, kind), read_json(path))
    shown = [scenario for scenario in SCENARIOS if any(key[0] == scenario for key in known)]
    cells = {row: [_class_cell(row, known.get((s, kind))) for s in shown] for row, kind in ROWS.items()}
    parts = {scenario: known[scenario, "parts"] for scenario in shown if (scenario, "parts") in known}
    there = [(row, s, known[s, kind]) for row, kind in ROWS.items() for s in shown if (s, kind) in known]
    return {
        "scenarios": shown,
        "rows": {row: found for row, found in cells.items() if set(found) != {DASH}},
        "sources": [one for one in there if ROWS[one[0]] != "parts"],
        "parts": parts,
        "novelty": [line for s in shown for line in _novelty(s, known.get((s, "best"), {}), parts.get(s))],
    }


def _class_cell(row: str, result: Result | None) -> str:
    if result is None:
        return DASH
    if row == ROUTER:
        return spread(over([seed["ways"][0]["class"] for seed in result["seeds"]]))
    if row == EXPERTS:
        return spread(over([seed["experts alone, largest score"] for seed in result["seeds"]]))
    error = result.get("calibration_error", {}).get("class")
    told = f", ECE {error['mean']:.1f}" if error else ""
    return f"{spread(result['accuracy']['class'])} ({spread(result['accuracy']['task'])}{told})"


def _novelty(scenario: str, best: Result, parts: Result | None) -> list[tuple[str, list[Result]]]:
    """How well new inputs are told from known ones, after each task and after the last."""
    each = [seed["per_task"] for seed in best.get("novelty") or ()]
    found = []
    for done, tasks in enumerate(zip(*each, strict=True), 1):
        if None not in tasks:
            found.append((f"{scenario}, {plural(done, 'task')} learned, images of the others", list(tasks)))
    strangers = of((parts or {"seeds": ()})["seeds"], "novelty")
    if strangers:
        found.append((f"{scenario}, all tasks learned, images of {strangers[0]['of']}", strangers))
    return found


# Benchmarks


def where(result: Result) -> str:
    """Device and seeds, in words."""
    device, count = str(result["environment"]["device"]), len(result.get("seeds", ()))
    return f"{plural(count, 'seed')}, {device}" if count else device


def summarized(result: Result, name: str, digits: int = 2) -> str:
    """Mean and standard deviation over seeds; a dash for what was not measured."""
    one = result["summary"].get(name)
    return spread(one and {**one, "std": one["std"] if len(result["seeds"]) > 1 else None}, digits)


def grid(result: Result) -> int:
    """Across how many places of an image the router looks."""
    places = result["runs"][0]["settings"].get("backbone_grid", 1)
    return places if isinstance(places, int) else max(places)


def by_size(result: Result) -> list[str]:
    """The compared kinds of adapter, the smallest first."""
    names = [name for name in result["summary"] if "," not in name.removeprefix("factors, ")]
    return sorted(names, key=lambda name: result["summary"][f"{name}, per cent of the base"]["mean"])


def least_gain(result: Result) -> float:
    """Of the task that gains least from being learned with others, as a mean over seeds."""
    gains = zip(*([t["together"] - t["alone"] for t in run["tasks"]] for run in result["runs"]), strict=True)
    return min(statistics.fmean(each) for each in gains)


def cut_short(result: Result) -> str:
    """How far a run came that has fewer seeds than its command asked for."""
    wanted, seeds = re.search(r"--seeds (\d+)", result["command"]), len(result.get("seeds", ()))
    return f" ({seeds} of them done)" if wanted and seeds < int(wanted[1]) else ""


SCALES = {"s": 1.0, "ms": 1e3, "MB": 1e-6, "%": 1.0, "×": 1.0}


def scaled(value: float, unit: str) -> str:
    number = value * SCALES[unit]
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def exponent(rows: Sequence[Result], key: str) -> float | None:
    """b of cost ≈ a·size^b, by least squares of the logarithms of the sizes from a tenth of the largest on."""
    most = max(row["size"] for row in rows)
    late = [(row["size"], row[key]) for row in rows if row["size"] * 10.5 >= most and row[key] > 0]
    if len({size for size, _ in late}) < 2:
        return None
    x, y = ([math.log(pair[at]) for pair in late] for at in (0, 1))
    return statistics.linear_regression(x, y).slope


def batching(result: Result, outputs: str) -> float:
    """How many times the requests a second of one at a time, with the most clients."""
    sides = [result["sides"][f"ibpwf serve{how}{outputs}"] for how in ("", ", one at a time")]
    together, alone = (side[max(side, key=int)]["per_second"] for side in sides)
    return float(together / alone)


CONSTANTS: dict[str, Any] = {
    "settings": {"task": "task given", "class": "task inferred", "task-inference": "task inference"},
    "limits": {"tasks": MOST_ENTRIES, "manifest": LARGEST_MANIFEST >> 20},
}
READERS: dict[str, Callable[[Path], Any]] = {
    "runs": read_results,
    "comparisons": comparisons,
    "reproduction": reproduction,
    "class_incremental": class_incremental,
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "comparison": comparison,
    "choices": choices,
    "number": number,
    "size": size,
    "plural": plural,
    "short_commit": short_commit,
    "tolerance": tolerance,
}
FILTERS: dict[str, Callable[..., Any]] = {
    "f": form,
    "spread": spread,
    "over": over,
    "mean": mean,
    "of": of,
    "mark": mark,
    "hash": lambda commit: str(commit)[:12],
    "command": lambda result: present_command(result["command"]),
    "otherwise": otherwise,
    "by_task": by_task,
    "seed_count": seed_count,
    "where": where,
    "measured": summarized,
    "grid": grid,
    "by_size": by_size,
    "least_gain": least_gain,
    "cut_short": cut_short,
    "scaled": scaled,
    "exponent": exponent,
    "batching": batching,
    "all": lambda value: [value] if isinstance(value, str) else value,
    "pick": lambda name, found: found.get(name),
    "columns": lambda rows: list(zip(*rows, strict=True)),
    "used": lambda columns, rows: {key: what for key, what in columns.items() if any(key in row for row in rows)},
}
