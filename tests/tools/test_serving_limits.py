"""The numbers in docs/serving.md are those of the result file."""

from __future__ import annotations

import re
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from ibpwf.errors import InputError
from ibpwf.serving.limits import Limits
from ibpwf.storage.files import read_json, write_json
from tools import serving_page

DOCS = Path(__file__).parents[2] / "docs"


def test_the_committed_page_agrees_with_the_committed_result_file() -> None:
    page = (DOCS / "serving.md").read_text(encoding="utf-8")
    assert serving_page.with_numbers(page, read_json(DOCS / "results" / "serving" / "serving.json")) == page


def test_new_measurements_replace_what_was_written_before(tmp_path: Path) -> None:
    results = tmp_path / "results" / "serving"
    results.mkdir(parents=True)
    shutil.copy(DOCS / "serving.md", tmp_path)
    found = read_json(DOCS / "results" / "serving" / "serving.json")
    found["sides"]["ibpwf serve"]["256"]["per_second"] = 1234.0
    found["sides"]["ibpwf serve, one at a time"]["256"]["per_second"] = 100.0
    found["learning"] |= {"idle": {"p99_ms": 11.4}, "during_p99_ms": 17.6}
    found["memory_mb"] = [400.25, 512.25]
    write_json(results / "serving.json", found)
    serving_page.main([str(tmp_path)])
    text = (tmp_path / "serving.md").read_text(encoding="utf-8")
    for told in ("answered 12.3 times", "took 18 ms", "11 ms before", "was 400 MB before", "512 MB after"):
        assert told in text
    assert text.count(serving_page.BEGIN) == 1


def test_the_table_of_limits_has_every_limit_with_its_default() -> None:
    text = (
        (DOCS / "serving.md").read_text(encoding="utf-8").split("| limit | default | |\n", 1)[1].split("\n\n", 1)[0]
    )
    found: dict[str, float] = {}
    units = {"": 1, " MiB": 1 << 20, " GiB": 1 << 30}
    for line in text.splitlines()[1:]:
        _, names, values, *_ = (cell.strip() for cell in line.split("|"))
        for name, value in zip(names.split(", "), re.split(", (?! )", values), strict=True):
            number, unit = re.fullmatch(r"([0-9,]+|2²⁴)( MiB| GiB|)", value).groups()  # type: ignore[union-attr]
            found[name.strip("`")] = (1 << 24 if number == "2²⁴" else int(number.replace(",", ""))) * units[unit]
    assert found == asdict(Limits())


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(InputError, match="no lines"):
        serving_page.with_numbers("# Serving", {})
