"""The code in the documentation runs as printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("page", ["data-files.md", "export.md", "models.md", "model-format.md", "python.md"])
def test_the_code_of_a_page_runs_from_top_to_bottom(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    assert blocks
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
        printed = capsys.readouterr().out.splitlines()
        claimed = re.findall(r"^print\(.*\)  # (.*)$", block, re.MULTILINE)
        for line, claim in zip(printed, claimed, strict=True):
            assert re.fullmatch(re.escape(claim).replace(r"\.\.\.", ".*"), line), line
