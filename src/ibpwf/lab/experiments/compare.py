"""Several methods on one scenario: run what has not been run, keep going when one fails, make one table.

DIR/METHOD/            the run folder of a method
DIR/comparison.json    all rows; .csv and .md beside it
"""

from __future__ import annotations

import csv
import io
import shlex
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ibpwf.errors import IBPWFError, InputError
from ibpwf.lab.evaluation.metrics import spread
from ibpwf.lab.experiments.executors import Engine, Processes
from ibpwf.lab.experiments.paper import Target, target, tolerance
from ibpwf.lab.experiments.presets import preset, supports
from ibpwf.lab.experiments.run import Run, run_all
from ibpwf.lab.experiments.run_config import RunConfig
from ibpwf.lab.experiments.seed_training import RunCallback
from ibpwf.lab.methods import method_named, methods
from ibpwf.storage.files import read_json, write_json, write_text

SETTINGS = ("task", "class")
LENGTHS = ("epochs", "finetune_epochs")


@dataclass(frozen=True)
class Outcome:
    """One method's run: its result, or why there is none."""

    method: str
    result: dict[str, Any] | None
    error: str | None = None
    variant: str | None = None  # the name of a row that is not the method's main one


def chosen_methods(text: str, scenario: str) -> list[str]:
    """`all` that can learn the scenario, or names separated by commas."""
    if text.strip() == "all":
        return [name for name in methods() if supports(name, scenario)]
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        method_named(name)
    if not names:
        raise InputError("--methods is empty; give names separated by commas, or all.")
    return list(dict.fromkeys(names))


def finished(folder: Path, config: RunConfig, *, more_seeds: bool = False) -> dict[str, Any] | None:
    """The result already in a folder, if it is the one asked for; it may have `more_seeds` than asked for."""
    if not (folder / "result.json").exists():
        return None
    try:
        result = read_json(folder / "result.json")
    except IBPWFError:
        return None
    if not isinstance(result, dict) or not _seeds_fit(result.get("seeds"), config.seeds, more_seeds):
        return None
    return result if config.same_settings(result) else None


def _seeds_fit(seeds: object, wanted: Sequence[int], more: bool) -> bool:
    if not isinstance(seeds, list) or not all(isinstance(seed, int) for seed in seeds):
        return False
    return seeds == list(wanted) or (more and set(wanted) < set(seeds))


def compare(
    configs: Sequence[RunConfig],
    out: Path,
    *,
    jobs: int = 1,
    resume: bool = False,
    told: Callable[[Outcome, int, int], None] = lambda outcome, done, total: None,
    watch: Callable[[str], RunCallback] = lambda method: RunCallback(),
    engine: Engine | None = None,
) -> list[Outcome]:
    """Run every configuration that has not finished; a failed one is reported and does not stop the others. With an
    `engine`, or `jobs` processes of one, all of them run at once in its workers."""
    outcomes: dict[str, Outcome] = {}

    def note(outcome: Outcome) -> None:
        outcomes[outcome.method] = outcome
        told(outcome, len(outcomes), len(configs))

    waiting = []
    for config in configs:
        folder = out / config.folder_name()
        result = finished(folder, config)
        if result is not None:
            note(Outcome(config.method, result))
        elif (folder / "config.json").exists() and not resume:
            raise InputError(f"{folder} holds an unfinished or different run; add --resume, or choose another --out.")
        else:
            waiting.append(config)

    def ended(one: Run) -> None:
        note(Outcome(one.config.method, one.result or None, str(one.error) if one.error else None))

    runs = []
    for config in waiting:
        folder = out / config.folder_name()
        runs.append(Run(config, folder, command_of(config, folder), watch(config.method), ended))
    if engine is None and jobs > 1 and len(runs) > 1:
        engine = Processes(jobs)
    if engine is not None:
        run_all(runs, engine=engine, resume=True)
    for one in runs if engine is None else ():
        try:
            run_all([one], resume=True)
        except IBPWFError as error:
            one.fail(error)
    return [outcomes[config.method] for config in configs]


def command_of(config: RunConfig, folder: Path) -> str:
    """The command that runs this alone."""
    return "ibpwf " + shlex.join(config.command_line(folder))


def lengths(outcomes: Sequence[Outcome]) -> str:
    """Which methods were trained for another time than the paper says, in words; empty where none was."""
    found: dict[str, list[str]] = {}
    for outcome in outcomes:
        words = "" if outcome.result is None else _other_length(outcome.result)
        if words:
            found.setdefault(words, []).append(outcome.method)
    told = "; ".join(f"{', '.join(methods)} {words}" for words, methods in found.items())
    return f"Trained for another time than in the paper: {told}." if told else ""


def _other_length(result: Mapping[str, Any]) -> str:
    """By the settings a run had, whatever its preset says."""
    scenario, method, settings = (result.get(name) for name in ("scenario", "method", "settings"))
    if not isinstance(settings, Mapping) or scenario is None or method is None:
        return ""
    if target(scenario, "task", method) is None and target(scenario, "class", method) is None:
        return ""
    paper = preset(scenario, "paper", method).make_settings(method).to_json()
    now, then = (
        [one[name] for name in LENGTHS if one.get(name) not in (None, 0, "auto")] for one in (settings, paper)
    )
    if sum(now) == sum(then):
        return ""
    return f"{' + '.join(map(str, now))} epochs a task instead of the paper's {' + '.join(map(str, then))}"


def reproduces(ours: float, paper: Target) -> bool:
    """Within max(1.0, 3 × the paper's standard deviation) of the paper's mean, or better."""
    return ours >= paper.mean - tolerance(paper.std)


def floors(result: dict[str, Any]) -> dict[str, dict[str, float]]:
    """What to expect of a method that does nothing: guessing, and knowing only the last task."""
    classes = [len(task["classes"]) for task in result["tasks"]]
    guess = {"task": 100.0 * sum(1 / c for c in classes) / len(classes), "class": 100.0 / sum(classes)}
    last = {"task": guess["task"] + (100.0 - guess["task"]) / len(classes), "class": 100.0 / len(classes)}
    return {"guessing": guess, "only the last task": last}


def accuracy_after(result: dict[str, Any], setting: str, tasks: int) -> dict[str, Any]:
    """Spread over seeds of the mean accuracy of the first `tasks` tasks, right after they were learnt."""
    return spread([statistics.fmean(matrix[setting][tasks - 1][:tasks]) for matrix in result["matrix"]])


def rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """One row per method: ours, the paper's and the mark in both settings, memory and time."""
    table = []
    for outcome in outcomes:
        found = method_named(outcome.method)
        row: dict[str, Any] = {
            "method": outcome.variant or outcome.method,
            "stores": found.stores,
            "error": outcome.error,
        }
        for setting in SETTINGS:
            result = outcome.result
            ours = result["accuracy"][setting] if result else None
            whole = result is not None and any(result["paper"].values()) and outcome.variant is None
            paper = target(result["scenario"], setting, outcome.method) if result and whole else None
            row |= {
                f"{setting}_mean": ours["mean"] if ours else None,
                f"{setting}_std": ours["std"] if ours else None,
                f"{setting}_paper": paper.mean if paper else None,
                f"{setting}_paper_std": paper.std if paper else None,
            }
            judged, after = ours, None
            if result and ours and paper and paper.after_tasks:  # the paper's figure is of fewer tasks
                judged, after = accuracy_after(result, setting, paper.after_tasks), paper.after_tasks
            row |= {
                f"{setting}_after_tasks": after,
                f"{setting}_after_tasks_mean": judged["mean"] if after and judged else None,
                f"{setting}_difference": judged["mean"] - paper.mean if judged and paper else None,
                f"{setting}_reproduces": reproduces(judged["mean"], paper) if judged and paper else None,
            }
        if outcome.result:
            memory = outcome.result.get("memory")
            kept = None if memory is None else sum(size for kind, size in memory.items() if kind != "network")
            row |= {
                "memory_bytes": None if memory is None else sum(memory.values()),
                "kept_bytes": kept,
                "seconds": outcome.result["seconds"]["train"],
                "seeds": len(outcome.result["seeds"]),
                "command": outcome.result["command"],
                "commit": outcome.result["commit"],
            }
        table.append(row)
    return table


def number(mean: float | None, std: float | None) -> str:
    if mean is None:
        return "–"
    return f"{mean:.2f}" + (f" ± {std:.2f}" if std is not None else "")


def paper_number(row: dict[str, Any], setting: str) -> str:
    """The paper's figure, and ours where it is of fewer tasks."""
    text = number(row[f"{setting}_paper"], row[f"{setting}_paper_std"])
    if row[f"{setting}_after_tasks"] is None:
        return text
    return f"{text} after {row[f'{setting}_after_tasks']} tasks (ours {row[f'{setting}_after_tasks_mean']:.2f})"


def mark(passed: bool | None) -> str:
    return "" if passed is None else "✅" if passed else "❌"


def size(count: float | None) -> str:
    """Bytes for people."""
    if count is None:
        return "–"
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def markdown(table: Sequence[dict[str, Any]], outcomes: Sequence[Outcome]) -> str:
    """The comparison as a Markdown table with the floors beneath."""
    lines = [
        "| method | task: ours | paper | | class: ours | paper | | kept between tasks | training |",
        "|---|---:|---:|---|---:|---:|---|---:|---:|",
    ]
    for row in table:
        if row["error"]:
            lines.append(f"| {row['method']} | failed: {row['error']} | | | | | | | |")
            continue
        cells = [row["method"]]
        for setting in SETTINGS:
            cells += [
                number(row[f"{setting}_mean"], row[f"{setting}_std"]),
                paper_number(row, setting),
                mark(row[f"{setting}_reproduces"]),
            ]
        cells += [size(row["kept_bytes"]), f"{row['seconds']:.1f} s"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *floor_lines(outcomes)]) + "\n"


def floor_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """A newcomer must not take 20 % in the class setting for a bug."""
    result = next((o.result for o in outcomes if o.result), None)
    if result is None:
        return []
    lines = [
        f"A network that is {name if name == 'guessing' else 'right on ' + name} scores {values['task']:.1f} % "
        f"in the incremental-task and {values['class']:.1f} % in the incremental-class setting."
        for name, values in floors(result).items()
    ]
    return [*lines, "✅: within max(1.0, 3 × the paper's standard deviation) of the paper's mean, or better."]


def write_tables(out: Path, outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """comparison.json, .csv and .md."""
    table = rows(outcomes)
    result = next((outcome.result for outcome in outcomes if outcome.result), None)
    guessing = floors(result)["guessing"] if result else None
    write_json(out / "comparison.json", {"schema": 1, "rows": table, "guessing": guessing})
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(dict.fromkeys(key for row in table for key in row)))
    writer.writeheader()
    writer.writerows(table)
    write_text(out / "comparison.csv", text.getvalue())
    write_text(out / "comparison.md", markdown(table, outcomes))
    return table
