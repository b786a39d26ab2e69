"""The measured results as Markdown, made from `docs/results/*.json` and nothing else.

`python -m tools.results_page DOCS README` rewrites `DOCS/results/README.md`, `REPRODUCTION.md` beside
it, the tables between the marks in `DOCS/choosing.md` and the one in the README; with `--check` it only says
whether they are up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ibpwf.errors import InputError, run_program
from ibpwf.lab.experiments.compare import Outcome, lengths, markdown, rows
from ibpwf.lab.experiments.paper import tolerance
from ibpwf.lab.experiments.presets import supports
from ibpwf.lab.methods import methods
from ibpwf.lab.report.result_files import read_outcomes, read_results, title
from ibpwf.storage.files import write_text
from tools.choosing_page import named, with_tables
from tools.recorded_command import present_changes, present_command
from tools.reproduction_page import reproduction_page

BEGIN, END = "<!-- results: made by `make results` -->", "<!-- end of results -->"
SETTINGS = (("task", "task given"), ("class", "task inferred"), ("task-inference", "task inference"))


def _spread(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return "–"
    return f"{entry['mean']:.2f}" + (f" ± {entry['std']:.2f}" if entry.get("std") is not None else "")


def _ours(result: dict[str, Any], setting: str) -> dict[str, Any] | None:
    if setting == "task-inference":
        found: dict[str, Any] | None = result["task_inference"]
        return found
    entry: dict[str, Any] | None = result["accuracy"].get(setting)
    return entry


def _otherwise(result: dict[str, Any]) -> str:
    """What tells a run from the one with the paper's settings; a table may have both."""
    other = [f"preset {result['preset']}"] if result["preset"] != "paper" else []
    other += present_changes(result)
    return f" ({', '.join(other)})" if other else ""


def read_comparisons(folder: Path) -> dict[str, list[Outcome]]:
    """Every sub-folder `compare-…` of results as one comparison of methods."""
    parts = sorted(path for path in folder.glob("compare-*") if path.is_dir())
    found = {part.name: [outcome for _, outcome in read_outcomes(part)] for part in parts}
    return {name: outcomes for name, outcomes in found.items() if outcomes}


def comparison(name: str, outcomes: list[Outcome]) -> list[str]:
    """One comparison: the table, what is missing, and the conditions."""
    first = outcomes[0].result
    assert first is not None
    marks = [row[f"{s}_reproduces"] for row in rows(outcomes) for s in ("task", "class")]
    judged = [mark for mark in marks if mark is not None]
    able = [method for method in methods() if supports(method, first["scenario"])]
    missing = [method for method in able if method not in {o.method for o in outcomes}]
    found = [outcome.result for outcome in outcomes if outcome.result is not None]
    where = sorted({f"{r['environment']['device']} with torch {r['environment']['torch']}" for r in found})
    commits = sorted({str(r["commit"]) for r in found})
    length = lengths([named(outcome) for outcome in outcomes])
    told = f" {length}" if length else ""
    return [
        f"## {title(name, first['scenario'])}",
        "",
        markdown(rows(outcomes), outcomes),
        f"{sum(judged)} of {len(judged)} of the paper's rows ✅. {len(first['seeds'])} seeds; {', '.join(where)}; "
        f"commits {', '.join(commits)}. Training times of different devices do not compare.{told} "
        f"Each file in `{name}/` holds its command, settings, commit and device.",
        *([f"Not measured yet: {', '.join(missing)}."] if missing and name == f"compare-{first['scenario']}" else []),
        "",
    ]


def table(results: list[tuple[str, dict[str, Any]]]) -> str:
    """One row per run and setting: ours, the paper's, the difference, a mark, the command."""
    lines = ["| | ours | paper | difference | | seeds | command |", "|---|---:|---:|---:|---|---:|---|"]
    for _, result in results:
        for setting, words in SETTINGS:
            ours, paper = _ours(result, setting), result["paper"].get(setting)
            if ours is None:
                continue
            difference = f"{ours['mean'] - paper['mean']:+.2f}" if paper else ""
            mark = ("✅" if ours["mean"] >= paper["mean"] - tolerance(paper["std"]) else "❌") if paper else ""
            what = f"{result['scenario']}, {result['method']}{_otherwise(result)}, {words}"
            lines.append(
                f"| {what} | {_spread(ours)} | {_spread(paper)} | {difference} | {mark} "
                f"| {len(result['seeds'])} | `{present_command(result['command'])}` |"
            )
    return "\n".join(lines)


def page(results: list[tuple[str, dict[str, Any]]], comparisons: dict[str, list[Outcome]]) -> str:
    """The whole page: the table, then each file with its conditions."""
    parts = [
        "# Measured results",
        "",
        "Made by `make results` from the files beside this page, each of them the `result.json` of the command in "
        "its row. Accuracies are percentages, mean ± standard deviation over seeds; ✅ means within max(1.0, 3 × the "
        "paper's standard deviation) of the paper's mean, or better.",
        "",
        table(results),
        "",
    ]
    for name, outcomes in comparisons.items():
        parts += comparison(name, outcomes)
    for name, result in results:
        env, seconds = result["environment"], result["seconds"]
        last = [matrix["task"][-1] for matrix in result["matrix"] if matrix["task"]]
        per_task = [sum(column) / len(column) for column in zip(*last, strict=True)]
        parts += [
            f"## `{name}`",
            "",
            f"- Command: `{present_command(result['command'])}`",
            f"- Commit {result['commit']}; ibpwf {env['ibpwf']}, Python {env['python']}, torch {env['torch']}, "
            f"{env['device']}, {env['cores']} cores",
            f"- Seeds {', '.join(map(str, result['seeds']))}; {seconds['train']:.1f} s training, "
            f"{seconds['eval']:.1f} s evaluation, {result['samples_per_second']:,.0f} training examples/s",
            f"- Accuracy by task, task given, mean over seeds: {', '.join(f'{v:.2f}' for v in per_task)}",
            f"- Forgetting {_spread(result['forgetting'])}; {result['parameters']['mean']:,.0f} numbers stored",
            *([f"- Preset: {result['note']}"] if result["note"] else []),
            "",
        ]
    return "\n".join(parts)


def with_table(text: str, results: list[tuple[str, dict[str, Any]]]) -> str:
    """The README with its marked part replaced."""
    if BEGIN not in text or END not in text:
        raise InputError(f"the README has no lines '{BEGIN}' and '{END}' to put the table between.")
    head, rest = text.split(BEGIN, 1)
    return head + BEGIN + "\n" + table(results) + "\n" + END + rest.split(END, 1)[1]


def main(arguments: list[str]) -> int:
    check = "--check" in arguments
    places = [Path(argument) for argument in arguments if argument != "--check"]
    if len(places) != 2:
        raise InputError(f"{len(places)} paths were given; give two, the folder of documents and the README.")
    docs, readme = places
    for path in (docs / "results", docs / "choosing.md", readme):
        if not path.exists():
            raise InputError(f"there is no {path}; give the folder of documents and the README, in this order.")
    results = read_results(docs / "results")
    comparisons = read_comparisons(docs / "results")
    wanted = {docs / "results" / "README.md": page(results, comparisons)}
    wanted[docs / "results" / "REPRODUCTION.md"] = reproduction_page(docs / "results")
    choosing = docs / "choosing.md"
    wanted[choosing] = with_tables(choosing.read_text(encoding="utf-8"), comparisons)
    wanted[readme] = with_table(readme.read_text(encoding="utf-8"), results)
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if check:
        for path in stale:
            sys.stderr.write(f"{path} does not agree with docs/results; run `make results`.\n")
        return 1 if stale else 0
    for path in stale:
        write_text(path, wanted[path])
    return 0


if __name__ == "__main__":
    run_program(main)
