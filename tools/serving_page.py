"""The measured numbers in docs/serving.md, from the result file of benchmarks/serving.py.

`python -m tools.serving_page docs` writes them between two marks.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ibpwf.errors import InputError
from ibpwf.storage.files import read_json, write_text

BEGIN = "<!-- measured: made by `make results` -->"
END = "<!-- end of measured -->"
SIDE = "ibpwf serve"


def batching(sides: dict[str, Any], outputs: str, clients: str) -> float:
    """How many times the requests a second of one at a time."""
    together, alone = (sides[f"{SIDE}{how}{outputs}"][clients]["per_second"] for how in ("", ", one at a time"))
    return float(together / alone)


def paragraph(found: dict[str, Any]) -> str:
    sides, learning, made = found["sides"], found["learning"], found["environment"]
    clients = max(sides[SIDE], key=int)
    few, every = (f"{batching(sides, outputs, clients):.1f}" for outputs in ("", ", all outputs"))
    first, last = found["memory_mb"][0], found["memory_mb"][-1]
    idle, during, after = (
        f"{value:.0f}"
        for value in (learning["idle"]["p99_ms"], learning["during_p99_ms"], learning["after"]["p99_ms"])
    )
    requests = f"{found['memory_requests']:,}"
    return (
        f"On {made['cores']} cores, a model of {len(found['seeds']) - 1} tasks and {clients} clients, batching "
        f"answered {few} times as many requests a second as one at a time where label and probability were asked "
        f"for, and {every} times as many with all outputs. Memory was {first:,.0f} MB before {requests} requests and "
        f"{last:,.0f} MB after them. With four clients, the slowest hundredth of requests (p99) took {during} ms "
        f"while a task was learned over HTTP, {idle} ms before and {after} ms after it; {learning['other']} answers "
        "differed in a bit.\n\n"
        f"`{found['command']}`, commit {str(found['commit'])[:12]}, Python {made['python']}, torch {made['torch']}, "
        f"load {found['load'][0]:.1f} when it began ([all numbers](results/serving/README.md))."
    )


def with_numbers(page: str, found: dict[str, Any]) -> str:
    """The page with the numbers of a result file between its marks."""
    if BEGIN not in page or END not in page:
        raise InputError(f"serving.md has no lines '{BEGIN}' and '{END}' to put the numbers between.")
    start, rest = page.split(BEGIN, 1)
    return f"{start}{BEGIN}\n{paragraph(found)}\n{END}{rest.split(END, 1)[1]}"


def main(arguments: Sequence[str]) -> None:
    docs = Path(arguments[0])
    page = docs / "serving.md"
    found = read_json(docs / "results" / "serving" / "serving.json")
    write_text(page, with_numbers(page.read_text(encoding="utf-8"), found))


if __name__ == "__main__":
    main(sys.argv[1:])
