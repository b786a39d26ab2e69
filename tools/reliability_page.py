"""The counts in docs/reliability.md, from what `make test-faults` tried.

`python -m tools.reliability_page build/faults docs`: the record goes to docs/results/reliability/faults.json, its
table into the page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ibpwf.lab.experiments.result import commit, environment
from ibpwf.storage.files import read_jsonl, write_json, write_text

BEGIN, END = "<!-- tally: made by `make test-faults` -->", "<!-- end of tally -->"


def gathered(folder: Path) -> list[dict[str, Any]]:
    """A row for each kind of fault: how often it was tried, from which seeds, and what was found."""
    rows: dict[str, dict[str, Any]] = {}
    files = sorted(folder.glob("tally-*.jsonl"), key=lambda path: path.stat().st_mtime)
    lines = [line for path in files for line in read_jsonl(path)]
    latest = {(line["test"], line["what"]): line for line in lines}  # a test that was run again counts once
    for line in latest.values():
        row = rows.setdefault(line["what"], {"what": line["what"], "tried": 0, "seeds": [], "found": {}})
        row["tried"] += line["tried"]
        if line["seed"] is not None:
            row["seeds"] = sorted({*row["seeds"], line["seed"]})
        for kind, count in line["found"].items():
            row["found"][kind] = row["found"].get(kind, 0) + count
    return [rows[what] for what in sorted(rows)]


def table(record: dict[str, Any]) -> str:
    lines = ["| what was tried | times | seeds | found |", "|---|---:|---|---|"]
    for row in record["faults"]:
        found = ", ".join(f"{count} {kind}" for kind, count in row["found"].items())
        seeds = ", ".join(map(str, row["seeds"])) or "–"
        lines.append(f"| {row['what']} | {row['tried']:,} | {seeds} | {found} |")
    made = record["environment"]
    lines += ["", f"`{record['command']}`, commit {str(record['commit'])[:12]}, Python {made['python']}, "]
    lines[-1] += f"torch {made['torch']}, {made['cores']} cores ([record](results/reliability/faults.json))."
    return "\n".join(lines)


def with_table(page: str, record: dict[str, Any]) -> str:
    """The page with the record's table in its place."""
    start, _, rest = page.partition(BEGIN)
    _, _, end = rest.partition(END)
    return f"{start}{BEGIN}\n{table(record)}\n{END}{end}"


if __name__ == "__main__":
    tried, docs = Path(sys.argv[1]), Path(sys.argv[2])
    measured = {
        "command": "make test-faults",
        "commit": commit(),
        "environment": environment("cpu"),
        "faults": gathered(tried),
    }
    write_json(docs / "results" / "reliability" / "faults.json", measured)
    page = docs / "reliability.md"
    write_text(page, with_table(page.read_text(encoding="utf-8"), measured))
