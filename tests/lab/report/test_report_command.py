"""`ibpwf report`: the page and the PDF, and what prevents them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ibpwf.lab.report import pdf
from processes import Finished

Invoke = Callable[..., Finished]


def test_it_writes_the_page_and_says_what_is_missing_from_it(finished: Path, tmp_path: Path, invoke: Invoke) -> None:
    out = tmp_path / "page.html"
    done = invoke("report", finished, tmp_path / "absent", "-o", out)
    assert done.code == 0
    assert str(out) in done.out
    assert str(tmp_path / "absent") in done.err
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    told = json.loads(invoke("report", finished, "-o", out, "--json").out)
    assert told == {"html": str(out), "pdf": None, "experiments": 0, "comparisons": 0, "runs": 1}


def test_errors_name_the_path_and_leave_an_old_page_alone(finished: Path, tmp_path: Path, invoke: Invoke) -> None:
    out = tmp_path / "page.html"
    out.write_text("old")
    nowhere = tmp_path / "no" / "such" / "page.html"
    for words, named in (
        ((tmp_path / "absent", "-o", out), tmp_path / "absent"),
        ((finished, "-o", tmp_path), tmp_path),
        ((finished, "-o", nowhere), nowhere.parent),
        ((finished, "-o", tmp_path / "x.pdf", "--pdf"), tmp_path / "x.pdf"),
    ):
        done = invoke("report", *words)
        assert done.code == 2
        assert str(named) in done.err
    assert out.read_text() == "old"


def test_without_a_working_browser_the_page_is_written_and_the_pdf_is_an_error(
    finished: Path, tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = invoke("report", finished, "-o", tmp_path / "page.html", "--pdf")
    assert (done.code, (tmp_path / "page.html").exists()) == (2, True)
    broken = tmp_path / "chromium"
    broken.write_text("#!/bin/sh\necho sorry >&2\nexit 1\n")
    broken.chmod(0o755)
    done = invoke("report", finished, "-o", tmp_path / "page.html", "--pdf")
    assert done.code == 2
    assert "sorry" in done.err


@pytest.mark.skipif(pdf.find_browser() is None, reason="no Chromium or Chrome on the PATH")
def test_pdf(finished: Path, tmp_path: Path, invoke: Invoke) -> None:
    assert invoke("report", finished, "-o", tmp_path / "page.html", "--pdf").code == 0
    data = (tmp_path / "page.pdf").read_bytes()
    assert data.startswith(b"%PDF-")
    assert len(data) > 20_000
