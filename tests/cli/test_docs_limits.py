"""The limits in docs/serving.md are those of the server."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

from ibpwf.serving.limits import Limits

DOCS = Path(__file__).parents[2] / "docs"


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
