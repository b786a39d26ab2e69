"""The tables of docs/streams.md, from the result files of benchmarks/streams.py.

`python -m tools.streams_page docs`. What was not measured has a dash; a table of which nothing was is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ibpwf.storage.files import read_json, write_text

BEGIN, END = "<!-- streams: made by `make results` -->", "<!-- end of streams -->"
MODELS = {
    "ibpwf": "`ContinualClassifier(stream=True)`",
    "adaptive-random-forest": "river's adaptive random forest",
    "hoeffding-tree": "river's Hoeffding tree",
    "online-network": "a network trained online",
    "no-change": "the last label again",
}


def found(results: Path) -> list[dict[str, Any]]:
    return [read_json(path) for path in sorted((results / "streams").glob("*.json"))]


def tables(files: Sequence[dict[str, Any]]) -> list[str]:
    named: dict[str, dict[str, Any]] = {}
    for one in files:
        if "models" in one:
            named.setdefault(one["name"], {}).update(one["models"])
    named = {name: made for name, made in named.items() if "ibpwf" in made}  # else there is nothing to compare
    if not named:
        return []
    rows = {one["name"]: one["rows"] for one in files if "models" in one}
    head = (
        "| answers before learning, per cent right | " + " | ".join(f"{n} ({rows[n]:,} rows)" for n in named) + " |"
    )
    lines = [head, "|---|" + "---:|" * len(named)]
    for model, words in MODELS.items():
        cells = [f"{made[model]['accuracy']:.2f}" if model in made else "–" for made in named.values()]
        lines.append(f"| {words} | " + " | ".join(cells) + " |")
    return lines


def images(files: Sequence[dict[str, Any]]) -> list[str]:
    lines = [
        "",
        "| borders hidden | borders found | rows until found | false alarms | tasks | accuracy at the end | given |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for one in files:
        if "hidden" in one:
            made, given = one["hidden"], one.get("given")
            delays = ", ".join("–" if delay is None else str(delay) for delay in made["delays"])
            ends = [f"{made['accuracy']:.2f}", "" if given is None else f"{given['accuracy']:.2f}"]
            cells = [f"{made['found']} of {len(one['borders'])}", delays, made["false_alarms"], made["tasks"], *ends]
            lines.append(f"| {one['name']} ({one['rows']:,} rows) | " + " | ".join(map(str, cells)) + " |")
    return lines if any("hidden" in one for one in files) else []


def detectors(files: Sequence[dict[str, Any]]) -> list[str]:
    lines = [
        "",
        "| detector | error rate | errors come | alarms in a million rows | 20 points more: found, median delay |",
        "|---|---:|---|---:|---:|",
    ]
    for one in files:
        for line in one.get("detectors", []):
            come = "alone" if line["run"] == 1 else f"in runs of {line['run']}"
            late = "–" if line["median_delay"] is None else f"{line['median_delay']:.0f} rows"
            cells = [f"{line['rate']:.2f}", come, f"{line['alarms_per_million']:.0f}"]
            lines.append(f"| {line['detector']} | {' | '.join(cells)} | {line['found_of_20']} of 20, {late} |")
    return lines


def commands(files: Sequence[dict[str, Any]]) -> list[str]:
    made = [
        f"- {one['name']}: `{command}`, commit {str(one['commit'])[:12]}"
        for one in files
        for command in ([one["command"]] if isinstance(one["command"], str) else one["command"])
    ]
    river = {one["river"] for one in files if one["river"]}
    return ["", *made, "", f"One seed, CPU, river {', '.join(sorted(river)) or 'not installed'}."]


def with_tables(page: str, results: Path) -> str:
    start, _, rest = page.partition(BEGIN)
    _, _, end = rest.partition(END)
    files = found(results)
    lines = [*tables(files), *images(files), *detectors(files), *commands(files)]
    return f"{start}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{end}"


def main(arguments: Sequence[str]) -> None:
    docs = Path(arguments[0])
    page = docs / "streams.md"
    write_text(page, with_tables(page.read_text(encoding="utf-8"), docs / "results"))


if __name__ == "__main__":
    main(sys.argv[1:])
