"""`ibpwf report`: one self-contained HTML page (and PDF) from run folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ibpwf.errors import InputError


def report_command(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Run folders, or folders that hold run folders."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The HTML file to write.")] = Path(
        "report.html"
    ),
    pdf: Annotated[bool, typer.Option("--pdf", help="Print it to a PDF beside it too (needs Chromium).")] = False,
) -> None:
    """Write one HTML page with the results, figures and settings of run folders."""
    from ibpwf import store
    from ibpwf.report.page import make_page
    from ibpwf.report.pdf import write_pdf

    if out.is_dir():
        raise InputError(f"--out is {out}, which is a folder; give the file to write, such as {out / 'report.html'}.")
    if pdf and out.suffix.lower() == ".pdf":
        raise InputError(f"--out is {out}; give the HTML file, --pdf writes the PDF beside it.")
    page = make_page(folders)
    for problem in page.problems:
        typer.echo(f"warning: {problem}", err=True)
    store.write_text(out, page.html)
    runs = f"{len(page.runs)} run{'s' * (len(page.runs) != 1)}"
    typer.echo(f"Report of {runs}: {out}")
    if pdf:
        typer.echo(f"PDF: {write_pdf(out, out.with_suffix('.pdf'))}")
