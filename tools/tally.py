"""The record of what `make test-faults` or `make test-serving` tried.

python -m tools.tally build/faults "make test-faults" docs/results/reliability/faults.json
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ibpwf.lab.experiments.result import commit, environment
from ibpwf.storage.files import read_jsonl, write_json


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


if __name__ == "__main__":
    folder, command, record = sys.argv[1:]
    about = {"command": command, "commit": commit(), "environment": environment("cpu")}
    write_json(record, {**about, "faults": gathered(Path(folder))})
