"""docs/results/own-data/README.md, from the result files beside it.

`python -m tools.own_data_page docs`. What was not measured has a dash.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ibpwf.storage.files import read_json, write_text

TABLES = ("covertype-areas", "covertype-classes", "electricity", "weather", "covertype-whole")
HEAD = """# Own data, defaults untouched

Made by `make results` from the files beside this page, which `benchmarks/own_data.py` and
`benchmarks/image_folders.py` write. Accuracies are per cent of test rows, means over tasks and seeds, with the
standard deviation over seeds.
"""


def tables(files: Sequence[dict[str, Any]]) -> list[str]:
    lines = [
        "| table | tasks | seeds | task given | inferred | boosted trees per task | perceptron per task | "
        "trees jointly | best of ten settings, defaults on the same seeds |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for one in files:
        made, seeds = one["summary"], one["seeds"]
        spread = [f"{made[key]:.2f} ± {made[key + '_std']:.2f}" for key in ("given", "inferred")]
        others = [mean(seeds, name, key) for name, key in OTHERS]
        best, tuned = made.get("best_of_ten"), "–"
        if best is not None and "default" in best:
            tuned = f"{best['given']:.2f} (`{best['setting']}`), {best['default']:.2f}; {counted(best['seeds'])}"
        cells = [one["name"], len(seeds[0]["rows"]), len(seeds), *spread, *others, tuned]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


OTHERS = (("boosted-trees", "given"), ("perceptron", "given"), ("boosted-trees-jointly", "inferred"))


def counted(seeds: Sequence[int]) -> str:
    return f"{len(seeds)} seed{'s' * (len(seeds) != 1)}"


def mean(seeds: Sequence[dict[str, Any]], name: str, key: str) -> str:
    values = [one["others"][name][key] for one in seeds if name in one.get("others", {})]
    return f"{sum(values) / len(values):.2f}" if values else "–"


def images(files: Sequence[dict[str, Any]]) -> list[str]:
    lines = ["| images | recipe | seeds | task given | inferred |", "|---|---|---:|---:|---:|"]
    for one in files:
        cells = [f"{one[key]['mean']:.2f} ± {one[key]['std']:.2f}" for key in ("given", "inferred")]
        lines.append(f"| {one['data']} | {one['runs'][0]['recipe']} | {len(one['seeds'])} | {' | '.join(cells)} |")
    return lines


def costs(files: Sequence[dict[str, Any]]) -> list[str]:
    """Of runs on a machine of two cores: other processes beside them would make seconds say nothing."""
    lines = [
        "| on two cores | seconds of learning | of all processors | folder | rows |",
        "|---|---:|---:|---:|---:|",
    ]
    for one in files:
        if "summary" in one:
            made = one["summary"]
            sizes = [f"{made[key] / 1e6:.1f} MB" for key in ("folder_bytes", "rows_bytes")]
            cells = [one["name"], f"{made['seconds']:.0f}", f"{made['cpu_seconds']:.0f}", *sizes]
        else:
            run = one["runs"][0]
            used = f"{sum(sum(run['processor_seconds']) for run in one['runs']) / len(one['runs']):.0f}"
            size = f"{run['model_bytes'] / 1e6:.1f} MB"
            cells = [
                f"{one['data']}, recipe {run['recipe']}", f"{one['learning_seconds']['mean']:.0f}", used, size, "–"
            ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def commands(files: Sequence[dict[str, Any]]) -> list[str]:
    lines = []
    for one in files:
        command, where = one["command"], one["environment"]
        first, more = (command, 0) if isinstance(command, str) else (command[0], len(command) - 1)
        rest = f" and {more} more like it, by other processes" if more else ""
        machine = f"{where['cores']} cores, {where['threads']} threads, torch {where['torch']}"
        lines.append(f"- {one.get('name', one.get('data'))}: `{first}`{rest}; commit {one['commit'][:12]}; {machine}")
    return lines


def page(results: Path) -> str:
    folder = results / "own-data"
    found = {path.stem: read_json(path) for path in sorted(folder.glob("*.json"))}
    there = [found[name] for name in TABLES if name in found]
    shown = [one for one in found.values() if "runs" in one]
    quiet = [read_json(path) for path in sorted((folder / "two-cores").glob("*.json"))]
    parts = [tables(there) if there else [], images(shown) if shown else [], costs(quiet) if quiet else []]
    parts.append(commands([*there, *shown, *quiet]))
    return HEAD + "".join("\n" + "\n".join(part) + "\n" for part in parts if part)


def main(arguments: Sequence[str]) -> None:
    results = Path(arguments[0]) / "results"
    write_text(results / "own-data" / "README.md", page(results))


if __name__ == "__main__":
    main(sys.argv[1:])
