"""Faults are tried by the thousand, and counted: how many, from which seed, and what went wrong."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

Tally = Callable[..., None]


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Tally:
    """`tally("kills at a write", tried, seed=3, lost=lost, wrong=wrong)`: say what was tried, and fail if anything
    of what follows is not 0. Where IBPWF_TALLY names a folder, the count is kept there for docs/reliability.md."""

    def count(what: str, tried: int, *, seed: int | None = None, **found: int) -> None:
        line = {"what": what, "tried": tried, "seed": seed, "found": found, "test": request.node.nodeid}
        print(json.dumps(line))
        if folder := os.environ.get("IBPWF_TALLY"):
            path = Path(folder) / f"tally-{os.getpid()}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write(json.dumps(line) + "\n")
        assert tried > 0, "nothing was tried"
        assert not any(found.values()), line

    return count
