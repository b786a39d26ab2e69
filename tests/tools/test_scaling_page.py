"""The page of how cost grows, from result files made here."""

from __future__ import annotations

from pathlib import Path

import pytest

from ibpwf.storage.files import write_json
from tools import scaling_page


def test_the_exponent_is_that_of_the_power_law_at_large_sizes() -> None:
    sizes = [1, 10, 100, 300, 1_000]
    assert scaling_page.exponent(sizes, [7.0, 9.0, *(2 * s**1.5 for s in sizes[2:])]) == pytest.approx(1.5)
    assert scaling_page.exponent([10], [1.0]) is None


def test_the_page_has_a_table_for_every_axis_that_was_measured(tmp_path: Path) -> None:
    times = {"learn_seconds": 0.5, "given_seconds": 2e-3, "inferred_seconds": 1.0, "load_seconds": 1.0}
    rows = [
        {"size": n, **times, "folder_bytes": n * 5e6, "peak_bytes": 4e8, "accuracy": 96.1, "manifest_bytes": n * 600}
        for n in (1, 100, 1_000)
    ]
    has = {"machine": "x86_64", "threads": 2, "cores": 2, "torch": "2.13", "python": "3.11"}
    made = {"axis": "tasks", "what": "Small ones.", "environment": has}
    made["commands"] = [{"command": "python b.py", "commit": "abc"}]
    results = tmp_path / "results" / "scaling"
    results.mkdir(parents=True)
    write_json(results / "tasks.json", {**made, "rows": rows})
    step = {"seconds": 12.3, "cpu_seconds": 20.0, "peak_rss_gb": 0.71, "command": "ibpwf learn model big"}
    names = ("learn", "predict", "evaluate", "learn tenth in memory", "learn tenth on disk")
    of_tenth = {"accuracy_of_a_tenth_in_memory": 69.0, "accuracy_of_a_tenth_on_disk": 69.25}
    table = {"summary": {"rows": 1000, "parquet_bytes": 2e6, "accuracy": 70.5, **of_tenth}}
    whole = {"environment": {**has, "device": "cpu", "load": 1.5}, "command": "python c.py", "commit": "abc"}
    write_json(results / "big-table.json", {**whole, **table, "steps": dict.fromkeys(names, step)})
    found = {"per_second": {"1 process": 50.0, "2 processes": 90.0}}
    right = {"one": [90.0, 92.0], "several": [91.0, 92.0], "difference": 0.5, "standard_error": 0.5}
    ranks = {"network": "Wide", "seeds": 2, "processes": 2, "summary": {**found, "accuracy": {"Small": right}}}
    write_json(results / "ranks.json", {**whole, **ranks})
    ways = {"memory": {"per_second": 100.0}, "path": {"per_second": 99.0}}
    summary = {"files": 10, "of_memory": {"path": 0.99}}
    write_json(results / "image-files.json", {**whole, "summary": summary, "ways": ways})
    assert scaling_page.main([str(tmp_path)]) == 0
    text = (tmp_path / "scaling.md").read_text(encoding="utf-8")
    assert "| 1,000 | 0.5 | 2 | 1,000 | 1,000 | 5,000 | 400 | 96.1 |" in text
    assert "| exponent | 0.00 | 0.00 | 0.00 | 0.00 | 1.00 | 0.00 |  |" in text
    assert "| folder | 500,000 MB | 5,000,000 MB |" in text
    assert "| 200 rows, task inferred | 100,000 ms | 1,000,000 ms |" in text
    assert "A folder takes 100,000 tasks and a manifest of 256 MiB" in text
    assert "Here a task takes 600 bytes of it." in text
    assert "## Rows" not in text
    assert "| `ibpwf learn model big` | 12 | 20 | 0.71 |" in text
    assert "from a tenth on disk 69.25 %" in text
    assert "| 2 processes | 90 |" in text
    assert "| Small | 91.00 ± 1.41 | 91.50 ± 0.71 | +0.50 ± 0.50 |" in text
    assert "| path | 99 | 99 % |" in text


def test_without_measurements_it_says_what_to_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert scaling_page.main([str(tmp_path)]) == 2
    assert "run benchmarks/scaling.py first" in capsys.readouterr().err
