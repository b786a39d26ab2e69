"""The counts in docs/reliability.md and docs/serving.md, from what `make test-faults` and `make test-serving` tried.

`python -m tools.reliability_page build/faults docs`: the record goes to docs/results/reliability/faults.json, its
table into the page. With `serving` as a third word they are those of the server."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ibpwf.lab.experiments.result import commit, environment
from ibpwf.storage.files import read_jsonl, write_json, write_text

END = "<!-- end of tally -->"


@dataclass(frozen=True)
class Place:
    """Where a record and its table go, and the command that makes them."""

    command: str
    page: str
    record: str

    @property
    def begin(self) -> str:
        return f"<!-- tally: made by `{self.command}` -->"


PLACES = {
    "faults": Place("make test-faults", "reliability.md", "results/reliability/faults.json"),
    "serving": Place("make test-serving", "serving.md", "results/serving/faults.json"),
}


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


def table(record: dict[str, Any], place: Place) -> str:
    lines = ["| what was tried | times | seeds | found |", "|---|---:|---|---|"]
    for row in record["faults"]:
        found = ", ".join(f"{count} {kind}" for kind, count in row["found"].items())
        seeds = ", ".join(map(str, row["seeds"])) or "–"
        lines.append(f"| {row['what']} | {row['tried']:,} | {seeds} | {found} |")
    made = record["environment"]
    lines += ["", f"`{record['command']}`, commit {str(record['commit'])[:12]}, Python {made['python']}, "]
    lines[-1] += f"torch {made['torch']}, {made['cores']} cores ([record]({place.record}))."
    return "\n".join(lines)


def with_table(page: str, record: dict[str, Any], place: Place) -> str:
    """The page with the record's table in its place."""
    start, _, rest = page.partition(place.begin)
    _, _, end = rest.partition(END)
    return f"{start}{place.begin}\n{table(record, place)}\n{END}{end}"


if __name__ == "__main__":
    tried, docs, place = Path(sys.argv[1]), Path(sys.argv[2]), PLACES[sys.argv[3] if sys.argv[3:] else "faults"]
    measured = {
        "command": place.command,
        "commit": commit(),
        "environment": environment("cpu"),
        "faults": gathered(tried),
    }
    write_json(docs / place.record, measured)
    page = docs / place.page
    write_text(page, with_table(page.read_text(encoding="utf-8"), measured, place))
