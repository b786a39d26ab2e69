"""`ibpwf report`: what a user at a terminal sees."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from ibpwf.cli.report import report_command
from ibpwf.errors import InputError, StoreError
from ibpwf.lab.report import pdf


def run(*arguments: object) -> Result:
    app = typer.Typer()
    app.command("report")(report_command)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_it_writes_the_page_and_says_where(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    done = run(finished, "-o", out)
    assert done.exit_code == 0
    assert done.output == f"Report of 1 run: {out}\n"
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_what_is_left_out_is_said_on_the_terminal(finished: Path, tmp_path: Path) -> None:
    done = run(finished, tmp_path / "absent", "-o", tmp_path / "page.html")
    assert done.exit_code == 0
    assert f"warning: {tmp_path / 'absent'} is left out" in done.stderr


def test_errors_leave_an_old_page_alone(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    out.write_text("old")
    assert isinstance(run(tmp_path / "absent", "-o", out).exception, InputError)
    assert out.read_text() == "old"


def test_a_folder_as_output_is_refused(finished: Path, tmp_path: Path) -> None:
    error = run(finished, "-o", tmp_path).exception
    assert isinstance(error, InputError)
    assert "is a folder" in str(error)
    assert isinstance(run(finished, "-o", tmp_path / "no" / "such" / "page.html").exception, StoreError)


def test_pdf_without_a_browser_says_what_to_do(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    error = run(finished, "-o", tmp_path / "page.html", "--pdf").exception
    assert isinstance(error, InputError)
    assert "Install one" in str(error)
    assert (tmp_path / "page.html").exists()


def test_pdf_from_a_browser_that_fails_is_an_error(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "chromium"
    broken.write_text("#!/bin/sh\necho sorry >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    error = run(finished, "-o", tmp_path / "page.html", "--pdf").exception
    assert isinstance(error, StoreError)
    assert "sorry" in str(error)


@pytest.mark.skipif(pdf.find_browser() is None, reason="no Chromium or Chrome on the PATH")
def test_pdf(finished: Path, tmp_path: Path) -> None:
    done = run(finished, "-o", tmp_path / "page.html", "--pdf")
    assert done.exit_code == 0
    data = (tmp_path / "page.pdf").read_bytes()
    assert data.startswith(b"%PDF-")
    assert len(data) > 20_000
